"""Import a vocabulary without a model: SentencePiece, vocab.txt, or vocab.json with merges.txt.

The result is the tokenizer.json of the library `tokenizers`, which `regard.train(tokenizer=...)`
and other programs read. It is compared with the original tokenizer, if that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers

from regard import __version__
from regard.errors import InputError
from regard.files import new_folder, write_file
from regard.interop.engines import EngineFailed, installed_version, third_party
from regard.interop.hf.folder import Folder
from regard.interop.hf.vocabulary import WORDPIECE, read_byte_level, read_wordpiece, text_of
from regard.interop.proof import (
    RECEIPT,
    Receipt,
    checksums,
    choose_texts,
    compare_tokens,
    refuse,
)
from regard.interop.sentencepiece.read import read_sentencepiece
from regard.training.names import TOKENIZER

TEXTS = 10_000  # texts that both tokenizers encode
Encode = Callable[[Sequence[str]], list[list[int]]]


def import_vocabulary(
    path: Path, folder: Path, texts: Sequence[str] | None = None, count: int | None = None
) -> Receipt:
    """Write a vocabulary as tokenizer.json, with a receipt.

    Args:
        path: a .spm or .model file of SentencePiece, vocab.txt, or merges.txt beside vocab.json.
        folder: the new folder.
        texts: the texts on which the tokenizers are compared; None: built-in texts.
        count: the number of texts; None: all texts (10,000 if they are built in).

    Returns:
        The receipt.

    Raises:
        InputError: the file is damaged, or there are fewer than `count` texts.
        ConversionFailed: the token ids of a text differ; nothing is written.
    """
    chosen = choose_texts(texts, count, TEXTS)
    config: dict[str, Any] = {}
    if path.name in ("vocab.txt", "merges.txt"):
        source = Folder(path.parent)
        config = dict(source.options("tokenizer_config.json"))
        package, files = "transformers", source.files
        if path.name == "vocab.txt":
            kind, make_encoder = "WordPiece", wordpiece_encoder
            library = read_wordpiece(source, config).library
            if library.token_to_id(unknown := library.model.unk_token) is None:
                raise InputError(f"{path}: the token {unknown:.60} for unknown words is missing")
        else:
            kind, make_encoder = "byte-level BPE", byte_level_encoder
            library = read_byte_level(source, "gpt2", config).library
    else:
        kind, library, files = "SentencePiece", read_sentencepiece(path), [path]
        package, make_encoder = "sentencepiece", sentencepiece_encoder
    receipt = Receipt(
        f"Import of a vocabulary ({kind}, {library.get_vocab_size():,} tokens)",
        {"regard": __version__, "tokenizers": tokenizers.__version__},
        files=checksums(files, path.parent),
    )
    if find_spec(package) is None:
        receipt.note = (
            f"The tokenizers were not compared: {package} must be installed for this (pip install "
            f"{package})."
        )
    else:
        receipt.engines[package] = installed_version(package)
        try:
            with third_party(package, receipt.engines[package]):
                expected = make_encoder(path, config)(chosen)
        except EngineFailed as error:
            receipt.note = f"The tokenizers were not compared: {error}."
        else:
            receipt.texts = len(chosen)
            library.encode_special_tokens = True  # the names of special tokens in a text are text
            ids = [row.ids for row in library.encode_batch(chosen, add_special_tokens=False)]
            receipt.same_tokenization = compare_tokens(ids, expected, chosen, receipt)
    refuse(receipt, path)
    with new_folder(folder) as new:
        write_file(new / TOKENIZER, library.to_str(pretty=True) + "\n")
        write_file(new / RECEIPT, receipt.to_json())
    return receipt


def sentencepiece_encoder(path: Path, config: dict[str, Any]) -> Encode:
    """The tokenizer from the package sentencepiece."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda texts: [processor.encode(text) for text in texts]


def wordpiece_encoder(path: Path, config: dict[str, Any]) -> Encode:
    """BertTokenizer of transformers."""
    import transformers

    tokenizer = transformers.BertTokenizer(
        vocab=str(path), unk_token=text_of(config.get("unk_token")) or WORDPIECE["unk_token"],
        do_lower_case=bool(config.get("do_lower_case", True)),
        tokenize_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"), split_special_tokens=True,
    )  # fmt: skip
    return lambda texts: tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def byte_level_encoder(path: Path, config: dict[str, Any]) -> Encode:
    """GPT2Tokenizer of transformers."""
    import transformers

    tokenizer = transformers.GPT2Tokenizer(
        vocab=str(path.parent / "vocab.json"), merges=str(path),
        add_prefix_space=bool(config.get("add_prefix_space", False)), split_special_tokens=True,
    )  # fmt: skip
    return lambda texts: tokenizer(list(texts), add_special_tokens=False)["input_ids"]
