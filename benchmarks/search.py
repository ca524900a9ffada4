"""The search index: making it, searching it, and how much of the memory's speed a query reaches.

The vectors are random, seeded and of length 1, so no model is needed. An exact query has to read
every vector once: the time that takes at the memory's speed, measured in the same run, is the
floor below which it cannot go. The peer is what one would write without an index: numpy's product
of all vectors with the query, and argpartition.

Cold is the first query when the system holds nothing of the files; mapped is the first of a new
process when it does; warm are those that follow. Each figure comes from a process of its own, so
that its peak of memory is its own; what of it is the mapped file, the system takes back when others
need it.
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
BANDWIDTH = 2**30  # bytes that are read to measure it: more than any cache

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Built:
    seconds: float  # without making up the vectors
    peak: int  # bytes


@dataclass
class Searched:
    warm: list[float]  # seconds
    speeds: list[float]  # of reading a large array, by one thread or by all, in bytes a second
    batch: list[float]
    peer: list[float]
    peak: int  # bytes
    of_file: int  # bytes of the peak, that belong to the mapped file


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
    """The seconds of the first query of a process; not a number where it cannot be made cold."""
    if cold and not forget(folder):
        return float("nan")
    query = queries(folder, seed)[:1]
    return seconds(lambda: Index(folder).search(query, top))


def search(folder: Path, top: int, seed: int, repeats: int, threads: int) -> Searched:
    index, some = Index(folder), queries(folder, seed)
    one = some[:1]
    best = [hit.line - 1 for hit in index.search(one, top)[0]]  # no line is blank
    index.search(some, top)
    most, of_file = peak(), mapped_bytes()
    batch = [seconds(lambda: index.search(some, top)) for _ in range(max(3, repeats // 3))]
    warm, speeds = list[float](), list[float]()
    with ThreadPoolExecutor(threads) as pool:
        array = np.ones(BANDWIDTH // 4, np.float32)
        parts = np.split(array, 64)
        reads = [lambda: array.max(), lambda: list(pool.map(np.max, parts))]
        for _ in range(repeats):  # in turn, so that both see the machine equally busy
            warm.append(seconds(lambda: index.search(one, top)))
            speeds.append(BANDWIDTH / min(map(seconds, reads)))
    mapped: NDArray[np.float32] = np.memmap(folder / VECTORS, np.dtype("<f4"), "r")
    vectors = mapped.view(np.ndarray).reshape(-1, index.size)

    def plain() -> list[int]:
        scores = vectors @ one[0]
        best = np.argpartition(scores, -top)[-top:]
        return best[np.argsort(-scores[best])].tolist()

    if best != plain():  # random vectors have no near ties
        raise SystemExit("the index did not find the nearest lines")
    peer = [seconds(plain) for _ in range(max(3, repeats // 3))]
    return Searched(warm, speeds, batch, peer, most, of_file)


def queries(folder: Path, seed: int) -> NDArray[np.float32]:
    return unit_vectors(BATCH, Index(folder).size, np.random.default_rng(seed + 1))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def forget(folder: Path) -> bool:
    """Have the system drop what it holds of the files; whether it can be asked to."""
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
    """How much of the memory of this process is files, where the system says so."""
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
        os.environ[name] = str(options.threads)  # of the processes that are started
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        documents = Path(temporary) / "documents.txt"
        with documents.open("w") as file:
            file.writelines(f"line {n} of the documents\n" for n in range(1, options.lines + 1))
        for size in options.size:
            folder = Path(temporary) / str(size)
            built = alone(build, folder, documents, size, 0)
            found = alone(search, folder, options.top, 0, options.repeats, options.threads)
            mapped, cold = (alone(first, folder, options.top, 0, cold) for cold in (False, True))
            print(f"{options.lines:,} lines, vectors of {size}, the best {options.top}")
            show(folder, built, found, options.lines * size)
            print(f"  mapped     {mapped * 1e3:7.1f} ms")
            print(f"  cold       {cold * 1e3:7.1f} ms", flush=True)


def show(folder: Path, built: Built, found: Searched, numbers: int) -> None:
    total = sum(path.stat().st_size for path in folder.iterdir())
    floor, least = (numbers * 4 / speed(found.speeds) for speed in (statistics.median, max))
    warm, batch, peer = map(statistics.median, (found.warm, found.batch, found.peer))
    print(
        f"  index      {total / 1e6:,.0f} MB, made in {built.seconds:.1f} s besides the embedding, "
        f"peak {built.peak / 2**20:,.0f} MiB"
    )
    print(f"  floor      {floor * 1e3:7.1f} ms (best {least * 1e3:.1f}): ", end="")
    print(f"the vectors, read at {numbers * 4 / floor / 1e9:.1f} GB/s")
    print(f"  warm query {warm * 1e3:7.1f} ms (best {min(found.warm) * 1e3:.1f}): ", end="")
    print(f"{floor / warm:.0%} of the memory's speed (best {least / min(found.warm):.0%})")
    print(f"  numpy      {peer * 1e3:7.1f} ms: {peer / warm:.1f} times as long")
    print(f"  {BATCH} queries {batch * 1e3:7.1f} ms: {batch / BATCH * 1e3:.1f} ms each", end="")
    print(f", {2 * BATCH * numbers / batch / 1e9:.0f} GFLOP/s")
    print(
        f"  memory     {found.peak / 2**20:,.0f} MiB at most, "
        f"{found.of_file / 2**20:,.0f} of them the mapped files"
    )
