"""Import a vocabulary without a model: SentencePiece, vocab.txt, or vocab.json with merges.txt.

The result is the tokenizer.json of the library `tokenizers`, which `regard.train(tokenizer=...)`
and other programs read. It is compared with the original tokenizer, if that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers

from regard import __version__
from regard.errors import ConversionFailed
from regard.files import new_folder
from regard.interop.hf.folder import Folder
from regard.interop.hf.vocabulary import read_byte_level, read_wordpiece
from regard.interop.proof import Receipt, checksums, default_texts
from regard.interop.sentencepiece.read import read_sentencepiece

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
        count: the largest number of texts; None: 10,000.

    Returns:
        The receipt.

    Raises:
        InputError: the file is damaged.
        ConversionFailed: the token ids of a text differ; nothing is written.
    """
    number = TEXTS if count is None else count
    chosen = list(texts or default_texts(number))[:number]
    if path.name in ("vocab.txt", "merges.txt"):
        kind = "WordPiece" if path.name == "vocab.txt" else "byte-level BPE"
        source = Folder(path.parent)
        config = dict(source.options("tokenizer_config.json"))
        if path.name == "vocab.txt":
            library = read_wordpiece(source, config).library
        else:
            library = read_byte_level(source, "gpt2", config).library
        files, package = source.files, "transformers"
        make_encoder = wordpiece_encoder if path.name == "vocab.txt" else byte_level_encoder
    else:
        kind, library, files = "SentencePiece", read_sentencepiece(path), [path]
        package, make_encoder = "sentencepiece", sentencepiece_encoder
        config = {}
    receipt = Receipt(
        f"Import of a vocabulary ({kind}, {library.get_vocab_size():,} tokens)",
        {"regard": __version__, "tokenizers": tokenizers.__version__},
        files=checksums(files, path.parent),
    )
    if find_spec(package) is None:
        receipt.note = f"Nothing was compared: pip install {package}"
    else:
        receipt.engines[package] = installed_version(package)
        receipt.texts = len(chosen)
        expected = make_encoder(path, config)(chosen)
        library.encode_special_tokens = True  # the names of special tokens in a text are text
        encoded = library.encode_batch(chosen, add_special_tokens=False)
        pairs = zip(encoded, expected, strict=True)
        receipt.same_tokenization = sum(a.ids == b for a, b in pairs) / len(chosen)
    if receipt.failures:
        raise ConversionFailed(f"{path}: {'; '.join(receipt.failures)}: nothing was written")
    with new_folder(folder) as new:
        (new / "tokenizer.json").write_text(library.to_str(pretty=True) + "\n", encoding="utf-8")
        (new / "conversion.json").write_bytes(receipt.to_json())
    return receipt


def installed_version(package: str) -> str:
    """The version of a package, or "unknown"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def sentencepiece_encoder(path: Path, config: dict[str, Any]) -> Encode:
    """The tokenizer from the package sentencepiece."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda texts: [processor.encode(text) for text in texts]


def wordpiece_encoder(path: Path, config: dict[str, Any]) -> Encode:
    """BertTokenizer of transformers."""
    import transformers

    tokenizer = transformers.BertTokenizer(
        vocab=str(path), do_lower_case=bool(config.get("do_lower_case", True)),
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
