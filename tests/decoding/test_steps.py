"""Every implementation of a search step equals the specification, Transformer.step followed by
Beams.advance: the C++ step, and the Triton step in Triton's interpreter on a CPU.

The Triton tests need Triton (CI does not have it); tests/gpu runs the compiled kernels.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from regard import Packed
from regard.config.sections import DecodingConfig
from regard.decoding.beams import Beams
from regard.decoding.engines.cpu import CpuStep, SearchPointers, cpu_model
from regard.decoding.engines.cuda_graph import Rectangle
from regard.ops.cpu import build

EOS = 2
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
IMPLEMENTATIONS = [
    pytest.param("cpu", marks=pytest.mark.skipif(
        build.library("inference") is None, reason="needs a C++ compiler"
    )),
    pytest.param("triton", marks=pytest.mark.skipif(
        not INTERPRETED, reason="runs in test_triton_in_the_interpreter"
    )),
]  # fmt: skip
DECODER = {"style": "decoder", "positions": "learned", "bias": False}
SEARCHES = {  # changes to the model, beam, sentences, steps, min_length
    "greedy": ({}, 1, 2, 5, 0),
    "beam": ({}, 4, 3, 5, 3),  # 12 rows: products with tensor cores
    "large batch": ({}, 4, 5, 3, 0),
    "pre-norm": ({"norm_first": True, "norm": "rms", "activation": "gelu"}, 3, 2, 5, 0),
    "large vocabulary": ({"vocabulary_size": 9000}, 4, 2, 3, 0),  # several blocks of logits
    "small vocabulary": ({"vocabulary_size": 6}, 5, 2, 5, 0),  # fewer tokens than candidates
    "decoder": (DECODER, 2, 3, 5, 0),
}


def make_model(model, changes):
    sizes = {"d_model": 32, "d_ff": 48, "vocabulary_size": 50}
    return model(dtype=torch.float32, **{**sizes, **changes})


def make_search(net, beam, sentences, steps, min_length, compiled=None):
    """Beams and a cache before the first step; `compiled`: the CpuModel that fills the cache."""
    upper = min(50, net.config.vocabulary_size)
    generator = torch.Generator().manual_seed(0)
    sources = [
        torch.randint(3, upper, (2 + 3 * i,), generator=generator).tolist()
        for i in range(sentences)
    ]
    options = DecodingConfig(beam=beam, min_length=min_length)
    beams = Beams(options, sentences, steps, 0, EOS, torch.device("cpu"))
    limits = [steps - i % 2 for i in range(sentences)]
    beams.load([1] * sentences, limits, [[]] * sentences, [])
    beams.restart()
    source, read = Packed.of(sources), None
    if net.encoder is None:
        source, read = None, Packed.of([[4, 5], [6], *[[7, 8, 9]] * (sentences - 2)])
    if compiled is not None:
        return beams, compiled.start(net, source, read, sentences, beam, steps)
    cache = net.start(source, read, sentences=sentences, width=beam, steps=steps)
    cache.memory_lengths = torch.tensor([len(tokens) for tokens in sources])
    return beams, cache


def make_step(implementation, net, search):
    """Beams, the cache, and a function that runs one step and returns the logits [N, V]."""
    if implementation == "cpu":
        compiled = cpu_model(net)
        beams, cache = make_search(net, *search, compiled)
        cpu_step = CpuStep(compiled, [SearchPointers(cache, beams)])

        def step():
            cpu_step()
            return cpu_step.buffer[:, : net.config.vocabulary_size]
    else:
        from regard.decoding.engines.cuda_step import FusedStep

        beams, cache = make_search(net, *search)
        done = torch.zeros(len(beams.done), dtype=torch.bool)
        fused = FusedStep(net, beams, cache, done)
        assert FusedStep.supports(net, beams)

        def step():
            logits = fused._logits(net)
            fused._advance(logits)
            assert done.equal(beams.done)  # the flags that the host reads
            return logits

    return beams, cache, step


@torch.no_grad()
def compare(implementation, net, search):
    expected, expected_cache = make_search(net, *search)
    beams, cache, step = make_step(implementation, net, search)
    reordered = beams.reordering is not None
    for t in range(len(beams.records)):
        logits = net.step(expected.tokens, expected.reordering, expected_cache)
        expected.advance(logits)
        torch.testing.assert_close(step(), logits.flatten(0, 1), rtol=0, atol=1e-5)
        for name in ("tokens", "finished", "done", "time", *["parents"] * reordered):
            assert getattr(beams, name).equal(getattr(expected, name)), name
        for name in ("visible", "next", "positions"):
            assert getattr(cache, name).equal(getattr(expected_cache, name)), name
        records, expected_records = beams.records[t], expected.records[t]
        possible = expected_records[..., 3] > -torch.inf
        assert (records[..., 3] > -torch.inf).equal(possible)
        close = {"rtol": 0, "atol": 1e-4}
        torch.testing.assert_close(records[possible], expected_records[possible], **close)
        torch.testing.assert_close(beams.scores, expected.scores, **close)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("search", SEARCHES)
def test_step_equals_its_specification(implementation, search, model):
    changes, *sizes = SEARCHES[search]
    compare(implementation, make_model(model, changes), sizes)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@pytest.mark.parametrize("rows", [(2, 8), (2, 4)], ids=["tiled", "by PyTorch"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_step_with_products_of_many_rows(implementation, rows, norm_first, model, monkeypatch):
    """Lower the threshold of many rows to 8."""
    from regard.decoding.engines import cuda_step

    monkeypatch.setattr(cuda_step, "FUSED_ROWS", rows[0])
    monkeypatch.setattr(cuda_step, "TILED_ROWS", rows[1])
    compare(implementation, make_model(model, {"norm_first": norm_first}), (4, 2, 3, 0))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@torch.no_grad()
def test_the_encoder_equals_its_specification(implementation, model):
    from regard.decoding.engines.cuda_step import FusedStep

    net = make_model(model, {})
    beams, cache = make_search(net, 1, 3, 2, 0)
    row = Packed.of(torch.randint(3, 50, (3, 6)).tolist())
    x = net.encoder.embed(net.table("source"), row.tokens, row.positions())
    attend = Rectangle(torch.zeros(3, 1, 1, 6)).attend
    step = FusedStep(net, beams, cache, torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(
        step.encode(net.encoder, x, attend), net.encode(row), rtol=0, atol=1e-5
    )


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu tests the compiled kernels")
def test_triton_in_the_interpreter():
    """Run in a subprocess, because Triton reads the variable when it is imported."""
    command = [sys.executable, "-m", "pytest", "-x", "-k", "triton and not interpreter", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout
    assert "12 passed" in run.stdout
