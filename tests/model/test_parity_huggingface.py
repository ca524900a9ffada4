"""regard equals Hugging Face's BERT, GPT-2, Marian and Llama with the same weights: outputs,
gradients and attention weights.

The models are small, made from a configuration with random weights: nothing is downloaded. For
each there is one function from their parameters to ours. It is made of tensor operations, so
autograd carries our gradients back through it and they are compared where they belong, at
Hugging Face's own parameters.
"""

from functools import partial

import torch
import transformers as hugging_face
from torch.nn.utils.rnn import pad_sequence

from regard import AttentionCapture, ModelConfig, Packed, Transformer

TOLERANCE = 1e-9  # absolute, in float64: rounding leaves 3e-13, a wrong formula 1e-3 or more
VOCABULARY, D, HEADS, D_FF, MAX_LENGTH, CLASSES = 31, 24, 3, 40, 23, 5
ENCODER_LAYERS, DECODER_LAYERS = 3, 2
SOURCE_LENGTHS = (5, 17, 1, 14, 3)  # uneven enough that our padded backend makes several groups
TARGET_LENGTHS = (9, 2, 4, 19, 1)
PAD = 0  # their embedding gives this id no gradient, so no real token is 0
SIZES = {  # options with the same name in all their configurations
    "vocab_size": VOCABULARY,
    "hidden_size": D,
    "num_attention_heads": HEADS,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": PAD,
    "attn_implementation": "eager",
}


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
    leaves = list(parameters.values())
    our_leaves = [ours.get_parameter(name) for name in weights]
    our_gradients = torch.autograd.grad((our_output * direction).sum(), our_leaves)
    carried_back = torch.autograd.grad(list(weights.values()), leaves, our_gradients)
    expected = torch.autograd.grad((their_output * direction).sum(), leaves)
    for name, gradient, their_gradient in zip(parameters, carried_back, expected, strict=True):
        # Softmax does not see what a key's bias adds to all its scores: that gradient is zero.
        if not name.endswith(("key.bias", "k_proj.bias")):
            assert their_gradient.abs().max() > 1e-3, f"{name}: nothing to compare"
        assert_close(gradient, their_gradient, f"gradient of {name}", tolerance)


def assert_same_attention(captured, attentions, queries, keys, tolerance=TOLERANCE):
    """captured[layer][sequence] is [H, n, m]; attentions[layer] is [B, H, T, S], with padding."""
    assert len(captured) == len(attentions)
    for ours, theirs in zip(captured, attentions, strict=True):
        assert len(ours) == len(theirs)
        for b, weights in enumerate(ours):
            real = theirs[b, :, : queries[b], : keys[b]]
            assert_close(weights, real, "attention weights", tolerance)


def converted(theirs, names, ours="", layer=""):
    """Our weights and biases from a table: our module -> their module, or the modules that are
    one matrix with us. A name that is forgotten on either side is an error: in load_state_dict
    on ours, in autograd on theirs."""
    weights = {}
    for our_name, their_names in names.items():
        for kind in ("weight", "bias"):
            parts = [theirs.get(f"{layer}{name}.{kind}") for name in their_names.split()]
            if parts[0] is not None:
                weights[f"{ours}{our_name}.{kind}"] = torch.cat(parts)
    return weights


def check_one_stack(theirs, weights, read, tolerance=TOLERANCE, **options):
    """Output, gradients and attention of an encoder or a decoder. `read` selects the values to
    compare from their output and the mask of the real tokens."""
    ours = make_ours(weights, scale_embeddings=False, **options)
    sequences = random_sequences(SOURCE_LENGTHS)
    tokens, real = pad(sequences)
    answer = theirs(tokens, attention_mask=real, output_attentions=True)
    side = "source" if options["style"] == "encoder" else "target"
    run = ours.hidden if options.get("head") == "pooling" else ours
    capture = AttentionCapture()
    output = run(**{side: Packed.of(sequences)}, capture=capture)
    assert_same(ours, output, theirs, read(answer, real.bool()), weights, tolerance)
    captured = capture.encoder if side == "source" else capture.decoder
    lengths = SOURCE_LENGTHS, SOURCE_LENGTHS
    assert_same_attention(captured, answer.attentions, *lengths, tolerance)


