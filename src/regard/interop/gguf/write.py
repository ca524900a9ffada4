"""Export decoders to GGUF files, with float32 weights.

Three GGUF architectures can express a regard decoder: `llama` and `qwen2` (rotary
positions, RMSNorm, SwiGLU) and `gpt2` (a table of positions, LayerNorm, the tanh approximation of
GELU). Each has a table with a rule for every option of `ModelConfig`; an option without a rule is
refused, so that a new option cannot be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop import expressible
from regard.interop.expressible import ANY, Values
from regard.interop.gguf.file import write_file
from regard.interop.gguf.oracle import GgufOracle, load_oracle
from regard.interop.gguf.read import (
    ARCHITECTURES,
    halves_of_pairs,
    read,
    regard_names,
    shortest,
    tensor_names,
)
from regard.interop.gguf.tokenizer import CHAT_TEMPLATE, specials_of, write_tokenizer
from regard.model.positions import sinusoids
from regard.predictor.model import Model
from regard.tasks.sequences import Sequences

FILE = "model.gguf"

COMMON: Mapping[str, Values] = {
    "style": ("decoder",), "head": ("language-model",), "vocabulary_size": ANY,
    "source_vocabulary_size": lambda c: (c.vocabulary_size,), "encoder_layers": (0,),
    "decoder_layers": ANY, "d_model": ANY, "heads": ANY, "head_size": ANY, "key_value_heads": ANY,
    "d_ff": ANY, "attention": ("dot-product",), "mixer": ("attention",), "kernel": ANY,
    "decoder_mixer": ("attention",), "norm_first": (True,), "norm_epsilon": ANY,
    "embedding_norm": (False,), "position_base": ANY, "max_length": ANY,
    "window": (None,),  # llama.cpp does not read it for these architectures
    "dropout": ANY, "attention_dropout": ANY, "feed_forward_dropout": ANY,  # only in training
    "scale_embeddings": ANY,  # multiplied into the table
    "tie_embeddings": ANY, "output_bias": (False,), "classes": ANY, "classifier_activation": ANY,
    "pooling": ANY,
}  # fmt: skip
ROTARY: Mapping[str, Values] = {
    **COMMON, "positions": ("rotary",), "norm": ("rms",), "activation": ("swiglu",),
    "bias": (False,),
}  # fmt: skip
RULES: Mapping[str, Mapping[str, Values]] = {
    "llama": {**ROTARY, "query_key_value_bias": (False,)},
    "qwen2": {**ROTARY, "query_key_value_bias": (True,)},
    "gpt2": {
        **COMMON, "positions": ("learned", "sinusoidal", "none"),  # written as a table
        "norm": ("layer",), "activation": ("gelu-tanh",),
        "bias": ANY, "query_key_value_bias": ANY,  # zeros
        "head_size": lambda c: () if c.d_model % c.heads else (c.d_model // c.heads,),
        "key_value_heads": lambda c: (c.heads,),
    },
}  # fmt: skip


def write(model: Model, folder: Path) -> None:
    """Write a model as `model.gguf`, and read the file back.

    Args:
        model: a decoder.
        folder: an existing folder.

    Raises:
        InputError: GGUF cannot express the model; the message names the options.
    """
    if isinstance(model.task, Sequences):
        raise InputError(
            f"GGUF cannot express the task {model.task.name}: the model reads a separator after "
            "its input, for which GGUF has no setting; choose a different target"
        )
    architecture = choose(model.config.model)
    expressible.check_unchanged(model.transformer)
    state = {name: x.float().cpu() for name, x in model.transformer.state_dict().items()}
    config, state = normal_form(model.config.model, state, model.longest)
    tokenizer = write_tokenizer(model.tokenizer)
    metadata = {
        "general.architecture": architecture, "general.type": "model",
        "general.name": model.folder.name if model.folder else "regard", "general.file_type": 0,
        **architecture_metadata(architecture, config, model.longest), **tokenizer,
    }  # fmt: skip
    if (template := model.chat_template) is not None:
        metadata[CHAT_TEMPLATE] = template.source
    path = folder / FILE
    write_file(path, metadata, from_regard(state, config, architecture))
    check(path, config, state)


def oracle(folder: Path, model: Model) -> GgufOracle | None:
    """Load the written file in `transformers`, which has its own GGUF reader.

    Args:
        folder: the folder that `write` filled.
        model: the model.

    Returns:
        The runtime, or None if it is not installed.
    """
    return load_oracle(folder / FILE, specials_of(model.tokenizer))


def choose(config: ModelConfig) -> str:
    """The architecture of GGUF that computes the same function.

    Args:
        config: the architecture of the model.

    Returns:
        Its name.

    Raises:
        InputError: there is none; the message names the options that prevent it, and their values
            in the architecture that differs least.
    """
    architectures = {name: (name, values) for name, values in RULES.items()}
    return expressible.choose("GGUF", architectures, config)


def normal_form(
    config: ModelConfig, state: Mapping[str, Tensor], longest: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The same model with only those options that a GGUF file has.

    The scale of the embeddings is multiplied into the table, so the output matrix becomes a
    separate tensor. Computed positions become a table; missing biases become zeros.

    Args:
        config: the architecture of the model.
        state: its tensors, float32.
        longest: the largest number of tokens in an input.

    Returns:
        The architecture and the tensors, as `read.read` returns them for the file.
    """
    state = dict(state)
    changes: dict[str, Any] = {"scale_embeddings": False, "dropout": 0.0, "attention_dropout": 0.0}
    changes["feed_forward_dropout"] = 0.0
    tied = config.tie_embeddings != "none"
    table = state["embeddings.shared.weight"]
    if config.scale_embeddings:
        if tied:
            state["head.output.weight"] = table
        state["embeddings.shared.weight"] = table * math.sqrt(config.d_model)
        tied = False
    changes["tie_embeddings"] = "all" if tied else "none"
    if config.positions != "rotary":
        changes |= {"positions": "learned", "bias": True, "query_key_value_bias": True}
        if config.positions != "learned":
            changes["max_length"] = longest
            rows = torch.zeros(longest, config.d_model)
            if config.positions == "sinusoidal":
                positions = torch.arange(longest)
                rows = sinusoids(positions, config.d_model, config.position_base).float()
            state["decoder.positions.weight"] = rows
    result = replace(config, **changes)
    shapes = tensor_names(result)
    for own, sources in regard_names(result).items():
        if own not in state:
            state[own] = torch.zeros(sum(shapes[name][0] for name in sources))  # a bias
    return result, state


