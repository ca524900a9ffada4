"""`regard.Transformer` equals `torch.nn.Transformer` with the same weights: outputs and gradients.

Theirs gets padded batches and masks, ours packed rows. Around their layers stand the embedding,
the positions and the logits of the paper (sections 3.4 and 3.5), written out here once more.
RMSNorm, SwiGLU and rotary positions are not in PyTorch's layers: they are held to the formulas
of their papers at the end, and to a whole model in test_parity_huggingface.py.
"""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from regard import ModelConfig, Packed, Transformer
from regard.model.attention import MultiHeadAttention, Plan
from regard.model.block import FeedForward, make_norm
from regard.model.positions import Rotation
from regard.model.visibility import Visibility

TOLERANCE = 1e-10  # absolute, in float64: rounding leaves 3e-13, a wrong formula 1e-3 or more
VOCABULARY, SOURCE_VOCABULARY, D, HEADS, D_FF = (
    31,
    37,
    24,
    3,
    40,
)  # all different, so that swapped dimensions are detected
ENCODER_LAYERS, DECODER_LAYERS = 3, 2
SOURCE_LENGTHS = (5, 17, 1, 14, 3)  # uneven enough that our padded backend makes several groups
TARGET_LENGTHS = (9, 2, 4, 19, 1)


# ---- theirs ---------------------------------------------------------------------------------


