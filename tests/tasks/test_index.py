"""The search index returns the results of a full sort, and is written completely or not at all."""

import errno
import json
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import InputError
from regard.tasks.index import Hit, Index, build_index, find_or_build
from regard.text import pieces

SIZE = 8


def embed(texts, size=SIZE):
    """A text always has the same vector."""
    seeds = [int.from_bytes(text.encode()[-6:].ljust(6, b"."), "little") for text in texts]
    angles = np.array(seeds, np.float64)[:, None] * np.arange(1, size + 1) * 0.37
    vectors = np.cos(angles) + 1e-3
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def never(texts):
    raise AssertionError("embedded again")


def full_sort(vectors, query, top):
    """(score, row) of the best: each row is scored in float64, and all rows are sorted."""
    scores = [float((row.astype(np.float64) * query).sum()) for row in vectors]
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row))
    return [(scores[row], row) for row in order[:top]]


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\n\nthree\n \t\nfive\nsix\n")
    return path


@pytest.fixture
def build(documents, tmp_path):
    """build(embed=..., identity=...): load the index from the folder `cache`, or build it there."""

    def make(embed=embed, identity="model", **options):
        return find_or_build(tmp_path / "cache", documents, embed, identity, SIZE, True, **options)

    return make


def all_of(index, text="five"):
    return index.search(embed([text]), len(index))[0]


def index_of(vectors, folder):
    """An index of these vectors; line n + 1 has the text `n`."""
    documents = folder / "numbers.txt"
    documents.write_text("".join(f"{n}\n" for n in range(len(vectors))))

    def lookup(texts):
        return vectors[[int(text) for text in texts]]

    return build_index(folder / "index", documents, lookup, "lookup", vectors.shape[1], True)


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@given(
    count=st.integers(1, 90),
    size=st.sampled_from([1, 2, 3, 7, 16, 33, 128, 257]),
    different=st.integers(1, 90),
    apart=st.sampled_from([1.0, 1e-6, 1e-7]),
    queries=st.sampled_from([1, 2, 8, 9, 70]),
    top=st.integers(1, 100),
    block=st.sampled_from([1, 2, 7, 16, 50, 1000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_results_are_those_of_a_full_sort(count, size, different, apart, queries, top, block, seed):
    """A small `apart` makes vectors so similar that float32 rounding changes the order of scores."""
    random = np.random.default_rng(seed)
    middle = random.standard_normal(size)
    vectors = unit(middle + apart * random.standard_normal((different, size)))
    vectors = vectors[random.integers(different, size=count)]  # so there are ties
    query_vectors = unit(random.standard_normal((queries, size)))
    with tempfile.TemporaryDirectory() as folder:
        results = index_of(vectors, Path(folder)).search(query_vectors, top, block)
    assert len(results) == queries
    for query, hits in zip(query_vectors[:9], results, strict=False):
        expected = full_sort(vectors, query, top)
        assert hits == [Hit(score, row + 1, str(row)) for score, row in expected]


def test_results_do_not_depend_on_block_size_or_other_queries(tmp_path):
    random = np.random.default_rng(0)
    vectors = unit(1 + 1e-6 * random.standard_normal((5000, 100)))
    queries = unit(random.standard_normal((40, 100)))
    index = index_of(vectors, tmp_path)
    expected = index.search(queries, 20)
    assert expected == [index.search(query[None], 20)[0] for query in queries]
    for block in (17, 320, 4999):
        assert index.search(queries[:12], 20, block) == expected[:12]


def test_lines_with_equal_scores_are_in_file_order(tmp_path):
    vectors = np.zeros((10_000, 5), np.float32)
    vectors[:, 2] = 1
    index = index_of(vectors, tmp_path)
    for block in (7, 1000, 65_536):
        hits = index.search(vectors[:1], 4, block)[0]
        assert hits == [Hit(1.0, n + 1, str(n)) for n in range(4)]


def test_blank_lines_are_skipped_but_counted(build):
    index = build()
    assert (len(index), index.size, index.identity) == (4, SIZE, "model")
    assert sorted((hit.line, hit.text) for hit in all_of(index)) == [
        (1, "one"), (3, "three"), (5, "five"), (6, "six"),
    ]  # fmt: skip
    best = all_of(index)[0]
    assert (best.line, best.text) == (5, "five")
    assert best.score == pytest.approx(1, abs=1e-6)


def test_compressed_file_has_the_same_results(build, documents, tmp_path):
    compressed = tmp_path / "lines.txt.xz"
    compressed.write_bytes(lzma.compress(documents.read_bytes()))
    index = build_index(tmp_path / "compressed", compressed, embed, "model", SIZE, True)
    assert all_of(index) == all_of(build())


def test_texts_of_hits_are_unchanged(documents, build):
    texts = ["schläft", "\u2028", "a\u2028b\x0bc\x85d", "\U0001f600 \x00", " x ", "日本語"]
    documents.write_text("".join(f"{text}\n" for text in texts), "utf-8", newline="")
    for n, text in enumerate(texts, start=1):
        hits = {hit.line: hit.text for hit in all_of(build(), text)}
        assert hits.get(n) == (text if text.strip() else None)


def test_results_do_not_depend_on_chunk_size(build, documents, monkeypatch):
    documents.write_text("".join(f"{'x' * (n % 9)} {n}\n" for n in range(100)))
    expected = all_of(build())
    for name, value in (("CHUNK_ITEMS", 7), ("CHUNK_CHARACTERS", 20)):
        monkeypatch.setattr(pieces, name, value)
        assert all_of(build(rebuild=True)) == expected


def test_long_lines_are_embedded_in_small_batches(documents, build):
    documents.write_text(("x" * 600_000 + "\n") * 5)
    blocks = []

    def counted(texts):
        blocks.append(len(texts))
        return embed(texts)

    build(counted)
    assert blocks == [2, 2, 1]


def test_existing_index_is_loaded_without_embedding(build):
    expected = all_of(build())
    assert all_of(build(never)) == expected
    calls = []
    assert all_of(build(lambda texts: calls.append(0) or embed(texts), rebuild=True)) == expected
    assert calls == [0]


def test_changed_documents_or_model_require_a_new_index(build, documents):
    old = build()
    assert build(identity="other").folder != old.folder
    documents.write_text(documents.read_text() + "seven\n")
    new = build()
    assert (len(new), len(old)) == (5, 4)
    with pytest.raises(AssertionError, match="embedded again"):
        build(never, identity="third")


def change(folder, **values):
    manifest = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**manifest, **values}))


