"""Choose the architecture of `transformers` that computes the same function as a regard model.

Each architecture has a table with a rule for every option of `ModelConfig`. An option without a
rule is refused, so that a new option cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop import expressible
from regard.interop.expressible import ANY, Values

TRAINING = "training only"  # no effect on a trained model; written where the target has the option


def _model_width(config: ModelConfig) -> tuple[Any, ...]:
    """The head size d_model / heads; empty if d_model is not divisible by heads."""
    return () if config.d_model % config.heads else (config.d_model // config.heads,)


def _dividing(config: ModelConfig) -> tuple[Any, ...]:
    return () if config.d_model % config.heads else (config.heads,)


def _one_vocabulary(config: ModelConfig) -> tuple[Any, ...]:
    return (config.vocabulary_size,)


def _word_activation(config: ModelConfig) -> tuple[Any, ...]:
    """BERT uses the activation of the layers in its masked-word head; regard uses GELU."""
    words = config.head == "masked-language-model"
    return ("gelu",) if words else ("relu", "gelu", "gelu-tanh", "silu")


COMMON: Mapping[str, Values] = {
    "vocabulary_size": ANY, "source_vocabulary_size": _one_vocabulary,
    "encoder_layers": ANY, "decoder_layers": ANY, "d_model": ANY, "heads": ANY,
    "head_size": _model_width,
    "key_value_heads": ANY,  # repeated for each query head where the target has no groups
    "d_ff": ANY, "attention": ("dot-product",), "mixer": ("attention",),
    "kernel": ANY,  # only mixers other than attention have one
    "decoder_mixer": ("attention",), "norm": ("layer",), "norm_epsilon": (1e-5,),
    "activation": ("relu", "gelu", "gelu-tanh", "silu"),
    "bias": ANY, "query_key_value_bias": ANY,  # zeros where the target always has a bias
    "positions": ("learned", "sinusoidal", "none"),  # written as a table
    "position_base": ANY, "max_length": ANY, "window": (None,),
    "dropout": TRAINING, "attention_dropout": TRAINING, "feed_forward_dropout": TRAINING,
    "scale_embeddings": ANY,  # multiplied into the table where the target has no factor
    "tie_embeddings": ANY, "output_bias": (False,), "classes": ANY,
    "classifier_activation": ("tanh",), "pooling": ANY,
}  # fmt: skip
# Sinusoids that the class computes itself: sines first, and always the same base.
COMPUTED: Mapping[str, Values] = {"positions": ("sinusoidal",), "position_base": (10_000.0,)}
ROTARY: Mapping[str, Values] = {"positions": ("rotary",)}


@dataclass(frozen=True)
class Architecture:
    """An architecture of `transformers`.

    Attributes:
        name: its `model_type`.
        style: the corresponding style of regard.
        classes: the class for each head of regard.
        rules: the values of each option that it expresses.
        grouped: whether it has `num_key_value_heads`.
        scaled: whether it has `scale_embedding`.
        permuted: whether its sinusoids are all sines, then all cosines.
        bias: whether it has all biases; None: as configured.
    """

    name: str
    style: str
    classes: Mapping[str, str]
    rules: Mapping[str, Values]
    grouped: bool = False
    scaled: bool = False
    permuted: bool = False
    bias: bool | None = True

    def misfits(self, config: ModelConfig) -> dict[str, tuple[Any, ...]]:
        """The options whose values the architecture cannot express, with the values that fit."""
        return expressible.misfits(self.rules, config)


def _architecture(
    name: str, classes: Mapping[str, str], *rules: Mapping[str, Values], **options: Any
) -> Architecture:
    style = options.pop("style")
    table: dict[str, Values] = {**COMMON, "style": (style,), "head": tuple(classes)}
    for own in rules:
        table.update(own)
    return Architecture(name, style, classes, table, **options)


def _seq2seq(name: str, model: str, *rules: Mapping[str, Values], permuted: bool) -> Architecture:
    return _architecture(
        name, {"language-model": model}, {"output_bias": ANY}, *rules,
        style="encoder-decoder", scaled=True, permuted=permuted,
    )  # fmt: skip


def _encoder(name: str, prefix: str, *rules: Mapping[str, Values]) -> Architecture:
    classes = {
        "masked-language-model": f"{prefix}ForMaskedLM",
        "classifier": f"{prefix}ForSequenceClassification",
        "pooling": f"{prefix}Model",
    }
    return _architecture(name, classes, *rules, style="encoder")


def _decoder(name: str, prefix: str, *rules: Mapping[str, Values], **options: Any) -> Architecture:
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    classes = {"language-model": f"{prefix}{head}", "pooling": f"{prefix}Model"}
    return _architecture(name, classes, *rules, style="decoder", **options)


def _norms(first: bool, embedding: tuple[bool, ...]) -> Mapping[str, Values]:
    return {"norm_first": (first,), "embedding_norm": embedding}


EPSILON: Mapping[str, Values] = {"norm_epsilon": ANY}
# A Llama-style decoder: rotary positions, RMSNorm, SwiGLU.
LLAMA: Mapping[str, Values] = {
    **ROTARY, **EPSILON, **_norms(True, (False,)), "norm": ("rms",), "activation": ("swiglu",),
    "head_size": ANY,
}  # fmt: skip

# The first architecture that fits is used.
ARCHITECTURES = (
    _seq2seq(
        "marian", "MarianMTModel", COMPUTED, _norms(False, (False,)),
        {"source_vocabulary_size": ANY}, permuted=True,
    ),
    _seq2seq(
        "pegasus", "PegasusForConditionalGeneration", COMPUTED, _norms(True, (False,)),
        permuted=True,
    ),
    _seq2seq("bart", "BartForConditionalGeneration", _norms(False, (True,)), permuted=False),
    _seq2seq("mbart", "MBartForConditionalGeneration", _norms(True, (True,)), permuted=False),
    _seq2seq(
        "blenderbot", "BlenderbotForConditionalGeneration", _norms(True, (False,)), permuted=False
    ),
    _encoder(
        "bert", "Bert", EPSILON, _norms(False, (True,)), {"activation": _word_activation}
    ),
    _encoder(
        "distilbert", "DistilBert", _norms(False, (True,)),
        {
            "norm_epsilon": (1e-12,), "activation": ("gelu", "relu"), "head": ("classifier",),
            "classifier_activation": ("relu",),
        },
    ),
    _encoder(
        "megatron-bert", "MegatronBert", EPSILON, _norms(True, (False,)),
        {"activation": _word_activation},
    ),
    _encoder(
        "esm", "Esm", EPSILON, ROTARY, _norms(True, (False, True)), {"activation": ("gelu",)}
    ),
    _decoder("gpt2", "GPT2", EPSILON, _norms(True, (False,))),
    _decoder("opt", "OPT", _norms(False, (False,))),
    # Only for a Qwen2 tokenizer: AutoTokenizer would replace any other one with its own.
    _decoder(
        "qwen2", "Qwen2", LLAMA, {"window": ANY, "bias": (False,), "query_key_value_bias": (True,)},
        grouped=True, bias=None,
    ),
    _decoder("llama", "Llama", LLAMA, {"heads": _dividing}, grouped=True, bias=None),
    _decoder(
        "mistral", "Mistral", LLAMA,
        {"window": ANY, "bias": (False,), "query_key_value_bias": (False,)},
        grouped=True, bias=False,
    ),
    _decoder(
        "starcoder2", "Starcoder2", ROTARY, EPSILON, _norms(True, (False,)),
        {"window": ANY, "head_size": ANY},
        grouped=True, bias=None,
    ),
)  # fmt: skip


def choose(config: ModelConfig, excluded: Collection[str] = ()) -> Architecture:
    """The architecture of `transformers` that computes the same function.

    Args:
        config: the architecture of the model.
        excluded: the names of architectures that must not be used.

    Returns:
        The first architecture that expresses every option.

    Raises:
        InputError: there is none; the message names the options that prevent it, and their values
            in the architecture that differs least.
    """
    if config.custom_parts:
        parts = ", ".join(f"model.{part}" for part in config.custom_parts)
        raise InputError(f"{parts}: transformers cannot express a registered part")
    same_style = {
        a.name: (a, a.rules)
        for a in ARCHITECTURES
        if a.style == config.style and a.name not in excluded
    }
    return expressible.choose("transformers", same_style, config)
