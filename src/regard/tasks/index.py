"""The search index: the vectors of a file's lines on disk, searched exactly, without torch.

A query is compared with every line, at about the speed of reading the vectors from memory. An
index is a folder of raw little-endian files (vectors, line numbers, texts, and where each text
ends) with a manifest that names the documents and the model (text/manifest.py).

The rounding of float32 products depends on how many rows and queries are multiplied at once. The
results must not depend on it. The products therefore only select candidates (all rows that could be
among the best, given the largest rounding error), and each candidate is scored again in float64.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.console import progress, warn
from regard.errors import InputError
from regard.text.manifest import FolderFormat, explain_write_errors, map_file
from regard.text.pieces import in_chunks
from regard.text.reading import fingerprint_files, open_text

NAME_VERSION = 1  # part of an index's name; constant, so that an outdated index is replaced
FILES = VECTORS, LINES, TEXTS, OFFSETS = "vectors.f32", "lines", "texts", "offsets"
FLOAT, INTEGER = np.dtype("<f4"), np.dtype("<i8")
BLOCK_ROWS = 16_384  # rows searched at once: their products stay in the cache
QUERIES = 64  # queries that share one pass over the vectors
FEW = 8  # queries; up to here, np.vecdot is faster than a matrix product
FOLD = 64  # rows
UNIT = 0.01  # largest difference between the length of a vector and 1
REMEDY = "remove the folder or rebuild the index"

Embed = Callable[[list[str]], NDArray[np.float32]]
CountCut = Callable[[list[str]], int]  # how many texts are too long to be read completely
_building = RLock()  # one thread builds an index; the others wait and load it


class Hit(NamedTuple):
    """A line of a file that is similar to a query.

    Attributes:
        score: the cosine of the angle between the vectors of the query and of the line.
        line: the number of the line, counted from 1.
        text: the line.
    """

    score: float
    line: int
    text: str

    def __repr__(self) -> str:
        return f"Hit({self.score:.4f}, line {self.line}, {self.text!r})"


class Index:
    """A finished index, read-only and memory-mapped.

    Attributes:
        size: the number of features of a vector.
        identity: the identity of the model that computed the vectors.
        fingerprint: the fingerprint of the documents.
        cut: the number of lines of which only the beginning was embedded.
    """

    def __init__(self, folder: Path) -> None:
        """Open an index and verify its files.

        Raises:
            InputError: the folder is not an index, or it is damaged.
        """
        manifest = FORMAT.read(folder)
        self.folder = folder
        self.size: int = manifest["size"]
        self.identity: str = manifest["identity"]
        self.fingerprint: str = manifest["fingerprint"]
        self.cut: int = manifest.get("cut", 0)
        try:
            self._vectors = map_file(folder / VECTORS, FLOAT).reshape(-1, self.size)
            self._lines = map_file(folder / LINES, INTEGER)
            self._texts = map_file(folder / TEXTS, np.dtype("u1"))
            self._offsets = map_file(folder / OFFSETS, INTEGER)
        except (OSError, ValueError) as error:  # another process may be replacing it just now
            raise InputError(f"{folder}: cannot be read ({error}): {REMEDY}") from None

    def __len__(self) -> int:
        """The number of lines, without blank ones."""
        return len(self._lines)

    def search(
        self, queries: NDArray[np.float32], top: int, block: int = BLOCK_ROWS
    ) -> list[list[Hit]]:
        """For each query [q, size] the `top` lines with the highest scores, the best first.

        Of lines with equal scores, the first comes first. The result does not depend on `block`
        (the number of rows read at once) or on the other queries, to the last bit.
        """
        if top < 1:
            raise InputError(f"top is {top}: must be at least 1")
        if queries.ndim != 2 or queries.shape[1] != self.size:
            raise InputError(
                f"{self.folder}: has vectors of {self.size} numbers, not {queries.shape[-1]} as "
                f"the query has: a different model built it: {REMEDY}"
            )
        if not np.isfinite(queries).all():
            raise InputError("a query's vector contains NaN or infinity: use a different model")
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES):
            some = np.ascontiguousarray(queries[start : start + QUERIES], FLOAT)
            best = self._best(some, min(top, len(self)), block)
            hits += [[self._hit(score, row) for score, row in rows] for rows in best]
        return hits

    def _best(
        self, queries: NDArray[np.float32], top: int, block: int
    ) -> list[list[tuple[float, int]]]:
        """For each query the best rows in order, with their exact scores."""
        exact = queries.astype(np.float64)
        longest = np.sqrt(np.vecdot(exact, exact)) * (1 + UNIT)  # no score is higher
        # The largest rounding error of a float32 product, in whatever order its terms are added.
        slack = 1.1 * self.size * 2.0**-24 * longest + 1e-30
        best = [(np.empty(0), np.empty(0, np.int64)) for _ in queries]
        floor = np.full(len(queries), -np.inf)  # rows with a lower estimate are not among the best
        out = np.empty((min(block, len(self)), len(queries)), np.float32)
        for start in range(0, len(self), block):
            part = self._vectors[start : start + block]
            estimates = _products(part, queries, out[: len(part)])
            highest = _highest(estimates)
            if not (highest <= longest + slack).all():  # also false for NaN
                raise FORMAT.error(self.folder, "a vector is not of length 1")
            for i in np.flatnonzero(highest >= floor).tolist():
                chosen = np.flatnonzero(estimates[:, i] >= floor[i])
                if len(chosen) > top:
                    scores = estimates[chosen, i]
                    kth = float(np.partition(scores, -top)[-top])
                    # The true k-th score is at least kth - slack; estimates differ by slack again.
                    chosen = chosen[scores >= kth - 2 * slack[i]]
                # Each row has its own sum: the result does not depend on the other rows.
                scores = (part[chosen].astype(np.float64) * exact[i]).sum(axis=1)
                scores = np.concatenate([best[i][0], scores])
                rows = np.concatenate([best[i][1], start + chosen])
                if len(rows) > 2 * top:  # not in each block: `top` may be large
                    scores, rows = _sorted(scores, rows, top)
                    floor[i] = scores[-1] - slack[i]
                best[i] = scores, rows
        return [
            list(zip(scores.tolist(), rows.tolist(), strict=True))
            for scores, rows in (_sorted(*candidates, top) for candidates in best)
        ]

    def _hit(self, score: float, row: int) -> Hit:
        start, end = self._offsets[row : row + 2].tolist()
        if not 0 <= start < end <= len(self._texts):
            raise FORMAT.error(self.folder, f"{OFFSETS} point outside of {TEXTS}")
        try:
            text = self._texts[start:end].tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise FORMAT.error(self.folder, f"{TEXTS} is not UTF-8") from None
        return Hit(score, int(self._lines[row]), text)

    def __repr__(self) -> str:
        return f"Index({len(self):,} lines, vectors of {self.size}, {self.folder})"


def _check(manifest: dict[str, Any], sizes: dict[str, int]) -> bool:
    """Whether the files of an index are those that its manifest describes."""
    count, size = manifest["count"], manifest["size"]
    expected = {
        VECTORS: count * size * FLOAT.itemsize, LINES: count * INTEGER.itemsize,
        TEXTS: sizes[TEXTS], OFFSETS: (count + 1) * INTEGER.itemsize,
    }  # fmt: skip
    return (
        sizes == expected
        and all(type(number) is int and number > 0 for number in (count, size, sizes[TEXTS]))
        and all(isinstance(manifest[name], str) for name in ("identity", "fingerprint"))
        and type(manifest.get("cut", 0)) is int
    )


FORMAT = FolderFormat("regard search index", 2, "index.json", "search index", _check, f": {REMEDY}")


def _products(
    part: NDArray[np.float32], queries: NDArray[np.float32], out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The product of each row with each query, [rows, q]. For few queries, which wait for memory,
    np.vecdot reads the rows in order, and BLAS does not."""
    with np.errstate(invalid="ignore", over="ignore"):  # damage, which the caller reports
        if len(queries) <= FEW:
            return np.vecdot(part[:, None], queries[None], out=out)
        return np.matmul(part, queries.T, out=out)