def positions_of_the_paper(length):
    """Section 3.5, number by number: [length, D]."""

    def number(position, feature):
        angle = position / 10_000 ** (2 * (feature // 2) / D)
        return math.cos(angle) if feature % 2 else math.sin(angle)

    rows = [[number(p, feature) for feature in range(D)] for p in range(length)]
    return torch.tensor(rows, dtype=torch.float64)


def embed(table, tokens):
    return table(tokens) * math.sqrt(D) + positions_of_the_paper(tokens.shape[1])


def pad(sequences):
    """Padded tokens[B, T] and True at padding. The padding is an ordinary token:
    only their mask excludes it."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    tokens = pad_sequence(sequences, batch_first=True, padding_value=7)
    return tokens, torch.arange(tokens.shape[1]) >= lengths[:, None]


def future(length):
    """True where a query must not attend."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def torch_stack(layer, layers, norm_first, activation):
    """nn.Transformer always closes its stacks with a norm. The published post-norm model has
    none there, so the stacks are built by hand."""
    block = layer(D, HEADS, D_FF, 0.0, activation, batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(D) if norm_first else None
    if layer is nn.TransformerEncoderLayer:
        return nn.TransformerEncoder(block, layers, norm, enable_nested_tensor=False)
    return nn.TransformerDecoder(block, layers, norm)


class TorchEncoderDecoder(nn.Module):
    def __init__(self, norm_first, activation, tie="all"):
        super().__init__()
        one_vocabulary = tie in ("all", "source-target")
        self.source = nn.Embedding(VOCABULARY if one_vocabulary else SOURCE_VOCABULARY, D)
        self.target = self.source if one_vocabulary else nn.Embedding(VOCABULARY, D)
        self.output = nn.Linear(D, VOCABULARY, bias=False)
        if tie in ("all", "target-output"):
            self.output.weight = self.target.weight
        shape = (norm_first, activation)
        self.core = nn.Transformer(
            D,
            HEADS,
            custom_encoder=torch_stack(nn.TransformerEncoderLayer, ENCODER_LAYERS, *shape),
            custom_decoder=torch_stack(nn.TransformerDecoderLayer, DECODER_LAYERS, *shape),
            batch_first=True,
        )

    def forward(self, sources, targets):
        """The logits of the real target tokens: [N, V]."""
        (source, source_holes), (target, target_holes) = pad(sources), pad(targets)
        hidden = self.core(
            embed(self.source, source),
            embed(self.target, target),
            tgt_mask=future(target.shape[1]),
            src_key_padding_mask=source_holes,
            tgt_key_padding_mask=target_holes,
            memory_key_padding_mask=source_holes,
        )
        return self.output(hidden)[~target_holes]


class TorchStack(nn.Module):
    """Their encoder: as ours, or with a causal mask as our decoder-only style."""

    def __init__(self, style, norm_first, activation):
        super().__init__()
        self.source, self.causal = nn.Embedding(VOCABULARY, D), style == "decoder"
        stack = torch_stack(nn.TransformerEncoderLayer, ENCODER_LAYERS, norm_first, activation)
        self.core = nn.ModuleDict({style: stack})

    def forward(self, sequences):
        """The last layer's output for the real tokens: [N, D]."""
        tokens, holes = pad(sequences)
        (stack,) = self.core.values()
        mask = future(tokens.shape[1]) if self.causal else None
        x = embed(self.source, tokens)
        return stack(x, mask=mask, src_key_padding_mask=holes)[~holes]


# ---- theirs to ours -------------------------------------------------------------------------

RENAMES = {
    "core.": "",
    "self_attn.in_proj_": "self_attention.query_key_value.",
    "self_attn.out_proj": "self_attention.output",
    "multihead_attn.in_proj_": "cross_attention.query_key_value.",
    "multihead_attn.out_proj": "cross_attention.output",
    "linear1": "feed_forward.inner",
    "linear2": "feed_forward.outer",
    "norm1": "self_attention_norm.norm",
    "norm3": "feed_forward_norm.norm",
    "coder.norm": "coder.final_norm",
}


def weights_for_ours(theirs):
    """Our name -> their parameter: between these two every weight is only renamed."""
    named = dict(theirs.named_parameters())
    weights = {}
    for name, parameter in named.items():
        our_name = name
        if "norm2" in name:  # the cross-attention's, if the layer has one
            cross = name.replace("norm2", "norm3") in named
            which = "cross_attention" if cross else "feed_forward"
            our_name = name.replace("norm2", f"{which}_norm.norm")
        for old, new in RENAMES.items():
            our_name = our_name.replace(old, new)
        if our_name in ("source.weight", "target.weight"):
            shared = "target.weight" not in named
            our_name = "embeddings.shared.weight" if shared else f"embeddings.{our_name}"
        weights["head.output.weight" if name == "output.weight" else our_name] = parameter
    return weights


def randomise(module):
    """Biases and norms too: at zero and one, where they start, they would hide mistakes."""
    module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(mean=1.0 if norm else 0.0, std=0.3)
    return module


def ours_like(theirs, backend="auto", **options):
    config = ModelConfig(
        vocabulary_size=VOCABULARY, d_model=D, heads=HEADS, d_ff=D_FF, dropout=0.0, **options
    )
    ours = Transformer(config, backend=backend).double()
    ours.load_state_dict(weights_for_ours(theirs), strict=True)
    return ours


def assert_close(ours, theirs, what):
    torch.testing.assert_close(
        ours, theirs, atol=TOLERANCE, rtol=0, msg=lambda text: f"{what}: {text}"
    )


def assert_same_outputs_and_gradients(ours, our_output, theirs, their_output):
    """The gradients are those of the sum of all outputs, each weighted at random, so that a
    wrong derivative of any one of them shows."""
    assert their_output.std() > 0.1, "nothing to compare"
    assert_close(our_output, their_output, "output")
    direction = torch.randn_like(their_output)
    (our_output * direction).sum().backward()
    (their_output * direction).sum().backward()
    for name, parameter in weights_for_ours(theirs).items():
        assert parameter.grad.abs().max() > 1e-3, f"{name}: nothing to compare"
        assert_close(ours.get_parameter(name).grad, parameter.grad, f"gradient of {name}")


def random_sequences(lengths, vocabulary=VOCABULARY):
    return [torch.randint(vocabulary, (length,)) for length in lengths]


# ---- the three styles -----------------------------------------------------------------------


def check_encoder_decoder(norm_first, activation, tie="all", backend="auto"):
    theirs = randomise(TorchEncoderDecoder(norm_first, activation, tie))
    sources = random_sequences(SOURCE_LENGTHS, theirs.source.num_embeddings)
    targets = random_sequences(TARGET_LENGTHS)
    ours = ours_like(
        theirs,
        backend,
        source_vocabulary_size=theirs.source.num_embeddings,
        encoder_layers=ENCODER_LAYERS,
        decoder_layers=DECODER_LAYERS,
        norm_first=norm_first,
        activation=activation,
        tie_embeddings=tie,
    )
    logits = ours(Packed.of(sources), Packed.of(targets))
    assert_same_outputs_and_gradients(ours, logits, theirs, theirs(sources, targets))


@pytest.mark.parametrize("backend", ["reference", "padded"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_post_norm_logits_and_gradients_equal_torch_nn_transformer(activation, backend):
    check_encoder_decoder(norm_first=False, activation=activation, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "padded"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_pre_norm_logits_and_gradients_equal_torch_nn_transformer(activation, backend):
    check_encoder_decoder(norm_first=True, activation=activation, backend=backend)


@pytest.mark.parametrize("tie", ["source-target", "target-output", "none"])
def test_untied_embeddings_equal_torch_nn_transformer_between_separate_matrices(tie):
    check_encoder_decoder(norm_first=False, activation="relu", tie=tie)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_hidden_states_and_gradients_equal_torch_nn_transformer_encoder(
    norm_first, activation
):
    theirs = randomise(TorchStack("encoder", norm_first, activation))
    sequences = random_sequences(SOURCE_LENGTHS)
    ours = ours_like(
        theirs,
        style="encoder",
        encoder_layers=ENCODER_LAYERS,
        norm_first=norm_first,
        activation=activation,
        head="pooling",
    )
    hidden = ours.hidden(Packed.of(sequences))
    assert_same_outputs_and_gradients(ours, hidden, theirs, theirs(sequences))


@pytest.mark.parametrize(
    ("style", "pooling"),
    [("encoder", "mean"), ("encoder", "cls"), ("encoder", "last"), ("decoder", "last")],
)
def test_pooled_vectors_and_gradients_equal_those_of_torch_hidden_states(style, pooling):
    theirs = randomise(TorchStack(style, norm_first=False, activation="relu"))
    sequences = random_sequences(SOURCE_LENGTHS)
    layers = {f"{style}_layers": ENCODER_LAYERS}
    ours = ours_like(theirs, style=style, head="pooling", pooling=pooling, **layers)
    row = Packed.of(sequences)
    vectors = ours(row) if style == "encoder" else ours(target=row)
    pool = {"mean": lambda h: h.mean(0), "cls": lambda h: h[0], "last": lambda h: h[-1]}[pooling]
    expected = torch.stack([pool(h) for h in theirs(sequences).split(SOURCE_LENGTHS)])
    assert_same_outputs_and_gradients(ours, vectors, theirs, expected)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_decoder_logits_and_gradients_equal_torch_encoder_layers_under_a_causal_mask(
    norm_first, activation
):
    theirs = randomise(TorchStack("decoder", norm_first, activation))
    sequences = random_sequences(TARGET_LENGTHS)
    ours = ours_like(
        theirs,
        style="decoder",
        decoder_layers=ENCODER_LAYERS,
        norm_first=norm_first,
        activation=activation,
    )
    logits = ours(target=Packed.of(sequences))
    expected = theirs(sequences) @ theirs.source.weight.T
    assert_same_outputs_and_gradients(ours, logits, theirs, expected)


# ---- parts that PyTorch's layers do not have ------------------------------------------------


def assert_equals_formula(module, run, formula, *inputs):
    """`run` and `formula` of the same inputs: outputs, gradients of inputs and of parameters."""
    leaves = [*inputs, *module.parameters()]
    output, expected = run(*inputs), formula(*inputs)
    direction = torch.randn_like(expected)
    assert_close(output, expected, "output")
    gradients = torch.autograd.grad((output * direction).sum(), leaves)
    expected_gradients = torch.autograd.grad((expected * direction).sum(), leaves)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert expected_gradient.abs().max() > 1e-3, "nothing to compare"
        assert_close(gradient, expected_gradient, "gradient")


def config_with(**options):
    return ModelConfig(vocabulary_size=VOCABULARY, d_model=D, heads=HEADS, d_ff=D_FF, **options)


def random_input():
    return torch.randn(sum(SOURCE_LENGTHS), D, dtype=torch.float64, requires_grad=True)


def test_rms_norm_equals_the_formula_of_zhang_and_sennrich():
    norm = randomise(make_norm(config_with(norm="rms")))

    def formula(x):
        root_mean_square = (x.pow(2).sum(-1, keepdim=True) / D + 1e-5).sqrt()
        return x / root_mean_square * norm.weight

    assert_equals_formula(norm, norm, formula, random_input())


def test_swiglu_equals_the_formula_of_shazeer():
    network = randomise(FeedForward(config_with(activation="swiglu")))

    def formula(x):
        (w, v), (b, c) = network.inner.weight.split(D_FF), network.inner.bias.split(D_FF)
        gate = x @ w.T + b
        swish = gate / (1 + (-gate).exp())
        return (swish * (x @ v.T + c)) @ network.outer.weight.T + network.outer.bias

    assert_equals_formula(network, network, formula, random_input())


@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_rotary_attention_equals_the_rotation_matrices_of_su_et_al(base):
    """Their equations 14 to 16: the query at m and the key at n meet as (R_m q) . (R_n k)."""
    attention = randomise(MultiHeadAttention(config_with(positions="rotary")))
    size = D // HEADS

    def rotation_matrix(m):
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for i in range(size // 2):
            angle = m * base ** (-2 * i / size)
            cosine, sine = math.cos(angle), math.sin(angle)
            block = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
            matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
        return matrix

    def formula(x):
        projected = x @ attention.query_key_value.weight.T + attention.query_key_value.bias
        offsets = [0, *torch.tensor(SOURCE_LENGTHS).cumsum(0).tolist()]
        results = []
        for start, end in pairwise(offsets):
            turn = torch.stack([rotation_matrix(m) for m in range(end - start)])  # [n, K, K]
            parts = projected[start:end].split(D, dim=-1)
            query, key, value = (part.unflatten(-1, (HEADS, size)) for part in parts)
            query = torch.einsum("nij,nhj->nhi", turn, query)
            key = torch.einsum("nij,nhj->nhi", turn, key)
            scores = torch.einsum("nhi,mhi->hnm", query, key) / math.sqrt(size)
            scores = scores.masked_fill(future(end - start), -math.inf)
            results.append(torch.einsum("hnm,mhi->nhi", scores.softmax(-1), value).flatten(1))
        return torch.cat(results) @ attention.output.weight.T + attention.output.bias

    plan = Plan(SOURCE_LENGTHS, SOURCE_LENGTHS, Visibility(causal=True))
    positions = torch.cat([torch.arange(length) for length in SOURCE_LENGTHS])
    rotation = Rotation(positions, size, base)
    assert_equals_formula(
        attention, lambda x: attention(x, plan, rotation=rotation), formula, random_input()
    )
