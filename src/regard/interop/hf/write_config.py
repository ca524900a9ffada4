"""config.json and generation_config.json of an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.config.model import ModelConfig
from regard.interop.hf.write_options import Architecture
from regard.interop.hf.write_tensors import tied

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "silu": "silu",
    "swiglu": "silu",
}  # fmt: skip


def config_json(
    config: ModelConfig, architecture: Architecture, positions: int, ids: Mapping[str, int],
    labels: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The content of config.json.

    Args:
        config: the configuration of the model.
        architecture: the target.
        positions: the number of positions in the target, for encodings that regard does not limit.
        ids: the ids of the special tokens: bos, eos, pad, mask; -1 for one that does not exist.
        labels: the names of the classes of a classifier.

    Returns:
        The values by name.
    """
    if config.positions == "learned":
        positions = config.max_length
    special = {f"{name}_token_id": ids[name] if ids[name] >= 0 else None for name in SPECIAL}
    build = {"encoder-decoder": _seq2seq, "encoder": _encoder, "decoder": _decoder}[config.style]
    values = {
        "model_type": architecture.name, "architectures": [architecture.classes[config.head]],
        "dtype": "float32", "vocab_size": config.vocabulary_size,
        "tie_word_embeddings": tied(config, architecture), **special,
        **build(config, architecture, positions, ids),
    }  # fmt: skip
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    return values


SPECIAL = ("bos", "eos", "pad")


def _seq2seq(
    c: ModelConfig, architecture: Architecture, positions: int, ids: Mapping[str, int]
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "is_encoder_decoder": True, "d_model": c.d_model,
        "encoder_layers": c.encoder_layers, "decoder_layers": c.decoder_layers,
        "encoder_attention_heads": c.heads, "decoder_attention_heads": c.heads,
        "encoder_ffn_dim": c.d_ff, "decoder_ffn_dim": c.d_ff,
        "activation_function": ACTIVATIONS[c.activation],
        "max_position_embeddings": positions, "scale_embedding": c.scale_embeddings,
        "dropout": c.dropout, "attention_dropout": c.attention_dropout,
        "activation_dropout": c.feed_forward_dropout,
        "decoder_start_token_id": ids["bos"], "forced_eos_token_id": None,
        "tie_word_embeddings": c.tie_embeddings == "all",
    }  # fmt: skip
    if architecture.name == "marian":
        shared = c.tie_embeddings in ("all", "source-target")
        values |= {
            "vocab_size": c.source_vocabulary_size, "decoder_vocab_size": c.vocabulary_size,
            "share_encoder_decoder_embeddings": shared,
            "tie_word_embeddings": c.tie_embeddings in ("all", "target-output"),
        }  # fmt: skip
    if architecture.name == "blenderbot":
        values["encoder_no_repeat_ngram_size"] = 0
    return values


def _encoder(
    c: ModelConfig, architecture: Architecture, positions: int, ids: Mapping[str, int]
) -> dict[str, Any]:
    if architecture.name == "distilbert":
        return {
            "dim": c.d_model, "n_layers": c.encoder_layers, "n_heads": c.heads,
            "hidden_dim": c.d_ff, "activation": ACTIVATIONS[c.activation],
            "max_position_embeddings": positions, "sinusoidal_pos_embds": False,
            "dropout": c.dropout, "attention_dropout": c.attention_dropout,
            "seq_classif_dropout": c.dropout, "num_labels": c.classes,
        }  # fmt: skip
    values: dict[str, Any] = {
        "hidden_size": c.d_model, "num_hidden_layers": c.encoder_layers,
        "num_attention_heads": c.heads, "intermediate_size": c.d_ff,
        "max_position_embeddings": positions, "layer_norm_eps": c.norm_epsilon,
        "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.attention_dropout,
    }  # fmt: skip
    if architecture.name == "esm":
        values |= {
            "position_embedding_type": "rotary", "rope_theta": c.position_base,
            "emb_layer_norm_before": c.embedding_norm, "token_dropout": False,
            "mask_token_id": ids["mask"] if ids["mask"] >= 0 else None,
        }  # fmt: skip
    else:
        values |= {"hidden_act": ACTIVATIONS[c.activation], "type_vocab_size": 2}
    if c.classes is not None:
        values["num_labels"] = c.classes
    return values


def _decoder(
    c: ModelConfig, architecture: Architecture, positions: int, ids: Mapping[str, int]
) -> dict[str, Any]:
    name, activation = architecture.name, ACTIVATIONS[c.activation]
    if name == "gpt2":
        return {
            "n_embd": c.d_model, "n_layer": c.decoder_layers, "n_head": c.heads, "n_inner": c.d_ff,
            "n_positions": positions, "layer_norm_epsilon": c.norm_epsilon,
            "activation_function": "gelu_new" if c.activation == "gelu-tanh" else activation,
            "resid_pdrop": c.dropout, "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout,
        }  # fmt: skip
    if name == "opt":
        return {
            "hidden_size": c.d_model, "word_embed_proj_dim": c.d_model, "ffn_dim": c.d_ff,
            "num_hidden_layers": c.decoder_layers, "num_attention_heads": c.heads,
            "max_position_embeddings": positions, "activation_function": activation,
            "do_layer_norm_before": False, "enable_bias": True,
            "dropout": c.dropout, "attention_dropout": c.attention_dropout,
        }  # fmt: skip
    values: dict[str, Any] = {
        "hidden_size": c.d_model, "num_hidden_layers": c.decoder_layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.key_value_heads,
        "head_dim": c.head_size, "intermediate_size": c.d_ff, "hidden_act": activation,
        "max_position_embeddings": positions, "attention_dropout": c.attention_dropout,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.position_base},
        "rope_theta": c.position_base,  # for older versions of transformers
    }  # fmt: skip
    # In transformers, the window includes the token itself.
    window = None if c.window is None else c.window + 1
    if name == "starcoder2":
        return values | {
            "norm_epsilon": c.norm_epsilon, "sliding_window": window,
            "use_bias": c.bias or c.query_key_value_bias,
            "residual_dropout": c.dropout, "embedding_dropout": c.dropout,
        }  # fmt: skip
    values["rms_norm_eps"] = c.norm_epsilon
    if name == "llama":
        values |= {"attention_bias": c.bias or c.query_key_value_bias, "mlp_bias": c.bias}
    elif name == "mistral":
        values["sliding_window"] = window
    else:
        values |= {
            "use_sliding_window": window is not None, "sliding_window": window,
            "max_window_layers": 0 if window is not None else c.decoder_layers,
        }  # fmt: skip
    return values


def generation_json(style: str, ids: Mapping[str, int], longest: int) -> dict[str, Any]:
    """The content of generation_config.json: greedy decoding.

    Args:
        style: the style of the model.
        ids: the ids of the special tokens, as in `config_json`.
        longest: the largest number of tokens in an output.

    Returns:
        The values by name.
    """
    values: dict[str, Any] = {f"{name}_token_id": ids[name] for name in SPECIAL if ids[name] >= 0}
    if style == "encoder-decoder":
        values["decoder_start_token_id"] = ids["bos"]
    return values | {"do_sample": False, "num_beams": 1, "max_new_tokens": longest}