def shorten(path, by=1):
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - by)


def flip(path, position):
    """Flip one bit: at the beginning (0), in the middle or at the end (1) of a file."""
    content = bytearray(path.read_bytes())
    content[round(position * (len(content) - 1))] ^= 1
    path.write_bytes(content)


FILES = ("vectors.f32", "lines", "texts", "offsets")
DAMAGES = {
    **{f"flip {f} {p}": lambda d, f=f, p=p: flip(d / f, p) for f in FILES for p in (0, 0.5, 1)},
    **{f"cut {f}": lambda d, f=f: shorten(d / f) for f in FILES},
    **{f"extra {f}": lambda d, f=f: (d / f).open("ab").write(b"x") for f in FILES},
    **{f"no {f}": lambda d, f=f: (d / f).unlink() for f in [*FILES, "index.json"]},
    "flip manifest": lambda folder: flip(folder / "index.json", 0.5),
    "pipe": lambda folder: ((folder / "index.json").unlink(), os.mkfifo(folder / "index.json")),
    "half a manifest": lambda folder: shorten(folder / "index.json", 20),
    "no object": lambda folder: (folder / "index.json").write_text("[1]"),
    "deep": lambda folder: (folder / "index.json").write_text("[" * 100_000),
    "count": lambda folder: change(folder, count=5),
    "no count": lambda folder: change(folder, count=0),
    "size": lambda folder: change(folder, size=SIZE / 2),
    "identity": lambda folder: change(folder, identity=None),
    "files": lambda folder: change(folder, files={"../../lines.txt": 1}),
    "version": lambda folder: change(folder, version=1),
    "format": lambda folder: change(folder, format="regard store"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_index_is_refused_and_rebuilt(damage, build, capsys):
    index = build()
    expected = all_of(index)
    DAMAGES[damage](index.folder)
    remedy = ": remove the folder or rebuild the index"
    with pytest.raises(
        InputError, match=f"^{index.folder}: (damaged|outdated) search index \\(.*\\){remedy}$"
    ) as caught:
        Index(index.folder)
    capsys.readouterr()
    assert all_of(build()) == expected
    message = str(caught.value).removesuffix(remedy)
    assert capsys.readouterr().err == f"regard: {message}; rebuilding it\n"
    assert all_of(build(never)) == expected
    assert [path.name for path in index.folder.parent.iterdir()] == [index.folder.name]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("vectors.f32", b"\xff\xff\xff\xff" * 4 * SIZE, "a vector is not of length 1"),
        ("vectors.f32", b"\x00\x00\x80\x7f" * 4 * SIZE, "a vector is not of length 1"),
        ("offsets", np.array([0, 15, 15, 15, 99]).tobytes(), "offsets point outside of texts"),
        ("offsets", np.arange(-15, -4, 2)[:5].tobytes(), "offsets point outside of texts"),
        ("texts", b"\xff" * 15, "texts is not UTF-8"),
    ],
    ids=["no numbers", "infinite", "past the end", "before the start", "texts"],
)
def test_damage_to_an_open_index_is_an_input_error(name, content, reason, build):
    index = build()
    with (index.folder / name).open("rb+") as file:
        file.write(content)
    with pytest.raises(
        InputError, match=f"damaged search index \\({reason}\\): remove the folder or rebuild"
    ):
        all_of(index)


