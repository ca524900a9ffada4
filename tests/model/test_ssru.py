"""The recurrent unit of decoders (decoder_mixer=ssru): its definition, packing, steps and search."""

import itertools

import numpy as np
import pytest
import torch

from regard import InputError, ModelConfig, Packed, Transformer
from regard.config.parameters import closed_form, count, operations
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.model.overrides import find_override
from regard.model.quantise import dequantise_all, quantise_all
from regard.model.ssru import Ssru, StateRow
from regard.model.transformer import AttentionCapture
from regard.predictor.attention import choose
from regard.view.walk import walk_config

SSRU = {"decoder_mixer": "ssru"}
STYLES = ["encoder-decoder", "decoder"]
BOS, EOS = 1, 2


def definition(unit, x):
    """The formulas of the paper, one token at a time, for one sequence x[T, D], in NumPy."""
    w, wf, bf = (
        p.detach().numpy() for p in (unit.input.weight, unit.forget.weight, unit.forget.bias)
    )
    state, outputs = np.zeros(len(w)), []
    for token in x.numpy():
        forget = 1 / (1 + np.exp(-(wf @ token + bf)))
        state = forget * state + (1 - forget) * (w @ token)
        outputs.append(np.maximum(state, 0))
    return torch.from_numpy(np.stack(outputs))


def unit_of(size):
    config = ModelConfig(vocabulary_size=2, d_model=size, heads=1, **SSRU)
    unit = Ssru(config).double()
    torch.nn.init.normal_(unit.forget.bias)
    return unit


@pytest.mark.parametrize("lengths", [[1], [7], [5, 1, 33, 2, 16], [64, 64]])
def test_the_unit_equals_its_definition(lengths):
    unit, x = unit_of(6), torch.randn(sum(lengths), 6, dtype=torch.float64)
    expected = torch.cat([definition(unit, part) for part in x.split(lengths)])
    with torch.no_grad():
        results = unit(x, StateRow(lengths, "cpu"))
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-12)


def test_autocast_does_not_round_the_forget_gate():
    """The state changes slowly where the gate is near 1, which bfloat16 cannot represent."""
    unit, x, row = unit_of(8), torch.rand(200, 8, dtype=torch.float64), StateRow([200], "cpu")
    with torch.no_grad():
        unit.forget.bias.fill_(7.0)
        unit.forget.weight.mul_(0.1)
        expected = unit(x, row)
        with torch.autocast("cpu", torch.bfloat16):
            results = unit.float()(x.float(), row)
    assert expected.max() > 0.04
    torch.testing.assert_close(
        results.double(), expected, rtol=0, atol=0.02 * expected.max().item()
    )


def test_gradients():
    row = StateRow([4, 1, 6], "cpu")
    decay = torch.rand(11, 3, dtype=torch.float64, requires_grad=True)
    added = torch.randn(11, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d, a: row.states(d, a), (decay, added))
    unit, x = unit_of(4), torch.randn(11, 4, dtype=torch.float64, requires_grad=True)
    weights = [p.detach().clone().requires_grad_() for p in unit.parameters()]
    names = [name for name, _ in unit.named_parameters()]

    def call(x, *w):
        return torch.func.functional_call(unit, dict(zip(names, w, strict=True)), (x, row))

    assert torch.autograd.gradcheck(call, (x, *weights))


def test_long_sequences_stay_finite():
    row = StateRow([5_000], "cpu")
    decay = torch.rand(5_000, 2).round(decimals=1).requires_grad_()
    states = row.states(decay, torch.randn(5_000, 2))
    states.sum().backward()
    assert bool(states.isfinite().all())
    assert bool(decay.grad.isfinite().all())


@pytest.mark.parametrize("style", STYLES)
def test_later_tokens_do_not_change_earlier_ones(style, model, row):
    net, target = model(style=style, **SSRU), row([9, 4])
    source = row([5, 3]) if style == "encoder-decoder" else None
    changed = target.tokens.clone()
    changed[6:9] = (changed[6:9] + 1) % 20
    before, after = net(source, target), net(source, Packed.of(changed.split([9, 4])))
    torch.testing.assert_close(after[:6], before[:6], rtol=0, atol=0)
    torch.testing.assert_close(after[9:], before[9:], rtol=0, atol=0)
    assert float((after[6:9] - before[6:9]).detach().abs().min(1).values.max()) > 1e-6


