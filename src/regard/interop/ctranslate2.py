"""Export to CTranslate2: a folder for `ctranslate2.Translator` or `ctranslate2.Generator`.

The weights are written as float32. CTranslate2 can quantise them when it loads the model (option
`compute_type`). It stores position encodings as a table, so sinusoidal positions are exact but
limited to the length of the table (`table_length`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.files import write_file
from regard.interop.expressible import ANY, TRAINING_ONLY, Values, check
from regard.interop.runtime_files import (
    Array,
    FolderTokenizers,
    frame_of,
    rounding_tolerance,
    token_names,
    tokenizers_of,
    weights_of,
    write_tokenizers,
)
from regard.model.positions import sinusoids
from regard.predictor.model import Model
from regard.text.tokenizer import Tokenizer

TARGET = "ctranslate2"
MOST_HEADS = 2**15 - 1  # the format stores their number in 16 bits
SHORTEST_TABLE = 1024  # positions
BATCH = 16  # rows decoded at once

# The names of the members of ctranslate2.specs.Activation.
ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH",
}  # fmt: skip

VALUES: Mapping[str, Values] = {
    **TRAINING_ONLY,
    **dict.fromkeys(
        (
            "vocabulary_size", "source_vocabulary_size", "encoder_layers", "decoder_layers",
            "d_model", "head_size", "key_value_heads", "d_ff", "norm_first", "norm", "norm_epsilon",
            "embedding_norm", "bias", "query_key_value_bias", "position_base", "max_length",
            "scale_embeddings", "tie_embeddings", "output_bias",
        ),
        ANY,
    ),
    **dict.fromkeys(("kernel", "classes", "classifier_activation", "pooling"), ANY),  # not used
    "style": ("encoder-decoder", "decoder"),
    "head": ("language-model",),
    "heads": lambda config: (min(config.heads, MOST_HEADS),),
    "activation": tuple(ACTIVATIONS),
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    "attention": ("dot-product",),
    "mixer": ("attention",),
    "decoder_mixer": ("attention",),
    "window": (None,),
}  # fmt: skip


def write(model: Model, folder: Path) -> None:
    """Write a model for CTranslate2.

    Args:
        model: a model that translates, answers or generates.
        folder: an existing empty folder.

    Raises:
        InputError: CTranslate2 cannot express the model, or is not installed.
    """
    config = model.config.model
    check(TARGET, VALUES, config)
    spec = make_spec(config)
    fill(spec, model)
    names = {file: token_names(tokenizer) for file, tokenizer in tokenizers_of(model).items()}
    source, target = next(iter(names.values())), list(names.values())[-1]
    specials = special_names(model.target_tokenizer, target)
    for name, value in specials.items():
        setattr(spec.config, f"{name}_token", value)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    if config.has_encoder:
        spec.config.decoder_start_token = specials["bos"]
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
    else:
        spec.register_vocabulary(target)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    files = write_tokenizers(model, folder)
    write_file(folder / "README.md", readme(model, files))


def special_names(tokenizer: Tokenizer, names: Sequence[str]) -> dict[str, str]:
    """The names of <unk>, <bos> and <eos>. The format requires all three: if the tokenizer lacks
    one, the name of <eos> or, failing that, of token 0 is used."""
    ids = {name: int(getattr(tokenizer, name)) for name in ("unk", "bos", "eos")}
    instead = max(ids["eos"], 0)
    return {name: names[id if id >= 0 else instead] for name, id in ids.items()}


# ---- the specification ------------------------------------------------------------------------


def make_spec(config: ModelConfig) -> Any:
    """The specification of the model, without weights."""
    try:
        from ctranslate2 import __version__, specs
    except ImportError:
        raise InputError(
            "the export to ctranslate2 needs the package ctranslate2: pip install 'regard[interop]'"
        ) from None
    options: dict[str, Any] = {
        "pre_norm": config.norm_first,
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "layernorm_embedding": config.embedding_norm,
        "rms_norm": config.norm == "rms",
    }
    if config.key_value_heads != config.heads:
        options["num_heads_kv"] = config.key_value_heads
    if config.head_size * config.heads != config.d_model:
        options["head_dim"] = config.head_size
    if config.positions == "rotary":
        options |= {"rotary_dim": config.head_size, "rotary_interleave": True}
        options["rotary_base"] = config.position_base
    try:
        decoder = specs.TransformerDecoderSpec(
            config.decoder_layers, config.heads,
            with_encoder_attention=config.has_encoder, **options,
        )  # fmt: skip
        if not config.has_encoder:
            return specs.TransformerDecoderModelSpec(decoder)
        encoder = specs.TransformerEncoderSpec(config.encoder_layers, config.heads, **options)
        return specs.TransformerSpec(encoder, decoder)
    except TypeError as error:  # an old version lacks one of the options
        raise InputError(
            f"ctranslate2 {__version__} cannot express this model ({error!s:.100}): install "
            "version 4.8 or later"
        ) from None


def table_length(model: Model) -> int:
    """The number of positions in a sinusoid table: enough for the longest input and output."""
    longest = model.config.longest_input + model.config.decoding.max_length + 1
    return max(SHORTEST_TABLE, longest)


def fill(spec: Any, model: Model) -> None:
    """Set the weights of a specification."""
    config, weights = model.config.model, weights_of(model)
    if config.has_encoder:
        fill_stack(spec.encoder, "encoder", model, weights)
    fill_stack(spec.decoder, "decoder", model, weights)
    shared = weights.get("embeddings.shared.weight")
    target = weights["embeddings.target.weight"] if shared is None else shared
    spec.decoder.projection.weight = weights.get("head.output.weight", target)
    if config.output_bias:
        spec.decoder.projection.bias = weights["head.bias"]


def fill_stack(spec: Any, stack: str, model: Model, weights: dict[str, Array]) -> None:
    """Set the weights of the encoder or the decoder."""
    config = model.config.model
    queries = config.heads * config.head_size

    def norm(spec: Any, name: str) -> None:
        spec.gamma = weights[f"{name}.weight"]
        if config.norm == "layer":
            spec.beta = weights[f"{name}.bias"]

    def linear(spec: Any, name: str, rows: slice = slice(None)) -> None:
        spec.weight = weights[f"{name}.weight"][rows]
        if f"{name}.bias" in weights:
            spec.bias = weights[f"{name}.bias"][rows]

    side = "source" if stack == "encoder" else "target"
    embeddings = spec.embeddings[0] if stack == "encoder" else spec.embeddings
    table = weights.get("embeddings.shared.weight")
    embeddings.weight = weights[f"embeddings.{side}.weight"] if table is None else table
    spec.scale_embeddings = config.scale_embeddings
    if config.positions != "rotary":
        spec.position_encodings.encodings = position_table(stack, model, weights)
    if config.embedding_norm:
        norm(spec.layernorm_embedding, f"{stack}.embedding_norm")
    if config.norm_first:
        norm(spec.layer_norm, f"{stack}.final_norm")
    for number, layer in enumerate(spec.layer):
        name = f"{stack}.layers.{number}"
        linear(layer.self_attention.linear[0], f"{name}.self_attention.query_key_value")
        linear(layer.self_attention.linear[1], f"{name}.self_attention.output")
        norm(layer.self_attention.layer_norm, f"{name}.self_attention_norm.norm")
        if stack == "decoder" and config.has_encoder:
            cross = f"{name}.cross_attention"
            linear(layer.attention.linear[0], f"{cross}.query_key_value", slice(queries))
            linear(layer.attention.linear[1], f"{cross}.query_key_value", slice(queries, None))
            linear(layer.attention.linear[2], f"{cross}.output")
            norm(layer.attention.layer_norm, f"{cross}_norm.norm")
        inner = f"{name}.feed_forward.inner"
        linear(layer.ffn.linear_0, inner, slice(config.d_ff))
        if config.activation == "swiglu":
            linear(layer.ffn.linear_0_noact, inner, slice(config.d_ff, None))
        linear(layer.ffn.linear_1, f"{name}.feed_forward.outer")
        norm(layer.ffn.layer_norm, f"{name}.feed_forward_norm.norm")


def position_table(stack: str, model: Model, weights: dict[str, Array]) -> Array:
    """The position encodings of a stack. Without a table, CTranslate2 would add its own sinusoids
    in a different order, so a model without positions gets a table of zeros."""
    config, length = model.config.model, table_length(model)
    if config.positions == "learned":
        return weights[f"{stack}.positions.weight"]
    if config.positions == "none":
        return np.zeros((length, config.d_model), np.float32)
    table = sinusoids(torch.arange(length), config.d_model, config.position_base)
    rounded: Array = table.float().numpy()
    return rounded


# ---- README.md --------------------------------------------------------------------------------

LOAD = """\
import ctranslate2
import tokenizers

