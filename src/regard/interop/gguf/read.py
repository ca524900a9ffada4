"""Import language models from GGUF files.

The architectures `llama` (Llama, SmolLM2, Mistral) and `qwen2` are decoders with rotary positions,
RMSNorm before each sub-layer, SwiGLU and grouped-query attention; `gpt2` has learned positions,
LayerNorm and GELU. The file contains everything: sizes, weights, tokenizer and chat template.
Quantised weights become float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop.gguf.file import GgufFile, read_file
from regard.interop.gguf.oracle import GgufOracle, load_oracle
from regard.interop.gguf.tokenizer import CHAT_TEMPLATE, read_tokenizer
from regard.interop.gguf.types import NAMES
from regard.interop.model import ImportedModel

# Keys of an architecture, without its name, that regard reads or that have no effect.
KEYS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.sliding_window", "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count",
    "tensor_data_layout",
}  # fmt: skip
# Keys whose value must be the one that means "not used".
UNUSED: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",), "rope.scaling.factor": (1.0, 0.0), "rope.scale_linear": (1.0,),
    "expert_count": (0,), "expert_used_count": (0,), "attention.causal": (True,),
    "use_parallel_residual": (False,), "logit_scale": (1.0, 0.0), "embedding_scale": (1.0, 0.0),
    "residual_scale": (1.0, 0.0), "attention.scale": (0.0,),
}  # fmt: skip
LARGEST = 2**31 - 1  # of an integer
NOTED = ("general.name", "general.license", "general.url", "general.source.url", "general.basename")


@dataclass(frozen=True)
class Architecture:
    """What the name of an architecture implies.

    Attributes:
        rotary: rotary positions, RMSNorm and SwiGLU; otherwise learned positions, LayerNorm, GELU.
        query_key_value_bias: queries, keys and values have biases.
        halves: rotary positions pair feature i of a head with i + K/2, not 2 i with 2 i + 1.
    """

    rotary: bool
    query_key_value_bias: bool
    halves: bool


ARCHITECTURES = {
    "llama": Architecture(rotary=True, query_key_value_bias=False, halves=False),
    "qwen2": Architecture(rotary=True, query_key_value_bias=True, halves=True),
    "gpt2": Architecture(rotary=False, query_key_value_bias=True, halves=False),
}


def read(path: Path) -> ImportedModel:
    """Read a GGUF file.

    Args:
        path: the file.

    Returns:
        The model with float32 weights, its tokenizer and its chat template.

    Raises:
        InputError: the file is damaged, or has an architecture, a type of weights, a tokenizer or
            an option that regard does not support; the message names it.
    """
    file = read_file(path)
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InputError(
            f"{path}: the architecture {name!r:.40} is not supported; regard reads "
            f"{', '.join(ARCHITECTURES)}"
        )
    reader = _Reader(file, name)
    config = reader.config()
    names = tensor_names(config)
    reader.check_tensors(names, config)
    tokenizer = read_tokenizer(file.metadata, config.vocabulary_size, path)
    template = file.metadata.get(CHAT_TEMPLATE)
    if template is not None and not isinstance(template, str):
        raise InputError(f"{path}: {CHAT_TEMPLATE} is not a string")
    weights = file.read(names)
    types = sorted({NAMES[file.tensors[name].type] for name in names})
    noted = {key: file.metadata[key] for key in NOTED if key in file.metadata}
    return ImportedModel(
        format="GGUF", architecture=name, task="generate", config=config,
        tensors=to_regard(weights, config, name), tokenizers=(tokenizer, tokenizer),
        max_length=reader.number("context_length"), chat_template=template,
        options={"types": ", ".join(types), **noted}, files=[path],
    )  # fmt: skip


def oracle(path: Path, model: ImportedModel) -> GgufOracle | None:
    """Load the same file in `transformers`, which has its own GGUF reader.

    Args:
        path: the file.
        model: the model that `read` returned.

    Returns:
        The runtime, or None if it is not installed.
    """
    return load_oracle(path, model.tokenizers[0].specials)


class _Reader:
    """Reads the configuration from the metadata of a file."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self.file, self.name, self.kind = file, name, ARCHITECTURES[name]

    def error(self, message: str) -> InputError:
        return InputError(f"{self.file.path}: {message}")

    def value(self, key: str, default: object) -> Any:
        """An option of the architecture; None as the default: it is required."""
        value = self.file.metadata.get(f"{self.name}.{key}", default)
        if value is None:
            raise self.error(f"{self.name}.{key} is missing")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.value(key, default)
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise self.error(
                f"{self.name}.{key} is {value!r:.40}, not an integer from 1 to {LARGEST:,}"
            )
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.value(key, default)
        if type(value) is not float or not np.isfinite(value) or value <= 0:
            raise self.error(f"{self.name}.{key} is {value!r:.40}, not a positive number")
        return shortest(value)

    def check_keys(self) -> None:
        """Raise an InputError for options of the architecture that regard does not support."""
        for key, value in self.file.metadata.items():
            prefix, _, option = key.partition(".")
            if prefix != self.name or option in KEYS:
                continue
            unused = UNUSED.get(option, ())
            if not any(type(value) is type(other) and value == other for other in unused):
                raise self.error(f"{key:.60}={value!r:.40} is not supported")

    def config(self) -> ModelConfig:
        """The configuration; an InputError if an option is missing or not supported."""
        self.check_keys()
        if "token_embd.weight" not in self.file.tensors:
            raise self.error("the tensor token_embd.weight is missing")
        size = self.file.tensors["token_embd.weight"].shape[0]
        stated = self.number("vocab_size", size)
        if stated != size:
            raise self.error(f"{self.name}.vocab_size is {stated}, but there are {size} embeddings")
        d_model, heads = self.number("embedding_length"), self.number("attention.head_count")
        if d_model % heads and f"{self.name}.attention.key_length" not in self.file.metadata:
            raise self.error(f"{self.name}.embedding_length is not a multiple of the head count")
        head_size = self.number("attention.key_length", max(1, d_model // heads))
        for key in ("attention.value_length", "rope.dimension_count"):
            if self.number(key, head_size) != head_size:
                raise self.error(f"{self.name}.{key} differs from the head size {head_size}")
        rotary = self.kind.rotary
        epsilon = "attention.layer_norm_rms_epsilon" if rotary else "attention.layer_norm_epsilon"
        options: dict[str, Any] = {
            "norm_epsilon": self.real(epsilon), "window": self.window(),
            "key_value_heads": self.number("attention.head_count_kv", heads),
            "query_key_value_bias": self.kind.query_key_value_bias, "bias": not rotary,
            "tie_embeddings": "none" if "output.weight" in self.file.tensors else "all",
        }  # fmt: skip
        if rotary:
            options |= {
                "positions": "rotary", "position_base": self.real("rope.freq_base", 10_000.0),
                "norm": "rms", "activation": "swiglu",
            }  # fmt: skip
        else:
            options |= {
                "positions": "learned", "max_length": self.number("context_length"),
                "norm": "layer", "activation": "gelu-tanh",
            }  # fmt: skip
        try:
            return ModelConfig(
                style="decoder", vocabulary_size=size, decoder_layers=self.number("block_count"),
                d_model=d_model, heads=heads, head_size=head_size,
                d_ff=self.number("feed_forward_length"), norm_first=True, dropout=0.0,
                scale_embeddings=False, **options,
            )  # fmt: skip
        except InputError as error:
            raise self.error(str(error)) from None

    def window(self) -> int | None:
        """The window: GGUF counts the token itself, regard only the tokens before it."""
        if f"{self.name}.attention.sliding_window" not in self.file.metadata:
            return None
        window, context = self.number("attention.sliding_window"), self.number("context_length")
        if window == 1:
            raise self.error(f"{self.name}.attention.sliding_window=1 is not supported")
        return window - 1 if window < context else None

    def check_tensors(self, names: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
        """Raise an InputError for a missing tensor, a wrong shape, or an unknown tensor."""
        tensors = self.file.tensors
        for name, shape in names.items():
            if name not in tensors:
                raise self.error(f"the tensor {name} is missing")
            if tensors[name].shape != shape:
                raise self.error(
                    f"{name} has the shape {list(tensors[name].shape)}, but the metadata imply "
                    f"{list(shape)}"
                )
        unknown = sorted(tensors.keys() - names.keys())
        if unknown:
            reason = " (a scaling of rotary positions)" if "rope_freqs.weight" in unknown else ""
            raise self.error(f"the tensor {unknown[0]:.60}{reason} is not supported")


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same in float32: 1e-5 for 9.99999974e-06."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def tensor_names(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a file and their shapes.

    Args:
        config: the configuration of a decoder that GGUF can express.

    Returns:
        The shapes by name, in the order of a file.
    """
    c = config
    d, f, width, shared = c.d_model, c.d_ff, c.heads * c.head_size, c.key_value_heads * c.head_size
    rotary = c.positions == "rotary"
    names: dict[str, tuple[int, ...]] = {"token_embd.weight": (c.vocabulary_size, d)}
    if not rotary:
        names["position_embd.weight"] = (c.max_length, d)
    for i in range(c.decoder_layers):
        layer: dict[str, tuple[int, ...]] = {"attn_norm.weight": (d,)}
        if rotary:
            rows = {"q": width, "k": shared, "v": shared}
            layer |= {f"attn_{part}.weight": (rows[part], d) for part in rows}
            if c.query_key_value_bias:
                layer |= {f"attn_{part}.bias": (rows[part],) for part in rows}
            layer |= {"attn_output.weight": (d, width), "ffn_norm.weight": (d,)}
            layer |= {"ffn_gate.weight": (f, d), "ffn_up.weight": (f, d), "ffn_down.weight": (d, f)}
        else:
            layer |= {
                "attn_norm.bias": (d,), "attn_qkv.weight": (width + 2 * shared, d),
                "attn_qkv.bias": (width + 2 * shared,), "attn_output.weight": (d, width),
                "attn_output.bias": (d,), "ffn_norm.weight": (d,), "ffn_norm.bias": (d,),
                "ffn_up.weight": (f, d), "ffn_up.bias": (f,), "ffn_down.weight": (d, f),
                "ffn_down.bias": (d,),
            }  # fmt: skip
        names |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    names["output_norm.weight"] = (d,)
    if not rotary:
        names["output_norm.bias"] = (d,)
    if c.tie_embeddings == "none":
        names["output.weight"] = (c.vocabulary_size, d)
    return names


def regard_names(config: ModelConfig) -> dict[str, list[str]]:
    """The tensors of a regard model, each with the tensors of a file that are its rows.

    Args:
        config: the configuration of a decoder that GGUF can express.

    Returns:
        The names of the tensors of a file by the name in `Transformer.state_dict()`.
    """
    rotary = config.positions == "rotary"
    projections = ["attn_q", "attn_k", "attn_v"] if rotary else ["attn_qkv"]
    names = {"embeddings.shared.weight": ["token_embd.weight"]}
    if not rotary:
        names["decoder.positions.weight"] = ["position_embd.weight"]
    parts = {
        "self_attention.query_key_value": projections,
        "self_attention.output": ["attn_output"], "self_attention_norm.norm": ["attn_norm"],
        "feed_forward.inner": ["ffn_gate", "ffn_up"] if rotary else ["ffn_up"],
        "feed_forward.outer": ["ffn_down"], "feed_forward_norm.norm": ["ffn_norm"],
    }  # fmt: skip
    known = tensor_names(config)
    for i in range(config.decoder_layers):
        for own, sources in parts.items():
            for kind in ("weight", "bias"):
                full = [f"blk.{i}.{source}.{kind}" for source in sources]
                if full[0] in known:
                    names[f"decoder.layers.{i}.{own}.{kind}"] = full
    for kind in ("weight", "bias"):
        if f"output_norm.{kind}" in known:
            names[f"decoder.final_norm.{kind}"] = [f"output_norm.{kind}"]
    if "output.weight" in known:
        names["head.output.weight"] = ["output.weight"]
    return names


def to_regard(
    tensors: Mapping[str, Tensor], config: ModelConfig, architecture: str
) -> dict[str, Tensor]:
    """Convert the tensors of a file to the layout of regard.

    Args:
        tensors: the tensors of the file, float32.
        config: the configuration of the model.
        architecture: a name of ARCHITECTURES.

    Returns:
        The tensors with the names and layouts of `Transformer.state_dict()`.
    """
    result = {}
    for own, sources in regard_names(config).items():
        parts = [tensors[source] for source in sources]
        if ARCHITECTURES[architecture].halves and "query_key_value" in own:
            parts[:2] = [pairs_of_halves(part, config.head_size) for part in parts[:2]]
        result[own] = torch.cat(parts) if len(parts) > 1 else parts[0]
    return result


def pairs_of_halves(rows: Tensor, head_size: int) -> Tensor:
    """Reorder the features of each head: 0, K/2, 1, K/2 + 1, ... become 0, 1, 2, 3, ..."""
    heads = rows.reshape(-1, 2, head_size // 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def halves_of_pairs(rows: Tensor, head_size: int) -> Tensor:
    """The inverse of `pairs_of_halves`."""
    heads = rows.reshape(-1, head_size // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)