def from_regard(
    state: Mapping[str, Tensor], config: ModelConfig, architecture: str
) -> dict[str, Tensor]:
    """The inverse of `read.to_regard`.

    Args:
        state: the tensors with the names of `Transformer.state_dict()`.
        config: the options of the model.
        architecture: a name of ARCHITECTURES.

    Returns:
        The tensors of a file, in its order.
    """
    shapes = tensor_names(config)
    tensors: dict[str, Tensor] = {}
    for own, sources in regard_names(config).items():
        parts = list(state[own].split([shapes[name][0] for name in sources]))
        if ARCHITECTURES[architecture].halves and "query_key_value" in own:
            parts[:2] = [halves_of_pairs(part, config.head_size) for part in parts[:2]]
        tensors |= dict(zip(sources, parts, strict=True))
    return {name: tensors[name] for name in shapes}


def architecture_metadata(name: str, config: ModelConfig, longest: int) -> dict[str, Any]:
    """The metadata of an architecture.

    Args:
        name: its name in GGUF.
        config: the architecture, as `normal_form` returns it.
        longest: the largest number of tokens in an input.

    Returns:
        The values by key.
    """
    c = config
    values: dict[str, Any] = {
        "vocab_size": c.vocabulary_size, "block_count": c.decoder_layers,
        "embedding_length": c.d_model, "feed_forward_length": c.d_ff,
        "attention.head_count": c.heads,
        "context_length": c.max_length if c.positions == "learned" else longest,
    }  # fmt: skip
    if c.positions == "learned":
        values["attention.layer_norm_epsilon"] = _float32(c, "norm_epsilon")
    else:
        values |= {
            "attention.head_count_kv": c.key_value_heads,
            "attention.layer_norm_rms_epsilon": _float32(c, "norm_epsilon"),
            "rope.freq_base": _float32(c, "position_base"), "rope.dimension_count": c.head_size,
        }  # fmt: skip
        if c.head_size * c.heads != c.d_model:
            values |= dict.fromkeys(("attention.key_length", "attention.value_length"), c.head_size)
    return {f"{name}.{key}": value for key, value in values.items()}


def _float32(config: ModelConfig, option: str) -> float:
    """The value of an option; it must be exact in float32, which the file stores."""
    value = float(getattr(config, option))
    if shortest(value) != value:
        raise InputError(f"GGUF cannot express model.{option}={value}: it stores float32 numbers")
    return value


def check(path: Path, config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    """Read a file back and compare it with the model, bit for bit."""
    copy = read(path)
    different = [name for name, x in copy.tensors.items() if not torch.equal(x, state[name].cpu())]
    if different or copy.tensors.keys() != set(regard_names(config)):
        raise RuntimeError(f"{path}: {different[:3]} was not written correctly")
