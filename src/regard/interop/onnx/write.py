"""Export to ONNX graphs with dynamic batch size and length, for ONNX Runtime and others.

An encoder is one graph, `encoder.onnx`. A decoder is `decoder_step.onnx`, which reads new tokens
after a cache of keys and values; the cache may be empty, so it reads prompts as well. The encoder
of an encoder-decoder computes the keys and values of the source for all layers of the decoder.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.model import ModelConfig
from regard.files import write_file
from regard.interop.expressible import ANY, TRAINING_ONLY, Values, check
from regard.interop.onnx.graph import POSITIONS, Graph
from regard.interop.onnx.model import Builder
from regard.interop.onnx.readme import readme
from regard.interop.runtime_files import (
    Array,
    frame_of,
    id_offset,
    special_ids,
    temperature_of,
    weights_of,
    write_tokenizers,
)
from regard.predictor.model import Model
from regard.tasks.classify import Classify

if TYPE_CHECKING:
    from regard.interop.onnx.oracle import OnnxOracle

TARGET = "onnx"
ENCODER, DECODER = "encoder.onnx", "decoder_step.onnx"
VALUES: Mapping[str, Values] = {
    **TRAINING_ONLY,
    **dict.fromkeys(
        (
            "style", "vocabulary_size", "source_vocabulary_size", "encoder_layers",
            "decoder_layers", "d_model", "heads", "head_size", "key_value_heads", "d_ff",
            "norm_first", "norm", "norm_epsilon", "embedding_norm", "bias", "query_key_value_bias",
            "position_base", "max_length", "window", "scale_embeddings", "tie_embeddings", "head",
            "output_bias", "classes", "classifier_activation", "pooling",
        ),
        ANY,
    ),
    "kernel": ANY,  # of the mixer "convolution", which is refused
    "activation": ("relu", "gelu", "gelu-tanh", "silu", "swiglu"),
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    "attention": ("dot-product",),
    "mixer": ("attention",),
    "decoder_mixer": ("attention",),
}  # fmt: skip


def write(model: Model, folder: Path) -> None:
    """Write a model as ONNX graphs, with its tokenizer and a README.md.

    Args:
        model: a model of any task.
        folder: an existing empty folder.

    Raises:
        InputError: the model has a part that cannot be exported to ONNX.
    """
    config = model.config.model
    check(TARGET, VALUES, config)
    weights, properties = weights_of(model), metadata(model)
    if config.head == "classifier":  # so that the softmax of the logits is the probability
        for part in ("weight", "bias"):
            weights[f"head.classes.{part}"] = weights[f"head.classes.{part}"] / temperature_of(
                model
            )
    if config.head != "language-model":
        one_stack(config, weights).save(folder / ENCODER, properties)
    else:
        if config.has_encoder:
            source(config, weights).save(folder / ENCODER, properties)
        step(config, weights).save(folder / DECODER, properties)
    files = write_tokenizers(model, folder)
    write_file(folder / "README.md", readme(model, files))


def metadata(model: Model) -> dict[str, str]:
    """The metadata of the graphs: what a program needs besides the tensors."""
    config, target = model.config.model, model.target_tokenizer
    begin, end = frame_of(model)
    values: dict[str, Any] = {
        "task": model.config.task,
        "style": config.style,
        "special_tokens": special_ids(target),
        "begin": begin,  # the tokens that the model reads before and after a text
        "end": end,
        "target_prefix": list(target.target_prefix),
        "tokenizer_offset": id_offset(target),
        "max_positions": config.max_length if config.positions == "learned" else POSITIONS,
        "max_length": model.config.longest_input,
    }
    if config.head == "classifier" and isinstance(model.task, Classify):
        values["labels"] = list(model.task.labels)
    return {f"regard.{name}": json.dumps(value) for name, value in values.items()}


# ---- graphs -----------------------------------------------------------------------------------


def one_stack(config: ModelConfig, weights: dict[str, Array]) -> Graph:
    """input_ids, attention_mask -> last_hidden_state and, depending on the head, logits or
    sentence_embedding."""
    graph = Graph("encoder")
    build = Builder(graph, config, weights)
    ids, mask = (graph.input(name, "int64", "B", "T") for name in ("input_ids", "attention_mask"))
    tokens = build.tokens(ids, mask, causal=config.style == "decoder")
    hidden = build.stack(config.style, tokens)
    if config.head == "masked-language-model":
        logits = build.word_logits(hidden)
        graph.output("logits", logits, "float32", "B", "T", config.vocabulary_size)
    elif config.head == "classifier":
        assert config.classes is not None
        graph.output("logits", build.class_logits(hidden, tokens), "float32", "B", config.classes)
    else:
        vector = build.vector(hidden, tokens)
        graph.output("sentence_embedding", vector, "float32", "B", config.d_model)
    graph.output("last_hidden_state", hidden, "float32", "B", "T", config.d_model)
    return graph


def source(config: ModelConfig, weights: dict[str, Array]) -> Graph:
    """input_ids, attention_mask -> last_hidden_state, and cross_key_i and cross_value_i for each
    layer i of the decoder."""
    graph = Graph("encoder")
    build = Builder(graph, config, weights)
    ids, mask = (graph.input(name, "int64", "B", "S") for name in ("input_ids", "attention_mask"))
    hidden = build.stack("encoder", build.tokens(ids, mask, causal=False))
    graph.output("last_hidden_state", hidden, "float32", "B", "S", config.d_model)
    for layer in range(config.decoder_layers):
        for name, part in zip(("key", "value"), build.project_memory(hidden, layer), strict=True):
            graph.output(f"cross_{name}_{layer}", part, "float32", *cache_shape(config, "S"))
    return graph


def step(config: ModelConfig, weights: dict[str, Array]) -> Graph:
    """input_ids [B, T], attention_mask [B, P + T], past_key_i and past_value_i of P tokens ->
    logits, present_key_i and present_value_i of P + T tokens. An encoder-decoder reads
    encoder_attention_mask, cross_key_i and cross_value_i as well."""
    graph = Graph("decoder_step")
    build = Builder(graph, config, weights)
    layers = range(config.decoder_layers)

    def inputs(kind: str, length: str) -> list[tuple[str, str]]:
        shape = cache_shape(config, length)
        names = [(f"{kind}_key_{layer}", f"{kind}_value_{layer}") for layer in layers]
        for name in (name for pair in names for name in pair):
            graph.input(name, "float32", *shape)
        return names

    ids = graph.input("input_ids", "int64", "B", "T")
    mask = graph.input("attention_mask", "int64", "B", "P + T")
    past = inputs("past", "P")
    tokens = build.tokens(ids, mask, causal=True, past=past[0][0])
    tokens.past = past
    if config.has_encoder:
        memory_mask = graph.input("encoder_attention_mask", "int64", "B", "S")
        tokens.memory, tokens.memory_bias = inputs("cross", "S"), build.memory_bias(memory_mask)
    hidden = build.stack("decoder", tokens)
    logits = build.word_logits(hidden)
    graph.output("logits", logits, "float32", "B", "T", config.vocabulary_size)
    for layer, parts in enumerate(tokens.present):
        for name, part in zip(("key", "value"), parts, strict=True):
            graph.output(f"present_{name}_{layer}", part, "float32", *cache_shape(config, "P + T"))
    return graph


def cache_shape(config: ModelConfig, length: str) -> Sequence[int | str]:
    """The shape of keys and of values: [B, G, length, K]."""
    return "B", config.key_value_heads, length, config.head_size


# ---- verification ------------------------------------------------------------------------------


def oracle(folder: Path, model: Model) -> OnnxOracle | None:
    """Load the exported model in ONNX Runtime.

    Args:
        folder: the exported folder.
        model: the exported model.

    Returns:
        The runtime for the comparison; None if ONNX Runtime is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    from regard.interop.onnx.oracle import OnnxOracle

    return OnnxOracle(folder, model)
