"""The GPU's kernels compute what the plain step computes: here in Triton's interpreter, on a CPU.

Skipped where Triton is not installed, as in CI; tests/gpu tests them compiled.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

SCRIPT = """
import torch
from regard import ModelConfig, Packed, Transformer
from regard.config.sections import DecodingConfig
from regard.decoding.beams import Beams
from regard.decoding.engines import cuda_step as fused
from regard.decoding.engines.cuda_step import FusedStep

SMALL = dict(d_model=32, heads=2, d_ff=48, dropout=0.0, vocabulary_size=50, decoder_layers=2)
BOTH = SMALL | dict(encoder_layers=1)
DECODER = SMALL | dict(style="decoder")


def compare(config, beam, sentences, steps=5, min_length=0):
    torch.manual_seed(0)
    net = Transformer(ModelConfig(**config)).eval()
    options = DecodingConfig(beam=beam, min_length=min_length)
    most = min(50, config["vocabulary_size"])
    sources = [torch.randint(3, most, (2 + 3 * i,)).tolist() for i in range(sentences)]
    both = net.encoder is not None

    def begin():
        beams = Beams(options, sentences, steps, 0, 2, torch.device("cpu"))
        beams.load([1] * sentences, [steps - i % 2 for i in range(sentences)], [[]] * sentences, [])
        beams.restart()
        read = None if both else Packed.of([[4, 5], [6], *[[7, 8, 9]] * (sentences - 2)])
        source = Packed.of(sources) if both else None
        cache = net.start(source, read, sentences=sentences, width=beam, steps=steps)
        cache.memory_lengths = torch.tensor([len(tokens) for tokens in sources])
        return beams, cache

    (plain, plain_cache), (beams, cache) = begin(), begin()
    step = FusedStep(net, beams, cache, torch.zeros(sentences, dtype=torch.bool))
    if both:
        row = Packed.of(sources)
        rows = net.encoder.rows_until(max(row.lengths), torch.device("cpu"))
        x = net.encoder.embed(net.table("source"), row.tokens, row.positions(), rows)
        plan = net.plans(row, None).encoder
        memory = step.encode(net.encoder, x, plan.attend)
        torch.testing.assert_close(memory, net.encode(row), rtol=0, atol=1e-5)
    assert FusedStep.can(net, beams)
    for t in range(steps):
        expected = net.step(plain.tokens, plain.parents if beam > 1 else None, plain_cache)
        logits = step._logits(net)
        torch.testing.assert_close(logits, expected.flatten(0, 1), rtol=0, atol=1e-5)
        plain.advance(expected)
        step._advance(logits)
        for name in ("tokens", "done", "answers", "time") + (("parents",) if beam > 1 else ()):
            assert torch.equal(getattr(beams, name), getattr(plain, name)), name
        assert torch.equal(cache.visible, plain_cache.visible)
        assert torch.equal(step.told.bool(), plain.done)
        assert torch.equal(cache.next, plain_cache.next)
        assert torch.equal(cache.positions, plain_cache.positions)
        possible = plain.records[t, ..., 3] > -float("inf")
        assert torch.equal(beams.records[t, ..., 3] > -float("inf"), possible)
        torch.testing.assert_close(
            beams.records[t][possible], plain.records[t][possible], rtol=0, atol=1e-4
        )


with torch.no_grad():
    compare(BOTH, 1, 2)
    compare(BOTH, 4, 3, min_length=3)  # 12 rows: products with tensor cores
    compare(BOTH, 4, 5, steps=3)  # 20 rows: twice as many
    compare(BOTH | dict(norm_first=True, norm="rms", activation="gelu"), 3, 2)
    compare(BOTH | dict(vocabulary_size=9000), 4, 2, steps=3)  # several blocks of logits
    compare(BOTH | dict(vocabulary_size=6), 5, 2)  # fewer tokens than candidates
    compare(DECODER | dict(positions="learned", bias=False), 2, 3)
    for fused.FEW, fused.SOME in ((2, 8), (2, 4)):  # as if 8 rows were many: tiles, then PyTorch's
        compare(BOTH, 4, 2, steps=3)
        compare(BOTH | dict(norm_first=True), 4, 2, steps=3)
print("all equal")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu tests them compiled")
def test_kernels_equal_the_plain_step():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.stdout == "all equal\n", run.stderr
