"""The same weights in Hugging Face's BERT, GPT-2, Marian and Llama and in ours: the same outputs,
gradients and attention weights.

The models are small, made from a configuration with random weights: nothing is downloaded. For
each there is one function from their parameters to ours. It is made of tensor operations, so
autograd carries our gradients back through it and they are compared where they belong, at
Hugging Face's own parameters.
"""

from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

from regard import Capture, ModelConfig, Packed, Transformer

TOLERANCE = 1e-9  # absolute, in float64: rounding leaves 1e-12, a wrong formula 1e-3 and more
VOCABULARY, D, HEADS, D_FF, MAX_LENGTH, CLASSES = 31, 24, 3, 40, 23, 5
ENCODER_LAYERS, DECODER_LAYERS = 3, 2
SOURCE_LENGTHS = (5, 17, 1, 14, 3)  # uneven enough that our padded engine makes several groups
TARGET_LENGTHS = (9, 2, 4, 19, 1)
PAD = 0  # their embedding gives this id no gradient, so no real token is 0
SIZES = {  # what their configurations call alike
    "vocab_size": VOCABULARY,
    "hidden_size": D,
    "num_attention_heads": HEADS,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": PAD,
    "attn_implementation": "eager",
}


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(20170612)


# ---- both sides -----------------------------------------------------------------------------


def random_sequences(lengths):
    return [torch.randint(1, VOCABULARY, (length,)) for length in lengths]


