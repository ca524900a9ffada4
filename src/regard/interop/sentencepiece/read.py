"""SentencePiece models (`.model`, `.spm`) as tokenizers of the library `tokenizers`.

SentencePiece normalises a text with a table of replacements, removes superfluous spaces, writes
each space as U+2581 (below: the space mark), and then divides the whole text into pieces. The
library has the same two algorithms, Unigram and BPE; the rest is a sequence of its normalisers.

Text never becomes a control symbol. The library's Unigram model would turn the text `</s>` into the
piece of that name, so pieces that cannot occur in a text are stored with a space after their name:
a normalised text contains no space.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers

from regard.errors import InputError, warn_user
from regard.files import read_bounded
from regard.interop.sentencepiece.merges import merges_of_scores
from regard.interop.sentencepiece.protobuf import fields
from regard.interop.sentencepiece.table import Normalisation
from regard.text.tokenizer import LARGEST_FILE, MOST_TOKENS

MARK = "\u2581"  # a space
LONGEST_PIECE = 1_000  # bytes
MOST_MISSING = 0.01  # fraction of pieces for which the caller's table may lack an id
PROBE = "e\u0301", "\u00e9"  # a decomposed letter and its composition


class Kind(IntEnum):
    """The kinds of pieces."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Algorithm(IntEnum):
    """How a text is divided into pieces."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


@dataclass(frozen=True)
class Piece:
    """A token of a SentencePiece model."""

    text: str
    score: float
    kind: Kind


@dataclass
class SentencePieceModel:
    """The content of a SentencePiece model.

    Attributes:
        pieces: the tokens in the order of their ids.
        algorithm: how a text is divided.
        byte_fallback: whether unknown characters become the tokens of their bytes.
        charsmap: the replacement table of the normalisation; empty if there is none.
        dummy_prefix: whether a space is added before the text.
        single_spaces: whether spaces at both ends and repeated spaces are removed.
    """

    pieces: list[Piece]
    algorithm: Algorithm = Algorithm.UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    dummy_prefix: bool = True
    single_spaces: bool = True

    def find(self, text: str) -> int:
        """The id of a piece, for example of `</s>`; -1 if there is none."""
        return next((id for id, piece in enumerate(self.pieces) if piece.text == text), -1)

    @property
    def unknown(self) -> int:
        """The id of the piece for unknown text."""
        return next(id for id, piece in enumerate(self.pieces) if piece.kind == Kind.UNKNOWN)


def parse_sentencepiece(path: str | PathLike[str]) -> SentencePieceModel:
    """Read a SentencePiece model.

    Args:
        path: the file, usually NAME.model or NAME.spm.

    Returns:
        Its content.

    Raises:
        InputError: the file is damaged, too large, or has an option that is not supported.
    """
    content = read_bounded(Path(path), LARGEST_FILE, "a SentencePiece model")
    try:
        model = _parse(content)
        _check(model)
    except UnicodeDecodeError as error:
        message = f"a piece is not UTF-8 ({error.reason})"
    except ValueError as error:
        message = str(error)
    else:
        return model
    raise InputError(f"{path}: not a SentencePiece model that regard can read ({message})")


def _parse(content: bytes) -> SentencePieceModel:
    model = SentencePieceModel([])
    for part in fields(content):
        if part.number == 1:
            if len(model.pieces) == MOST_TOKENS:
                raise ValueError(f"more than {MOST_TOKENS:,} pieces")
            model.pieces.append(_piece(part.content()))
        elif part.number == 2:
            for option in fields(part.content()):
                if option.number == 3:
                    model.algorithm = Algorithm(option.integer())
                elif option.number == 24 and option.integer():
                    raise ValueError("treat_whitespace_as_suffix is not supported")
                elif option.number == 35:
                    model.byte_fallback = bool(option.integer())
        elif part.number == 3:
            for option in fields(part.content()):
                if option.number == 2:
                    model.charsmap = option.content()
                elif option.number == 3:
                    model.dummy_prefix = bool(option.integer())
                elif option.number == 4:
                    model.single_spaces = bool(option.integer())
                elif option.number == 5 and not option.integer():
                    raise ValueError("escape_whitespaces=false is not supported")
    return model


def _piece(message: bytes) -> Piece:
    text, score, kind = "", 0.0, Kind.NORMAL
    for part in fields(message):
        if part.number == 1:
            if len(part.content()) > LONGEST_PIECE:
                raise ValueError(f"a piece has more than {LONGEST_PIECE:,} bytes")
            text = part.text()
        elif part.number == 2:
            score = part.real()
        elif part.number == 3:
            kind = Kind(part.integer())
    if not text or not math.isfinite(score):
        raise ValueError(f"the piece {text!r:.40} has the invalid score {score}")
    return Piece(text, score, kind)


def _check(model: SentencePieceModel) -> None:
    """Raise a ValueError for content that would make the library fail or differ."""
    kinds = [piece.kind for piece in model.pieces]
    if Kind.NORMAL not in kinds:
        raise ValueError("it has no pieces")
    if kinds.count(Kind.UNKNOWN) != 1:
        raise ValueError(f"it has {kinds.count(Kind.UNKNOWN)} pieces for unknown text, not one")
    if len({piece.text for piece in model.pieces}) != len(model.pieces):
        raise ValueError("a piece is duplicated")
    if model.algorithm == Algorithm.WORD:
        raise ValueError("model_type=word is not supported: it must be unigram, bpe or char")
    names = {f"<0x{byte:02X}>" for byte in range(256)}
    bytes_ = {piece.text for piece in model.pieces if piece.kind == Kind.BYTE}
    if (model.byte_fallback and bytes_ != names) or not bytes_ <= names:
        raise ValueError(f"it has only {len(bytes_ & names)} of the 256 byte tokens")
    normalise = Normalisation(model.charsmap) if model.charsmap else None
    for piece in model.pieces:
        if piece.kind != Kind.USER_DEFINED:
            continue
        if normalise is not None and normalise(piece.text).replace(" ", MARK) != piece.text:
            raise ValueError(f"normalisation changes the user-defined symbol {piece.text!r:.40}")
        if " " in piece.text:
            raise ValueError(f"the user-defined symbol {piece.text!r:.40} contains a space")


def read_sentencepiece(
    path: str | PathLike[str], ids: Mapping[str, int] | None = None
) -> tokenizers.Tokenizer:
    """A SentencePiece model as a tokenizer of the library `tokenizers`.

    The names of control symbols, of the unknown piece and of unused pieces have a space at the end
    if the model is Unigram, so that no text becomes one of them; `parse_sentencepiece` returns
    their ids. The tokenizer has no special tokens and no post-processor.

    Args:
        path: the file, usually NAME.model or NAME.spm.
        ids: the id of each token, if they are not the ids of the file: the vocab.json of Marian in
            Hugging Face's format. It may contain more tokens than the file.

    Returns:
        The tokenizer.

    Raises:
        InputError: the file is damaged or has an option that is not supported, or the ids do not
            belong to it.
    """
    return make_tokenizer(parse_sentencepiece(path), path, ids)


def make_tokenizer(
    model: SentencePieceModel, path: str | PathLike[str], ids: Mapping[str, int] | None = None
) -> tokenizers.Tokenizer:
    """`read_sentencepiece` with the content of the file; path: for messages."""
    if ids is None:
        ids = {piece.text: id for id, piece in enumerate(model.pieces)}
    else:
        model, ids = _with_ids(model, path, ids)
    unigram = model.algorithm == Algorithm.UNIGRAM
    try:
        whole: dict[str, Any] = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": _normalizer(model), "pre_tokenizer": _pre_tokenizer(model),
            "post_processor": None, "decoder": _decoder(model),
            "model": _unigram(model, ids) if unigram else _bpe(model, ids),
        }  # fmt: skip
        return tokenizers.Tokenizer.from_str(json.dumps(whole, ensure_ascii=False))
    except Exception as error:  # noqa: BLE001  the library raises plain Exception
        raise InputError(f"{path}: damaged SentencePiece model ({error!s:.100})") from None


def _with_ids(
    model: SentencePieceModel, path: str | PathLike[str], ids: Mapping[str, int]
) -> tuple[SentencePieceModel, dict[str, int]]:
    """The pieces that have an id, and all ids, with a placeholder name for each unused id."""
    numbers = set(ids.values())
    if not numbers or len(numbers) != len(ids) or not 0 <= min(numbers) <= max(numbers) < 2**31:
        raise InputError(f"{path}: the ids of its tokens are not distinct numbers from 0")
    if max(numbers) >= MOST_TOKENS:
        raise InputError(f"{path}: a token has the id {max(numbers):,}, over {MOST_TOKENS:,}")
    kept = [piece for piece in model.pieces if piece.text in ids]
    missing = [p.text for p in model.pieces if p.text not in ids and p.kind != Kind.CONTROL]
    if len(missing) > MOST_MISSING * len(model.pieces):
        raise InputError(
            f"{path}: {len(missing):,} of its {len(model.pieces):,} pieces have no id, for example "
            f"{missing[0]!r:.40}: the ids belong to a different file"
        )
    if all(piece.kind != Kind.UNKNOWN for piece in kept):
        raise InputError(f"{path}: the piece for unknown text has no id")
    if missing:
        warn_user(
            f"{path}: {len(missing):,} pieces without an id are not used, for example "
            f"{missing[0]!r:.40}"
        )
    every = dict(ids) | {f"<{i}> ": i for i in set(range(max(numbers) + 1)) - numbers}
    return SentencePieceModel(
        kept, model.algorithm, model.byte_fallback, model.charsmap, model.dummy_prefix,
        model.single_spaces,
    ), every  # fmt: skip


def _unigram(model: SentencePieceModel, ids: Mapping[str, int]) -> dict[str, Any]:
    scores = [piece.score for piece in model.pieces if piece.kind == Kind.NORMAL]
    # The library derives the score of unknown text from the lowest score, so a piece that cannot
    # occur in a text must not change the lowest score.
    lowest, highest = min(scores), max(0.0, *scores)
    vocabulary: list[list[Any]] = [["", lowest] for _ in ids]
    for text, id in ids.items():
        vocabulary[id] = [text + " ", lowest]
    for piece in model.pieces:
        score = piece.score
        if piece.kind == Kind.USER_DEFINED:  # as if each byte had the highest score
            score = len(piece.text.encode()) * highest - 0.1
        elif piece.kind == Kind.BYTE:
            score = lowest
        elif piece.kind != Kind.NORMAL:
            continue
        vocabulary[ids[piece.text]] = [piece.text, score]
    [unknown] = (ids[piece.text] for piece in model.pieces if piece.kind == Kind.UNKNOWN)
    return {
        "type": "Unigram", "unk_id": unknown, "vocab": vocabulary,
        "byte_fallback": model.byte_fallback,
    }  # fmt: skip


def _bpe(model: SentencePieceModel, ids: Mapping[str, int]) -> dict[str, Any]:
    pieces = {piece.text: piece.score for piece in model.pieces if piece.kind == Kind.NORMAL}
    [unknown] = (piece.text for piece in model.pieces if piece.kind == Kind.UNKNOWN)
    return {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": model.byte_fallback,
        "ignore_merges": bool(_symbols(model)), "vocab": dict(ids),
        "merges": merges_of_scores(pieces) if model.algorithm == Algorithm.BPE else [],
    }  # fmt: skip


def _symbols(model: SentencePieceModel) -> list[str]:
    """The user-defined symbols, longest first."""
    symbols = [piece.text for piece in model.pieces if piece.kind == Kind.USER_DEFINED]
    return sorted(symbols, key=len, reverse=True)


def _replace(pattern: str, content: str, regex: bool = True) -> dict[str, Any]:
    kind = "Regex" if regex else "String"
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _normalizer(model: SentencePieceModel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        # The library looks up one grapheme or one character at a time; SentencePiece looks up the
        # longest string in the table. This matters for compositions. Remaining differences:
        # letters with several combining marks that are not in canonical order, decomposed
        # half-width characters, and marks that a table of lower-case letters does not compose.
        normalise = Normalisation(model.charsmap)
        if normalise(PROBE[0]) == PROBE[1]:
            steps.append({"type": "NFC"})
        if normalise("\r\n") == "  ":  # one grapheme
            steps.append(_replace("\r\n", "  ", regex=False))
        table = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if model.single_spaces:
        steps += [_replace(r"\A +", ""), _replace(f"[ {MARK}]+\\z", ""), _replace(" {2,}", " ")]
    if model.dummy_prefix:
        steps.append({"type": "Prepend", "prepend": MARK})
    steps.append(_replace(" ", MARK, regex=False))
    return {"type": "Sequence", "normalizers": steps}


def _pre_tokenizer(model: SentencePieceModel) -> dict[str, Any] | None:
    """Words are divided separately, which is faster, unless a piece contains the end of a word."""
    parts: list[dict[str, Any]] = []
    symbols = _symbols(model)
    if symbols and model.algorithm != Algorithm.UNIGRAM:
        pattern = "|".join(re.escape(symbol) for symbol in symbols)
        parts.append({
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
        })  # fmt: skip
    if model.byte_fallback and model.algorithm == Algorithm.UNIGRAM:  # the text "<0x41>" is text
        parts.append({
            "type": "Split", "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"}, "behavior": "Isolated",
            "invert": False,
        })  # fmt: skip
    if not any(MARK in piece.text[1:] for piece in model.pieces):
        parts.append({
            "type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": True,
        })  # fmt: skip
    return {"type": "Sequence", "pretokenizers": parts} if parts else None


def _decoder(model: SentencePieceModel) -> dict[str, Any]:
    steps = [_replace(MARK, " ", regex=False)]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.dummy_prefix or model.single_spaces:
        start = LONGEST_PIECE if model.single_spaces else 1
        steps.append({"type": "Strip", "content": " ", "start": start, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
