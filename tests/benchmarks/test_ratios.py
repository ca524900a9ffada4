"""The file of ratios: which rows are stored, and which differences count as losses."""

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


def test_loss_of_more_than_a_tenth_is_reported_with_both_ratios():
    (line,) = lost([replace(ROW, value=516.0)], {ROW.key: ROW})
    assert line.startswith("LOST 14%: decode: base, batch 1, greedy, int8 vs CTranslate2 int8")
    assert "2.58x, it was 3.00x on 2026-11-15 at abc" in line


@pytest.mark.parametrize("value", [541.0, 600.0, 900.0])
def test_gain_and_loss_of_less_than_a_tenth_are_not_reported(value):
    assert lost([replace(ROW, value=value)], {ROW.key: ROW}) == []


def test_equal_slowdown_of_the_peer_is_not_a_loss():
    assert lost([replace(ROW, value=60.0, peer_value=20.0)], {ROW.key: ROW}) == []


@pytest.mark.parametrize("other", ["hardware", "dtype", "peer", "work", "device", "benchmark"])
def test_rows_of_other_work_or_hardware_are_not_compared(other):
    assert lost([replace(ROW, value=1.0, **{other: "another"})], {ROW.key: ROW}) == []


def test_lower_is_better_for_seconds_bytes_and_exponents():
    for unit in ("s", "ms", "GiB"):
        assert replace(ROW, unit=unit, value=2.0, peer_value=4.0).ratio == 2.0
    linear = replace(ROW, unit="exponent", value=1.0, peer_value=1.0)
    assert linear.ratio == 1.0
    assert lost([replace(linear, value=2.0)], {ROW.key: linear})
    assert lost([replace(linear, value=0.0)], {ROW.key: linear}) == []


def test_file_has_one_line_per_row_and_reads_back_unchanged(tmp_path):
    file = tmp_path / "ratios.json"
    rows = [ROW, replace(ROW, peer="Hugging Face float32", of_limit=None)]
    write(rows, file)
    assert read(file) == {row.key: row for row in rows}
    assert len(file.read_text().splitlines()) == len(rows) + 2
    assert json.loads(file.read_text())[0]["ratio"] == 3.0


def test_storing_replaces_only_the_rows_of_the_run(options, capsys):
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


def test_run_without_keep_fails_on_a_loss_and_changes_no_file(options, capsys):
    write([ROW], options.ratios)
    options.keep = False
    log = RatioLog("decode", [], options, "cpu")
    log.hardware = ROW.hardware
    log.add(ROW.work, ROW.dtype, 100.0, "tokens/s", ROW.peer, 100.0, 0.25)
    assert log.close() == 1
    assert "LOST 67%" in capsys.readouterr().out
    assert read(options.ratios) == {ROW.key: ROW}


def test_stored_command_omits_the_output_file():
    words = ["--ratios", "/somewhere/x.json", "--peers", "huggingface", "--keep"]
    assert command("decode", words) == "python -m benchmarks decode --peers huggingface"


def test_stored_command_omits_the_data_folder(monkeypatch):
    monkeypatch.setenv("REGARD_DATA", "/home/me/data")
    words = ["--data", "/home/me/data/test.en"]
    assert command("precision", words).endswith("precision --data $REGARD_DATA/test.en")


def test_stored_rows_are_complete():
    assert all(row.ratio > 0 and row.command and row.date for row in read(ratios.FILE).values())