@pytest.mark.parametrize("error", [RuntimeError("crash"), KeyboardInterrupt()])
def test_failed_build_leaves_no_files_and_keeps_the_old_index(
    error, build, documents, monkeypatch, tmp_path
):
    def crash(texts):
        if "six" in texts:  # not in the first block
            raise error
        return embed(texts)

    monkeypatch.setattr(pieces, "CHUNK_ITEMS", 2)
    with pytest.raises(type(error)):
        build(crash)
    assert list((tmp_path / "cache").iterdir()) == []
    index = build()
    with pytest.raises(type(error)):
        build(crash, rebuild=True)
    assert all_of(build(never)) == all_of(index)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [index.folder.name]


def test_files_of_a_killed_build_are_removed_by_the_next_build(build, documents, tmp_path):
    program = (
        "import sys, time, numpy as np; from pathlib import Path\n"
        "from regard.tasks import index; from regard.text import pieces\n"
        "pieces.CHUNK_ITEMS = 2\n"
        "def embed(texts):\n"
        "    if 'six' in texts: print(flush=True); time.sleep(60)\n"
        f"    return np.eye({SIZE}, dtype=np.float32)[: len(texts)]\n"
        f"index.find_or_build(*map(Path, sys.argv[1:]), embed, 'model', {SIZE}, True)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache"), str(documents)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    (temporary,) = (tmp_path / "cache").iterdir()
    assert temporary.name.startswith(".tmp-")
    index = build()
    assert len(index) == 4
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [index.folder.name]


def test_torch_is_not_imported():
    check = "import sys, regard.tasks.index; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("when", ["while embedding", "while renaming"])
def test_two_concurrent_builds_both_succeed(when, build, monkeypatch, tmp_path):
    rename = os.rename

    def build_elsewhere(*_):
        """A complete build by another process."""
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", os.getppid)
            patch.setattr(os, "rename", rename)
            build()

    if when == "while embedding":
        index = build(lambda texts: build_elsewhere() or embed(texts))
    else:
        monkeypatch.setattr(os, "rename", lambda *names: build_elsewhere() or rename(*names))
        index = build()
    assert index.folder.parent == tmp_path / "cache"
    assert all_of(index) == all_of(build(never))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [index.folder.name]


