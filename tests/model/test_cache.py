"""Decoding step by step with the cache equals the full pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError, Packed
from regard.ops import padded, repeat_heads

OPTIONS = [
    {},
    {"norm_first": True, "activation": "swiglu", "norm": "rms"},
    {"positions": "rotary"},
    {"positions": "learned"},
    {"positions": "none"},
    {"window": 3},
    {"heads": 6, "head_size": 4, "key_value_heads": 2},
    {"heads": 4, "key_value_heads": 1, "positions": "rotary", "window": 3},
]


def stepwise(net, source, target, read):
    """Read the first tokens of each sequence at once, then step. Returns the logits of the steps."""
    sequences = target.split(target.tokens)
    before = Packed.of([s[:n] for s, n in zip(sequences, read, strict=True)]) if min(read) else None
    steps = min(len(s) - n for s, n in zip(sequences, read, strict=True))
    cache = net.start(source, before, sentences=len(target), steps=steps)
    logits = []
    for step in range(steps):
        tokens = torch.stack([s[n + step] for s, n in zip(sequences, read, strict=True)])
        logits.append(net.step(tokens[:, None], None, cache)[:, 0])
    return torch.stack(logits, 1)  # [B, steps, V]


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("read", [0, 1, 5])
def test_stepping_equals_the_full_pass(style, options, read, model, row):
    net, target = model(style=style, **options), row([7, 7, 7])
    source = row([5, 1, 9]) if style == "encoder-decoder" else None
    expected = net(source, target).view(3, 7, -1)[:, read:]
    results = stepwise(net, source, target, [read] * 3)
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_grouped_heads_are_not_copied(rows, masked, monkeypatch):
    query = torch.randn(2, 6, rows, 8, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, 5, 8, dtype=torch.float64)
    visible = torch.rand(2, 1, rows, 5) < 0.5 if masked else None
    if visible is not None:
        visible[..., 0] = True
    expected = padded.attend_rectangles(
        query, repeat_heads(key, query), repeat_heads(value, query), visible
    )
    keys = []

    def attend(query, key, *arguments):
        keys.append(key.data_ptr())
        return plain(query, key, *arguments)

    plain = padded.scaled_dot_product_attention
    monkeypatch.setattr(padded, "scaled_dot_product_attention", attend)
    results = padded.attend_rectangles(query, key, value, visible)
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-12)
    assert keys == [key.data_ptr()]


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
@given(prompts=st.lists(st.integers(1, 12), min_size=1, max_size=5), steps=st.integers(1, 6))
def test_prompts_of_different_length_are_independent(style, prompts, steps, model, row):
    net = model(style=style, window=5)
    full = row([length + steps for length in prompts])
    source = row([3 + 2 * i for i in range(len(prompts))]) if style != "decoder" else None
    expected = [part[-steps:] for part in full.split(net(source, full))]
    results = stepwise(net, source, full, prompts)
    torch.testing.assert_close(results, torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_hypotheses_see_only_their_own_past(style, options, model, row):
    net, width, steps, sentences = model(style=style, **options), 3, 6, 2
    source = row([4, 9]) if style == "encoder-decoder" else None
    read = row([2, 5])
    cache = net.start(source, read, width=width, steps=steps)
    paths = [[list(s.tolist()) for _ in range(width)] for s in read.split(read.tokens)]
    for step in range(steps):
        tokens = torch.randint(20, (sentences, width))
        parents = torch.randint(width, (sentences, width)) if step else torch.zeros_like(tokens)
        paths = [
            [[*paths[b][parents[b, w]], int(tokens[b, w])] for w in range(width)]
            for b in range(sentences)
        ]
        logits = net.step(tokens, parents, cache)
        for b in range(sentences):
            target = Packed.of(paths[b])
            own = Packed.of([source.split(source.tokens)[b]] * width) if source else None
            rows = target.split(net(own, target))
            expected = torch.stack([row[-1] for row in rows])
            torch.testing.assert_close(logits[b], expected, rtol=0, atol=1e-12)


def test_removing_sentences_does_not_change_the_others(model, row):
    net, tokens = model(), torch.randint(20, (4, 6, 2))
    source, read = row([3, 8, 2, 5]), row([2, 1, 4, 3])
    whole = net.start(source, read, width=2, steps=6)
    some = net.start(source, read, width=2, steps=6)
    rows = torch.tensor([0, 2, 3])
    for step in range(6):
        parents = torch.randint(2, (4, 2))
        expected = net.step(tokens[:, step], parents, whole)
        if step == 2:
            some.keep(rows)
        if step >= 2:
            results = net.step(tokens[rows, step], parents[rows], some)
            torch.testing.assert_close(results, expected[rows], rtol=0, atol=1e-12)
        else:
            net.step(tokens[:, step], parents, some)


def test_unused_slots_do_not_change_the_result(model, row):
    net, source, tokens = model(), row([3, 8]), torch.randint(20, (5, 2, 1))
    exact, wide = (net.start(source, steps=5) for _ in range(2))
    for step in range(5):
        torch.testing.assert_close(
            net.step(tokens[step], None, wide, seen=5), net.step(tokens[step], None, exact),
            rtol=0, atol=1e-12,
        )  # fmt: skip


def test_float32_differs_by_rounding_only(model, row):
    net = model(dtype=torch.float32, d_model=64, heads=4)
    source, target = row([30, 4]), row([20, 20])
    expected = net(source, target).view(2, 20, -1)
    torch.testing.assert_close(stepwise(net, source, target, [0, 0]), expected, rtol=0, atol=1e-5)


def test_invalid_use_of_the_cache_is_refused(model, row):
    both, decoder = model(), model(style="decoder", positions="learned", max_length=6)
    with pytest.raises(InputError, match="needs a source if and only if"):
        both.start(steps=5)
    with pytest.raises(InputError, match="needs a source if and only if"):
        decoder.start(row([3]), steps=5)
    with pytest.raises(InputError, match="encoder has no decoder"):
        model(style="encoder").start(row([3]), steps=5)
    with pytest.raises(InputError, match="the learned position table has 6 rows"):
        decoder.start(read=row([7]), steps=1)
    cache = decoder.start(read=row([2]), steps=1)
    decoder.step(torch.tensor([[3]]), None, cache)
    with pytest.raises(InputError, match="the cache has 3 slots, but this step needs 4"):
        decoder.step(torch.tensor([[3]]), None, cache)
