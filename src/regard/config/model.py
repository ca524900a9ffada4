"""ModelConfig: every choice of the architecture in one place, checked before any work starts.

The defaults are the paper's base model (Vaswani et al. 2017, Table 3). Variants of the paper and of
later work are options of the same model. This module does not import torch, so that `--help` and
configuration errors are immediate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from regard.config.checks import (
    DERIVED,
    FRACTION,
    Range,
    changed_fields,
    check_keys,
    check_types,
    choice,
)
from regard.config.parameters import closed_form
from regard.config.registry import ATTENTION, MIXERS, POSITIONS
from regard.errors import InputError, unknown

STYLES = ("encoder-decoder", "encoder", "decoder")
# Options to which regard.register_positions and similar functions add values.
REGISTRIES = {"positions": POSITIONS, "attention": ATTENTION, "mixer": MIXERS}
CHOICES = {
    "style": STYLES,
    **{name: registry.built_in for name, registry in REGISTRIES.items()},
    "norm": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu-tanh", "silu", "swiglu"),
    "decoder_mixer": ("attention", "ssru"),
    "tie_embeddings": ("all", "source-target", "target-output", "none"),
    "head": ("language-model", "masked-language-model", "classifier", "pooling"),
    "pooling": ("mean", "cls", "last"),
    "classifier_activation": ("tanh", "relu"),
}
HEADS_OF_STYLE = {
    "encoder-decoder": ("language-model",),
    "encoder": ("masked-language-model", "classifier", "pooling"),
    "decoder": ("language-model", "pooling"),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture. Fields with the default `DERIVED` are computed from the other fields."""

    style: str = "encoder-decoder"  # which stacks the model has; an encoder sees all tokens, a
    # decoder only earlier ones
    vocabulary_size: int  # V: token ids are 0..V-1 (of the target, if the source has its own
    # vocabulary); regard train: the size of the learned vocabulary
    source_vocabulary_size: int = DERIVED  # default: vocabulary_size

    encoder_layers: int = DERIVED  # default: 6 if the style has an encoder, else 0
    decoder_layers: int = DERIVED  # default: 6 if the style has a decoder, else 0
    d_model: int = 512  # D: the width of every layer's input and output
    heads: int = 8  # H: number of attention heads
    head_size: int = DERIVED  # K: size of each query, key and value; default: d_model / heads
    key_value_heads: int = DERIVED  # G: key and value heads, each shared by heads / G query
    # heads (grouped-query attention); default: heads
    d_ff: int = 2048  # F: the inner width of the feed-forward network

    attention: str = "dot-product"  # scaled dot-product attention, or a registered variant of it
    mixer: str = "attention"  # how encoder positions exchange information; dilated: a
    # convolution whose reach grows by a factor of kernel with each layer; none: not at all
    kernel: int = 3  # k: width of a convolution, in tokens
    decoder_mixer: str = "attention"  # how decoder positions read earlier ones: self-attention, or
    # the SSRU of Kim et al. (2019)

    norm_first: bool = False  # false: post-norm, LayerNorm(x + f(x)), as published; true: pre-norm
    norm: str = "layer"  # layer: LayerNorm; rms: RMSNorm (no mean, no bias)
    norm_epsilon: float = 1e-5  # added to the variance in every norm
    embedding_norm: bool = False  # apply a norm to the sum of token and position embeddings, as
    # in BERT
    activation: str = "relu"  # activation of the feed-forward network; gelu-tanh: the GELU
    # approximation of GPT-2; swiglu: gated, with three matrices
    bias: bool = True  # biases in the projections and the feed-forward network
    query_key_value_bias: bool = DERIVED  # biases of queries, keys and values; default: bias

    positions: str = "sinusoidal"  # position encoding; rotary rotates queries and keys
    position_base: float = 10_000.0  # sinusoidal, rotary: wavelengths are 2 pi to base * 2 pi
    max_length: int = 1024  # rows of the learned position table; other positions have no limit
    window: int | None = None  # r: self-attention sees at most r positions away; null: no limit

    dropout: float = 0.1  # on each sub-layer's output and on the embedding sum
    attention_dropout: float = 0.0  # on the attention weights
    feed_forward_dropout: float = 0.0  # between the two feed-forward matrices

    scale_embeddings: bool = True  # multiply embeddings by sqrt(d_model), section 3.4
    tie_embeddings: str = "all"  # which of the source, target and output matrices are shared
    head: str = DERIVED  # output head on the last layer; default: language-model, or
    # masked-language-model for an encoder; regard train: what the task needs
    output_bias: bool = False  # for head=language-model: add a bias to the logits
    classes: int | None = None  # for head=classifier; regard train: the number of labels
    classifier_activation: str = "tanh"  # for head=classifier: between its two matrices
    pooling: str = "mean"  # for head=pooling: the mean of all tokens, the first (cls), the last

    __repr__ = changed_fields

    def __post_init__(self) -> None:
        check_types(self, "model", RANGES)
        # true and false are accepted as well.
        self._resolve("tie_embeddings", {True: "all", False: "none"})
        if self.style in STYLES:
            self._resolve("encoder_layers", {None: 6 if self.has_encoder else 0})
            self._resolve("decoder_layers", {None: 6 if self.has_decoder else 0})
            self._resolve("head", {None: HEADS_OF_STYLE[self.style][0]})
        self._resolve("source_vocabulary_size", {None: self.vocabulary_size})
        self._resolve("key_value_heads", {None: self.heads})
        self._resolve("query_key_value_bias", {None: self.bias})
        for name, choices in CHOICES.items():
            if name in REGISTRIES:
                REGISTRIES[name].check(str(getattr(self, name)))
            else:
                choice(f"model.{name}", str(getattr(self, name)), choices)
        self._check_sizes()
        if self.head_size is DERIVED:
            if self.d_model % self.heads:
                raise InputError(
                    f"model.d_model={self.d_model} is not divisible by model.heads={self.heads}: "
                    "change one of them or set model.head_size"
                )
            self._resolve("head_size", {None: self.d_model // self.heads})
        self._check_combinations()
        count = sum(part.parameters for part in closed_form(self).values())
        if count > MOST_PARAMETERS:
            raise InputError(
                f"a model with {count:,} parameters is too large (at most {MOST_PARAMETERS:,}): "
                "lower model.d_model, model.d_ff, the number of layers or model.vocabulary_size"
            )

    def _resolve(self, name: str, values: dict[Any, Any]) -> None:
        value = getattr(self, name)
        if value is None or isinstance(value, bool):
            object.__setattr__(self, name, values.get(value, value))

    def _check_sizes(self) -> None:
        sides = {"encoder_layers": self.has_encoder, "decoder_layers": self.has_decoder}
        for name, present in sides.items():
            layers = getattr(self, name)
            if not present and layers:
                raise InputError(
                    f"model.style={self.style} and model.{name}={layers} cannot be combined: set "
                    f"model.{name}=0"
                )
            if present and not layers:
                raise InputError(f"model.{name} must be at least 1, not 0")

    def _check_combinations(self) -> None:
        """Refuse options that cannot be combined; the message names both and the reason."""
        one_stack = self.style != "encoder-decoder"
        own_source = self.source_vocabulary_size != self.vocabulary_size
        tied = self.tie_embeddings in ("all", "source-target")
        heads = HEADS_OF_STYLE[self.style]
        mixed = self.mixer != "attention"
        rules = [
            (self.positions == "sinusoidal" and self.d_model % 2 == 1, "positions", "d_model",
             "sinusoids are pairs of sine and cosine, so d_model must be even"),
            (self.positions == "rotary" and self.head_size % 2 == 1, "positions", "head_size",
             "rotary positions rotate pairs of features, so head_size must be even"),
            (self.heads % self.key_value_heads != 0, "heads", "key_value_heads",
             "each key and value head must serve the same number of query heads"),
            (self.decoder_mixer == "ssru" and not self.has_decoder, "decoder_mixer", "style",
             "this style has no decoder"),
            (self.decoder_mixer == "ssru" and self.window is not None, "decoder_mixer", "window",
             "only attention has a window"),
            (self.decoder_mixer == "ssru" and self.positions == "rotary", "decoder_mixer",
             "positions", "rotary positions rotate queries and keys, which only attention has"),
            (self.output_bias and self.head != "language-model", "output_bias", "head",
             "only head=language-model has this option"),
            (self.classifier_activation != "tanh" and self.head != "classifier",
             "classifier_activation", "head", "only head=classifier has this option"),
            (mixed and self.style == "decoder", "mixer", "style",
             "a decoder generates with a cache of keys and values, which only attention has"),
            (self.mixer in ("lstm", "gru") and self.d_model % 2 == 1, "mixer", "d_model",
             "each direction has half of the width, so d_model must be even"),
            (mixed and one_stack and self.window is not None, "mixer", "window",
             "only attention has a window"),
            (mixed and one_stack and self.attention != "dot-product", "mixer", "attention",
             "the mixer replaces all attention of this model"),
            (mixed and one_stack and self.positions == "rotary", "mixer", "positions",
             "rotary positions rotate queries and keys, which only attention has"),
            (self.mixer not in ("convolution", "dilated") and self.kernel != 3, "mixer", "kernel",
             "only a convolution has a kernel"),
            (self.mixer == "dilated" and self.kernel ** self.encoder_layers > FURTHEST, "kernel",
             "encoder_layers", "dilated layers would reach over a billion positions"),
            (tied and own_source, "tie_embeddings", "source_vocabulary_size",
             "a shared matrix needs a shared vocabulary"),
            (one_stack and self.tie_embeddings == "source-target", "tie_embeddings", "style",
             "only an encoder-decoder has a source and a target"),
            (one_stack and own_source, "source_vocabulary_size", "style",
             "a model with one stack has one vocabulary"),
            (self.head not in heads, "head", "style", f"this style has {' or '.join(heads)}"),
            (self.head == "classifier" and self.classes is None, "head", "classes",
             "set model.classes to the number of classes"),
            (self.head != "classifier" and self.classes is not None, "head", "classes",
             "only head=classifier has classes"),
            (self.pooling == "cls" and self.style == "decoder", "pooling", "style",
             "the first token of a decoder sees only itself; use last or mean"),
        ]  # fmt: skip
        for violated, first, second, reason in rules:
            if violated:
                pair = [f"model.{name}={getattr(self, name)}" for name in (first, second)]
                raise InputError(f"{pair[0]} and {pair[1]} cannot be combined: {reason}")

    @property
    def custom_parts(self) -> tuple[str, ...]:
        """The parts that a user registered, for example ("positions=alibi",). The compiled engines
        implement the built-in parts only."""
        return tuple(
            f"{name}={getattr(self, name)}"
            for name, registry in REGISTRIES.items()
            if registry.is_custom(getattr(self, name))
        )

    @property
    def has_encoder(self) -> bool:
        """Whether the style has an encoder."""
        return self.style != "decoder"

    @property
    def has_decoder(self) -> bool:
        """Whether the style has a decoder."""
        return self.style != "encoder"

    @classmethod
    def preset(cls, name: str, **changes: Any) -> ModelConfig:
        """A preset with changes: `ModelConfig.preset("base", vocabulary_size=37_000)`.

        Args:
            name: the name of the preset, for example "tiny" or "base".
            **changes: fields with other values than those of the preset.

        Returns:
            The configuration.

        Raises:
            InputError: the preset or a field is unknown, or a value is not valid.
        """
        if name not in PRESETS:
            raise unknown("preset", name, PRESETS)
        layers = {"encoder_layers", "decoder_layers"}
        values = {key: value for key, value in PRESETS[name].items() if key not in layers}
        style = changes.get("style", "encoder-decoder")
        for stack in ("encoder", "decoder"):  # a style takes the layers of the stacks it has
            if stack in str(style).split("-"):
                values[f"{stack}_layers"] = PRESETS[name][f"{stack}_layers"]
        return cls.from_dict({**values, **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The configuration with these values.

        Args:
            values: the fields by name; the others have their defaults.

        Returns:
            The configuration.

        Raises:
            InputError: a field is unknown, or a value is missing or not valid.
        """
        check_keys(cls, "model", values)
        if "vocabulary_size" not in values:
            raise InputError("model.vocabulary_size is missing: set it to the number of tokens")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, including defaults, as `from_dict` accepts them."""
        return asdict(self)


# Far above any practical value, and far below an overflow or any machine's memory.
RANGES = {
    "vocabulary_size": Range(1, 10_000_000), "source_vocabulary_size": Range(1, 10_000_000),
    "encoder_layers": Range(0, 1_000), "decoder_layers": Range(0, 1_000),
    "d_model": Range(1, 1_000_000), "heads": Range(1, 100_000),
    "key_value_heads": Range(1, 100_000), "norm_epsilon": Range(0, 1, above=True),
    "head_size": Range(1, 1_000_000),
    "d_ff": Range(1, 100_000_000), "kernel": Range(1, 1_000),
    "position_base": Range(1, 1e100, above=True), "max_length": Range(1, 100_000_000),
    "window": Range(1, 1_000_000_000), "dropout": FRACTION, "attention_dropout": FRACTION,
    "feed_forward_dropout": FRACTION, "classes": Range(1, 1_000_000),
}  # fmt: skip
MOST_PARAMETERS = 100_000_000_000
FURTHEST = 1_000_000_000  # positions within reach of a dilated convolution

# Layers, widths and heads of the paper (base, big), of fairseq's IWSLT model (small) and of
# text-only Multi30k models (tiny). Dropout is the published value, except for tiny (0.3).
PRESETS: dict[str, dict[str, Any]] = {
    name: {
        "encoder_layers": layers, "decoder_layers": layers, "d_model": d_model, "heads": heads,
        "d_ff": d_ff, "dropout": dropout,
    }
    for name, layers, d_model, heads, d_ff, dropout in (
        ("tiny", 4, 128, 4, 256, 0.2),
        ("small", 6, 512, 4, 1024, 0.3),
        ("base", 6, 512, 8, 2048, 0.1),
        ("big", 6, 1024, 16, 4096, 0.3),
    )
}  # fmt: skip