source_tokenizer = tokenizers.Tokenizer.from_file("{source}")
source_tokenizer.encode_special_tokens = True  # the name of a special token in a text is text
target_tokenizer = tokenizers.Tokenizer.from_file("{target}")
{engine} = ctranslate2.{Engine}(".", compute_type="float32")

text = "{text}"
tokens = source_tokenizer.encode(text, add_special_tokens=False).tokens
"""
TRANSLATE = """\
[result] = translator.translate_batch(
    [{framed}], {prefix}beam_size=1, max_input_length=0, min_decoding_length=0
)
output = result.hypotheses[0]{cut}
"""
GENERATE = """\
[result] = generator.generate_batch(
    [{framed}], max_length=50, include_prompt_in_result=False
)
output = result.sequences[0]
"""
PRINT = """\
ids = [target_tokenizer.token_to_id(token) for token in output]
print(target_tokenizer.decode([id for id in ids if id is not None]))
"""


def readme(model: Model, files: Sequence[str]) -> str:
    """The text of README.md: how to run the model, and its limits."""
    config, translates = model.config.model, model.config.model.has_encoder
    engine = "Translator" if translates else "Generator"
    lines = [
        f"# {engine} for CTranslate2",
        "",
        f"A regard model for the task {model.config.task}. The weights are float32; the option",
        "`compute_type` of CTranslate2 can quantise them when the model is loaded.",
        "",
    ]
    if files:
        source = token_names(model.source_tokenizer)
        begin, end = frame_of(model)
        before, after = ("".join(f"{source[id]!r}, " for id in ids) for ids in (begin, end))
        forced = [
            token_names(model.target_tokenizer)[id] for id in model.target_tokenizer.target_prefix
        ]
        code = LOAD + (TRANSLATE if translates else GENERATE) + PRINT
        lines += ["```python", code.format(
            source=files[0], target=files[-1], engine=engine.lower(), Engine=engine,
            text="A dog runs across the field.",
            framed=f"[{before}*tokens, {after}".removesuffix(", ") + "]",
            prefix=f"[{forced!r}], " if forced else "",
            cut=f"[{len(forced)}:]" if forced else "",
        ).rstrip(), "```"]  # fmt: skip
    else:
        lines += ["The tokenizer of the model is a Python object and is not part of this folder."]
    if config.positions in ("sinusoidal", "none"):
        lines += ["", f"The model has {table_length(model):,} positions for tokens."]
    elif config.positions == "learned":
        lines += ["", f"The model has {config.max_length:,} positions for tokens."]
    return "\n".join(lines) + "\n"


# ---- verification ------------------------------------------------------------------------------


class CTranslate2Oracle(FolderTokenizers):
    """An exported folder in CTranslate2, for the comparison with regard (`interop.model.Oracle`).

    Args:
        folder: the exported folder.
        model: the exported model.
    """

    name = TARGET

    def __init__(self, folder: Path, model: Model) -> None:
        import ctranslate2

        super().__init__(folder, model)
        self.version: str = ctranslate2.__version__
        self.tolerance = rounding_tolerance(model.config.model)
        self.source = token_names(model.source_tokenizer)
        self.target = token_names(model.target_tokenizer)
        self.ids = {name: id for id, name in enumerate(self.target)}
        kind = ctranslate2.Translator if model.config.model.has_encoder else ctranslate2.Generator
        threads = torch.get_num_threads()
        self.engine: Any = kind(str(folder), compute_type="float32", intra_threads=threads)

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]] | None:
        if not self.model.config.model.has_encoder:
            # One row at a time, so that no row is padded.
            return [np.array(self.engine.forward_batch([list(row)]))[0] for row in rows]
        results = self._translate(rows, steps=1, return_logits_vocab=True)
        return [np.array(result.logits[0][-1]).reshape(1, -1) for result in results]

    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        if self.model.config.model.has_encoder:
            prefix = len(self.model.target_tokenizer.target_prefix)
            results = self._translate(rows, steps)
            return [[self.ids[name] for name in r.hypotheses[0][prefix:]] for r in results]
        # If the lengths differ and a prompt has one token, CTranslate2 returns part of the prompts.
        outputs: dict[int, list[int]] = {}
        for length in {len(row) for row in rows}:
            places = [i for i, row in enumerate(rows) if len(row) == length]
            results = self.engine.generate_batch(
                self._names([rows[i] for i in places]), max_length=steps, beam_size=1,
                include_prompt_in_result=False, max_batch_size=BATCH,
            )  # fmt: skip
            for i, result in zip(places, results, strict=True):
                outputs[i] = [self.ids[name] for name in result.sequences[0]]
        return [outputs[i] for i in range(len(rows))]

    def _translate(self, rows: Sequence[Sequence[int]], steps: int, **options: Any) -> Any:
        """The results of greedy decoding, with the forced prefix."""
        prefix = [self.target[id] for id in self.model.target_tokenizer.target_prefix]
        return self.engine.translate_batch(
            self._names(rows), [prefix] * len(rows) if prefix else None, beam_size=1,
            max_input_length=0, max_decoding_length=len(prefix) + steps, min_decoding_length=0,
            max_batch_size=BATCH, **options,
        )  # fmt: skip

    def _names(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.source[id] for id in row] for row in rows]


def oracle(folder: Path, model: Model) -> CTranslate2Oracle | None:
    """Load the exported model in CTranslate2.

    Args:
        folder: the exported folder.
        model: the exported model.

    Returns:
        The runtime for the comparison; None if CTranslate2 is not installed.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        return None
    return CTranslate2Oracle(folder, model)