def test_a_replaced_index_can_still_be_searched(build):
    old = build()
    expected = all_of(old)
    build(rebuild=True)
    assert all_of(old) == expected


def test_documents_that_change_while_they_are_read_are_refused(build, documents, tmp_path):
    def append(texts):
        documents.write_text(documents.read_text() + "more\n")
        return embed(texts)

    with pytest.raises(InputError, match="lines.txt: changed while it was read: try again"):
        build(append)
    assert list((tmp_path / "cache").iterdir()) == []


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path):
    vectors = unit(np.random.default_rng(0).standard_normal((4096, 16)))
    peaks = []
    for count in (10_000, 100_000):
        documents = tmp_path / f"{count}.txt"
        documents.write_text("a line\n" * count)
        tracemalloc.start()
        try:
            folder = tmp_path / f"index {count}"
            index = build_index(folder, documents, lambda t: vectors[: len(t)], "m", 16, True)
            built = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            index.search(vectors[:64], 5, block=4096)
            peaks.append((built, tracemalloc.get_traced_memory()[1]))
        finally:
            tracemalloc.stop()
    for few, many in zip(*peaks, strict=True):
        assert many < 1.1 * few < 4e6


def test_top_is_limited_by_the_number_of_lines(build):
    index = build()
    assert [len(index.search(embed(["five"]), top)[0]) for top in (1, 4, 5, 10**9)] == [1, 4, 4, 4]
    assert index.search(np.empty((0, SIZE), np.float32), 3) == []
    for top in (0, -1):
        with pytest.raises(InputError, match=f"top is {top}: must be at least 1"):
            index.search(embed(["five"]), top)


def test_query_of_wrong_size_or_with_nan_is_refused(build):
    index = build()
    with pytest.raises(InputError, match="has vectors of 8 numbers, not 9 as the query has"):
        index.search(np.ones((1, 9), np.float32), 1)
    with pytest.raises(InputError, match="a query's vector contains NaN or infinity"):
        index.search(np.full((1, SIZE), np.nan, np.float32), 1)


@pytest.mark.parametrize("content", ["", "\n \n\t\n"])
def test_file_without_text_is_refused(content, build, documents, tmp_path):
    documents.write_text(content)
    with pytest.raises(InputError, match=r"lines.txt: no line to search"):
        build(never)
    assert list((tmp_path / "cache").iterdir()) == []


def test_invalid_line_is_named_with_its_number(build, documents, tmp_path):
    documents.write_bytes(b"good\n\nbad \xff\n")
    with pytest.raises(InputError, match=r"lines.txt:3: not UTF-8 \(byte 0xff at column 5\)"):
        build()
    documents.write_text("good\n\nbad\n")
    for value in (np.nan, np.inf, 0):

        def broken(texts, value=value):
            vectors = embed(texts)
            vectors[texts.index("bad")] = value
            return vectors

        with pytest.raises(InputError, match=r"lines.txt:3: the model returns no usable vector"):
            build(broken)
    with pytest.raises(ValueError, match=r"vectors \(2, 4\) for 2 texts of size 8"):
        build(lambda texts: embed(texts, 4))
    documents.unlink()
    with pytest.raises(InputError, match="lines.txt: no such file"):
        build()
    assert list((tmp_path / "cache").iterdir()) == []


def test_folder_that_cannot_be_written_is_named(documents, tmp_path):
    (tmp_path / "file").write_text("a file")
    for position in (tmp_path / "file", tmp_path / "file" / "sub"):
        with pytest.raises(
            InputError, match=f"^{position}: cannot be written \\((Not a directory|File exists)\\)$"
        ):
            build_index(position, documents, embed, "model", SIZE, True)

    def full(texts):  # the error of a write to a full disk
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        InputError, match="mine: the disk is full: free some space or choose a different folder"
    ):
        build_index(tmp_path / "mine", documents, full, "model", SIZE, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "lines.txt"]
