"""Encoder-decoders of Hugging Face: Marian, BART and mBART.

In Marian's sinusoids, all sines precede all cosines; in regard they alternate. The import therefore
reorders the features of the whole model, which is exact because a norm does not depend on their
order. BART and mBART have learned positions, of which the first two rows are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.interop.hf.common import Builder, Recipe, Source, interleave
from regard.interop.hf.names import BART_DECODER, BART_ENCODER
from regard.interop.tensors import TensorReader

OFFSET = 2  # rows before the first position
# A bias that keeps a logit from being the largest. It is finite because a probability of zero would
# make the loss with label smoothing infinite.
NEVER = -10_000.0
# Generation options that change which tokens are generated and that regard does not apply.
GENERATION = "min_length", "repetition_penalty", "forced_eos_token_id", "suppress_tokens"


def marian(source: Source) -> Recipe:
    """How to import a model with model_type marian."""
    shared = source.flag("share_encoder_decoder_embeddings", True)
    return _encoder_decoder(source, ("MarianMTModel",), "gelu", shared, positions="sinusoidal")


def bart(source: Source) -> Recipe:
    """How to import a model with model_type bart."""
    return _encoder_decoder(
        source,
        ("BartForConditionalGeneration",),
        "gelu",
        True,
        positions="learned",
        embedding_norm=True,
    )


def mbart(source: Source) -> Recipe:
    """How to import a model with model_type mbart, which is pre-norm."""
    return _encoder_decoder(
        source, ("MBartForConditionalGeneration",), "gelu", True, positions="learned",
        embedding_norm=True, norm_first=True,
    )  # fmt: skip


def _encoder_decoder(
    source: Source, classes: Sequence[str], activation: str, shared: bool, **values: Any
) -> Recipe:
    if source.architecture and source.architecture not in classes:
        raise source.error(
            f"{source.architecture} cannot be imported: regard imports {', '.join(classes)}"
        )
    source.refuse(is_decoder=False)
    for name, first, second in (
        ("ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"),
        ("attention_heads", "encoder_attention_heads", "decoder_attention_heads"),
    ):
        if source.integer(first) != source.integer(second):
            raise source.error(
                f"{first} and {second} differ: regard needs the same {name} in encoder and decoder"
            )
    size = source.integer("vocab_size")
    tied = source.flag("tie_word_embeddings", True)
    own = size if shared else source.integer("decoder_vocab_size", size)
    length = source.integer("max_position_embeddings", 1_024)
    tie = ("all" if shared else "target-output") if tied else "none"
    config = source.model(
        style="encoder-decoder", vocabulary_size=own, source_vocabulary_size=size,
        d_model=source.integer("d_model"), encoder_layers=source.integer("encoder_layers"),
        decoder_layers=source.integer("decoder_layers"),
        heads=source.integer("encoder_attention_heads"), d_ff=source.integer("encoder_ffn_dim"),
        activation=source.activation("activation_function", activation), max_length=length,
        scale_embeddings=source.flag("scale_embedding"), tie_embeddings=tie, output_bias=True,
        dropout=source.number("dropout", 0.1),
        attention_dropout=source.number("attention_dropout", 0.0),
        feed_forward_dropout=source.number("activation_dropout", 0.0), **values,
    )  # fmt: skip
    start = source.token("decoder_start_token_id")
    start = source.token("bos_token_id") if start < 0 else start
    forced = source.token("forced_bos_token_id")
    never = banned(source, own)
    return Recipe(
        "translate", config, lambda reader: _tensors(reader, config, tied, never), length,
        (r"embed_positions\.weight$",) if config.positions == "sinusoidal" else (), start=start,
        target=(forced,) if forced >= 0 else (), decoding=_decoding(source), options=_notes(source),
    )  # fmt: skip


def _setting(source: Source, name: str) -> Any:
    value = source.generation.get(name)
    return source.values.get(name) if value is None else value


def banned(source: Source, size: int) -> list[int]:
    """The tokens that must never be generated (bad_words_ids).

    Raises:
        InputError: an entry is not a list of token ids of the vocabulary.
    """
    entries = _setting(source, "bad_words_ids") or []
    if not isinstance(entries, list) or not all(
        isinstance(entry, list) and all(type(id) is int and 0 <= id < size for id in entry)
        for entry in entries
    ):
        raise source.error("bad_words_ids is not a list of lists of token ids")
    return [entry[0] for entry in entries if len(entry) == 1]


def _decoding(source: Source) -> dict[str, Any]:
    """The search of `generate`; a missing option has the default of `transformers`. The score is
    divided by a power of the number of tokens, including </s> and without the start token."""
    options: dict[str, Any] = {"beam": 1, "length_offset": 0.0}
    options["length_penalty"] = 1.0
    if _is_penalty(penalty := _setting(source, "length_penalty")):
        options["length_penalty"] = float(penalty)
    for name, own in (("num_beams", "beam"), ("no_repeat_ngram_size", "no_repeat")):
        value = _setting(source, name)
        if type(value) is int and 1 <= value <= 100:
            options[own] = value
    return options


def _is_penalty(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 10


def _notes(source: Source) -> dict[str, Any]:
    notes = {}
    penalty = _setting(source, "length_penalty")
    if penalty is not None and not _is_penalty(penalty):
        notes["length_penalty"] = f"{penalty!r:.40}: not used"
    if _decoding(source)["beam"] > 1:
        if (early := _setting(source, "early_stopping")) is not True:
            notes["early_stopping"] = (
                f"{early!r:.40}: not used; the search ends as with early_stopping=True"
            )
        if source.token("forced_bos_token_id") >= 0:
            notes["forced_bos_token_id"] = "its log-probability is part of the score"
    for name in GENERATION:
        value = _setting(source, name)
        if value not in (None, 0, False, 1.0, []):
            notes[name] = f"{value!r:.40}: not used"
    if any(len(entry) != 1 for entry in _setting(source, "bad_words_ids") or []):
        notes["bad_words_ids"] = "sequences of several tokens are not excluded"
    for stack in ("encoder", "decoder"):
        notes |= source.dropout_note(f"{stack}_layerdrop", 0.0, 0.0)
    return notes


def _tensors(
    reader: TensorReader, config: ModelConfig, tied: bool, never: Sequence[int]
) -> dict[str, Tensor]:
    d, size = config.d_model, config.vocabulary_size
    learned = config.positions == "learned"
    build = Builder(reader, config, None if learned else interleave)
    encoder, decoder = "model.encoder.embed_tokens", "model.decoder.embed_tokens"
    shared, table = "model.shared", decoder
    if config.tie_embeddings == "all":
        names = (shared, encoder, decoder)
        table = next((name for name in names if reader.has(f"{name}.weight")), shared)
        build.table("embeddings.shared", table, size)
        for name in names:
            reader.copy_of(f"{name}.weight", f"{table}.weight", size, d)
    else:
        for side, own, rows in (
            ("source", encoder, config.source_vocabulary_size), ("target", decoder, size),
        ):  # fmt: skip
            name = (
                own if reader.has(f"{own}.weight") or not reader.has(f"{shared}.weight") else shared
            )
            build.table(f"embeddings.{side}", name, rows)
        reader.skip(f"{shared}.weight")
    for stack, layers, names_of in (
        ("encoder", config.encoder_layers, BART_ENCODER),
        ("decoder", config.decoder_layers, BART_DECODER),
    ):  # fmt: skip
        source = f"model.{stack}"
        if learned:
            rows = config.max_length + OFFSET
            positions = reader(f"{source}.embed_positions.weight", rows, d)
            build.tensors[f"{stack}.positions.weight"] = positions[OFFSET:]
        if config.embedding_norm:
            build.norm(f"{stack}.embedding_norm", f"{source}.layernorm_embedding")
        for i in range(layers):
            build.layer(f"{stack}.layers.{i}", f"{source}.layers.{i}.", names_of)
        if config.norm_first:
            build.norm(f"{stack}.final_norm", f"{source}.layer_norm")
    if tied:
        reader.copy_of("lm_head.weight", f"{table}.weight", size, d)
    else:
        build.table("head.output", "lm_head", size)
    name = "final_logits_bias"
    bias = reader(name, 1, size)[0].clone() if reader.has(name) else torch.zeros(size)
    for id in never:
        bias[id] = NEVER
    build.tensors["head.bias"] = bias
    return build.tensors
