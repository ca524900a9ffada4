"""Hugging Face Llama, and the architectures that share its layout: Qwen2 and Mistral.

They are pre-norm decoders with RMSNorm, SwiGLU, rotary positions and grouped key and value heads.
Hugging Face pairs the first half of a head with the second half for rotation; regard pairs adjacent
features. The rows of the query and key matrices are therefore reordered.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.config.model import ModelConfig
from regard.interop.hf.common import Builder, Recipe, Source
from regard.interop.hf.names import LLAMA
from regard.interop.tensors import TensorReader

CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM")
BUFFERS = (r"rotary_emb\.inv_freq$",)


def llama(source: Source) -> Recipe:
    """How to import a model with model_type llama."""
    attention, own = source.flag("attention_bias"), source.flag("mlp_bias")
    biases = ["attention", "output"] * attention + ["feed-forward"] * own
    return _decoder(source, biases, attention, None, 2_048)


def qwen2(source: Source) -> Recipe:
    """How to import a model with model_type qwen2; its queries, keys and values have biases."""
    window = _window(source) if source.flag("use_sliding_window") else None
    layers = min(source.integer("num_hidden_layers"), 2_000)  # the model has at most 1,000
    types = source.values.get("layer_types")
    if types is None and window is not None:
        first = source.integer("max_window_layers", 28)
        types = ["full_attention"] * min(first, layers) + ["sliding_attention"] * (layers - first)
    kind = "full_attention" if window is None else "sliding_attention"
    if types is not None and types != [kind] * layers:
        raise source.error(
            "a window in some layers cannot be imported: regard uses the same one in all layers "
            "(use_sliding_window, max_window_layers, layer_types)"
        )
    return _decoder(source, ["attention"], True, window, 32_768, 32)


def mistral(source: Source) -> Recipe:
    """How to import a model with model_type mistral; its attention has a window."""
    window = _window(source) if source.values.get("sliding_window", 0) is not None else None
    return _decoder(source, [], False, window, 131_072, 8)


def _window(source: Source) -> int:
    """A window of W tokens includes the query, so the furthest key is W - 1 positions away."""
    width = source.integer("sliding_window", 4_096)
    if width < 2:
        raise source.error(f"sliding_window={width} cannot be imported: it must be at least 2")
    return width - 1


def _decoder(
    source: Source, biases: Sequence[str], own_bias: bool, window: int | None, length: int,
    groups: int | None = None,
) -> Recipe:  # fmt: skip
    if source.architecture and source.architecture not in CLASSES:
        raise source.error(
            f"{source.architecture} cannot be imported: regard imports {', '.join(CLASSES)}"
        )
    source.refuse(rope_interleaved=False)
    if source.activation("hidden_act", "silu") != "silu":
        raise source.error("hidden_act must be silu: regard supports no other gate")
    heads = source.integer("num_attention_heads", 32)
    if groups is None or "num_key_value_heads" in source.values:  # null: as many as query heads
        groups = heads
    tied = source.flag("tie_word_embeddings")
    bias = "output" in biases or "feed-forward" in biases
    config = source.model(
        style="decoder", vocabulary_size=source.integer("vocab_size"),
        d_model=source.integer("hidden_size"), decoder_layers=source.integer("num_hidden_layers"),
        heads=heads, key_value_heads=source.integer("num_key_value_heads", groups),
        head_size=source.integer("head_dim", 0) or None, d_ff=source.integer("intermediate_size"),
        norm_first=True, norm="rms", norm_epsilon=source.number("rms_norm_eps", 1e-6),
        activation="swiglu", bias=bias, query_key_value_bias=own_bias, positions="rotary",
        position_base=rotary_base(source), window=window, scale_embeddings=False,
        tie_embeddings="all" if tied else "none", dropout=0.0,
        attention_dropout=source.number("attention_dropout", 0.0),
    )  # fmt: skip
    notes = {}
    if bias and not {"output", "feed-forward"} <= set(biases):
        missing = "mlp_bias" if "output" in biases else "attention_bias"
        notes[missing] = "false: these biases are zero"
    return Recipe(
        "generate", config, lambda reader: _tensors(reader, config, biases, tied),
        source.integer("max_position_embeddings", length), BUFFERS, options=notes,
    )  # fmt: skip


def rotary_base(source: Source) -> float:
    """The base of the wavelengths.

    Raises:
        InputError: the angles are scaled, which regard cannot express.
    """
    source.refuse(partial_rotary_factor=1.0)
    for name in ("rope_parameters", "rope_scaling"):
        values = source.values.get(name) or {}
        if not isinstance(values, dict):
            raise source.error(f"{name}={values!r:.40} is not a JSON object")
        for key in ("rope_type", "type"):
            if values.get(key) not in (None, "default"):
                raise source.error(
                    f"rotary positions of the type {values[key]!r:.40} cannot be imported: regard "
                    "does not support scaled rotary positions"
                )
        if values.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise source.error(
                "partial_rotary_factor cannot be imported: regard rotates all features"
            )
        if any(isinstance(value, dict) for value in values.values()):
            raise source.error(
                f"{name} of each kind of layer cannot be imported: regard uses the same rotary "
                "positions in all layers"
            )
    # Like `transformers`, which ignores rope_parameters if there is rope_scaling.
    values = source.values.get("rope_scaling") or source.values.get("rope_parameters") or {}
    base = source.number("rope_theta", 10_000.0)
    return Source(source.path, values).number("rope_theta", base)


def _tensors(
    reader: TensorReader, config: ModelConfig, biases: Sequence[str], tied: bool
) -> dict[str, Tensor]:
    d, size = config.d_model, config.vocabulary_size
    build = Builder(reader, config, biases=biases)
    build.table("embeddings.shared", "model.embed_tokens", size)
    for i in range(config.decoder_layers):
        build.layer(f"decoder.layers.{i}", f"model.layers.{i}.", LLAMA, rotary=True)
    build.norm("decoder.final_norm", "model.norm")
    if tied:
        reader.copy_of("lm_head.weight", "model.embed_tokens.weight", size, d)
    else:
        build.table("head.output", "lm_head", size)
    return build.tensors
