"""The search index: the vectors of a file's lines on disk, searched exactly, without torch.

A query is compared with every line, so nothing is ever missed, and a million lines are read about
as fast as the memory gives them. An index is a folder of raw little-endian files (vectors, line
numbers, texts and where each of them ends) beside one JSON manifest that says what it was made
from, with the checksum of every file. They are verified when the index is opened, which reads each
byte once (text/manifest.py). Nothing is pickled.

How float32 products round depends on how many rows and queries are multiplied at once. Which lines
are the best must not: the products only find the candidates, all that could be among the best
whatever was rounded, and those are scored again in float64, one line at a time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.console import progress
from regard.errors import InputError
from regard.files import PREFIX, FolderExists, new_folder, remove_leftovers
from regard.text.manifest import Outdated, read_manifest, write_manifest
from regard.text.reading import fingerprint_files, open_text
from regard.text.store import map_file, say_rebuilt

FORMAT, VERSION = "regard search index", 2
NAME_VERSION = 1  # part of an index's name; constant, so that an outdated index is replaced
MANIFEST = "index.json"
FILES = VECTORS, LINES, TEXTS, OFFSETS = "vectors.f32", "lines", "texts", "offsets"
FLOAT, INTEGER = np.dtype("<f4"), np.dtype("<i8")
# What is embedded at once: enough to fill batches, little enough not to be felt in memory.
BLOCK_LINES, BLOCK_CHARACTERS = 4096, 1_000_000
BLOCK_ROWS = 16_384  # what is searched at once: the products stay in the cache
TOGETHER = 64  # queries that share one reading of the vectors; more would only take more memory
FEW = 8  # queries; up to here, row by row is faster than a matrix product, which waits for memory
FOLD = 64  # rows
EXACT_ROWS = 1024  # scored again at once
UNIT = 0.01  # how far from 1 the length of a vector may be

Embed = Callable[[list[str]], NDArray[np.float32]]
REMEDY = "remove it or use --rebuild"

# Threads of one process build one at a time: temporary names contain only the process id.
_building = RLock()


class Hit(NamedTuple):
    score: float  # the cosine of the angle between the query's vector and the line's
    line: int  # from 1
    text: str


class Index:
    """A finished index, read-only; its files are mapped into memory.

    size: of a vector
    identity: the model's that made the vectors
    fingerprint: of the documents' bytes
    """

    def __init__(self, folder: Path) -> None:
        """Open an index and verify its files.

        Raises:
            InputError: the folder is not an index, or it is damaged.
        """
        manifest = _manifest(folder)
        self.folder = folder
        self.size: int = manifest["size"]
        self.identity: str = manifest["identity"]
        self.fingerprint: str = manifest["fingerprint"]
        try:
            self._vectors = map_file(folder / VECTORS, FLOAT).reshape(-1, self.size)
            self._lines = map_file(folder / LINES, INTEGER)
            self._texts = map_file(folder / TEXTS, np.dtype("u1"))
            self._offsets = map_file(folder / OFFSETS, INTEGER)
        except (OSError, ValueError) as error:  # another process may be replacing it just now
            raise InputError(f"{folder}: cannot be read ({error}): {REMEDY}") from None

    def __len__(self) -> int:
        """How many lines there are, not counting blank ones."""
        return len(self._lines)

    def search(
        self, queries: NDArray[np.float32], top: int, block: int = BLOCK_ROWS
    ) -> list[list[Hit]]:
        """For each query [q, size] the `top` lines with the highest scores, the best first.

        Of lines with the same score the first comes first. `block`, how many lines are read at
        once, and which queries are asked together do not show in the result, to the last bit.
        """
        if top < 1:
            raise InputError(f"top is {top}: must be at least 1")
        if queries.ndim != 2 or queries.shape[1] != self.size:
            raise InputError(
                f"{self.folder}: has vectors of {self.size} numbers, not {queries.shape[-1]} as "
                f"the query has: another model made it: {REMEDY}"
            )
        if not np.isfinite(queries).all():
            raise InputError("a query's vector has numbers that are not finite: try another model")
        found: list[list[Hit]] = []
        for start in range(0, len(queries), TOGETHER):
            some = np.ascontiguousarray(queries[start : start + TOGETHER], FLOAT)
            for scores, rows in self._best(some, min(top, len(self)), block):
                pairs = zip(scores.tolist(), rows.tolist(), strict=True)
                found.append([self._hit(score, row) for score, row in pairs])
        return found

    def _best(
        self, queries: NDArray[np.float32], top: int, block: int
    ) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        """For each query the exact scores and the rows of the best, in order."""
        exact = queries.astype(np.float64)
        longest = np.sqrt(np.vecdot(exact, exact)) * (1 + UNIT)  # no score is above that
        # By as much may a float32 product be wrong, in whatever order its terms are added.
        slack = 1.1 * self.size * 2.0**-24 * longest + 1e-30
        best = [(np.empty(0), np.empty(0, np.int64)) for _ in queries]
        floor = np.full(len(queries), -np.inf)  # an estimate below is not among the best
        room = np.empty((min(block, len(self)), len(queries)), np.float32)
        for start in range(0, len(self), block):
            part = self._vectors[start : start + block]
            estimates = _products(part, queries, room[: len(part)])
            highest = _highest(estimates)
            if not (highest <= longest + slack).all():  # neither are those that are no numbers
                raise self._damaged("a vector is not of length 1")
            for i in np.flatnonzero(highest >= floor).tolist():
                chosen = _candidates(estimates[:, i], top, floor[i], slack[i])
                scores = np.concatenate([best[i][0], _scores(part, chosen, exact[i])])
                rows = np.concatenate([best[i][1], start + chosen])
                best[i] = scores, rows
                if len(rows) > 2 * top:  # not for each that comes: `top` may be large
                    best[i] = _sorted(scores, rows, top)
                    floor[i] = best[i][0][-1] - slack[i]
        return [_sorted(scores, rows, top) for scores, rows in best]

    def _hit(self, score: float, row: int) -> Hit:
        start, end = self._offsets[row : row + 2].tolist()
        if not 0 <= start < end <= len(self._texts):
            raise self._damaged(f"{OFFSETS} point outside of {TEXTS}")
        try:
            text = self._texts[start:end].tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"{TEXTS} is not UTF-8") from None
        return Hit(score, int(self._lines[row]), text)

    def _damaged(self, how: str) -> InputError:
        return InputError(f"{self.folder}: damaged search index ({how}): {REMEDY}")

    def __repr__(self) -> str:
        return f"Index({len(self):,} lines, vectors of {self.size}, {self.folder})"


def _products(
    part: NDArray[np.float32], queries: NDArray[np.float32], out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The product of each row with each query, [rows, q].

    vecdot goes through the rows from first to last, as memory likes it, with all queries at each;
    BLAS takes several rows at a time, and for few queries then waits for them longer.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # damage, which the caller finds and names
        if len(queries) <= FEW:
            return np.vecdot(part[:, None], queries[None], out=out)
        return np.matmul(part, queries.T, out=out)


def _highest(estimates: NDArray[np.float32]) -> NDArray[np.float32]:
    """The highest of each query, [q]. numpy is slow where rows are many and short: fold them."""
    rows, queries = estimates.shape
    if rows % FOLD == 0:
        estimates = estimates.reshape(FOLD, -1).max(axis=0).reshape(-1, queries)
    return estimates.max(axis=0)


def _candidates(
    estimates: NDArray[np.float32], top: int, floor: float, slack: float
) -> NDArray[np.int64]:
    """All rows that may be among the best `top`, however the estimates were rounded."""
    chosen = np.flatnonzero(estimates >= floor)
    if len(chosen) > top:
        estimates = estimates[chosen]
        kth = float(np.partition(estimates, len(chosen) - top)[-top])
        # `top` rows truly score at least kth - slack, and who does so is estimated at this:
        chosen = chosen[estimates >= kth - 2 * slack]
    return chosen


def _sorted(
    scores: NDArray[np.float64], rows: NDArray[np.int64], top: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The best `top` of them, the best first; where scores are the same, the first row first."""
    order = np.lexsort((rows, -scores))[:top]
    return scores[order], rows[order]


