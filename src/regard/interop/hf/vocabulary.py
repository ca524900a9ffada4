"""The vocabularies of Hugging Face folders as tokenizers of the library `tokenizers`.

A folder has a tokenizer.json, which is preferred, or the older files of its tokenizer: vocab.txt
(WordPiece), vocab.json with merges.txt (byte-level BPE), or a SentencePiece model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.errors import InputError
from regard.interop.hf.folder import Folder
from regard.text.tokenizer import MOST_TOKENS

SENTENCEPIECE = ("sentencepiece.bpe.model", "tokenizer.model", "spiece.model")
# Names of the special tokens of each kind of vocabulary, if tokenizer_config.json has none.
WORDPIECE = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
             "mask_token": "[MASK]"}  # fmt: skip
FAIRSEQ = {"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>",
           "bos_token": "<s>", "eos_token": "</s>"}  # fmt: skip
GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
# mBART numbers these languages after the pieces of its SentencePiece model.
LANGUAGES = (
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN",
    "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO",
    "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)  # fmt: skip
UNKNOWN_PENALTY = 10.0  # of a character that is in no piece, in SentencePiece
UNKNOWN = "\ue000"  # a private-use character: no vocabulary contains it
# Qwen2 splits contractions, words with a preceding character, single digits, symbols and spaces.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the names of its special tokens.

    Attributes:
        library: the tokenizer.
        id_of: the id of a token by its name; None if there is no such token.
        names: the special tokens if tokenizer_config.json does not name them.
        frame: the tokens before and after a text, if the library has no post-processor.
    """

    library: tokenizers.Tokenizer
    id_of: Callable[[str], int | None]
    names: Mapping[str, str]
    frame: tuple[tuple[str, ...], tuple[str, ...]] | None = None


