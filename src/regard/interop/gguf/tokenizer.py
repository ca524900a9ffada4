"""Tokenizers of GGUF files: read from the metadata, and written as metadata.

`tokenizer.ggml.model` is "gpt2" for byte-level BPE (`tokenizer.ggml.pre` is the name of its
pre-tokenizer) and "llama" for SentencePiece BPE, whose merges follow from the token scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from regard.errors import InputError, unknown
from regard.interop.sentencepiece.merges import merges_of_scores
from regard.text.imported import ImportedTokenizer, SpecialTokens
from regard.text.tokenizer import MOST_TOKENS, SPECIALS, Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens
LONGEST_TOKEN = 1_024  # characters
LONGEST_NAME = 60  # characters of an unknown name in a message
MOST_ADDED = 20_000  # tokens that are matched before BPE
SPACE = "\u2581"  # replaces a space in the tokens of SentencePiece

# How a text is split before BPE: regular expressions that are applied in turn, each to the parts
# that the previous one produced. GPT2 is the expression of GPT-2.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRE = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [rf"{CONTRACTION}|{WORDS}|\p{{N}}{{1,3}}|{REST}"],
    "qwen2": [rf"{CONTRACTION}|{WORDS}|\p{{N}}|{REST}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
WHOLE_WORDS = ("llama-bpe",)  # a word that is a token is never split

IDS = {
    "unk": "unknown_token_id", "bos": "bos_token_id", "eos": "eos_token_id", "cls": "cls_token_id",
    "sep": "seperator_token_id", "mask": "mask_token_id",
}  # fmt: skip
PREFIX = "tokenizer.ggml."
CHAT_TEMPLATE = "tokenizer.chat_template"


def read_tokenizer(metadata: Mapping[str, Any], size: int, path: Path) -> ImportedTokenizer:
    """Create the tokenizer that the metadata of a file describes.

    Args:
        metadata: the metadata.
        size: the number of tokens of the model.
        path: the file, for messages.

    Returns:
        The tokenizer, with its special tokens.

    Raises:
        InputError: the file has no tokenizer, a damaged one, or one of an unknown kind.
    """
    try:
        return _Reader(metadata, size).tokenizer()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


class _Reader:
    def __init__(self, metadata: Mapping[str, Any], size: int) -> None:
        self.metadata, self.size = metadata, size

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(PREFIX + name, default)
        if value is not default and type(value) is not kind:
            raise InputError(f"{PREFIX}{name} is {value!r:.40}, not of type {kind.__name__}")
        return value

    def tokenizer(self) -> ImportedTokenizer:
        model = self.get("model", str)
        if model not in ("gpt2", "llama"):
            raise unknown(PREFIX + "model", str(model)[:LONGEST_NAME], ("gpt2", "llama"))
        self.tokens, self.types = self.vocabulary()
        self.ids = {token: id for id, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            twice = next(t for id, t in enumerate(self.tokens) if self.ids[t] != id)
            raise InputError(f"the token {twice!r:.60} is duplicated in {PREFIX}tokens")
        pre = self.get("pre", str, "default")
        specials = self.specials(model == "llama" or pre in WHOLE_WORDS)
        library: Any = self.sentencepiece(specials) if model == "llama" else self.byte_level(pre)
        for kind in (CONTROL, USER_DEFINED):
            added = [
                AddedToken(token, normalized=False, special=kind == CONTROL)
                for token, own in zip(self.tokens, self.types, strict=True)
                if own == kind or (own == UNKNOWN and kind == CONTROL)
            ]
            if len(added) > MOST_ADDED:
                raise InputError(f"more than {MOST_ADDED:,} special tokens")
            library.add_special_tokens(added) if kind == CONTROL else library.add_tokens(added)
        return ImportedTokenizer(library, specials, self.size)

    def vocabulary(self) -> tuple[list[str], list[int]]:
        tokens = self.get("tokens", list)
        if not tokens:
            raise InputError(f"{PREFIX}tokens is missing")
        if len(tokens) > min(self.size, MOST_TOKENS):
            raise InputError(f"{len(tokens):,} tokens, but the model has {self.size:,} embeddings")
        if not all(0 < len(token) <= LONGEST_TOKEN for token in tokens):
            raise InputError(f"a token is empty or has more than {LONGEST_TOKEN:,} characters")
        return tokens, self.numbers("token_type", [NORMAL] * len(tokens), int)

    def numbers(self, name: str, default: list[Any], kind: type) -> list[Any]:
        """An array with one number for each token."""
        value = self.metadata.get(PREFIX + name)
        if value is None:
            return default
        values = value.tolist() if hasattr(value, "tolist") else None
        if not isinstance(values, list) or len(values) != len(default):
            raise InputError(f"{PREFIX}{name} must have one number for each token")
        if not all(type(number) is kind for number in values):
            raise InputError(f"{PREFIX}{name} must have numbers of type {kind.__name__}")
        return values

    def specials(self, begins: bool) -> SpecialTokens:
        """The special tokens. begins: whether a text begins with `bos` by default."""
        ids = {name: self.get(key, int, -1) for name, key in IDS.items()}
        for name, id in ids.items():
            if id != -1 and not 0 <= id < len(self.tokens):
                raise InputError(f"{PREFIX}{IDS[name]} is {id}, which is not a token")
        frame: dict[str, Any] = {}
        for side, name, default in (("begin", "bos", begins), ("end", "eos", False)):
            add = self.get(f"add_{name}_token", bool, default)
            frame[side] = (ids[name],) if add and ids[name] != -1 else ()
        return SpecialTokens(**ids, **frame)

    def byte_level(self, pre: str) -> tokenizers.Tokenizer:
        if pre not in PRE:
            raise unknown(PREFIX + "pre", pre[:LONGEST_NAME], PRE)
        merges = self.get("merges", list)
        if merges is None:
            raise InputError(f"{PREFIX}merges is missing")
        pairs = []
        for merge in merges:
            left, _, right = str(merge).partition(" ")
            if not (left in self.ids and right in self.ids and left + right in self.ids):
                raise InputError(f"the merge {merge!r:.60} contains or produces an unknown token")
            pairs.append((left, right))
        model = BPE(self.ids, pairs, ignore_merges=pre in WHOLE_WORDS)
        library: Any = tokenizers.Tokenizer(model)
        library.pre_tokenizer = splitter(pre)
        library.decoder = decoders.ByteLevel()
        return library

    def sentencepiece(self, specials: SpecialTokens) -> tokenizers.Tokenizer:
        for name in ("precompiled_charsmap", "remove_extra_whitespaces"):
            if (value := self.metadata.get(PREFIX + name)) is not None and value is not False:
                raise InputError(f"{PREFIX}{name}: this normalisation of text is not supported")
        scores = self.numbers("scores", [0.0] * len(self.tokens), float)
        normal = {
            token: score
            for token, score, kind in zip(self.tokens, scores, self.types, strict=True)
            if kind == NORMAL
        }
        unk = None if specials.unk == -1 else self.tokens[specials.unk]
        model = BPE(
            self.ids, merges_of_scores(normal), unk_token=unk, fuse_unk=True, byte_fallback=True
        )
        library: Any = tokenizers.Tokenizer(model)
        prefix = self.get("add_space_prefix", bool, True)
        library.normalizer = sentencepiece_normalizer(prefix)
        library.decoder = sentencepiece_decoder(prefix)
        return library


def splitter(pre: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a value of `tokenizer.ggml.pre`."""
    splits: list[Any] = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in PRE[pre]]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, bytes_])


