"""The token store: a corpus as token ids on disk, memory-mapped, so it may be larger than memory.

The name of a store is a hash of everything that its content depends on (files, tokenizers, limits),
so a second run finds it, and a changed corpus has another store. Each side is three raw
little-endian files (token ids, lengths, offsets). A manifest has their checksums, which are
verified when the store is opened (manifest.py). A store that is damaged, or that a different
version of regard built, is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.console import progress, warn
from regard.errors import InputError
from regard.text.corpus import CorpusReport, Pair, read_pairs
from regard.text.manifest import FolderFormat, explain_write_errors, map_file
from regard.text.pieces import in_chunks
from regard.text.reading import Position, fingerprint_files
from regard.text.tokenizer import Tokenizer

# Version of the content, a part of the fingerprint, which checkpoints record and on which the order
# of the examples depends. Change it only if the same corpus gives different tokens.
CONTENT = 1
SIDES = 3  # at most: two texts and their score, label or negative example
TOKENS: dict[str, np.dtype[Any]] = {
    "uint16": np.dtype("<u2"), "uint32": np.dtype("<u4"),
    "float32": np.dtype("<f4"),  # not tokens, but one score for each example
}  # fmt: skip
FILES = ("tokens", "lengths", "offsets")  # of each side
LENGTHS, OFFSETS = np.dtype("<i4"), np.dtype("<i8")
SHORT = 10  # tokens; the ratio of shorter sequences is not checked

Chunk = Sequence[Sequence[Sequence[float]]]  # sides, examples, tokens


class Store:
    """A finished store, read-only; `tokens(side, i)` is a view of the file, not a copy.

    sides: 1, 2 (source and target) or 3
    types: for each side the type of its numbers; "float32" is not tokens but a score
    lengths: for each side an array with the length of every example
    fingerprint: changes with anything that changes the content
    """

    def __init__(self, folder: Path | str) -> None:
        """Open a store and verify its files; an InputError if it is damaged or not a store."""
        self.folder = folder = Path(folder)
        manifest = FORMAT.read(folder)
        self.fingerprint: str = manifest["fingerprint"]
        report = manifest["report"]
        self.report = CorpusReport(report["kept"], report["skipped"], report.get("notes", {}))
        self.types: list[str] = manifest["types"]
        self.sides: int = len(self.types)
        self.lengths: list[NDArray[np.int32]] = []
        self._tokens: list[NDArray[Any]] = []
        self._offsets: list[NDArray[np.int64]] = []
        for side, kind in enumerate(manifest["types"]):
            self._tokens.append(map_file(folder / f"{side}.tokens", TOKENS[kind]))
            self.lengths.append(map_file(folder / f"{side}.lengths", LENGTHS))
            self._offsets.append(map_file(folder / f"{side}.offsets", OFFSETS))

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.lengths[0])

    def tokens(self, side: int, i: int) -> NDArray[Any]:
        """The token ids of one side of example i, including `<eos>`."""
        if not 0 <= i < len(self):
            raise IndexError(f"example {i} of {len(self)}")
        start, end = self._offsets[side][i : i + 2].tolist()
        return self._tokens[side][start:end]

    def __repr__(self) -> str:
        return f"Store({len(self):,} examples, {self.sides} sides, {self.folder})"


def _check(manifest: dict[str, Any], sizes: dict[str, int]) -> bool:
    """Whether the files of a store are those that its manifest describes."""
    report, sides = manifest["report"], len(manifest["types"])
    examples = report["kept"]
    return (
        isinstance(manifest["fingerprint"], str)
        and 1 <= sides <= SIDES
        and all(kind in TOKENS for kind in manifest["types"])
        and all(isinstance(count, int) for count in (examples, *report["skipped"].values()))
        and examples > 0
        and set(sizes) == {f"{side}.{name}" for side in range(sides) for name in FILES}
        and all(
            sizes[f"{side}.lengths"] == examples * LENGTHS.itemsize
            and sizes[f"{side}.offsets"] == (examples + 1) * OFFSETS.itemsize
            for side in range(sides)
        )
    )


FORMAT = FolderFormat("regard store", 2, "store.json", "token store", _check)


def build_pairs(
    paths: Sequence[Path | str],
    tokenizers: tuple[Tokenizer, Tokenizer],
    folder: Path | str,
    max_length: int,
    max_ratio: float | None = None,
    quiet: bool = False,
    pairs: Callable[[Position], Iterator[Pair]] | None = None,
    reading: Sequence[object] = (),
) -> tuple[Store, CorpusReport]:
    """The store of pairs of texts, found in `folder` or built there.

    `<eos>` ends both sides and counts as a token. Additional special tokens that a model from
    another toolkit reads count as well, but are not stored. Pairs are skipped if a side is blank
    ("empty") or has more than `max_length` tokens ("too long"), or if one side is more than
    `max_ratio` times as long as the other and has more than SHORT tokens ("bad ratio").

    pairs: reads the pairs; None: `paths` are two aligned files
    reading: what `pairs` depends on beside the files
    """
    # A text with more characters than this has more than max_length tokens, so it is skipped
    # without being encoded.
    limits = [max_length * tokenizer.longest for tokenizer in tokenizers]

    style = "encoder-decoder"  # other styles read one special token in all
    more = tokenizers[0].frame_size(style) - 1, len(tokenizers[1].target_prefix)

    def worthwhile(report: CorpusReport, position: Position) -> Iterator[tuple[str, str]]:
        every = read_pairs(paths[0], paths[1], position) if pairs is None else pairs(position)
        for _, source, target in every:
            if not source.strip() or not target.strip():
                report.skip("empty")
            elif len(source) > limits[0] or len(target) > limits[1]:
                report.skip("too long")
            else:
                yield source, target

    def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
        usable_pairs = worthwhile(report, position)
        for chunk in in_chunks(usable_pairs, lambda pair: len(pair[0]) + len(pair[1])):
            sides = [
                [[*ids, tokenizer.end] for ids in tokenizer.encode_batch(list(texts))]
                for tokenizer, texts in zip(tokenizers, zip(*chunk, strict=True), strict=True)
            ]
            selected: list[tuple[list[int], list[int]]] = []
            for source, target in zip(*sides, strict=True):
                shorter, longer = sorted((len(source), len(target)))
                if max(len(source) + more[0], len(target) + more[1]) > max_length:
                    report.skip("too long")
                elif max_ratio is not None and longer > SHORT and longer > max_ratio * shorter:
                    report.skip("bad ratio")
                else:
                    selected.append((source, target))
            yield [[pair[side] for pair in selected] for side in range(2)]

    fingerprints = [tokenizer.fingerprint for tokenizer in tokenizers]
    identity = [*fingerprints, max_length, max_ratio, *reading]
    types = [token_type(tokenizer.size) for tokenizer in tokenizers]
    return build(paths, identity, types, encode, folder, quiet)


def build(
    paths: Sequence[Path | str],
    identity: Sequence[object],
    types: list[str],
    encode: Callable[[CorpusReport, Position], Iterator[Chunk]],
    folder: Path | str,
    quiet: bool = False,
) -> tuple[Store, CorpusReport]:
    """The store of any files, found in `folder` or built by `encode`.

    identity: everything that the content depends on besides the files
    encode: yields the examples in chunks, and counts in the report what it skips
    """
    key = json.dumps([CONTENT, fingerprint_files(paths), *identity]).encode()
    fingerprint = hashlib.sha256(key).hexdigest()
    final = Path(folder) / fingerprint

    def open_store(path: Path) -> Store:
        store = Store(path)
        if store.fingerprint != fingerprint:
            raise InputError(f"{path}: the token store of another corpus")
        return store

    store, damage = FORMAT.find(final, open_store)
    if store is not None:
        return store, store.report
    if damage:
        warn(f"{damage}; rebuilding it")
    size, done, writer = Path(paths[0]).stat().st_size, 0, None

    def fill(temporary: Path) -> dict[str, Any]:
        nonlocal writer
        report = CorpusReport()
        with ExitStack() as stack, progress("encoding", size, quiet) as show:
            writer = _Writer(temporary, types, stack)

            def position(bytes_read: int) -> None:
                nonlocal done
                done = bytes_read
                show(done)

            for chunk in encode(report, position):
                report.kept += len(chunk[0])
                for side, rows in enumerate(chunk):
                    writer.add(side, rows)
        if not report.kept:
            names = " and ".join(str(path) for path in paths)
            raise InputError(f"{names}: no example to learn from ({report})")
        return {"fingerprint": fingerprint, "types": types, "report": vars(report)}

    def written() -> str:
        now = 0 if writer is None else writer.written
        needed = f", about {_megabytes(now * size / done)} needed in all" if done else ""
        return f" ({_megabytes(now)} written{needed})"

    with explain_write_errors(Path(folder), written):
        store = FORMAT.build(final, fill, open_store, replace=bool(damage))
    store.folder = final
    return store, store.report


def token_type(size: int) -> str:
    """The smallest type for the ids of a vocabulary."""
    return "uint16" if size <= 2**16 else "uint32"


class _Writer:
    """Appends examples to the files of a store."""

    def __init__(self, folder: Path, types: list[str], stack: ExitStack) -> None:
        self.written = 0  # bytes
        self._kinds = [TOKENS[kind] for kind in types]
        self._ends = [0] * len(types)
        self._files = [
            [stack.enter_context((folder / f"{side}.{name}").open("wb")) for name in FILES]
            for side in range(len(types))
        ]
        for side in range(len(types)):
            self._write(side, 2, np.zeros(1, OFFSETS))

    def add(self, side: int, rows: Sequence[Sequence[float]]) -> None:
        lengths = np.fromiter(map(len, rows), LENGTHS, len(rows))
        total = int(lengths.sum())
        offsets = self._ends[side] + lengths.cumsum(dtype=OFFSETS)
        self._ends[side] += total
        tokens = np.fromiter(chain.from_iterable(rows), self._kinds[side], total)
        for file, array in enumerate((tokens, lengths, offsets)):
            self._write(side, file, array)

    def _write(self, side: int, file: int, array: NDArray[Any]) -> None:
        self.written += self._files[side][file].write(array.tobytes())


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