def read_vocabulary(folder: Folder, model_type: str, config: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a folder.

    Args:
        folder: the folder.
        model_type: the model_type in config.json.
        config: the options of tokenizer_config.json.

    Raises:
        InputError: there is none, or it is damaged.
    """
    wordpiece = model_type in ("bert", "distilbert")
    fairseq = model_type in ("roberta", "xlm-roberta", "bart", "mbart")
    names = WORDPIECE if wordpiece else FAIRSEQ if fairseq else {}
    if folder.has("tokenizer.json"):
        library = _library(folder, "tokenizer.json", folder.large("tokenizer.json"))
        if not names:
            names = {} if model_type == "qwen2" else GPT2 if model_type == "gpt2" else LLAMA
        return Vocabulary(library, library.token_to_id, names)
    if wordpiece and folder.has("vocab.txt"):
        return read_wordpiece(folder, config)
    if folder.has("vocab.json") and folder.has("merges.txt"):
        return read_byte_level(folder, model_type, config)
    for name in SENTENCEPIECE:
        if folder.has(name):
            return _sentencepiece(folder, name, model_type, config)
    raise InputError(
        f"{folder.path} has no vocabulary (tokenizer.json, vocab.txt, vocab.json with merges.txt, "
        f"or {', '.join(SENTENCEPIECE)})"
    )


def _library(folder: Folder, name: str, content: Any) -> tokenizers.Tokenizer:
    if not isinstance(content, dict):
        raise InputError(f"{folder.path / name}: not a JSON object")
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # noqa: BLE001  the library raises plain Exception
        raise InputError(
            f"{folder.path / name}: not a Hugging Face tokenizer ({error!s:.100})"
        ) from None


def read_wordpiece(folder: Folder, config: Mapping[str, Any]) -> Vocabulary:
    lines = folder.text("vocab.txt").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    if len(lines) > MOST_TOKENS:
        raise InputError(f"{folder.path / 'vocab.txt'}: more than {MOST_TOKENS:,} tokens")
    ids = {line.rstrip("\r"): id for id, line in enumerate(lines)}
    unk = text_of(config.get("unk_token")) or WORDPIECE["unk_token"]
    lower, accents = config.get("do_lower_case", True), config.get("strip_accents")
    library = tokenizers.Tokenizer(
        models.WordPiece(vocab=ids, unk_token=unk, max_input_chars_per_word=100)
    )
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=None if accents is None else bool(accents), lowercase=bool(lower),
    )  # fmt: skip
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(folder, library, config, WORDPIECE.values())
    return Vocabulary(library, library.token_to_id, WORDPIECE, (("cls_token",), ("sep_token",)))


def read_byte_level(folder: Folder, model_type: str, config: Mapping[str, Any]) -> Vocabulary:
    ids = read_ids(folder, "vocab.json")
    merges = []
    for number, line in enumerate(folder.text("merges.txt").split("\n"), 1):
        if line.strip() and "#version" not in line:
            pair = line.rstrip("\r").split(" ")
            if len(pair) != 2:
                raise InputError(
                    f"{folder.path / 'merges.txt'}:{number}: each line must contain two tokens "
                    f"separated by a space: {line!r:.40}"
                )
            merges.append((pair[0], pair[1]))
    try:
        model = models.BPE(vocab=ids, merges=merges)
    except Exception as error:  # noqa: BLE001  the library raises plain Exception
        raise InputError(f"{folder.path / 'merges.txt'}: {error!s:.100}") from None
    library = tokenizers.Tokenizer(model)
    space = bool(config.get("add_prefix_space", False))
    library.decoder = decoders.ByteLevel()
    if model_type == "qwen2":
        library.normalizer = normalizers.NFC()
        library.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False),
        ])  # fmt: skip
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    fairseq = model_type in ("roberta", "bart")
    names = FAIRSEQ if fairseq else GPT2
    _add_tokens(folder, library, config, names.values())
    frame = (("cls_token",), ("sep_token",)) if fairseq else decoder_frame(config, False)
    return Vocabulary(library, library.token_to_id, names, frame)


def decoder_frame(
    config: Mapping[str, Any], begins: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The special tokens that a decoder reads around a text, from tokenizer_config.json.

    begins: whether a text begins with a special token by default.
    """
    begin = ("bos_token",) if config.get("add_bos_token", begins) else ()
    return begin, ("eos_token",) if config.get("add_eos_token", False) else ()


def _sentencepiece(
    folder: Folder, name: str, model_type: str, config: Mapping[str, Any]
) -> Vocabulary:
    from regard.interop.sentencepiece.read import parse_sentencepiece, read_sentencepiece

    path = folder.file(name)
    pieces = [piece.text for piece in parse_sentencepiece(path).pieces]
    if model_type not in ("xlm-roberta", "mbart"):
        ids = {piece: id for id, piece in enumerate(pieces)}
        library = _with_added(folder, read_sentencepiece(path), config, ids)
        return Vocabulary(library, ids.get, LLAMA, decoder_frame(config, True))
    # These models number tokens as fairseq does: the id of each piece is increased by 1.
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    ids |= {piece: id + 1 for id, piece in enumerate(pieces) if id > 2}
    frame: tuple[tuple[str, ...], tuple[str, ...]] = ("cls_token",), ("sep_token",)
    if model_type == "mbart":
        if "50" in str(config.get("tokenizer_class")):
            raise InputError(
                f"{path}: mBART-50 numbers its languages differently: add its tokenizer.json (load "
                "and save the tokenizer with transformers)"
            )
        ids |= {code: len(pieces) + 1 + i for i, code in enumerate(LANGUAGES)}
        language = config.get("src_lang") or "en_XX"
        if not isinstance(language, str) or language not in ids:
            raise InputError(f"{folder.path}: src_lang={language!r:.20} is not a language of mBART")
        frame = (), ("eos_token", language)
    ids["<mask>"] = max(ids.values()) + 1
    library = _with_added(folder, read_sentencepiece(path, ids), config, ids)
    return Vocabulary(library, ids.get, FAIRSEQ, frame)


def _with_added(
    folder: Folder, library: tokenizers.Tokenizer, config: Mapping[str, Any], ids: dict[str, int]
) -> tokenizers.Tokenizer:
    """The tokenizer of a SentencePiece model with added tokens; `ids` receives their ids."""
    for id, token in sorted(added_tokens(folder, config).items()):
        # A control symbol has another name in the library, because no text may become one.
        known = ids.get(token.content) == id
        if known and not (token.special and library.token_to_id(token.content) == id):
            continue
        if not token.special:  # SentencePiece would see the text after it as a new text
            raise InputError(
                f"{folder.path}: the added token {token.content!r:.40} is not special, so it "
                "cannot be imported with a SentencePiece model: add its tokenizer.json (load and "
                "save the tokenizer with transformers)"
            )
        _add(folder, library, id, token)
        ids[token.content] = id
    return library


def read_marian(folder: Folder) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target of Marian: two SentencePiece models whose pieces have
    the ids of vocab.json, or of vocab.json and target_vocab.json."""
    from regard.interop.sentencepiece.read import read_sentencepiece

    both = []
    for side, own in (("source", "vocab.json"), ("target", "target_vocab.json")):
        ids = read_ids(folder, own if folder.has(own) else "vocab.json")
        path = folder.file(f"{side}.spm")
        library = _with_more(read_sentencepiece(path, ids), ids)
        both.append(Vocabulary(library, ids.get, LLAMA, ((), ("eos_token",))))
    return both[0], both[1]


def _with_more(library: tokenizers.Tokenizer, ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """The tokenizer of one side of Marian, with further tokens of vocab.json that a text can have.

    These are the codes of target languages, such as ">>fra<<", and single characters that only the
    other side has: Marian looks up unknown characters in vocab.json. A sequence of several unknown
    characters becomes one unknown token.
    """
    content = json.loads(library.to_str())
    codes = [token for token in ids if token.startswith(">>") and token.endswith("<<")]
    if content["model"]["type"] == "Unigram":  # pieces that cannot occur in a text end with a space
        entries = content["model"]["vocab"]
        known = {sign for text, _ in entries if not text.endswith(" ") for sign in text}
        more = [token for token in ids if len(token) == 1 and token not in known]
        lowest = min(score for _, score in entries)
        for code in codes:
            entries[ids[code]][0] = code
        for sign in more:
            entries[ids[sign]] = [sign, lowest - UNKNOWN_PENALTY]
        if more and UNKNOWN not in known:
            signs = "".join(map(re.escape, sorted(known)))
            pattern = {
                "type": "Replace",
                "pattern": {"Regex": f"[^{signs}]{{2,}}"},
                "content": UNKNOWN,
            }
            content["normalizer"]["normalizers"].append(pattern)
    changed = tokenizers.Tokenizer.from_str(json.dumps(content))
    changed.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return changed


def read_ids(folder: Folder, name: str) -> dict[str, int]:
    """The id of each token in a JSON file.

    Raises:
        InputError: the file is not a table of different ids.
    """
    ids = folder.large(name)
    if not isinstance(ids, dict) or not all(type(id) is int for id in ids.values()):
        raise InputError(f"{folder.path / name}: not a table of tokens and their ids")
    if len(set(ids.values())) < len(ids) or not all(0 <= id < MOST_TOKENS for id in ids.values()):
        raise InputError(
            f"{folder.path / name}: each token needs its own id from 0 to {MOST_TOKENS - 1:,}"
        )
    return ids


def text_of(token: Any) -> str | None:
    """The text of a token in tokenizer_config.json, which is a string or an object."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _add_tokens(
    folder: Folder, library: tokenizers.Tokenizer, config: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Mark special tokens, and add the tokens of tokenizer_config.json or added_tokens.json."""
    library.add_special_tokens([name for name in names if library.token_to_id(name) is not None])
    for id, token in sorted(added_tokens(folder, config).items()):
        _add(folder, library, id, token)


def _add(folder: Folder, library: tokenizers.Tokenizer, id: int, token: AddedToken) -> None:
    library.add_special_tokens([token]) if token.special else library.add_tokens([token])
    actual = library.token_to_id(token.content)
    if actual != id:
        raise InputError(
            f"{folder.path}: the added token {token.content!r:.40} must have the id {id}, but got "
            f"{actual}: added ids must follow the vocabulary without gaps"
        )


def added_tokens(folder: Folder, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens of tokenizer_config.json or added_tokens.json, by id. A token with a role, such as
    eos_token, is special."""
    named = {text_of(value) for name, value in config.items() if name.endswith("_token")}
    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(name)
        named |= {text_of(token) for token in more} if isinstance(more, list) else set()
    table = config.get("added_tokens_decoder")
    entries: dict[int, tuple[str, bool]] = {}
    if isinstance(table, dict):
        for id, token in table.items():
            text = text_of(token)
            if id.isdecimal() and len(id) < 10 and text is not None and isinstance(token, dict):
                entries[int(id)] = text, bool(token.get("special", False)) or text in named
    elif folder.has("added_tokens.json"):
        ids = read_ids(folder, "added_tokens.json")
        entries = {id: (text, text in named) for text, id in ids.items()}
    return {
        id: AddedToken(text, special=special, normalized=not special)
        for id, (text, special) in entries.items()
    }
