"""The tokenizer files of an exported model: tokenizer.json, tokenizer_config.json,
special_tokens_map.json, and the chat template if there is one.

`AutoTokenizer` gives the same ids as regard, with the special tokens that the model reads around a
text. By default, `transformers` converts the names of special tokens in a text to these tokens, and
regard does not; `split_special_tokens` turns this off. It is set except for two kinds of models: a
masked language model needs its mask token, and a chat model needs the tokens of the chat template,
because `transformers` renders a conversation to text before it tokenises it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.processors import TemplateProcessing

from regard.errors import InputError
from regard.files import write_file
from regard.text.external import ExternalTokenizer
from regard.text.imported import ImportedTokenizer
from regard.text.tokenizer import SIGNS, SPECIALS, Tokenizer

TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class Frame:
    """The ids around a text, and between two texts."""

    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    between: tuple[int, ...] = ()


def frame_of(tokenizer: Tokenizer, task: str, style: str) -> Frame:
    """The special tokens that the model of a task reads around a text.

    Raises:
        InputError: the number of special tokens depends on the text.
    """
    separator = (tokenizer.sep,) if tokenizer.sep >= 0 else ()
    if task in ("translate", "answer") and style != "encoder-decoder":
        if style == "encoder":
            raise InputError(
                f"the task {task} with model.style=encoder: a tokenizer of transformers cannot add "
                "the mask tokens, whose number depends on the text"
            )
        return Frame(tokenizer.begin, separator, separator)
    text = max(tokenizer.special_ids, default=0) + 1
    frame = tokenizer.frame_pooled if task == "embed" else tokenizer.frame
    row = frame([text], style)
    place = row.index(text)
    between = separator if not isinstance(tokenizer, ImportedTokenizer) else ()
    end = tuple(row[place + 1 :])
    return Frame(tuple(row[:place]), end, between or end or separator)


def pad_of(tokenizer: Tokenizer, style: str) -> int:
    """The id of a token for padding, which the model never reads because it is always masked."""
    if not isinstance(tokenizer, ImportedTokenizer):
        return tokenizer.bos if style == "encoder" else tokenizer.cls
    added = tokenizer.fast.get_added_tokens_decoder()
    names = {token.content: id for id, token in added.items()}
    for name in ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>"):
        if name in names:
            return names[name]
    return next((id for id in (tokenizer.eos, tokenizer.unk) if id >= 0), 0)


def special_ids(tokenizer: Tokenizer, style: str) -> dict[str, int]:
    """The ids of the special tokens that config.json contains."""
    ids = {name: getattr(tokenizer, name) for name in ("bos", "eos", "mask")}
    return {**ids, "pad": pad_of(tokenizer, style)}


def names_of(tokenizer: Tokenizer) -> list[str]:
    """The names of regard's six special tokens in tokenizer.json. A special token is renamed if an
    ordinary token of the vocabulary has the same name."""
    learned = {piece.decode("utf-8", "replace") for piece in tokenizer.pieces[len(SPECIALS) :]}
    names = []
    for name in SPECIALS:
        while name in learned:
            name = f"<{name}>"
        names.append(name)
    return names


def library_of(tokenizer: Tokenizer, masks: bool) -> tokenizers.Tokenizer:
    """Convert a tokenizer to the library `tokenizers`, with the ids of the model.

    masks: a text may contain <mask>.

    Raises:
        InputError: the tokenizer is a Python object.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return tokenizers.Tokenizer.from_str(tokenizer.fast.to_str())
    if isinstance(tokenizer, ExternalTokenizer):
        raise InputError(
            "this model was trained with a tokenizer from outside regard, whose ids are shifted by "
            f"{len(SPECIALS)}: transformers cannot express that"
        )
    names = names_of(tokenizer)
    vocabulary = {name: id for id, name in enumerate(names)}
    first = len(SPECIALS)
    bytewise = tokenizer.kind != "character"
    for id, piece in enumerate(tokenizer.pieces[first:], first):
        text = "".join(SIGNS[byte] for byte in piece) if bytewise else piece.decode()
        vocabulary[text] = id
    tokens = list(vocabulary)
    merges = [(tokens[a], tokens[b]) for a, b, _ in tokenizer.merges] if bytewise else []
    options = {} if bytewise else {"unk_token": names[0]}
    library: Any = tokenizers.Tokenizer(BPE(vocabulary, merges, **options))
    if bytewise:
        library.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=tokenizer.kind == "bpe")
        library.decoder = ByteLevelDecoder()
    else:
        library.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
        library.decoder = Fuse()
    strip = tokenizer.kind == "bpe"  # a space before a mask is part of the hidden word
    library.add_special_tokens([AddedToken(name, normalized=False) for name in names[:-1]])
    library.add_special_tokens([AddedToken(names[-1], normalized=False, lstrip=masks and strip)])
    made: tokenizers.Tokenizer = library
    return made


def _template(library: tokenizers.Tokenizer, frame: Frame) -> Any:
    """The post-processor that adds the special tokens."""

    def pieces(ids: Sequence[int]) -> list[str]:
        return [f"{library.id_to_token(id)}:0" for id in ids]

    begin, end, between = pieces(frame.begin), pieces(frame.end), pieces(frame.between)
    used = {*frame.begin, *frame.end, *frame.between}
    return TemplateProcessing(
        single=[*begin, "$A:0", *end], pair=[*begin, "$A:0", *between, "$B:0", *end],
        special_tokens=[(library.id_to_token(id), id) for id in sorted(used)],
    )  # fmt: skip


def tokenizer_files(
    tokenizer: Tokenizer, task: str, style: str, longest: int, template: str | None = None
) -> dict[str, str]:
    """The tokenizer files of a `transformers` model folder, by name.

    Args:
        tokenizer: the tokenizer.
        task: the task of the model.
        style: the style of the model.
        longest: the largest number of tokens in an input.
        template: the chat template, if the model has one.

    Returns:
        The text of each file.

    Raises:
        InputError: `transformers` cannot express the tokenizer.
    """
    masks = task == "fill"
    library: Any = library_of(tokenizer, masks)
    frame = frame_of(tokenizer, task, style)
    framed = library.encode("", add_special_tokens=True).ids
    if library.post_processor is None or framed != [*frame.begin, *frame.end]:
        library.post_processor = _template(library, frame)
    special = special_names(tokenizer, library, pad_of(tokenizer, style))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": longest,
        "padding_side": "left" if style == "decoder" and task != "embed" else "right",
        "split_special_tokens": template is None and not masks,
        **special,
    }
    files = {
        "tokenizer.json": library.to_str(pretty=True) + "\n",
        "tokenizer_config.json": as_json(config),
        "special_tokens_map.json": as_json(special),
    }
    if template is not None:
        files[TEMPLATE] = template
    return files


def special_names(tokenizer: Tokenizer, library: tokenizers.Tokenizer, pad: int) -> dict[str, str]:
    """The values of bos_token, eos_token and so on."""
    ids = {name: getattr(tokenizer, name) for name in ("unk", "bos", "eos", "cls", "sep", "mask")}
    names = {f"{name}_token": library.id_to_token(id) for name, id in ids.items() if id >= 0}
    names["pad_token"] = library.id_to_token(pad)
    return {key: name for key, name in names.items() if name is not None}


def as_json(values: Mapping[str, Any]) -> str:
    """Values as JSON text in a reproducible form."""
    return json.dumps(values, ensure_ascii=False, indent=2) + "\n"


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each text as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, text)