def pad(sequences):
    """Padded tokens[B, T], and 1 where there is a token."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD)
    return tokens, (torch.arange(tokens.shape[1]) < lengths[:, None]).long()


def randomised(model):
    """Biases and norms too: at zero and one, where they start, they would hide mistakes."""
    model.double().eval()
    with torch.no_grad():
        for name, parameter in learned(model).items():
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(mean=1.0 if norm else 0.0, std=0.3)
    return model


def learned(model):
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def make_ours(weights, **options):
    config = ModelConfig(
        vocabulary_size=VOCABULARY,
        d_model=D,
        heads=HEADS,
        d_ff=D_FF,
        max_length=MAX_LENGTH,
        dropout=0.0,
        **options,
    )
    ours = Transformer(config).double()
    ours.load_state_dict(weights, strict=True)
    return ours


def assert_close(ours, theirs, what, tolerance=TOLERANCE):
    torch.testing.assert_close(
        ours, theirs, atol=tolerance, rtol=0, msg=lambda text: f"{what}: {text}"
    )


def assert_same(ours, our_output, theirs, their_output, weights, tolerance=TOLERANCE):
    """Outputs, and gradients of their sum weighted at random, at every one of their parameters."""
    assert their_output.std() > 0.1, "nothing to compare"
    assert_close(our_output, their_output, "output", tolerance)
    direction = torch.randn_like(their_output)
    parameters = learned(theirs)
    names = list(weights)
    our_gradients = torch.autograd.grad(
        (our_output * direction).sum(), [ours.get_parameter(name) for name in names]
    )
    assert len(names) == len(list(ours.parameters()))
    carried_back = torch.autograd.grad(
        [weights[name] for name in names], list(parameters.values()), our_gradients
    )
    expected = torch.autograd.grad((their_output * direction).sum(), list(parameters.values()))
    for name, ours_, theirs_ in zip(parameters, carried_back, expected, strict=True):
        # Softmax does not see what a key's bias adds to all its scores: that gradient is zero.
        if not name.endswith(("key.bias", "k_proj.bias")):
            assert theirs_.abs().max() > 1e-3, f"{name}: nothing to compare"
        assert_close(ours_, theirs_, f"gradient of {name}", tolerance)


def assert_same_attention(captured, attentions, queries, keys, tolerance=TOLERANCE):
    """captured[layer][sequence] is [H, n, m]; attentions[layer] is [B, H, T, S], with padding."""
    assert len(captured) == len(attentions)
    for ours, theirs in zip(captured, attentions, strict=True):
        assert len(ours) == len(theirs)
        for b, weights in enumerate(ours):
            real = theirs[b, :, : queries[b], : keys[b]]
            assert_close(weights, real, "attention weights", tolerance)


def renamed(theirs, names):
    """Weight and bias of each (our module, their module)."""
    return {
        f"{our_name}.{kind}": theirs[f"{their_name}.{kind}"]
        for our_name, their_name in names.items()
        for kind in ("weight", "bias")
        if f"{their_name}.{kind}" in theirs
    }


def fused(theirs, our_name, their_names):
    """Their query, key and value in one matrix, ours."""
    return {
        f"{our_name}.{kind}": torch.cat([theirs[f"{name}.{kind}"] for name in their_names])
        for kind in ("weight", "bias")
        if f"{their_names[0]}.{kind}" in theirs
    }


# ---- BERT -----------------------------------------------------------------------------------


def weights_from_bert(model):
    theirs = {name.removeprefix("bert."): p for name, p in learned(model).items()}
    embeddings = "embeddings."
    names = {"encoder.embedding_norm": embeddings + "LayerNorm"}
    weights = {
        "embeddings.shared.weight": theirs[embeddings + "word_embeddings.weight"],
        # One segment: its vector is added at every position, so it goes into their table.
        "encoder.positions.weight": theirs[embeddings + "position_embeddings.weight"]
        + theirs[embeddings + "token_type_embeddings.weight"][0],
    }
    for i in range(ENCODER_LAYERS):
        ours, layer = f"encoder.layers.{i}.", f"encoder.layer.{i}."
        parts = [f"{layer}attention.self.{part}" for part in ("query", "key", "value")]
        weights |= fused(theirs, ours + "self_attention.query_key_value", parts)
        names |= {
            ours + "self_attention.output": layer + "attention.output.dense",
            ours + "self_attention_norm.norm": layer + "attention.output.LayerNorm",
            ours + "feed_forward.inner": layer + "intermediate.dense",
            ours + "feed_forward.outer": layer + "output.dense",
            ours + "feed_forward_norm.norm": layer + "output.LayerNorm",
        }
    if isinstance(model, BertForMaskedLM):
        names["head.transform"] = "cls.predictions.transform.dense"
        names["head.norm"] = "cls.predictions.transform.LayerNorm"
        weights["head.bias"] = theirs["cls.predictions.bias"]
    if isinstance(model, BertForSequenceClassification):
        names["head.transform"] = "pooler.dense"
        names["head.classes"] = "classifier"
    return weights | renamed(theirs, names)


def check_bert(model, read, **head):
    """`read` takes what is to be compared from their answer and the mask of the real tokens."""
    config = BertConfig(
        **SIZES,
        num_hidden_layers=ENCODER_LAYERS,
        intermediate_size=D_FF,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        num_labels=CLASSES,
    )
    theirs = randomised(model(config))
    weights = weights_from_bert(theirs)
    ours = make_ours(
        weights,
        style="encoder",
        encoder_layers=ENCODER_LAYERS,
        positions="learned",
        embedding_norm=True,
        scale_embeddings=False,
        activation="gelu",
        **head,
    )
    sequences = random_sequences(SOURCE_LENGTHS)
    tokens, real = pad(sequences)
    answer = theirs(tokens, attention_mask=real, output_attentions=True)
    capture = Capture()
    run = ours.hidden if head["head"] == "pooling" else ours
    output = run(Packed.of(sequences), capture=capture)
    assert_same(ours, output, theirs, read(answer, real.bool()), weights)
    assert_same_attention(capture.encoder, answer.attentions, SOURCE_LENGTHS, SOURCE_LENGTHS)


def test_bert_hidden_states_gradients_and_attention_equal_hugging_face():
    model = partial(BertModel, add_pooling_layer=False)
    check_bert(model, lambda answer, real: answer.last_hidden_state[real], head="pooling")


def test_bert_masked_language_model_logits_and_gradients_equal_hugging_face():
    check_bert(
        BertForMaskedLM,
        lambda answer, real: answer.logits[real],
        head="masked-language-model",
    )


def test_bert_classifier_logits_and_gradients_equal_hugging_face():
    check_bert(
        BertForSequenceClassification,
        lambda answer, real: answer.logits,
        head="classifier",
        classes=CLASSES,
    )


# ---- GPT-2 ----------------------------------------------------------------------------------


def weights_from_gpt2(model):
    # Their Conv1D stores its matrix as [inputs, outputs].
    theirs = {
        name.removeprefix("transformer."): p.T if ".c_" in name and p.dim() == 2 else p
        for name, p in learned(model).items()
    }
    weights = {
        "embeddings.shared.weight": theirs["wte.weight"],
        "decoder.positions.weight": theirs["wpe.weight"],
    }
    names = {"decoder.final_norm": "ln_f"}
    for i in range(DECODER_LAYERS):
        ours, layer = f"decoder.layers.{i}.", f"h.{i}."
        names |= {
            ours + "self_attention.query_key_value": layer + "attn.c_attn",
            ours + "self_attention.output": layer + "attn.c_proj",
            ours + "self_attention_norm.norm": layer + "ln_1",
            ours + "feed_forward.inner": layer + "mlp.c_fc",
            ours + "feed_forward.outer": layer + "mlp.c_proj",
            ours + "feed_forward_norm.norm": layer + "ln_2",
        }
    return weights | renamed(theirs, names)


def check_decoder(theirs, weights, tolerance=TOLERANCE, **options):
    ours = make_ours(
        weights,
        style="decoder",
        decoder_layers=DECODER_LAYERS,
        norm_first=True,
        scale_embeddings=False,
        **options,
    )
    sequences = random_sequences(TARGET_LENGTHS)
    tokens, real = pad(sequences)
    answer = theirs(tokens, attention_mask=real, output_attentions=True)
    capture = Capture()
    logits = ours(target=Packed.of(sequences), capture=capture)
    assert_same(ours, logits, theirs, answer.logits[real.bool()], weights, tolerance)
    lengths = TARGET_LENGTHS, TARGET_LENGTHS
    assert_same_attention(capture.decoder, answer.attentions, *lengths, tolerance)


def test_gpt2_logits_gradients_and_attention_equal_hugging_face():
    config = GPT2Config(
        **SIZES,
        num_hidden_layers=DECODER_LAYERS,
        n_inner=D_FF,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        layer_norm_epsilon=1e-5,
    )
    theirs = randomised(GPT2LMHeadModel(config))
    check_decoder(theirs, weights_from_gpt2(theirs), positions="learned", activation="gelu")


# ---- Marian ---------------------------------------------------------------------------------


def interleaved(size):
    """Their feature at each place of ours: they put all first halves of the pairs before all
    second halves, we put the two of a pair side by side, as the papers do."""
    return torch.arange(size).unflatten(0, (2, -1)).T.flatten()  # 0, n/2, 1, n/2 + 1, ...


def weights_from_marian(model):
    """Our sinusoids stand in another order than theirs. So all D features of the model change
    places, in every weight that reads or writes them, and our own sinusoids are put to the test."""
    order = interleaved(D)

    def reordered(name, parameter):
        if any(part in name for part in ("q_proj", "k_proj", "v_proj", "fc1", "shared")):  # read D
            return parameter[:, order] if parameter.dim() == 2 else parameter
        return parameter[order]  # write D, or norms

    theirs = {n.removeprefix("model."): reordered(n, p) for n, p in learned(model).items()}
    weights = {"embeddings.shared.weight": theirs["shared.weight"]}
    names = {}
    blocks = [("encoder", i) for i in range(ENCODER_LAYERS)]
    blocks += [("decoder", i) for i in range(DECODER_LAYERS)]
    for stack, i in blocks:
        block = f"{stack}.layers.{i}."
        kinds = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
        for our_name, their_name in list(kinds.items())[: 1 if stack == "encoder" else 2]:
            parts = [f"{block}{their_name}.{part}_proj" for part in "qkv"]
            weights |= fused(theirs, f"{block}{our_name}.query_key_value", parts)
            names[f"{block}{our_name}.output"] = f"{block}{their_name}.out_proj"
            names[f"{block}{our_name}_norm.norm"] = f"{block}{their_name}_layer_norm"
        names[block + "feed_forward.inner"] = block + "fc1"
        names[block + "feed_forward.outer"] = block + "fc2"
        names[block + "feed_forward_norm.norm"] = block + "final_layer_norm"
    return weights | renamed(theirs, names)


def make_positions_exact(model):
    """Marian rounds its sinusoids to float32, which would cost five digits of the comparison:
    give it its own formula in float64, after a look that it is its own formula."""
    frequencies = 10_000 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(MAX_LENGTH, dtype=torch.float64)[:, None] * frequencies
    exact = torch.cat((angles.sin(), angles.cos()), dim=1)
    for stack in (model.model.encoder, model.model.decoder):
        assert_close(stack.embed_positions.weight, exact, "Marian's sinusoids", tolerance=1e-7)
        stack.embed_positions.weight.copy_(exact)


def test_marian_logits_gradients_and_attention_equal_hugging_face():
    config = MarianConfig(
        **SIZES,
        encoder_layers=ENCODER_LAYERS,
        encoder_ffn_dim=D_FF,
        decoder_layers=DECODER_LAYERS,
        decoder_attention_heads=HEADS,
        decoder_ffn_dim=D_FF,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        decoder_start_token_id=PAD,
    )
    theirs = randomised(MarianMTModel(config))
    make_positions_exact(theirs)
    weights = weights_from_marian(theirs)
    ours = make_ours(weights, encoder_layers=ENCODER_LAYERS, decoder_layers=DECODER_LAYERS)
    sources, targets = random_sequences(SOURCE_LENGTHS), random_sequences(TARGET_LENGTHS)
    source, source_real = pad(sources)
    target, target_real = pad(targets)
    expected = theirs(
        input_ids=source,
        attention_mask=source_real,
        decoder_input_ids=target,
        decoder_attention_mask=target_real,
        output_attentions=True,
    )
    capture = Capture()
    logits = ours(Packed.of(sources), Packed.of(targets), capture)
    assert_same(ours, logits, theirs, expected.logits[target_real.bool()], weights)
    for captured, attentions, queries, keys in (
        (capture.encoder, expected.encoder_attentions, SOURCE_LENGTHS, SOURCE_LENGTHS),
        (capture.decoder, expected.decoder_attentions, TARGET_LENGTHS, TARGET_LENGTHS),
        (capture.cross, expected.cross_attentions, TARGET_LENGTHS, SOURCE_LENGTHS),
    ):
        assert_same_attention(captured, attentions, queries, keys)


# ---- Llama: RMSNorm, SwiGLU, rotary positions, no biases, heads wider than D / H -------------

HEAD_SIZE = 10
# Llama takes norms, softmax and angles in float32 even when its weights are float64.
LLAMA_TOLERANCE = 1e-4


def weights_from_llama(model):
    theirs = {name.removeprefix("model."): p for name, p in learned(model).items()}
    weights = {
        "embeddings.shared.weight": theirs["embed_tokens.weight"],
        "head.output.weight": theirs["lm_head.weight"],
    }
    names = {"decoder.final_norm": "norm"}
    for i in range(DECODER_LAYERS):
        ours, layer = f"decoder.layers.{i}.", f"layers.{i}."
        for part in "qk":  # the pairs that are turned together stand elsewhere in each head
            name = f"{layer}self_attn.{part}_proj.weight"
            rows = theirs[name].unflatten(0, (HEADS, HEAD_SIZE))
            theirs[name] = rows[:, interleaved(HEAD_SIZE)].flatten(0, 1)
        attention = [f"{layer}self_attn.{part}_proj" for part in "qkv"]
        gates = [f"{layer}mlp.{part}_proj" for part in ("gate", "up")]
        weights |= fused(theirs, ours + "self_attention.query_key_value", attention)
        weights |= fused(theirs, ours + "feed_forward.inner", gates)
        names |= {
            ours + "self_attention.output": layer + "self_attn.o_proj",
            ours + "self_attention_norm.norm": layer + "input_layernorm",
            ours + "feed_forward.outer": layer + "mlp.down_proj",
            ours + "feed_forward_norm.norm": layer + "post_attention_layernorm",
        }
    return weights | renamed(theirs, names)


def test_llama_logits_gradients_and_attention_equal_hugging_face():
    config = LlamaConfig(
        **SIZES,
        num_hidden_layers=DECODER_LAYERS,
        head_dim=HEAD_SIZE,
        intermediate_size=D_FF,
        rms_norm_eps=1e-5,
    )
    theirs = randomised(LlamaForCausalLM(config))
    check_decoder(
        theirs,
        weights_from_llama(theirs),
        LLAMA_TOLERANCE,
        head_size=HEAD_SIZE,
        norm="rms",
        activation="swiglu",
        bias=False,
        positions="rotary",
        tie_embeddings="none",
    )
