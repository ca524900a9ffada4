"""The file of ratios: what is kept, and what counts as lost."""

import argparse
import json
from dataclasses import replace

import pytest

from benchmarks import ratios
from benchmarks.ratios import RatioLog, Row, command, lost, read, write

ROW = Row(
    "decode", "base, batch 1, greedy", "int8", "CTranslate2 int8", "cpu", "2 cores", 600.0, 200.0,
    "tokens/s", 0.3, "2026-11-15", "abc", "torch 2", "python -m benchmarks decode",
)  # fmt: skip


@pytest.fixture
def options(tmp_path):
    return argparse.Namespace(keep=True, ratios=tmp_path / "ratios.json", threads=None)


def test_a_ratio_that_loses_more_than_a_tenth_is_said_with_both_ratios():
    (line,) = lost([replace(ROW, value=516.0)], {ROW.key: ROW})
    assert line.startswith("LOST 14%: decode: base, batch 1, greedy, int8 vs CTranslate2 int8")
    assert "2.58x, it was 3.00x on 2026-11-15 at abc" in line


@pytest.mark.parametrize("value", [541.0, 600.0, 900.0])
def test_a_loss_of_less_than_a_tenth_and_a_gain_are_not_said(value):
    assert lost([replace(ROW, value=value)], {ROW.key: ROW}) == []


def test_a_slower_machine_that_slows_the_peer_as_well_loses_nothing():
    assert lost([replace(ROW, value=60.0, peer_value=20.0)], {ROW.key: ROW}) == []


@pytest.mark.parametrize("other", ["hardware", "dtype", "peer", "work", "device", "benchmark"])
def test_rows_of_other_work_or_hardware_are_not_compared(other):
    assert lost([replace(ROW, value=1.0, **{other: "another"})], {ROW.key: ROW}) == []


def test_of_seconds_and_bytes_and_exponents_less_is_better():
    for unit in ("s", "ms", "GiB"):
        assert replace(ROW, unit=unit, value=2.0, peer_value=4.0).ratio == 2.0
    linear = replace(ROW, unit="exponent", value=1.0, peer_value=1.0)
    assert linear.ratio == 1.0
    assert lost([replace(linear, value=2.0)], {ROW.key: linear})
    assert lost([replace(linear, value=0.0)], {ROW.key: linear}) == []


def test_what_is_written_is_read_again_one_line_a_row(tmp_path):
    file = tmp_path / "ratios.json"
    rows = [ROW, replace(ROW, peer="Hugging Face float32", of_limit=None)]
    write(rows, file)
    assert read(file) == {row.key: row for row in rows}
    assert len(file.read_text().splitlines()) == len(rows) + 2
    assert json.loads(file.read_text())[0]["ratio"] == 3.0


def test_keeping_replaces_the_rows_of_the_run_and_no_others(options, capsys):
    write([ROW, replace(ROW, work="other")], options.ratios)
    log = RatioLog("decode", ["--keep", "--batches", "1"], options, "cpu")
    log.hardware = ROW.hardware
    log.add(ROW.work, ROW.dtype, 500.0, "tokens/s", ROW.peer, 100.0, 0.25)
    assert log.close() == 0
    stored = read(options.ratios)
    assert stored[ROW.key].ratio == 5.0
    assert stored[ROW.key].command == "python -m benchmarks decode --batches 1"
    assert len(stored) == 2
    assert "1 rows stored" in capsys.readouterr().out


def test_a_run_that_is_not_kept_fails_for_what_it_lost_and_changes_nothing(options, capsys):
    write([ROW], options.ratios)
    options.keep = False
    log = RatioLog("decode", [], options, "cpu")
    log.hardware = ROW.hardware
    log.add(ROW.work, ROW.dtype, 100.0, "tokens/s", ROW.peer, 100.0, 0.25)
    assert log.close() == 1
    assert "LOST 67%" in capsys.readouterr().out
    assert read(options.ratios) == {ROW.key: ROW}


def test_a_command_says_nothing_of_where_its_rows_were_kept():
    words = ["--ratios", "/somewhere/x.json", "--peers", "huggingface", "--keep"]
    assert command("decode", words) == "python -m benchmarks decode --peers huggingface"


def test_a_command_does_not_say_where_the_data_lies_on_this_machine(monkeypatch):
    monkeypatch.setenv("REGARD_DATA", "/home/me/data")
    words = ["--data", "/home/me/data/test.en"]
    assert command("precision", words).endswith("precision --data $REGARD_DATA/test.en")


def test_the_rows_that_are_kept_here_are_whole():
    assert all(row.ratio > 0 and row.command and row.date for row in read(ratios.FILE).values())
