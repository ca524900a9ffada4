"""Properties of the whole model, in every style and with every option."""

import pytest
import torch

from regard import AttentionCapture, InputError, ModelConfig, Packed, Transformer
from regard.config.model import STYLES

OPTIONS = [
    {},
    {"norm_first": True},
    {"norm": "rms", "activation": "swiglu", "bias": False, "norm_first": True},
    {"activation": "gelu", "embedding_norm": True},
    {"positions": "learned", "max_length": 64},
    {"positions": "rotary", "position_base": 100.0},
    {"positions": "none"},
    {"window": 2},
    {"head_size": 5},
    {"tie_embeddings": "none"},
    {"tie_embeddings": "target-output"},
    {"scale_embeddings": False},
    {"heads": 4, "key_value_heads": 2, "query_key_value_bias": False},
    {"activation": "silu", "norm_epsilon": 1e-3},
    {"activation": "gelu-tanh", "bias": False, "query_key_value_bias": True},
]
ENCODER_HEADS = [
    {"head": "classifier", "classes": 3},
    {"head": "pooling", "pooling": "mean"},
    {"head": "pooling", "pooling": "cls"},
    {"head": "pooling", "pooling": "last"},
]
SOURCE, TARGET = [3, 9, 1, 5], [4, 2, 8, 1]


def name(options):
    return ",".join(f"{key}={value}" for key, value in options.items()) or "as published"


every_style = pytest.mark.parametrize("style", STYLES)
every_option = pytest.mark.parametrize("options", OPTIONS, ids=name)


@every_style
@every_option
def test_backends_give_the_same_logits_and_gradients(style, options, model, row, run):
    source, target = row(SOURCE), row(TARGET)
    results = []
    for backend in ("reference", "padded"):
        torch.manual_seed(1)
        net = model(backend, style=style, **options)
        logits = run(net, source, target)
        weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
        results.append((logits, torch.autograd.grad((logits * weights).sum(), net.parameters())))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "padded"])
@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
@every_option
def test_changing_a_future_token_changes_no_earlier_output_bit(
    backend, style, options, model, row, run
):
    net, source, target = (
        model(backend, torch.float32, style=style, **options),
        row([6, 40]),
        row([9, 30]),
    )
    before = run(net, source, target)
    for position in (8, 9 + 17):  # the last token of the first sequence, the middle of the second
        tokens = target.tokens.clone()
        tokens[position] = (tokens[position] + 1) % 20
        after = run(net, source, Packed(tokens, target.offsets))
        start = 0 if position < 9 else 9
        assert torch.equal(after[start:position], before[start:position])
        assert not torch.equal(after[position], before[position])


@pytest.mark.parametrize("backend", ["reference", "padded"])
@every_style
@every_option
def test_changing_one_sequence_changes_no_bit_of_another(backend, style, options, model, row, run):
    net, source, target = (
        model(backend, torch.float32, style=style, **options),
        row(SOURCE),
        row(TARGET),
    )
    before = run(net, source, target)
    for changed in range(len(SOURCE)):
        rows = []
        for packed in (source, target):
            tokens = packed.tokens.clone()
            start, end = packed.offsets[changed : changed + 2].tolist()
            tokens[start:end] = (tokens[start:end] + 7) % 20
            rows.append(Packed(tokens, packed.offsets))
        after = run(net, *rows)
        output_row = source if style == "encoder" else target
        for b, (old, new) in enumerate(
            zip(output_row.split(before), output_row.split(after), strict=True)
        ):
            assert torch.equal(old, new) == (b != changed)


@pytest.mark.parametrize(
    ("style", "options"),
    [(style, options) for style in STYLES for options in OPTIONS]
    + [("encoder", options) for options in ENCODER_HEADS],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_output_does_not_depend_on_batch(style, options, model, row, run):
    net, source, target = model(style=style, **options), row(SOURCE), row(TARGET)
    together = run(net, source, target)
    output_row = source if style == "encoder" else target
    parts = together if options.get("head") else output_row.split(together)
    for b, (s, t) in enumerate(
        zip(source.split(source.tokens), target.split(target.tokens), strict=True)
    ):
        alone = run(net, Packed.of([s]), Packed.of([t]))
        torch.testing.assert_close(alone, parts[b].view_as(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "padded"])
def test_without_positions_an_encoder_is_permutation_equivariant(backend, model, row):
    source = row([9])
    order = torch.randperm(9)
    shuffled = Packed(source.tokens[order], source.offsets)
    blind = model(backend, style="encoder", positions="none")
    torch.testing.assert_close(blind(shuffled), blind(source)[order], rtol=0, atol=1e-12)
    for positions in ("sinusoidal", "learned", "rotary"):
        sees = model(backend, style="encoder", positions=positions)
        assert (sees(shuffled) - sees(source)[order]).abs().max() > 1e-3


@every_style
def test_the_number_of_parameters_does_not_depend_on_length(style, model, row, run):
    net = model(style=style)
    before = sum(p.numel() for p in net.parameters())
    run(net, row([1]), row([1]))
    run(net, row([3000]), row([2]))
    assert sum(p.numel() for p in net.parameters()) == before
    assert not list(net.buffers())


@every_style
@pytest.mark.parametrize("norm_first", [False, True])
def test_gradcheck_through_each_style(style, norm_first, model, row, run):
    net = model(style=style, d_model=4, d_ff=6, vocabulary_size=5, norm_first=norm_first,
                activation="gelu")  # smooth, as a numerical derivative wants it  # fmt: skip
    source, target = row([2, 3], 5), row([3, 1], 5)
    names = [name for name, _ in net.named_parameters()]
    for parameter in net.parameters():  # biases away from zero, norms away from one
        torch.nn.init.normal_(parameter, std=0.5)

    def forward(*parameters):
        rows = (
            source if net.config.has_encoder else None,
            target if net.config.has_decoder else None,
        )
        return torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), rows)

    assert torch.autograd.gradcheck(forward, tuple(net.parameters()), fast_mode=True)


