"""Decoding step by step with the cache equals the full pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError, Packed

OPTIONS = [
    {},
    {"norm_first": True, "activation": "swiglu", "norm": "rms"},
    {"positions": "rotary"},
    {"positions": "learned"},
    {"window": 3},
]


def stepwise(net, source, target, chunks):
    """Feed the target in chunks (sizes for each sequence) and put the logits back together."""
    cache = net.start(max(target.lengths), source, sequences=len(target))
    sequences = target.split(target.tokens)
    logits = [[] for _ in sequences]
    for begin, end in chunks:
        part = Packed.of([sequence[begin:end] for sequence in sequences])
        for b, rows in enumerate(part.split(net.step(part, cache))):
            logits[b].append(rows)
    return torch.cat([torch.cat(rows) for rows in logits])


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sizes", [[1] * 7, [3, 1, 1, 2], [7]], ids=str)
def test_stepping_equals_the_full_pass(style, options, sizes, model, row):
    net, target = model(style=style, **options), row([7, 7, 7])
    source = row([5, 1, 9]) if style == "encoder-decoder" else None
    ends = torch.tensor(sizes).cumsum(0).tolist()
    chunks = list(zip([0, *ends[:-1]], ends, strict=True))
    torch.testing.assert_close(
        stepwise(net, source, target, chunks), net(source, target), rtol=0, atol=1e-12
    )


@given(prompts=st.lists(st.integers(1, 12), min_size=1, max_size=5), steps=st.integers(1, 6))
def test_prompts_of_uneven_length_continue_as_if_each_were_alone(prompts, steps, model, row):
    net = model(style="decoder", window=5)
    full = row([length + steps for length in prompts])
    expected = full.split(net(None, full))
    sequences = full.split(full.tokens)
    cache = net.start(max(full.lengths), sequences=len(prompts))
    first = Packed.of([s[:p] for s, p in zip(sequences, prompts, strict=True)])
    got = [[part] for part in first.split(net.step(first, cache))]
    for step in range(steps):
        tokens = Packed.of(
            [s[p + step : p + step + 1] for s, p in zip(sequences, prompts, strict=True)]
        )
        for b, logits in enumerate(net.step(tokens, cache).unsqueeze(1)):
            got[b].append(logits)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.cat(ours), theirs, rtol=0, atol=1e-12)


def test_in_float32_the_difference_is_rounding(model, row):
    net = model(dtype=torch.float32, d_model=64, heads=4)
    source, target = row([30, 4]), row([20, 20])
    chunks = [(i, i + 1) for i in range(20)]
    torch.testing.assert_close(
        stepwise(net, source, target, chunks), net(source, target), rtol=0, atol=1e-5
    )


def test_bad_use_of_the_cache_is_refused_in_words(model, row):
    both, decoder = model(), model(style="decoder", positions="learned", max_length=6)
    with pytest.raises(InputError, match="needs a source if and only if"):
        both.start(5)
    with pytest.raises(InputError, match="needs a source if and only if"):
        decoder.start(5, row([3]))
    with pytest.raises(InputError, match="it has no decoder"):
        model(style="encoder").start(5)
    cache = decoder.start(5)
    with pytest.raises(InputError, match="the cache holds 1 sequences, not 2"):
        decoder.step(row([1, 1]), cache)
    with pytest.raises(
        InputError, match="sequence 0 would have 6 tokens, but the cache was made for 5"
    ):
        decoder.step(row([6]), cache)
    cache = decoder.start(50)
    decoder.step(row([4]), cache)
    with pytest.raises(InputError, match="4 tokens in the cache and 3 new ones are more than"):
        decoder.step(row([3]), cache)
