"""Load the tokenizer of a model folder: learned by regard, external, or imported with a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tokenizers

from regard.errors import InputError
from regard.text.external import KIND as EXTERNAL
from regard.text.external import ExternalTokenizer, library_errors
from regard.text.imported import KIND as IMPORTED
from regard.text.imported import imported_from_json
from regard.text.tokenizer import FORMAT, Tokenizer, read_content, tokenizer_from_json


def load_tokenizer(
    path: Path, size: int | None = None, tokenizer: Tokenizer | None = None
) -> Tokenizer:
    """Read a file that `save` wrote.

    Args:
        path: the file.
        size: the required size of the vocabulary.
        tokenizer: the tokenizer that a caller passed for this file. It must be the saved one.

    Returns:
        The tokenizer.

    Raises:
        InputError: the file is damaged, or the saved tokenizer is a Python object and the caller
            passed none, or the caller passed another tokenizer.
    """
    whole = read_content(path, size)
    hugging_face = isinstance(whole, dict) and "format" not in whole and "model" in whole
    kind = whole.get("kind") if isinstance(whole, dict) and whole.get("format") == FORMAT else None
    own = kind == EXTERNAL
    if own and tokenizer is None:
        raise InputError(
            f"{path}: the model was trained with a tokenizer that is a Python object and is not "
            "saved: pass the same object as tokenizer="
        )
    if tokenizer is not None:
        loaded = tokenizer
        if tokenizer.fingerprint != hashlib.sha256(path.read_bytes()).hexdigest():
            raise InputError(f"{path}: the model was trained with a different tokenizer")
    elif hugging_face:
        loaded = _from_file(path)
    elif kind == IMPORTED:
        loaded = imported_from_json(whole, path)
    else:
        return tokenizer_from_json(whole, path, size)
    if size not in (None, loaded.size):
        raise InputError(f"{path} has {loaded.size:,} tokens, but the model needs {size:,}")
    return loaded


def _from_file(path: Path) -> Tokenizer:
    with library_errors(f"{path}: not a Hugging Face tokenizer"):
        text = path.read_text(encoding="utf-8")
        return ExternalTokenizer(tokenizers.Tokenizer.from_str(text), copy=False)