@pytest.mark.parametrize("style", STYLES)
def test_a_sequence_does_not_depend_on_its_batch(style, model, row):
    net, target = model(style=style, **SSRU), row([5, 30, 1])
    source = row([4, 2, 6]) if style == "encoder-decoder" else None
    whole = target.split(net(source, target))
    for b, part in enumerate(target.split(target.tokens)):
        own = None if source is None else Packed.of([source.split(source.tokens)[b]])
        torch.testing.assert_close(net(own, Packed.of([part])), whole[b], rtol=0, atol=1e-14)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "norm": "rms"}], ids=str)
def test_steps_of_hypotheses_equal_the_full_pass(style, options, model, row):
    net, width, sentences = model(style=style, **SSRU, **options), 3, 2
    source = row([4, 9]) if style == "encoder-decoder" else None
    read = row([2, 5])
    cache = net.start(source, read, width=width, steps=6)
    assert cache.keys[0].numel() == 0  # no keys and values
    paths = [[list(s.tolist()) for _ in range(width)] for s in read.split(read.tokens)]
    for step in range(6):
        tokens = torch.randint(20, (sentences, width))
        parents = torch.randint(width, (sentences, width)) if step else None
        continued = torch.arange(width).expand(2, -1) if parents is None else parents
        paths = [
            [[*paths[b][continued[b, w]], int(tokens[b, w])] for w in range(width)]
            for b in range(sentences)
        ]
        logits = net.step(tokens, parents, cache)
        for b in range(sentences):
            target = Packed.of(paths[b])
            own = Packed.of([source.split(source.tokens)[b]] * width) if source else None
            expected = torch.stack([part[-1] for part in target.split(net(own, target))])
            torch.testing.assert_close(logits[b], expected, rtol=0, atol=1e-12)


