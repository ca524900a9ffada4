"""Programs are compared only if they did the same work, and each with its hardware limit."""

import argparse
import itertools
import os
from functools import partial

import pytest
import torch

from benchmarks import decoder_programs, encoder_programs
from benchmarks.compare import Cell, Entrant, all_started, available, busy_others, compare, turns
from benchmarks.encoders import BATCH, LONGEST, encoder_config, sentences
from benchmarks.generators import gpt2_small
from benchmarks.limits import Limit, decoding_limit, weights_of_a_step
from benchmarks.processes import started
from benchmarks.programs import END, entrants
from benchmarks.ratios import RatioLog
from regard import ModelConfig, Transformer

OURS = Entrant("regard", "float32", str, ())
PEER = Entrant("CTranslate2", "int8", str, ())
TWO = Entrant("CTranslate2", "int8", str, (), workers=2)
OUTPUTS = [[5, 6], [7, 8]]


def fake_program(outputs, seconds):
    """A program that returns fixed outputs and times."""
    times = iter(seconds * 100)
    return lambda *request: (outputs, next(times))


def cell(**changes):
    values = {
        "work": "tiny, batch 2, greedy",
        "request": (),
        "tokens": 4,
        "check": partial(decoder_programs.wrong, batch=2, length=2),
        "limits": {"float32": 100.0, "int8": 400.0},
    }
    return Cell(**values | changes)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    for name in ("SPIN", "PAUSE"):
        monkeypatch.setattr(f"benchmarks.compare.{name}", 0.0)
    monkeypatch.setattr("benchmarks.compare.ticks", lambda: (0, 0))
    monkeypatch.setattr("benchmarks.compare.ENOUGH", 0.0)


@pytest.fixture
def log(tmp_path):
    options = argparse.Namespace(keep=False, ratios=tmp_path / "ratios.json")
    return RatioLog("decode", [], options, "cpu")


# ---- the same work --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outputs", [[[5, 6]], [[5, 6], [7]], [[5, 6], [7, 8, 9]], [[5, END], [7, 8]], [["5", "2"], ["7", "8"]]]
)  # fmt: skip
def test_outputs_of_wrong_length_or_with_an_end_token_are_refused_by_name(outputs):
    programs = {OURS: fake_program(OUTPUTS, [1.0]), PEER: fake_program(outputs, [1.0])}
    with pytest.raises(SystemExit, match="CTranslate2 int8 did different work than tiny, batch 2"):
        turns(cell(), programs, repeats=1)


def test_the_same_work_is_accepted_as_ids_and_as_words():
    for outputs in (OUTPUTS, [["5", "6"], ["7", "8"]]):
        times, _ = turns(cell(), {OURS: fake_program(outputs, [1.0])}, repeats=3)
        assert times == {OURS: [1.0] * 3}


@pytest.mark.parametrize("output", [([3, 2], 8), ([3, 3], 4), ([3], 8), ([], 8)])
def test_vectors_of_wrong_number_or_width_are_refused(output):
    assert encoder_programs.wrong(([3, 3], 8), [3, 3], 8) is None
    assert "expected 6 vectors of 8 numbers" in encoder_programs.wrong(output, [3, 3], 8)


def test_padding_of_an_output_is_not_counted():
    tokens, mask = encoder_programs.padded([[5, 6, 7], [8]])
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert encoder_programs.covered(mask, (2, 3, 16)) == ([3, 1], 16)


def test_encoder_sentences_have_the_stated_share_of_real_tokens():
    lengths = [len(sentence) for sentence in sentences(30_522)]
    assert (len(lengths), max(lengths)) == (BATCH, LONGEST)
    assert round(sum(lengths) / (BATCH * LONGEST), 2) == 0.39
    assert sentences(30_522) == sentences(30_522)


# ---- from times to rows --------------------------------------------------------------


def test_a_row_has_both_speeds_and_the_fraction_of_its_own_precisions_limit(log, capsys):
    compare(
        cell(), {OURS: fake_program(OUTPUTS, [0.1]), PEER: fake_program(OUTPUTS, [0.2])}, 2, log
    )
    (row,) = log.rows
    assert (row.value, row.peer_value, row.ratio, row.of_limit) == (40.0, 20.0, 2.0, 0.4)
    assert (row.work, row.dtype, row.peer) == (
        "tiny, batch 2, greedy",
        "float32",
        "CTranslate2 int8",
    )
    assert "regard float32 is 2.00x CTranslate2 int8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ours", "peer"),
    [([0.1], [0.1, 0.2, 0.25]), ([0.1, 0.1, 0.3], [0.2]), ([0.03], [0.2])],
    ids=["uneven times of the peer", "uneven times of regard", "faster than the limit"],
)
def test_measurement_on_a_busy_machine_is_discarded(log, capsys, ours, peer):
    compare(cell(), {OURS: fake_program(OUTPUTS, ours), PEER: fake_program(OUTPUTS, peer)}, 3, log)
    assert log.rows == []
    assert "NOISY" in capsys.readouterr().out