def logits_of_real_tokens(answer, real):
    return answer.logits[real]


# ---- BERT -----------------------------------------------------------------------------------


def weights_from_bert(model):
    theirs = {name.removeprefix("bert."): p for name, p in learned(model).items()}
    names = {
        "embeddings.shared": "embeddings.word_embeddings",
        "encoder.positions": "embeddings.position_embeddings",
        "encoder.embedding_norm": "embeddings.LayerNorm",
    }
    if isinstance(model, hugging_face.BertForMaskedLM):
        names["head.transform"] = "cls.predictions.transform.dense"
        names["head.norm"] = "cls.predictions.transform.LayerNorm"
        names["head"] = "cls.predictions"  # only a bias
    if isinstance(model, hugging_face.BertForSequenceClassification):
        names["head.transform"] = "pooler.dense"
        names["head.classes"] = "classifier"
    weights = converted(theirs, names)
    # The first segment's vector is added at every position: the position table takes it in.
    segment = theirs["embeddings.token_type_embeddings.weight"][0]
    weights["encoder.positions.weight"] = weights["encoder.positions.weight"] + segment
    attention = "attention.self.query attention.self.key attention.self.value"
    for i in range(ENCODER_LAYERS):
        names = {
            "self_attention.query_key_value": attention,
            "self_attention.output": "attention.output.dense",
            "self_attention_norm.norm": "attention.output.LayerNorm",
            "feed_forward.inner": "intermediate.dense",
            "feed_forward.outer": "output.dense",
            "feed_forward_norm.norm": "output.LayerNorm",
        }
        weights |= converted(theirs, names, f"encoder.layers.{i}.", f"encoder.layer.{i}.")
    return weights