def _highest(estimates: NDArray[np.float32]) -> NDArray[np.float32]:
    """The maximum of each column. numpy is slow for many short rows, so rows are joined first."""
    rows, queries = estimates.shape
    if rows % FOLD == 0:
        estimates = estimates.reshape(FOLD, -1).max(axis=0).reshape(-1, queries)
    return estimates.max(axis=0)


def _sorted(
    scores: NDArray[np.float64], rows: NDArray[np.int64], top: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The best `top` rows, the best first; of equal scores, the first row first."""
    order = np.lexsort((rows, -scores))[:top]
    return scores[order], rows[order]


def find_or_build(
    parent: Path,
    documents: Path,
    embed: Embed,
    identity: str,
    size: int,
    quiet: bool = False,
    rebuild: bool = False,
    count_cut: CountCut | None = None,
) -> Index:
    """Load the index of these documents and this model from the folder `parent`, or build it there.

    Its name depends on the content of the documents and on the model, so a changed file or a
    different model never uses the old index. A damaged index is rebuilt, with a warning.

    Args:
        documents: a plain, .gz or .xz file with one document per line; blank lines are left out
        embed: returns the unit vectors [n, size] of n texts
        identity: names the model
        rebuild: build the index even if there is one
        count_cut: returns how many of some texts are too long to be embedded completely
    """
    fingerprint = fingerprint_files([documents])
    name = hashlib.sha256(json.dumps([NAME_VERSION, fingerprint, identity]).encode()).hexdigest()
    folder = parent / name

    def open_index(folder: Path) -> Index:
        index = Index(folder)
        if (index.fingerprint, index.identity, index.size) != (fingerprint, identity, size):
            raise FORMAT.error(
                folder, "it was built from different documents or by a different model"
            )
        return index

    def find() -> tuple[Index | None, str]:
        return (None, "") if rebuild else FORMAT.find(folder, open_index)

    index, _ = find()
    if index is None:
        with _building:
            index, damage = find()  # another thread may have built it in the meantime
            if damage:
                warn(f"{damage}; rebuilding it")
            if index is None:
                index = build_index(folder, documents, embed, identity, size, quiet, count_cut)
    return index


def build_index(
    folder: Path, documents: Path, embed: Embed, identity: str, size: int, quiet: bool = False,
    count_cut: CountCut | None = None,
) -> Index:  # fmt: skip
    """Build an index; see `find_or_build`. It replaces an existing folder once it is complete."""
    fingerprint = fingerprint_files([documents])

    def fill(temporary: Path) -> dict[str, Any]:
        count, cut = _write(temporary, documents, embed, size, quiet, count_cut)
        if fingerprint_files([documents]) != fingerprint:
            raise InputError(f"{documents}: changed while it was read: try again")
        content = {"identity": identity, "fingerprint": fingerprint, "size": size, "count": count}
        return content | ({"cut": cut} if cut else {})

    with explain_write_errors(folder):
        index = FORMAT.build(folder, fill, Index, replace=True)
    index.folder = folder
    return index


def _write(
    folder: Path, documents: Path, embed: Embed, size: int, quiet: bool, count_cut: CountCut | None
) -> tuple[int, int]:
    """Write the files of an index. Returns the number of vectors, and of how many lines only the
    beginning was embedded."""
    count = cut = end = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        files[3].write(np.zeros(1, INTEGER).tobytes())
        show = stack.enter_context(progress("embedding", documents.stat().st_size, quiet))
        rows = (row for row in open_text(documents, show) if row[1].strip())
        for chunk in in_chunks(rows, lambda row: len(row[1])):
            lines, texts = map(list, zip(*chunk, strict=True))
            vectors = np.ascontiguousarray(embed(texts), FLOAT)
            if vectors.shape != (len(texts), size):
                raise ValueError(f"vectors {vectors.shape} for {len(texts)} texts of size {size}")
            lengths = np.sqrt(np.vecdot(vectors, vectors))
            unit = np.abs(lengths - 1) < UNIT  # also false for NaN
            if not unit.all():
                first = int(unit.argmin())
                raise InputError(
                    f"{documents}:{lines[first]}: the model returns no usable vector "
                    f"(of length {lengths[first]:g}, not 1)"
                )
            cut += count_cut(texts) if count_cut is not None else 0
            encoded = [text.encode("utf-8") for text in texts]
            offsets = end + np.cumsum([len(text) for text in encoded], dtype=INTEGER)
            count, end = count + len(texts), int(offsets[-1])
            contents: list[Any] = [vectors, np.array(lines, INTEGER), b"".join(encoded), offsets]
            for file, content in zip(files, contents, strict=True):
                file.write(content)
    if not count:
        raise InputError(f"{documents}: no line to search (every line is blank)")
    return count, cut
