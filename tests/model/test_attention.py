"""Every backend computes the same attention as the reference, forward and backward."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attend import attend
from regard.errors import InputError
from regard.model.attention import Plan
from regard.model.visibility import Visibility
from regard.ops.cpu import build as native
from regard.ops.cuda.attention import TILE, most_tiles, tables
from regard.ops.reference import attention_weights

CPU_BACKENDS = ["padded", *(["cpu"] if native.library("attention") else [])]
VISIBILITIES = [Visibility(causal, window) for causal in (False, True) for window in (None, 1, 5)]


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def random_heads(rows, heads, size):
    return torch.randn(rows, heads, size, dtype=torch.float64, requires_grad=True)


def attend_with_gradients(backend, query, key, value, queries, keys, visibility, upstream):
    inputs = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    output = attend(*inputs, offsets(queries), offsets(keys), visibility, backend=backend)
    return output, *torch.autograd.grad(output, inputs, upstream)


def assert_backends_equal_reference(*case):
    """Output and all gradients, in float64."""
    expected = attend_with_gradients("reference", *case)
    for backend in CPU_BACKENDS:
        for ours, theirs in zip(attend_with_gradients(backend, *case), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


# Edge cases of the lengths: one token, two tokens, the edges of tiles of 64, the length
# at which the padded backend splits a windowed sequence, and very different lengths.
lengths_strategy = st.lists(
    st.one_of(st.integers(1, 12), st.sampled_from([1, 2, 63, 64, 65, 127, 128, 129, 200])),
    min_size=1,
    max_size=6,
)


@given(
    lengths=lengths_strategy,
    heads=st.integers(1, 3),
    size=st.sampled_from([1, 2, 5, 8]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 3, 40, 1000]),
)
@example(lengths=[1], heads=1, size=1, causal=True, window=1)
@example(lengths=[400, 1, 1, 2], heads=2, size=4, causal=True, window=3)
@example(lengths=[400, 1, 1, 2], heads=2, size=4, causal=False, window=70)
def test_self_attention_of_every_backend_equals_the_reference(lengths, heads, size, causal, window):
    rows = sum(lengths)
    tensors = [random_heads(rows, heads, size) for _ in range(3)]
    case = (*tensors, lengths, lengths, Visibility(causal, window), torch.randn_like(tensors[0]))
    assert_backends_equal_reference(*case)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6),
    heads=st.integers(1, 3),
)
@example(lengths=[(1, 300), (300, 1), (2, 2)], heads=2)
def test_cross_attention_of_every_backend_equals_the_reference(lengths, heads):
    queries, keys = zip(*lengths, strict=True)
    query = random_heads(sum(queries), heads, 4)
    key, value = random_heads(sum(keys), heads, 4), random_heads(sum(keys), heads, 4)
    case = (query, key, value, queries, keys, Visibility(), torch.randn_like(query))
    assert_backends_equal_reference(*case)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 150)), min_size=1, max_size=5),
    causal=st.booleans(),
    window=st.sampled_from([None, 2, 30]),
)
def test_fewer_queries_than_keys_align_with_last_keys(lengths, causal, window):
    """As with a cache, in which new queries see old keys."""
    queries = [q for q, _ in lengths]
    keys = [q + before for q, before in lengths]
    query = random_heads(sum(queries), 2, 4)
    key, value = random_heads(sum(keys), 2, 4), random_heads(sum(keys), 2, 4)
    visibility = Visibility(causal, window)
    case = (query, key, value, queries, keys, visibility, torch.randn_like(query))
    assert_backends_equal_reference(*case)
    if not visibility.full:
        whole = visibility.matrix(keys[0])[-queries[0] :]
        assert torch.equal(visibility.matrix(queries[0], keys[0]), whole)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8),
    visibility=st.sampled_from(VISIBILITIES),
)
def test_tiles_cover_each_token_once_and_all_visible_keys(lengths, visibility):
    """The tables of the GPU kernels; tests/gpu tests the results of the kernels."""
    queries, keys = zip(*lengths, strict=True)
    if not visibility.full:
        queries = keys
    layout = Plan(queries, keys, visibility, backend="cuda").layout
    visible = torch.block_diag(
        *(visibility.matrix(q, k).int() for q, k in zip(queries, keys, strict=True))
    )
    for tiles, seen in ((layout.query_tiles, visible), (layout.key_tiles, visible.t())):
        held = []
        for start, end, low, high, inner, outer in tiles.tolist():
            assert 0 < end - start <= TILE
            held += range(start, end)
            visible_keys = seen[start:end].any(0).nonzero().flatten()
            # the range is exactly from the first to the last visible key
            assert (low, high) == (int(visible_keys[0]), int(visible_keys[-1]) + 1)
            assert seen[start:end, inner:outer].all()
        assert sorted(held) == list(range(len(seen)))
    # With spare capacity: the same runs and tiles, followed by tokens without effect.
    room = len(visible) + 100, visible.shape[1] + 70
    runs, query_tiles, key_tiles = tables(queries, keys, visibility.causal, visibility.window, room)
    assert torch.equal(torch.from_numpy(runs)[:, : len(visible)], layout.runs)
    assert (runs[:, len(visible) :] == visible.shape[1] - 1).all()
    for tiles, n in ((query_tiles, room[0]), (key_tiles, room[1])):
        assert len(tiles) == most_tiles(n)
        assert sorted(i for start, end, *_ in tiles for i in range(start, end)) == list(range(n))


@pytest.mark.parametrize("backend", ["reference", *CPU_BACKENDS])
@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_gradcheck_through_attention(backend, visibility):
    lengths = [3, 1, 7]
    tensors = [random_heads(sum(lengths), 2, 3) for _ in range(3)]
    bounds = offsets(lengths), offsets(lengths)
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend(q, k, v, *bounds, visibility, backend=backend), tensors
    )


@pytest.mark.skipif("cpu" not in CPU_BACKENDS, reason="no native code here")
@pytest.mark.parametrize("variant", native.possible())
@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 5e-2)])
def test_every_native_variant_is_close_to_exact_attention(
    variant, visibility, dtype, tolerance, monkeypatch
):
    """In the dtypes of training, with slices of one product as in the model."""
    monkeypatch.setenv("REGARD_NATIVE", variant)
    lengths = [40, 1, 17, 33]
    product = torch.randn(sum(lengths), 3, 2, 20).to(dtype)
    upstream = torch.randn(sum(lengths), 2, 20).to(dtype)
    results = []
    for backend, kind in (("cpu", dtype), ("reference", torch.float64)):
        parts = product.to(kind, copy=True).requires_grad_()
        bounds = offsets(lengths), offsets(lengths)
        output = attend(*parts.unbind(1), *bounds, visibility, backend=backend)
        results.append((output, *torch.autograd.grad(output, parts, upstream.to(kind))))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif("cpu" not in CPU_BACKENDS, reason="no native code here")
@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_native_attention_is_bit_identical_for_any_batch_and_threads(visibility, dtype):
    lengths = [19, 50, 7]
    tensors = [torch.randn(sum(lengths), 3, 16).to(dtype) for _ in range(4)]
    threads = torch.get_num_threads()
    together = attend_with_gradients("cpu", *tensors[:3], lengths, lengths, visibility, tensors[3])
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        for b, part in enumerate(zip(*(x.split(lengths) for x in tensors), strict=True)):
            case = (*part[:3], lengths[b : b + 1], lengths[b : b + 1], visibility, part[3])
            alone = attend_with_gradients("cpu", *case)
            for x, whole in zip(alone, together, strict=True):
                assert torch.equal(x, whole.split(lengths)[b])
    finally:
        torch.set_num_threads(threads)


def test_reference_equals_formula_of_the_paper():
    """softmax(Q K^T / sqrt(K)) V, written out with loops."""
    n, size = 4, 3
    query, key, value = (torch.randn(n, 1, size, dtype=torch.float64) for _ in range(3))
    bounds = offsets([n]), offsets([n])
    output = attend(query, key, value, *bounds, Visibility(causal=True), backend="reference")
    for i in range(n):
        scores = [
            sum(float(query[i, 0, f] * key[j, 0, f]) for f in range(size)) / math.sqrt(size)
            for j in range(i + 1)
        ]
        total = sum(math.exp(score) for score in scores)
        for f in range(size):
            expected = sum(
                math.exp(score) / total * float(value[j, 0, f]) for j, score in enumerate(scores)
            )
            assert math.isclose(float(output[i, 0, f]), expected, abs_tol=1e-12)


def test_visibility_matrix():
    def picture(visibility):
        return ["".join(".X"[int(seen)] for seen in line) for line in visibility.matrix(4)]

    assert picture(Visibility()) == ["XXXX", "XXXX", "XXXX", "XXXX"]
    assert picture(Visibility(causal=True)) == ["X...", "XX..", "XXX.", "XXXX"]
    assert picture(Visibility(window=1)) == ["XX..", "XXX.", ".XXX", "..XX"]
    assert picture(Visibility(causal=True, window=1)) == ["X...", "XX..", ".XX.", "..XX"]


def test_weights_are_a_distribution_over_visible_keys():
    visibility = Visibility(causal=True, window=2)
    query, key = torch.randn(6, 3, 4), torch.randn(6, 3, 4)
    weights = attention_weights(query, key, visibility.matrix(len(query), len(key)))  # [H, n, m]
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 6))
    assert not weights[:, ~visibility.matrix(6)].any()
    assert (weights[:, visibility.matrix(6)] > 0).all()


@pytest.mark.parametrize(
    "backend", ["reference", *CPU_BACKENDS]
)  # the cuda backend separates finite numbers only
@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_nan_does_not_spread_to_other_sequences(backend, visibility):
    lengths = [5, 9, 3]
    tensors = [torch.randn(sum(lengths), 2, 16) for _ in range(3)]
    for tensor in tensors:
        tensor[5:14] = math.nan
    bounds = offsets(lengths), offsets(lengths)
    output = attend(*tensors, *bounds, visibility, backend=backend)
    assert output[5:14].isnan().all()
    assert output[:5].isfinite().all()
    assert output[14:].isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "padded"])
def test_attention_dropout_keeps_the_expectation(backend):
    lengths = [8, 3]
    tensors = [random_heads(11, 2, 4) for _ in range(3)]
    bounds = offsets(lengths), offsets(lengths)
    expected = attend(*tensors, *bounds, Visibility(), backend="reference")
    runs = [
        attend(*tensors, *bounds, Visibility(), backend=backend, dropout=0.2) for _ in range(2000)
    ]
    assert not torch.equal(runs[0], runs[1])
    torch.testing.assert_close(torch.stack(runs).mean(0), expected, rtol=0, atol=0.1)


def test_invalid_input_is_refused():
    query = torch.randn(5, 2, 4)
    bounds = offsets([5])
    with pytest.raises(InputError, match="do not match offsets that end at 4 queries"):
        attend(query, query, query, offsets([4]), bounds, Visibility())
    with pytest.raises(InputError, match=r"query has \(heads, head size\) \(2, 4\)"):
        attend(query, torch.randn(5, 3, 4), torch.randn(5, 3, 4), bounds, bounds, Visibility())
    with pytest.raises(InputError, match="1 sequences and keys 2"):
        attend(query, query, query, bounds, offsets([2, 3]), Visibility())
    with pytest.raises(InputError, match="sequence 0 has 5 queries but 3 keys"):
        attend(query, query[:3], query[:3], bounds, offsets([3]), Visibility(causal=True))
    with pytest.raises(
        InputError, match="unknown attention backend 'padde'; did you mean 'padded'"
    ):
        attend(query, query, query, bounds, bounds, Visibility(), backend="padde")
    with pytest.raises(InputError, match=r"backend=cuda and attention_dropout=0.1 cannot be"):
        attend(query, query, query, bounds, bounds, Visibility(), backend="cuda", dropout=0.1)
    with pytest.raises(InputError, match=r"backend=cpu and attention_dropout=0.1 cannot be"):
        attend(query, query, query, bounds, bounds, Visibility(), backend="cpu", dropout=0.1)
    trained = random_heads(5, 2, 4)
    with pytest.raises(InputError, match="backend=cuda needs a GPU"):
        attend(trained, trained, trained, bounds, bounds, Visibility(), backend="cuda")
    with pytest.raises(InputError, match="window must be at least 1, not 0"):
        Visibility(window=0)
