"""The search index: building it, querying it, and the fraction of the memory bandwidth of a query.

The vectors are random unit vectors with a fixed seed, so no model is needed. An exact query has to
read every vector once: the time for that at the memory bandwidth, measured in the same run, is the
lower bound. The peer is a query without an index: the numpy product of all vectors with the query,
and argpartition.

Cold is the first query when no part of the files is in memory; mapped is the first query of a new
process when the files are in memory; warm are the following queries. Each figure comes from its own
process, with its own peak of memory. The part of the peak that is the mapped file can be reclaimed
by the system.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.tasks.index import FILES, VECTORS, Index, build_index

BATCH = 32  # queries at once
BANDWIDTH = 2**30  # bytes that are read to measure it: larger than any cache

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Built:
    seconds: float  # without generating the vectors
    peak: int  # bytes


@dataclass
class Searched:
    warm: list[float]  # seconds
    speeds: list[float]  # of reading a large array, with one thread or all, in bytes per second
    batch: list[float]
    peer: list[float]
    peak: int  # bytes
    of_file: int  # bytes of the peak that belong to the mapped file


def unit_vectors(count: int, size: int, random: np.random.Generator) -> NDArray[np.float32]:
    vectors = random.standard_normal((count, size), np.float32)
    vectors /= np.sqrt(np.vecdot(vectors, vectors))[:, None]
    return vectors


def build(folder: Path, documents: Path, size: int, seed: int) -> Built:
    random, spent = np.random.default_rng(seed), 0.0

    def embed(texts: list[str]) -> NDArray[np.float32]:
        nonlocal spent
        start = time.perf_counter()
        vectors = unit_vectors(len(texts), size, random)
        spent += time.perf_counter() - start
        return vectors

    start = time.perf_counter()
    build_index(folder, documents, embed, f"random {seed}", size, quiet=True)
    return Built(time.perf_counter() - start - spent, peak())


def first(folder: Path, top: int, seed: int, cold: bool) -> float:
    """The seconds of the first query of a process; NaN if the file cache cannot be emptied."""
    if cold and not forget(folder):
        return float("nan")
    query = queries(folder, seed)[:1]
    return seconds(lambda: Index(folder).search(query, top))


def search(folder: Path, top: int, seed: int, repeats: int, threads: int) -> Searched:
    index, some = Index(folder), queries(folder, seed)
    vector = some[:1]
    best = [hit.line - 1 for hit in index.search(vector, top)[0]]  # no line is empty
    index.search(some, top)
    peak_bytes, of_file = peak(), mapped_bytes()
    batch = [seconds(lambda: index.search(some, top)) for _ in range(max(3, repeats // 3))]
    warm, speeds = list[float](), list[float]()
    with ThreadPoolExecutor(threads) as pool:
        array = np.ones(BANDWIDTH // 4, np.float32)
        parts = np.split(array, 64)
        reads = [lambda: array.max(), lambda: list(pool.map(np.max, parts))]
        for _ in range(repeats):  # in turn, so that other load affects both equally
            warm.append(seconds(lambda: index.search(vector, top)))
            speeds.append(BANDWIDTH / min(map(seconds, reads)))
    mapped: NDArray[np.float32] = np.memmap(folder / VECTORS, np.dtype("<f4"), "r")
    vectors = mapped.view(np.ndarray).reshape(-1, index.size)

    def plain() -> list[int]:
        scores = vectors @ vector[0]
        best = np.argpartition(scores, -top)[-top:]
        return best[np.argsort(-scores[best])].tolist()

    if best != plain():  # random vectors have no near ties
        raise SystemExit("the index did not find the nearest lines")
    peer = [seconds(plain) for _ in range(max(3, repeats // 3))]
    return Searched(warm, speeds, batch, peer, peak_bytes, of_file)


def queries(folder: Path, seed: int) -> NDArray[np.float32]:
    return unit_vectors(BATCH, Index(folder).size, np.random.default_rng(seed + 1))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def forget(folder: Path) -> bool:
    """Remove the files from the file cache. Returns whether the system supports it."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for name in FILES:
        descriptor = os.open(folder / name, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return True


def peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def mapped_bytes() -> int:
    """The part of the memory of this process that is mapped files, if the system provides it."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    return 0


def alone(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call it in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(call, *arguments, **options).result()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks search", description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--size", nargs="+", type=int, default=[128, 256])
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of BLAS")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary files)")
    options = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(options.threads)  # for the processes that are started
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        documents = Path(temporary) / "documents.txt"
        with documents.open("w") as file:
            file.writelines(f"line {n} of the documents\n" for n in range(1, options.lines + 1))
        for size in options.size:
            folder = Path(temporary) / str(size)
            built = alone(build, folder, documents, size, 0)
            searched = alone(search, folder, options.top, 0, options.repeats, options.threads)
            mapped, cold = (alone(first, folder, options.top, 0, cold) for cold in (False, True))
            print(f"{options.lines:,} lines, vectors of {size}, the best {options.top}")
            show(folder, built, searched, options.lines * size)
            print(f"  mapped     {mapped * 1e3:7.1f} ms")
            print(f"  cold       {cold * 1e3:7.1f} ms", flush=True)


def show(folder: Path, built: Built, searched: Searched, numbers: int) -> None:
    total = sum(path.stat().st_size for path in folder.iterdir())
    floor, shortest = (numbers * 4 / speed(searched.speeds) for speed in (statistics.median, max))
    warm, batch, peer = map(statistics.median, (searched.warm, searched.batch, searched.peer))
    print(
        f"  index      {total / 1e6:,.0f} MB, built in {built.seconds:.1f} s without "
        f"the embedding, peak {built.peak / 2**20:,.0f} MiB"
    )
    print(f"  floor      {floor * 1e3:7.1f} ms (best {shortest * 1e3:.1f}): ", end="")
    print(f"the vectors, read at {numbers * 4 / floor / 1e9:.1f} GB/s")
    print(f"  warm query {warm * 1e3:7.1f} ms (best {min(searched.warm) * 1e3:.1f}): ", end="")
    print(f"{floor / warm:.0%} of the memory's speed (best {shortest / min(searched.warm):.0%})")
    print(f"  numpy      {peer * 1e3:7.1f} ms: {peer / warm:.1f} times as long")
    print(f"  {BATCH} queries {batch * 1e3:7.1f} ms: {batch / BATCH * 1e3:.1f} ms each", end="")
    print(f", {2 * BATCH * numbers / batch / 1e9:.0f} GFLOP/s")
    print(
        f"  memory     {searched.peak / 2**20:,.0f} MiB at most, "
        f"{searched.of_file / 2**20:,.0f} of them the mapped files"
    )
