"""Fused kernels and CUDA graphs of a training step equal plain PyTorch.

Run them on a machine with a GPU: `pytest tests/gpu`.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard import ModelConfig, Packed, Transformer, ops
from regard.ops import cross_entropy, divergence, reference
from regard.ops.cuda import training as fused
from regard.tasks.configuration import make_config
from regard.training.cuda_graph import StepGraphs
from regard.training.losses import Batch, token_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
N, D = 301, 48


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """Compute float32 products in float32, not in TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def error(ours, expected):
    ours, expected = ours.detach().double(), expected.detach().double()
    return float((ours - expected).norm() / expected.norm().clamp(min=1e-20))


def assert_same(ours, theirs, inputs, tolerance=1e-5):
    """Compare two results and their gradients."""
    upstream = torch.randn_like(ours)
    pairs = zip(
        (ours, *torch.autograd.grad(ours, inputs, upstream)),
        (theirs, *torch.autograd.grad(theirs, inputs, upstream)),
        strict=True,
    )
    assert max(error(a, b) for a, b in pairs) < tolerance


def leaf(*shape):
    return torch.randn(*shape, device="cuda", requires_grad=True)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("make", [None, nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("rows", [1, N])
def test_add_norm_equals_pytorch_with_same_mask(make, dropout, rows):
    norm = None if make is None else make(D, eps=1e-5).cuda()
    x, y = leaf(rows, D), leaf(rows, D)
    torch.manual_seed(3)
    ours = fused.add_norm(x, y, norm, dropout)
    torch.manual_seed(3)
    zeros, ones = torch.zeros_like(x), torch.ones_like(x)
    mask = fused.add_norm(zeros, ones, None, dropout).detach()
    total = x + y * mask
    inputs = [x, y, *([] if norm is None else norm.parameters())]
    assert_same(ours, total if norm is None else norm(total), inputs)


def test_dropout_fraction_and_seed():
    x, ones = torch.zeros(4000, 512, device="cuda"), torch.ones(4000, 512, device="cuda")
    masks = [fused.add_norm(x, ones, None, 0.1) > 0 for _ in range(2)]
    for mask in masks:
        assert abs(mask.double().mean() - 0.9) < 5 * (0.09 / mask.numel()) ** 0.5
        for dim in (0, 1):  # and uniformly over rows and columns
            spread = mask.double().mean(dim).std() / (0.09 / mask.shape[dim]) ** 0.5
            assert 0.8 < spread < 1.2
    both = (masks[0] & masks[1]).double().mean()
    assert abs(both - 0.81) < 1e-3


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_with_activation_equals_pytorch(activation, biased):
    x, weight = leaf(N, D), leaf(70, D)
    bias = leaf(70) if biased else None
    with torch.autocast("cuda", torch.bfloat16):
        ours = fused.linear(x, weight, bias, activation)
    assert ours.dtype == torch.bfloat16
    plain = F.linear(x, weight, bias)
    # A value that is rounded across zero would count as an error of ReLU's gradient.
    kinds = {"none": plain, "relu": plain * (ours > 0), "gelu": F.gelu(plain)}
    assert_same(ours.float(), kinds[activation], [x, weight, *([bias] if biased else [])], 2e-2)


@pytest.mark.parametrize("learned", [True, False])
def test_embedding_equals_pytorch_with_same_mask(learned):
    table, add = nn.Embedding(30, D).cuda(), leaf(20, D)
    tokens, positions = torch.randint(30, (N,)).cuda(), torch.randint(20, (N,)).cuda()
    torch.manual_seed(3)
    ours = fused.embed(table, tokens, 3.0, add if learned else None, positions, 0.4)
    torch.manual_seed(3)
    ones = nn.Embedding.from_pretrained(torch.ones_like(table.weight))
    mask = fused.embed(ones, tokens, 1.0, None, positions, 0.4).detach()
    plain = (table.weight[tokens] * 3.0 + (add[positions] if learned else 0.0)) * mask
    assert_same(ours, plain, [table.weight, add] if learned else [table.weight])


@pytest.mark.parametrize("vocabulary", [64, 1000, 9001])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
def test_loss_equals_pytorch(vocabulary, smoothing, biased, monkeypatch):
    monkeypatch.setattr(fused, "PIECE", 128 * vocabulary)  # several pieces
    hidden, matrix = leaf(N, D), leaf(vocabulary, D)
    bias = leaf(vocabulary) if biased else None
    labels = torch.randint(vocabulary, (N,)).cuda()
    ours, likelihood = cross_entropy(hidden, matrix, labels, smoothing, bias)
    logits = F.linear(hidden.double(), matrix.double(), None if bias is None else bias.double())
    plain = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    assert_same(ours, plain, [hidden, matrix, *([bias] if biased else [])])
    assert error(likelihood, F.cross_entropy(logits, labels, reduction="sum")) < 1e-5


@pytest.mark.parametrize("vocabulary", [48, 8013])
def test_divergence_equals_pytorch(vocabulary, monkeypatch):
    first, second, matrix = leaf(N, D), leaf(N, D), leaf(vocabulary, D)
    labels = torch.randint(-1, 3, (N,), device="cuda")
    ours = divergence(first, second, matrix, None, labels)
    with monkeypatch.context() as patch:
        patch.setattr(ops, "backend", lambda x, training=None: reference)
        theirs = divergence(first, second, matrix, None, labels)
    assert_same(ours, theirs, [first, second, matrix])


def small_model(**changes):
    torch.manual_seed(1)
    sizes = {"d_model": 64, "heads": 2, "d_ff": 96, "vocabulary_size": 200}
    if changes.get("style") != "decoder":
        sizes["encoder_layers"] = 2
    return Transformer(ModelConfig(**{**sizes, "decoder_layers": 2, **changes})).cuda().train()


def batch_of(model, lengths, device):
    rows = [Packed.of([torch.randint(200, (n,)) for n in side]).to(device) for side in lengths]
    labels = torch.randint(200, (len(rows[-1].tokens),)).to(device)
    return Batch(rows[0] if model.encoder is not None else None, rows[-1], labels)


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


LENGTHS = [[5, 60, 1, 33, 7], [9, 40, 2, 20, 100]]
SHAPES = [
    {},
    {"style": "decoder", "positions": "learned", "norm_first": True, "activation": "gelu"},
    {"norm": "rms", "norm_first": True, "window": 7, "positions": "rotary", "bias": False},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16_gradients_are_as_accurate_as_without_kernels(shape, monkeypatch):
    all_gradients = {}
    for name in ("exact", "plain", "fused"):
        model = small_model(dropout=0.0, **shape)
        with monkeypatch.context() as patch:
            if name != "fused":
                patch.setattr(ops, "backend", lambda x, training=None: reference)
                model.backend = "padded"
            torch.manual_seed(2)
            batch = batch_of(model, LENGTHS, "cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=name != "exact"):
                loss, _ = token_loss(model, batch, 0.1, 0.0)
            loss.backward()
        all_gradients[name] = gradients(model)
    for exact, plain, ours in zip(*all_gradients.values(), strict=True):
        assert error(ours, exact) < max(2 * error(plain, exact), 1e-2)


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_replayed_graph_has_gradients_of_eager_step(shape, r_drop):
    model = small_model(dropout=0.2 if r_drop else 0.0, **shape)
    budgets = [220, 220] if model.encoder is not None else [220]
    graphs = StepGraphs(model, lambda b: token_loss(model, b, 0.1, r_drop), budgets, torch.float32)
    assert graphs.usable
    for lengths in (LENGTHS, [[1, 2, 3], [3, 2, 1]], [[64, 64, 1], [1, 100, 101]], LENGTHS):
        batch = batch_of(model, lengths, "cpu")
        model.zero_grad(set_to_none=True)
        sums = graphs.gradients(batch, 7, graphs.size(batch)).clone()
        replayed = gradients(model)
        model.zero_grad(set_to_none=True)
        rows = [None if row is None else row.to("cuda") for row in (batch.source, batch.target)]
        torch.manual_seed(0)  # with the added seed, the dropout masks of the replay
        with fused.seeded_dropout(torch.tensor([7], device="cuda")):
            loss, likelihood = token_loss(model, Batch(*rows, batch.labels.cuda()), 0.1, r_drop)
        loss.backward()
        assert error(sums, torch.stack([loss.detach(), likelihood])) < 1e-5
        del loss, likelihood  # a capture fails while an earlier autograd graph exists
        for ours, expected in zip(replayed, gradients(model), strict=True):
            assert error(ours, expected) < 1e-4
    assert len(graphs.graphs) == 3  # of full, less full and short rows


def test_replay_dropout_depends_on_seed_and_gradients_accumulate():
    model = small_model(dropout=0.3)
    graphs = StepGraphs(model, lambda b: token_loss(model, b, 0.1, 0.0), [220] * 2, torch.bfloat16)
    batch = batch_of(model, LENGTHS, "cpu")
    all_gradients = []
    for seeds in ([7], [8], [7], [7, 8]):
        model.zero_grad(set_to_none=True)
        for seed in seeds:
            graphs.gradients(batch, seed, graphs.size(batch))
        all_gradients.append(gradients(model))
    for first, second, repeated, both in zip(*all_gradients, strict=True):
        assert torch.equal(first, repeated)
        assert not torch.equal(first, second)
        torch.testing.assert_close(both, first + second)


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_resumed_run_on_gpu_is_bit_identical(cuda_graphs, tmp_path):
    from safetensors.torch import load_file

    from regard.tasks.builtin import write_corpus
    from regard.tasks.train import train_config as train

    files = write_corpus(tmp_path / "data")

    def configured(steps):
        return make_config(
            "translate", "tiny",
            {
                "data": {"train": [str(path) for path in files["train"]], "vocabulary_size": 500},
                "training": {"steps": steps, "batch_tokens": 2000, "cuda_graphs": cuda_graphs,
                             "checkpoint_every": 5, "keep": 2, "average": 1},
            },
        )  # fmt: skip

    train(configured(20), tmp_path / "at once", quiet=True, device="cuda")
    train(configured(10), tmp_path / "in two", quiet=True, device="cuda")
    train(configured(20), tmp_path / "in two", quiet=True, device="cuda", resume=True)
    whole, halves = (
        load_file(tmp_path / name / "checkpoints/step-20/model.safetensors")
        for name in ("at once", "in two")
    )
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
