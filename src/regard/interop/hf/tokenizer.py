"""The tokenizers of Hugging Face folders with their special tokens, and chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import normalizers

from regard.errors import InputError
from regard.interop.hf.common import Recipe, Source
from regard.interop.hf.folder import Folder
from regard.interop.hf.vocabulary import (
    Vocabulary,
    read_marian,
    read_vocabulary,
    text_of,
)
from regard.text.imported import MOST_ADDED, ImportedTokenizer, SpecialTokens

PROBE = "x"
LARGEST_TEMPLATE = 2**20  # bytes


def read_tokenizers(
    folder: Folder, source: Source, recipe: Recipe, lower_case: bool = False
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """The tokenizers of source and target.

    Args:
        folder: the model folder.
        source: its options.
        recipe: the model.
        lower_case: lowercase texts before all other steps.

    Raises:
        InputError: the vocabulary is missing, damaged, or does not fit the model.
    """
    config = {
        **folder.options("special_tokens_map.json"),
        **folder.options("tokenizer_config.json"),
    }
    if "do_lower_case" not in config and isinstance(source.values.get("do_lower_case"), bool):
        config["do_lower_case"] = source.values["do_lower_case"]
    kind = str(source.values.get("model_type"))
    sizes = recipe.config.source_vocabulary_size, recipe.config.vocabulary_size
    if kind == "marian" and folder.has("source.spm"):
        both = read_marian(folder)
        first = _tokenizer(folder, source, recipe, both[0], config, sizes[0])
        return first, _tokenizer(folder, source, recipe, both[1], config, sizes[1])
    vocabulary = read_vocabulary(folder, kind, config)
    if lower_case:
        library = vocabulary.library
        steps = [normalizers.Lowercase(), *filter(None, [library.normalizer])]
        library.normalizer = normalizers.Sequence(steps)
    only = _tokenizer(folder, source, recipe, vocabulary, config, sizes[0])
    return only, only


def _tokenizer(
    folder: Folder, source: Source, recipe: Recipe, vocabulary: Vocabulary,
    config: Mapping[str, Any], size: int,
) -> ImportedTokenizer:  # fmt: skip
    def named(name: str) -> int:
        """The id of a special token such as "bos_token"; -1 if there is none."""
        text = text_of(config.get(name)) if name in config else vocabulary.names.get(name)
        id = None if text is None else vocabulary.id_of(text)
        return -1 if id is None else id

    def placed(names: tuple[str, ...]) -> tuple[int, ...]:
        """The ids of the tokens of a frame; for a decoder, the first token is optional."""
        ids = []
        for name in names:
            id = named(name) if name.endswith("_token") else vocabulary.id_of(name)
            if id is not None and id >= 0:
                ids.append(id)
            elif name != "bos_token":
                raise InputError(f"{folder.path}: the vocabulary has no {name}")
        return tuple(ids)

    style = recipe.config.style
    if vocabulary.frame is None:
        begin, end = frame_of(folder, vocabulary)
    else:
        begin, end = placed(vocabulary.frame[0]), placed(vocabulary.frame[1])
    if style == "encoder-decoder":
        bos = recipe.start
    else:
        bos = begin[0] if begin else source.token("bos_token_id")
        bos = named("bos_token") if bos < 0 else bos
    specials = SpecialTokens(
        unk=named("unk_token"), bos=bos, eos=end_token(source, named("eos_token")),
        cls=named("cls_token"), sep=named("sep_token"), mask=named("mask_token"), begin=begin,
        end=end, target=recipe.target,
    )  # fmt: skip
    if style == "encoder-decoder" and specials.bos < 0:
        raise source.error("decoder_start_token_id (the first token of an output) is missing")
    if style != "encoder" and specials.eos < 0:
        raise source.error("eos_token_id (the token that ends an output) is missing")
    if recipe.task == "fill" and specials.mask < 0:
        raise InputError(f"{folder.path}: the tokenizer has no mask token (mask_token)")
    try:
        return ImportedTokenizer(vocabulary.library, specials, size)
    except InputError as error:
        raise InputError(f"{folder.path}: {error}") from None


def end_token(source: Source, named: int) -> int:
    """The token that ends an output.

    If generation_config.json or config.json has several, this is the one that the tokenizer names,
    because it ends a turn of a conversation.
    """
    for values in (source.generation, source.values):
        ids = values.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids]
        ids = [id for id in ids if type(id) is int]
        if ids:
            return named if named in ids else int(ids[0])
    return named


def frame_of(folder: Folder, vocabulary: Vocabulary) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the post-processor of a tokenizer adds before and after a text.

    Raises:
        InputError: it changes the text itself, or adds too many tokens.
    """
    library = vocabulary.library
    library.no_truncation()
    library.no_padding()
    try:
        plain = library.encode(PROBE, add_special_tokens=False).ids
        framed = library.encode(PROBE).ids
    except Exception as error:  # noqa: BLE001  the library raises plain Exception
        raise InputError(f"{folder.path}: damaged tokenizer ({error!s:.100})") from None
    for i in range(len(framed) - len(plain) + 1):
        if plain and framed[i : i + len(plain)] == plain:
            begin, end = framed[:i], framed[i + len(plain) :]
            if max(len(begin), len(end)) <= MOST_ADDED:
                return tuple(begin), tuple(end)
    raise InputError(
        f"{folder.path}: the post-processor of the tokenizer cannot be imported: it must only add "
        f"up to {MOST_ADDED} special tokens before and after the text"
    )


def read_chat_template(folder: Folder) -> str | None:
    """The Jinja template of a conversation, or None if the model has none."""
    if folder.has("chat_template.jinja"):
        return folder.text("chat_template.jinja", LARGEST_TEMPLATE)
    template = folder.options("tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = (entry.get("template") for entry in entries if entry.get("name") == "default")
        template = next(named, None)
    return template if isinstance(template, str) else None