def _scores(
    part: NDArray[np.float32], chosen: NDArray[np.int64], query: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The scores in float64, each summed by itself: the same bits whatever stands beside it."""
    scores = np.empty(len(chosen))
    for start in range(0, len(chosen), EXACT_ROWS):
        rows = part[chosen[start : start + EXACT_ROWS]].astype(np.float64)
        scores[start : start + EXACT_ROWS] = (rows * query).sum(axis=1)
    return scores


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index, after all its files have been verified."""
    try:
        manifest, sizes = read_manifest(folder / MANIFEST, FORMAT, VERSION)
        count, size = manifest["count"], manifest["size"]
        valid = (
            set(sizes) == set(FILES)
            and all(type(number) is int and number > 0 for number in (count, size, sizes[TEXTS]))
            and all(isinstance(manifest[name], str) for name in ("identity", "fingerprint"))
            and sizes[VECTORS] == count * size * FLOAT.itemsize
            and sizes[LINES] == count * INTEGER.itemsize
            and sizes[OFFSETS] == (count + 1) * INTEGER.itemsize
        )
        if not valid:
            raise ValueError(f"its files do not match its {MANIFEST}")
    except Outdated as error:
        raise InputError(f"{folder}: outdated search index ({error}): {REMEDY}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: damaged search index ({error}): {REMEDY}") from None
    return manifest


def open_index(folder: Path, documents: Path | None = None, identity: str | None = None) -> Index:
    """A finished index; InputError if it is damaged or stale.

    It is stale if `documents`, where given, no longer holds the bytes that the index was made
    from, or if `identity`, where given, names another model.
    """
    return _open(folder, fingerprint_files([documents]) if documents else None, identity)


def _open(folder: Path, fingerprint: str | None, identity: str | None) -> Index:
    index = Index(folder)
    if fingerprint is not None and index.fingerprint != fingerprint:
        raise InputError(f"{folder}: the documents have changed since it was made: {REMEDY}")
    if identity is not None and index.identity != identity:
        raise InputError(f"{folder}: another model made it: {REMEDY}")
    return index


def find_or_build(
    parent: Path,
    documents: Path,
    embed: Embed,
    identity: str,
    size: int,
    quiet: bool = False,
    rebuild: bool = False,
) -> Index:
    """The index of these documents by this model: found in the folder `parent`, or made there.

    Its name follows from the documents' bytes and the model, so a changed file or another model
    never uses the old index. A damaged index is rebuilt, with one line on standard error. With
    `rebuild`, any index is.
    """
    fingerprint = fingerprint_files([documents])
    name = hashlib.sha256(json.dumps([NAME_VERSION, fingerprint, identity]).encode()).hexdigest()
    folder = parent / name
    index, _ = (None, "") if rebuild else _open_finished(folder, fingerprint, identity, size)
    if index is None:
        with _building:
            if not rebuild:  # another thread may have built it in the meantime
                index, damage = _open_finished(folder, fingerprint, identity, size)
                if damage:
                    say_rebuilt(damage)
            if index is None:
                remove_leftovers(parent)
                index = build_index(folder, documents, embed, identity, size, quiet)
    return index


def _open_finished(
    folder: Path, fingerprint: str, identity: str, size: int
) -> tuple[Index | None, str]:
    """The index in this folder, or None and the reason if it exists but cannot be used."""
    if not folder.exists():
        return None, ""
    try:
        index = _open(folder, fingerprint, identity)
    except InputError as error:
        return None, str(error).removesuffix(f": {REMEDY}")
    if index.size != size:
        return None, f"{folder}: has vectors of a different size"
    return index, ""


def build_index(
    folder: Path, documents: Path, embed: Embed, identity: str, size: int, quiet: bool = False
) -> Index:
    """Make the index of a plain, .gz or .xz file with one document a line, blank lines left out.

    embed: gives the unit vectors [n, size] of n texts
    identity: names the model; with another one the index is stale
    An index that is there already is replaced when the new one is finished, and not before.
    """
    fingerprint = fingerprint_files([documents])
    ours = {MANIFEST, *FILES}
    with _explained(folder):
        if folder.exists() and not {path.name for path in folder.iterdir()} <= ours:
            raise InputError(f"{folder}: holds other files, it is no search index: name another")
        with _published(folder) as temporary:
            count = _write(temporary, documents, embed, size, quiet)
            if fingerprint_files([documents]) != fingerprint:
                raise InputError(f"{documents}: changed while it was read: try again")
            content = {
                "identity": identity, "fingerprint": fingerprint, "size": size, "count": count
            }  # fmt: skip
            write_manifest(temporary / MANIFEST, FORMAT, VERSION, content)
            # Mapped before it has its name: once it has, another process may replace it.
            index = Index(temporary)
            index.folder = folder
    return index


def _write(folder: Path, documents: Path, embed: Embed, size: int, quiet: bool) -> int:
    """Embed block by block and append to the files; returns how many vectors there are."""
    count = end = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        files[3].write(np.zeros(1, INTEGER).tobytes())
        show = stack.enter_context(progress("embedding", documents.stat().st_size, quiet))
        for lines, texts in _blocks(documents, show):
            vectors = np.ascontiguousarray(embed(texts), FLOAT)
            if vectors.shape != (len(texts), size):
                raise ValueError(f"vectors {vectors.shape} for {len(texts)} texts of size {size}")
            lengths = np.sqrt(np.vecdot(vectors, vectors))
            unit = np.abs(lengths - 1) < UNIT  # false as well for what is no number
            if not unit.all():
                first = int(unit.argmin())
                raise InputError(
                    f"{documents}:{lines[first]}: the model gives no usable vector "
                    f"(of length {lengths[first]:g}, not 1)"
                )
            encoded = [text.encode("utf-8") for text in texts]
            offsets = end + np.cumsum([len(text) for text in encoded], dtype=INTEGER)
            count, end = count + len(texts), int(offsets[-1])
            contents: list[Any] = [vectors, np.array(lines, INTEGER), b"".join(encoded), offsets]
            for file, content in zip(files, contents, strict=True):
                file.write(content)
    if not count:
        raise InputError(f"{documents}: no line to search (every line is blank)")
    return count


def _blocks(
    documents: Path, position: Callable[[int], None]
) -> Iterator[tuple[list[int], list[str]]]:
    """Lines that are not blank, some thousand at a time, fewer where they are long."""
    lines: list[int] = []
    texts: list[str] = []
    characters = 0
    for line, text in open_text(documents, position):
        if not text.strip():
            continue
        lines.append(line)
        texts.append(text)
        characters += len(text)
        if len(texts) == BLOCK_LINES or characters > BLOCK_CHARACTERS:
            yield lines, texts
            lines, texts, characters = [], [], 0
    if texts:
        yield lines, texts


@contextmanager
def _published(folder: Path) -> Iterator[Path]:
    """A folder to fill that takes the name, and the place, of `folder` when all is on the disk."""
    filled = False
    try:
        with new_folder(folder) as temporary:
            yield temporary
            # Out of the way in one step, so that nobody ever sees half of a folder vanish.
            aside = folder.with_name(f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
            with suppress(FileNotFoundError):
                os.rename(folder, aside)
            shutil.rmtree(aside, ignore_errors=True)
            filled = True
    except FolderExists:
        if not filled:
            raise
        # Another process was first, just now: what it made is the same.


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """What the system says about writing, in words that name the folder."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = ": free some space or choose a different folder" if full else ""
        raise InputError(f"{folder}: cannot be written ({error.strerror}){advice}") from None
