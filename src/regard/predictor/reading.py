"""The methods of `Model` that read text: classify, fill, embed, embed_tokens and search."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError, warn_user
from regard.files import cache_folder, checksum
from regard.predictor.base import BaseModel
from regard.predictor.inputs import (
    check_count,
    python_warning,
    text_list,
)
from regard.tasks.classify import Classify, Label
from regard.tasks.common import count_cut
from regard.tasks.embed import Embed
from regard.tasks.fill import Fill, Filled
from regard.tasks.index import Hit, Index, find_or_build
from regard.tasks.task import Warn, cut_note
from regard.training.checkpoint import tensor_digest

PathName = str | os.PathLike[str]
Documents = PathName | Sequence[str]
TokenVectors = tuple[list[str], NDArray[np.float32]]


def nearest(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], texts: list[str], top: int
) -> list[list[Hit]]:
    """For each of queries[q, D] the `top` texts, with vectors[n, D], of the highest scores."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T  # [q, n]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [Hit(float(row[i]), int(i) + 1, texts[i]) for i in best]
        for row, best in zip(scores, order, strict=True)
    ]


class ReadingMethods(BaseModel):
    """The methods of `Model` that read text."""

    @overload
    def classify(self, text: str, *, warn: Warn = ...) -> Label: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, text: Iterable[str], *, warn: Warn = ...) -> list[Label]: ...
    def classify(
        self, text: str | Iterable[str], *, warn: Warn = python_warning
    ) -> Label | list[Label]:
        """Classify a text, or each text of a list.

        Args:
            text: a string, or several strings.
            warn: called with the index of a text that is too long, and a message about it. The
                default is a Python warning.

        Returns:
            A `Label` for a string, a list for a list; each with the calibrated probabilities of all
            labels.

        Raises:
            InputError: the model was not trained to classify, or a text is not a string.
        """
        labels = self.run(Classify, text_list(text), warn)
        return labels[0] if isinstance(text, str) else labels

    @overload
    def fill(self, text: str, top: int = ...) -> Filled: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, text: Iterable[str], top: int = ...) -> list[Filled]: ...
    def fill(self, text: str | Iterable[str], top: int = 5) -> Filled | list[Filled]:
        """Find the best words for each `<mask>` of a text, or of each text of a list.

        Args:
            text: a string, or several strings, each with at least one `<mask>`.
            top: number of words for each `<mask>`.

        Returns:
            A `Filled` for a string, a list for a list.

        Raises:
            InputError: the model was not trained to fill, or a text has no `<mask>` or is too long.
        """
        check_count("top", top)
        results = self.run(Fill, text_list(text), python_warning, top=top)
        return results[0] if isinstance(text, str) else results

    def embed(
        self, text: str | Iterable[str], *, pooling: str = "", warn: Warn = python_warning
    ) -> NDArray[np.float32]:
        """Compute a vector of unit length for a text, or for each text of a list.

        Args:
            text: a string, or several strings.
            pooling: how token vectors are combined: mean, cls or last; empty: as in training.
            warn: called with the index of a text that is too long, and a message about it. The
                default is a Python warning.

        Returns:
            An array of shape [D] for a string, [n, D] for a list of n texts.

        Raises:
            InputError: the model cannot embed, or an argument is not valid.
        """
        vectors = self.run(Embed, text_list(text), warn, pooling=pooling)
        return vectors[0] if isinstance(text, str) else vectors

    @overload
    def embed_tokens(self, text: str, *, warn: Warn = ...) -> TokenVectors: ...  # type: ignore[overload-overlap]
    @overload
    def embed_tokens(self, text: Iterable[str], *, warn: Warn = ...) -> list[TokenVectors]: ...
    def embed_tokens(
        self, text: str | Iterable[str], *, warn: Warn = python_warning
    ) -> TokenVectors | list[TokenVectors]:
        """Compute a vector for each token of a text, or of each text of a list.

        Args:
            text: a string, or several strings.
            warn: called with the index of a text that is too long, and a message about it. The
                default is a Python warning.

        Returns:
            The tokens, and an array of shape [tokens, D], for a string; a list of such pairs for a
            list.

        Raises:
            InputError: the model cannot embed, or a text is not a string.
        """
        results = self.run(Embed, text_list(text), warn, tokens=True)
        return results[0] if isinstance(text, str) else results

    def embedder(self) -> Embed:
        """The task embed, for any model with one stack that reads single texts."""
        return self.of(Embed)

    def index(
        self, documents: PathName, folder: PathName | None = None, quiet: bool = True,
        rebuild: bool = False,
    ) -> Index:  # fmt: skip
        """Build the index of the vectors of a file's lines, or open an existing one.

        Args:
            documents: a text file with one document per line.
            folder: where the index is stored; None: in the cache.
            quiet: show no progress.
            rebuild: build the index again if it exists.

        Returns:
            The index; `Index.search` finds the nearest lines of vectors.

        Raises:
            InputError: the model cannot embed or is not in a folder, or a file cannot be used.
        """
        embedder, size = self.embedder(), self.config.model.d_model
        if self.folder is None:
            raise InputError("an index belongs to a model that is in a folder: regard.load(folder)")
        weights = self.folder / "model.safetensors"
        if weights.is_file():
            name = checksum(weights)
        else:  # an unfinished run
            name = tensor_digest({k: v.cpu() for k, v in self.transformer.state_dict().items()})
        identity = f"{name} {embedder.pooling} {self.transformer.output_matrix().dtype}"
        identity += f" {self.transformer.precision or ''}".rstrip()
        embed = partial(embedder.embed, self.transformer)
        where = cache_folder() / "search" if folder is None else Path(folder)
        too_long = partial(count_cut, embedder)
        index = find_or_build(
            where, Path(documents), embed, identity, size, quiet, rebuild, too_long
        )
        if index.cut:
            warn_user(f"{documents}: {cut_note(index.cut, embedder.longest, 'line')}")
        return index

    @overload
    def search(self, query: str, documents: Documents, top: int = ...) -> list[Hit]: ...  # type: ignore[overload-overlap]
    @overload
    def search(
        self, query: Iterable[str], documents: Documents, top: int = ...
    ) -> list[list[Hit]]: ...
    def search(
        self, query: str | Iterable[str], documents: Documents, top: int = 5
    ) -> list[Hit] | list[list[Hit]]:
        """Find the documents that are nearest to a query, or to each query of a list.

        Args:
            query: a string, or several strings.
            documents: the path of a text file with one document per line, whose index is stored in
                the cache; or a list of texts, whose vectors are computed for this call only.
            top: number of documents for each query.

        Returns:
            A list of `Hit`, best first, for a string; a list of such lists for a list. `Hit.line`
            is the number of the line or of the text, counted from 1.

        Raises:
            InputError: the model cannot embed, the file cannot be used or the model is not in a
                folder, or the list is empty or contains a value that is not a string.
        """
        check_count("top", top)
        vectors = self.embed(text_list(query))
        if isinstance(documents, str | os.PathLike):
            hits = self.index(documents).search(vectors, top)
        else:
            texts = text_list(documents)
            if not texts:
                raise InputError("documents are empty: give at least one text")
            hits = nearest(vectors, self.embed(texts), texts, top)
        return hits[0] if isinstance(query, str) else hits