def sentencepiece_normalizer(prefix: bool) -> normalizers.Normalizer:
    """The normalizer. prefix: whether a space is added before a text."""
    replace = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), replace] if prefix else [replace])


def sentencepiece_decoder(prefix: bool) -> decoders.Decoder:
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)


# ---- writing ------------------------------------------------------------------------------


def specials_of(tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a tokenizer in a decoder.

    Args:
        tokenizer: any tokenizer.

    Returns:
        Their ids, and those around a text.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return tokenizer.specials
    ids = {name: getattr(tokenizer, name) for name in IDS}
    return SpecialTokens(**ids, begin=(tokenizer.bos,))


def write_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """The metadata of a tokenizer.

    Args:
        tokenizer: byte-level BPE or bytes of regard, or an imported tokenizer of a kind that
            `read_tokenizer` reads.

    Returns:
        The metadata with its keys.

    Raises:
        InputError: GGUF has no such tokenizer.
    """
    specials = specials_of(tokenizer)
    if isinstance(tokenizer, ImportedTokenizer):
        values = _imported(tokenizer)
    elif tokenizer.kind in ("bpe", "byte"):
        values = _own(tokenizer)
    else:
        raise InputError(f"data.vocabulary={tokenizer.kind}: GGUF has no such tokenizer")
    for name, key in IDS.items():
        if (id := getattr(specials, name)) != -1:
            values[key] = id
    frames = {"bos": (specials.begin, specials.bos), "eos": (specials.end, specials.eos)}
    for name, (frame, id) in frames.items():
        if frame not in ((), (id,)):
            raise InputError(f"GGUF cannot express the special tokens {list(frame)} around a text")
        values[f"add_{name}_token"] = bool(frame)
    return {PREFIX + key: value for key, value in values.items()}


def _own(tokenizer: Tokenizer) -> dict[str, Any]:
    """The vocabulary of a tokenizer that regard learned: the special tokens come first."""
    library = json.loads(tokenizer._library.to_str())["model"]
    if tokenizer.kind == "bpe":
        tokens = sorted(library["vocab"], key=library["vocab"].__getitem__)
        merges = [f"{left} {right}" for left, right in library["merges"]]
    else:
        from regard.text.tokenizer import SIGNS

        tokens, merges = list(SIGNS), []
    names = []
    for name in SPECIALS:
        while name in tokens:  # an ordinary token can have the same spelling
            name = f"<{name}>"
        names.append(name)
    types = [CONTROL] * len(names) + [NORMAL] * len(tokens)
    return {
        "model": "gpt2", "pre": "gpt-2", "tokens": names + tokens, "token_type": types,
        "merges": merges,
    }  # fmt: skip


def _imported(tokenizer: ImportedTokenizer) -> dict[str, Any]:
    library = json.loads(tokenizer.fast.to_str())
    model = library["model"]
    ids: dict[str, int] = {**model.get("vocab", {})} if model.get("type") == "BPE" else {}
    if not ids:
        raise InputError(f"GGUF has no tokenizer of the kind {model.get('type')}")
    added = {token["content"]: token for token in library["added_tokens"]}
    ids |= {content: token["id"] for content, token in added.items()}
    tokens = [f"[UNUSED{id}]" for id in range(tokenizer.size)]
    types = [UNUSED] * tokenizer.size
    for token, id in ids.items():
        tokens[id], types[id] = token, NORMAL
        if token in added:
            types[id] = CONTROL if added[token]["special"] else USER_DEFINED
    if len(set(tokens)) < len(tokens):
        raise InputError("two tokens have the same spelling, which GGUF cannot express")
    merges = [tuple(merge) for merge in model["merges"]]
    values: dict[str, Any] = {"tokens": tokens, "token_type": types}
    plain = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    odd = [key for key, value in plain.items() if model.get(key) not in (value, "")]
    if odd:
        raise InputError(f"GGUF cannot express the BPE option {odd[0]}")
    if model.get("byte_fallback"):
        return values | _sentencepiece_values(library, tokens, types, merges)
    pre = _pre_name(library)
    if bool(model.get("ignore_merges")) != (pre in WHOLE_WORDS):
        raise InputError(f"GGUF cannot express ignore_merges={model.get('ignore_merges')} ({pre})")
    joined = [f"{left} {right}" for left, right in merges]
    return values | {"model": "gpt2", "pre": pre, "merges": joined}


def _pre_name(library: Mapping[str, Any]) -> str:
    """The value of `tokenizer.ggml.pre` for a byte-level tokenizer."""
    if library["normalizer"] is not None:
        raise InputError(
            f"GGUF cannot express the normalizer {library['normalizer'].get('type')} of a "
            "byte-level tokenizer"
        )
    rules = _rules(library["pre_tokenizer"])
    for name, own in PRE.items():
        if rules == own:
            return name
    raise InputError("GGUF has no name for the pre-tokenizer of this model")


def _rules(pre: Any) -> list[str] | None:
    """The regular expressions of a byte-level pre-tokenizer; None if it is of another kind."""
    parts = pre["pretokenizers"] if pre and pre["type"] == "Sequence" else [pre]
    rules: list[str] = []
    for part in parts:
        if part and part["type"] == "Split" and part["behavior"] == "Isolated":
            if part["invert"] or "Regex" not in part["pattern"]:
                return None
            rules.append(part["pattern"]["Regex"])
        elif part and part["type"] == "Digits" and part["individual_digits"]:
            rules.append(r"\p{N}")
        elif part and part["type"] == "ByteLevel" and not part["add_prefix_space"]:
            rules += [GPT2] if part["use_regex"] else []
        else:
            return None
    return rules


def _sentencepiece_values(
    library: Mapping[str, Any], tokens: Sequence[str], types: list[int],
    merges: Sequence[tuple[str, ...]],
) -> dict[str, Any]:  # fmt: skip
    """Scores that produce the same merges: an earlier merge gives its token a higher score."""
    model = library["model"]
    prefix = None
    for choice in (True, False):
        if library["normalizer"] == json.loads(sentencepiece_normalizer(choice).__getstate__()):
            prefix = choice
    if prefix is None or library["pre_tokenizer"] is not None or not model.get("fuse_unk"):
        raise InputError("GGUF cannot express the normalizer or pre-tokenizer of this model")
    for id, token in enumerate(tokens):
        if types[id] == NORMAL and len(token) == 6 and token[:3] == "<0x" and token[-1] == ">":
            types[id] = BYTE
        elif types[id] == CONTROL and token == model["unk_token"]:
            types[id] = UNKNOWN
    rank: dict[str, int] = {}
    for number, (left, right) in enumerate(merges):
        rank.setdefault(left + right, number)
    scores = [
        float(-rank.get(token, len(merges))) if kind == NORMAL else 0.0
        for token, kind in zip(tokens, types, strict=True)
    ]
    normal = {t: s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    # If two pairs form the same token, llama.cpp merges the leftmost pair, so it ignores the order
    # of the pairs of one token.
    result = merges_of_scores(normal)
    same = [left + right for left, right in result] == [left + right for left, right in merges]
    if not same or set(result) != set(merges):
        raise InputError("GGUF cannot express the order of the merges of this tokenizer")
    return {"model": "llama", "scores": scores, "add_space_prefix": prefix}