def test_a_cache_can_be_kept_restarted_and_divided(model, row):
    net, source = model(**SSRU), row([3, 8, 2])
    tokens = torch.randint(20, (3, 4, 2))
    cache = net.start(source, width=2, steps=4)
    first = net.step(tokens[:, 0], None, cache)
    second = net.step(tokens[:, 1], torch.tensor([[1, 0]] * 3), cache)
    cache.restart()
    torch.testing.assert_close(net.step(tokens[:, 0], None, cache), first, rtol=0, atol=0)
    names = cache.per_sentence()
    assert {"states0", "states1"} <= set(names)
    assert all(len(tensor) == 3 for tensor in names.values())
    one = cache.sentence(1)
    one.states[0].fill_(7)
    assert bool((cache.states[0][1] == 7).all())
    assert not bool((cache.states[0][0] == 7).any())
    cache.restart()
    net.step(tokens[:, 0], None, cache)
    rows = torch.tensor([0, 2])
    cache.keep(rows)
    kept = net.step(tokens[rows, 1], torch.tensor([[1, 0]] * 2), cache)
    torch.testing.assert_close(kept, second[rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("style", STYLES)
def test_beam_search_equals_enumeration(style, model):
    torch.manual_seed(3)
    both = style == "encoder-decoder"
    net = model(
        style=style, vocabulary_size=5, tie_embeddings="source-target" if both else "none", **SSRU
    )
    limit, source = 4, [3, 4, EOS]
    words = [token for token in range(5) if token != EOS]
    complete = [(*path, EOS) for n in range(limit) for path in itertools.product(words, repeat=n)]
    complete += itertools.product(words, repeat=limit)
    begin = [BOS] if both else source
    target = Packed.of([[*begin, *path[:-1]] for path in complete])
    with torch.no_grad():
        logits = net(Packed.of([source] * len(complete)) if both else None, target)
    expected = []
    for path, odds in zip(complete, target.split(logits.log_softmax(-1)), strict=True):
        odds = odds[-len(path) :]
        expected.append((list(path), float(odds[range(len(path)), list(path)].sum())))
    expected.sort(key=lambda pair: -pair[1])
    options = DecodingConfig(beam=400, n_best=400, length_penalty=0.0)
    best = decode(net, [Request(source, (), limit)], options)[0]
    results = [best, *best.others]
    assert [answer.token_ids for answer in results] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([a.score for a in results], [s for _, s in expected], atol=1e-5)


@pytest.mark.parametrize("style", STYLES)
def test_parameters(style):
    config = ModelConfig(
        style=style, vocabulary_size=50, d_model=16, heads=2, d_ff=32, decoder_layers=3, **SSRU
    )
    net = Transformer(config)
    counted = count((name, p.numel()) for name, p in net.named_parameters())
    assert counted == {name: part.parameters for name, part in closed_form(config).items()}
    assert counted["mixer"] == 3 * (2 * 16 * 16 + 16)
    names = dict(net.named_parameters())
    assert names["decoder.layers.0.mixer.input.weight"].shape == (16, 16)
    assert "decoder.layers.0.mixer.input.bias" not in names
    assert names["decoder.layers.2.mixer.forget.bias"].shape == (16,)
    assert "decoder.layers.1.mixer_norm.norm.weight" in names
    attention = ModelConfig.from_dict({**config.to_dict(), "decoder_mixer": "attention"})
    lengths = [10], [8]
    difference = operations(attention, *lengths) - operations(config, *lengths)
    assert difference == 6 * 3 * 8 * 2 * 16 * 16 + 12 * 3 * 36 * 16


def test_an_encoder_may_have_another_mixer(model, row):
    net = model(mixer="convolution", **SSRU)
    assert net(row([4]), row([3])).shape == (3, 20)


def test_only_cross_attention_is_captured(model, row):
    net, capture = model(**SSRU), AttentionCapture()
    source, target = row([4, 2]), row([3, 5])
    torch.testing.assert_close(net(source, target, capture), net(source, target), rtol=0, atol=0)
    assert len(capture.encoder) == len(capture.cross) == 2
    assert capture.decoder == []
    assert choose(net.config).stack == "cross"
    with pytest.raises(InputError, match="decoder_mixer=ssru has no attention"):
        choose(model(style="decoder", **SSRU).config)


def test_the_walk_refuses_ssru():
    with pytest.raises(InputError, match="model.decoder_mixer=ssru cannot be shown"):
        walk_config("ab", None, "decoder", SSRU)


def test_hooks_and_replaced_parts_are_recognised(model):
    net = model(**SSRU)
    assert find_override(net) is None
    unit = net.decoder.layers[0].mixer
    handle = unit.forget.register_forward_hook(lambda *_: None)
    assert "decoder.layers.0.mixer.forget" in find_override(net)
    handle.remove()

    class Other(Ssru):
        pass

    net.decoder.layers[0].mixer = Other(net.config)
    assert "is a Other" in find_override(net)


def test_a_hook_changes_a_prediction(model):
    net, request = model(**SSRU), Request([3, 4, EOS], (), 5)
    options = DecodingConfig(beam=2)
    before = decode(net, [request], options)[0]
    hook = net.decoder.layers[1].mixer.register_forward_hook(lambda _, __, out: -5 * out - 1)
    after = decode(net, [request], options)[0]
    hook.remove()
    assert after.score != before.score
    assert decode(net, [request], options)[0].score == before.score


def test_int8_weights_and_a_saved_model(model, row, tmp_path):
    net = model(dtype=torch.float32, d_model=32, **SSRU)
    small = quantise_all(net.state_dict())
    assert small["decoder.layers.0.mixer.forget.weight"].dtype == torch.int8
    assert small["decoder.layers.0.mixer.forget.bias"].dtype == torch.float32
    other = Transformer(net.config).eval()
    other.load_state_dict(dequantise_all(small, tmp_path))
    source, target = row([4, 2]), row([3, 5])
    torch.testing.assert_close(other(source, target), net(source, target), rtol=0.1, atol=0.1)


def test_training_lowers_the_loss(model):
    torch.manual_seed(1)
    net = model(style="decoder", dtype=torch.float32, **SSRU).train()
    target = Packed.of([torch.arange(8), torch.arange(4, 12)])
    optimiser, losses = torch.optim.Adam(net.parameters(), 1e-2), []
    for _ in range(30):
        logits = net(None, target)
        labels = torch.cat([part + 1 for part in target.split(target.tokens)])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