def test_gradcheck_through_a_block(model):
    from regard.model.attention import Plan
    from regard.model.visibility import Visibility

    block = model(d_model=4, d_ff=6, activation="gelu").decoder.layers[0]
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    plans = Plan([3, 2], [3, 2], Visibility(causal=True)), Plan([3, 2], [6, 1], Visibility())
    assert torch.autograd.gradcheck(lambda x, m: block(x, plans[0], m, plans[1]), (x, memory))


@every_style
@pytest.mark.parametrize("backend", ["reference", "padded"])
@pytest.mark.parametrize("window", [None, 2])
def test_capture_has_every_head_of_every_layer_and_leaves_the_output_bit_identical(
    style, backend, window, model, row, run
):
    net = model(
        backend,
        torch.float32,
        style=style,
        window=window,
        encoder_layers=3 if style != "decoder" else 0,
    )
    source, target, capture = row(SOURCE), row(TARGET), AttentionCapture()
    assert torch.equal(run(net, source, target, capture=capture), run(net, source, target))
    shapes = {
        "encoder": (3 if style != "decoder" else 0, SOURCE, SOURCE),
        "decoder": (2 if style != "encoder" else 0, TARGET, TARGET),
        "cross": (2 if style == "encoder-decoder" else 0, TARGET, SOURCE),
    }
    for kind, (layers, queries, keys) in shapes.items():
        maps = getattr(capture, kind)
        assert len(maps) == layers
        for layer in maps:
            assert [tuple(w.shape) for w in layer] == [
                (2, q, k) for q, k in zip(queries, keys, strict=True)
            ]
            for weights in layer:
                torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
                assert kind != "decoder" or not weights.triu(1).any()


def test_captured_weights_reproduce_the_output(model, row):
    """Weights times values, concatenated and projected, equal the output of the fast path."""
    net, source, capture = model("padded", style="encoder"), row([4, 6]), AttentionCapture()
    attention = net.encoder.layers[0].self_attention
    seen = {}
    attention.query_key_value.register_forward_hook(lambda _m, _i, out: seen.update(qkv=out))
    attention.register_forward_hook(lambda _m, _i, out: seen.update(out=out))
    net(source, capture=capture)
    values = seen["qkv"].view(10, 3, 2, 8)[:, 2].split([4, 6])
    mixed = [
        torch.einsum("hnm,mhk->nhk", weights, value).flatten(1)
        for weights, value in zip(capture.encoder[0], values, strict=True)
    ]
    torch.testing.assert_close(attention.output(torch.cat(mixed)), seen["out"])


def test_dropout_is_where_the_paper_has_it_and_off_in_evaluation(model, row):
    source, target = row(SOURCE), row(TARGET)
    for key in ("dropout", "attention_dropout", "feed_forward_dropout"):
        net = model(**{key: 0.5})
        assert torch.equal(net(source, target), net(source, target))
        net.train()
        assert not torch.equal(net(source, target), net(source, target))
        torch.manual_seed(3)
        first = net(source, target)
        torch.manual_seed(3)
        assert torch.equal(net(source, target), first)


def test_tied_matrices_are_one_tensor(model):
    expected = {
        "all": ["embeddings.shared.weight"],
        "source-target": ["embeddings.shared.weight", "head.output.weight"],
        "target-output": ["embeddings.source.weight", "embeddings.target.weight"],
        "none": ["embeddings.source.weight", "embeddings.target.weight", "head.output.weight"],
    }
    for tie, names in expected.items():
        net = model(tie_embeddings=tie)
        tables = [name for name, p in net.state_dict().items() if len(p) == 20 and p.dim() == 2]
        assert tables == names
    untied = model(tie_embeddings="none", source_vocabulary_size=11)
    assert untied.table("source").weight.shape == (11, 16)


def test_inputs_that_do_not_match_the_style_are_refused(model, row):
    both, encoder, decoder = (model(style=style) for style in STYLES)
    line = row([3])
    cases = [
        (decoder, (line, line), "model.style=decoder takes no source: pass the tokens as target"),
        (encoder, (line, line), "model.style=encoder takes no target: pass the tokens as source"),
        (both, (line, None), "the target is missing: a model of style encoder-decoder needs it"),
        (both, (row([3, 2]), line), "the source has 2 sequences and the target 1"),
    ]
    for net, rows, message in cases:
        with pytest.raises(InputError, match=message):
            net(*rows)


def test_a_token_outside_the_vocabulary_is_named_with_its_position(model):
    net = model(style="decoder")
    with pytest.raises(
        InputError, match="target token id 20 at position 2 of sequence 1 is outside"
    ):
        net(None, Packed.of([[1, 2], [3, 4, 20, 5]]))
    with pytest.raises(InputError, match="token id -1 at position 0 of sequence 0"):
        net(None, Packed.of([[-1]]))


def test_a_sequence_longer_than_the_learned_table_is_refused(model, row):
    net = model(style="encoder", positions="learned", max_length=8)
    assert net(row([8, 2])).shape == (10, 20)
    with pytest.raises(
        InputError, match="sequence 1 has 9 tokens, but the learned position table has 8"
    ):
        net(row([2, 9]))


def test_cuda_backend_with_attention_dropout_is_refused_at_construction():
    config = ModelConfig.preset("tiny", vocabulary_size=9, attention_dropout=0.1)
    with pytest.raises(
        InputError, match="backend=cuda and attention_dropout=0.1 cannot be combined"
    ):
        Transformer(config, backend="cuda")