def check_bert(model, read, **head):
    config = hugging_face.BertConfig(
        **SIZES,
        num_hidden_layers=ENCODER_LAYERS, intermediate_size=D_FF, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs = randomised(model(config))
    check_one_stack(
        theirs, weights_from_bert(theirs), read, style="encoder", encoder_layers=ENCODER_LAYERS,
        positions="learned", embedding_norm=True, activation="gelu", **head,
    )  # fmt: skip


def test_bert_hidden_states_gradients_and_attention_equal_hugging_face():
    model = partial(hugging_face.BertModel, add_pooling_layer=False)
    check_bert(model, lambda answer, real: answer.last_hidden_state[real], head="pooling")


def test_bert_masked_language_model_logits_and_gradients_equal_hugging_face():
    check_bert(hugging_face.BertForMaskedLM, logits_of_real_tokens, head="masked-language-model")


def test_bert_classifier_logits_and_gradients_equal_hugging_face():
    model, read = hugging_face.BertForSequenceClassification, lambda answer, real: answer.logits
    check_bert(model, read, head="classifier", classes=CLASSES)


# ---- GPT-2 ----------------------------------------------------------------------------------


def weights_from_gpt2(model):
    # Their Conv1D stores its matrix as [inputs, outputs].
    theirs = {
        name.removeprefix("transformer."): p.T if ".c_" in name and p.dim() == 2 else p
        for name, p in learned(model).items()
    }
    names = {
        "embeddings.shared": "wte",
        "decoder.positions": "wpe",
        "decoder.final_norm": "ln_f",
    }
    weights = converted(theirs, names)
    for i in range(DECODER_LAYERS):
        names = {
            "self_attention.query_key_value": "attn.c_attn",
            "self_attention.output": "attn.c_proj",
            "self_attention_norm.norm": "ln_1",
            "feed_forward.inner": "mlp.c_fc",
            "feed_forward.outer": "mlp.c_proj",
            "feed_forward_norm.norm": "ln_2",
        }
        weights |= converted(theirs, names, f"decoder.layers.{i}.", f"h.{i}.")
    return weights


def test_gpt2_logits_gradients_and_attention_equal_hugging_face():
    config = hugging_face.GPT2Config(
        **SIZES,
        num_hidden_layers=DECODER_LAYERS, n_inner=D_FF, activation_function="gelu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    theirs = randomised(hugging_face.GPT2LMHeadModel(config))
    check_one_stack(
        theirs, weights_from_gpt2(theirs), logits_of_real_tokens,
        style="decoder", decoder_layers=DECODER_LAYERS, norm_first=True,
        positions="learned", activation="gelu",
    )  # fmt: skip


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
    weights = converted(theirs, {"embeddings.shared": "shared"})
    names = {
        "self_attention.query_key_value": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "self_attention.output": "self_attn.out_proj",
        "self_attention_norm.norm": "self_attn_layer_norm",
        "feed_forward.inner": "fc1",
        "feed_forward.outer": "fc2",
        "feed_forward_norm.norm": "final_layer_norm",
    }
    cross = {  # the same words for cross-attention
        ours.replace("self_", "cross_"): theirs_.replace("self_", "encoder_")
        for ours, theirs_ in names.items()
    }
    for i in range(ENCODER_LAYERS):
        weights |= converted(theirs, names, f"encoder.layers.{i}.", f"encoder.layers.{i}.")
    for i in range(DECODER_LAYERS):
        weights |= converted(theirs, names | cross, f"decoder.layers.{i}.", f"decoder.layers.{i}.")
    return weights


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
    config = hugging_face.MarianConfig(
        **SIZES,
        encoder_layers=ENCODER_LAYERS, encoder_ffn_dim=D_FF, decoder_layers=DECODER_LAYERS,
        decoder_ffn_dim=D_FF, decoder_attention_heads=HEADS, decoder_start_token_id=PAD,
        activation_function="relu", scale_embedding=True, dropout=0.0,
    )  # fmt: skip
    theirs = randomised(hugging_face.MarianMTModel(config))
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
    capture = AttentionCapture()
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
LLAMA_TOLERANCE = 1e-3  # gradients as large as 80 are rounded to 1e-4


def weights_from_llama(model):
    theirs = {name.removeprefix("model."): p for name, p in learned(model).items()}
    names = {
        "embeddings.shared": "embed_tokens",
        "head.output": "lm_head",
        "decoder.final_norm": "norm",
    }
    weights = converted(theirs, names)
    for i in range(DECODER_LAYERS):
        for part in "qk":  # the pairs that are turned together stand elsewhere in each head
            name = f"layers.{i}.self_attn.{part}_proj.weight"
            rows = theirs[name].unflatten(0, (HEADS, HEAD_SIZE))
            theirs[name] = rows[:, interleaved(HEAD_SIZE)].flatten(0, 1)
        names = {
            "self_attention.query_key_value": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
            "self_attention.output": "self_attn.o_proj",
            "self_attention_norm.norm": "input_layernorm",
            "feed_forward.inner": "mlp.gate_proj mlp.up_proj",
            "feed_forward.outer": "mlp.down_proj",
            "feed_forward_norm.norm": "post_attention_layernorm",
        }
        weights |= converted(theirs, names, f"decoder.layers.{i}.", f"layers.{i}.")
    return weights


def test_llama_logits_gradients_and_attention_equal_hugging_face():
    config = hugging_face.LlamaConfig(
        **SIZES,
        num_hidden_layers=DECODER_LAYERS, head_dim=HEAD_SIZE, intermediate_size=D_FF,
        rms_norm_eps=1e-5,
    )  # fmt: skip
    theirs = randomised(hugging_face.LlamaForCausalLM(config))
    check_one_stack(
        theirs, weights_from_llama(theirs), logits_of_real_tokens, LLAMA_TOLERANCE,
        style="decoder", decoder_layers=DECODER_LAYERS, norm_first=True, head_size=HEAD_SIZE,
        norm="rms", activation="swiglu", bias=False, positions="rotary", tie_embeddings="none",
    )  # fmt: skip