def test_no_row_is_reported_while_other_processes_use_the_cores(log, capsys, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("benchmarks.compare.ticks", lambda: (next(clock) * 2, next(clock)))
    programs = {OURS: fake_program(OUTPUTS, [0.1]), PEER: fake_program(OUTPUTS, [0.2])}
    compare(cell(), programs, 3, log)
    assert log.rows == []
    assert "NOISY: other processes used" in capsys.readouterr().out


def test_own_processor_time_does_not_count_as_other_load(monkeypatch):
    second = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr("benchmarks.compare.ticks", lambda: (3 * second, second))
    assert busy_others((0, 0), own=2.0) == 0.25
    assert busy_others((0, 0), own=3.0) == 0.0


def test_one_sentence_is_not_split_between_two_workers(log):
    programs = {OURS: fake_program(OUTPUTS, [0.1]), TWO: fake_program(OUTPUTS, [0.1])}
    compare(cell(workers=1), programs, 1, log)
    assert log.rows == []
    compare(cell(workers=2), programs, 1, log)
    assert [row.peer for row in log.rows] == ["CTranslate2 int8, two workers"]


# ---- the programs ---------------------------------------------------------------------------


def test_every_precision_of_regard_and_its_peers_is_compared():
    options = argparse.Namespace(dtype=["float32", "bfloat16", "int8"], device="cpu", threads=2)
    config = ModelConfig.preset("tiny", vocabulary_size=100)
    peers = ["huggingface", "ctranslate2", "pytorch"]
    chosen = entrants(config, decoder_programs.TRANSLATORS, peers, "folder", options)
    assert [entrant.label for entrant in chosen] == [
        "regard float32", "regard bfloat16", "regard int8",
        "Hugging Face float32", "Hugging Face bfloat16",
        "CTranslate2 float32", "CTranslate2 int8", "CTranslate2 int8, two workers",
        "regard by PyTorch float32", "regard by PyTorch bfloat16",
    ]  # fmt: skip


def test_a_peer_that_is_not_installed_is_skipped_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.compare.find_spec", lambda name: None)
    assert available(["ctranslate2", "pytorch"], "cpu") == ["pytorch"]
    assert capsys.readouterr().out.splitlines() == [
        "CTranslate2 is skipped: transformers is missing (pip install -e '.[bench]')"
    ]


def test_a_program_runs_in_its_own_process():
    with started(partial, partial, str.upper) as program:
        program.wait()
        output, seconds = program("word")
        assert output == "WORD"
        assert seconds > 0


def test_unavailable_program_is_skipped_with_its_reason(capsys):
    upper = Entrant("upper", "str", partial, (partial, str.upper))
    missing = Entrant("nothing", "str", __import__, ("no_such_module",))
    with all_started([missing, upper]) as programs:
        assert list(programs) == [upper]
    assert capsys.readouterr().out == "nothing str is skipped: No module named 'no_such_module'\n"


def test_regard_decoder_writes_the_requested_number_of_tokens():
    config = ModelConfig.preset("tiny", vocabulary_size=50, dropout=0.0)
    prepare = decoder_programs.ours(config, "float32", "cpu", 1, True)
    assert (
        decoder_programs.wrong(prepare([[5, 6, 2], [7, 8, 2]], 2, 4)(), batch=2, length=4) is None
    )


# ---- the limits -----------------------------------------------------------------------------


def test_limit_is_the_longer_of_memory_and_compute_time():
    limit = Limit(weights=10, size=40, bandwidth=20.0, peak=5.0)
    assert limit.seconds(rows=0) == 2.0
    assert limit.seconds(rows=1) == 4.0
    assert limit.seconds(rows=1, other=10) == 6.0


def test_a_beam_starts_with_one_hypothesis():
    limit = Limit(weights=10, size=40, bandwidth=1e9, peak=20.0)  # one second per row
    assert decoding_limit(limit, batch=2, beam=1, steps=3) == pytest.approx(6 / 6)
    assert decoding_limit(limit, batch=2, beam=4, steps=3) == pytest.approx(6 / (2 + 8 + 8))


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_weights_of_a_step_are_the_decoder_matrices(style):
    config = ModelConfig.preset("tiny", vocabulary_size=50, style=style)
    model = Transformer(config)
    matrices = [w for name, w in model.decoder.named_parameters() if w.dim() == 2]
    # cross-attention computes keys and values of the memory once per sentence, not in each step
    memory = config.decoder_layers * 2 * config.d_model**2 if style == "encoder-decoder" else 0
    total = sum(w.numel() for w in matrices) + model.output_matrix().numel() - memory
    assert weights_of_a_step(config) == total


def test_the_shapes_are_those_of_bert_and_gpt2():
    with torch.device("meta"):
        parameters = {
            name: sum(w.numel() for w in Transformer(config).parameters())
            for name, config in (
                ("BERT-base", encoder_config("BERT-base")),
                ("BERT-mini", encoder_config("BERT-mini")),
                ("GPT-2 small", gpt2_small()),
            )
        }
    # as published, without the segment embeddings and the pooler, which are not used here
    assert parameters["BERT-base"] == 109_482_240 - 2 * 768 - 768 * 769
    assert parameters["BERT-mini"] == 11_170_560 - 2 * 256 - 256 * 257
    assert parameters["GPT-2 small"] == 124_439_808
