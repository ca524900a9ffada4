"""The token store is written completely or not at all, reused, and verified when it is opened."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regard.errors import InputError
from regard.files import checksum
from regard.text import manifest, pieces
from regard.text import store as module
from regard.text.reading import open_text
from regard.text.store import Store, build_pairs
from regard.text.tokenizer import Tokenizer

BYTE = Tokenizer("byte")
# The fingerprint of PAIRS in all versions of regard.
OLD_FINGERPRINT = "8eeec45805a2c6b55eba7a9cacf12630d7446a52b047ecebb61568cc7c427064"
PAIRS = [("a dog", "ein Hund"), ("the cat sleeps", "die Katze schläft"), ("yes", "ja")]


@pytest.fixture
def write(tmp_path):
    """write(pairs): two aligned files."""

    def make(pairs):
        paths = tmp_path / "x.en", tmp_path / "x.de"
        for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return paths

    return make


@pytest.fixture
def build(write, tmp_path):
    """build(pairs, ...): the store of these pairs as bytes, in the folder `stores`."""

    def make(pairs=PAIRS, max_length=100, **options):
        tokenizers = options.pop("tokenizers", (BYTE, BYTE))
        return build_pairs(write(pairs), tokenizers, tmp_path / "stores", max_length, **options)

    return make


def texts(store):
    return [
        tuple(BYTE.decode(store.tokens(side, i).tolist()) for side in range(store.sides))
        for i in range(len(store))
    ]


def test_store_has_both_sides_with_eos(build):
    store, report = build()
    assert texts(store) == PAIRS
    assert (store.sides, len(store)) == (2, 3)
    assert store.tokens(0, 2).tolist() == [*BYTE.encode("yes"), BYTE.eos]
    assert [lengths.tolist() for lengths in store.lengths] == [[6, 15, 4], [9, 19, 3]]
    assert [lengths.dtype for lengths in store.lengths] == [np.int32, np.int32]
    assert (report.kept, report.skipped) == (3, {})


def test_tokens_are_a_read_only_view(build):
    store, _ = build()
    row = store.tokens(1, 0)
    assert row.dtype == np.uint16
    assert row.base is not None
    for array in (row, store.lengths[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_example_out_of_range_raises_index_error(build):
    store, _ = build()
    for i in (-1, 3):
        with pytest.raises(IndexError, match=f"example {i} of 3"):
            store.tokens(0, i)


def test_large_vocabulary_is_stored_as_uint32(build, monkeypatch):
    many = Tokenizer(
        "character",
        [chr(c) for c in range(32, 32 + 0xD000)] + [chr(c) for c in range(0x10000, 0x14000)],
    )
    assert many.size > 2**16
    store, _ = build([("\U00013fff", "b")], tokenizers=(many, BYTE))
    assert (store.tokens(0, 0).dtype, store.tokens(1, 0).dtype) == (np.uint32, np.uint16)
    assert store.tokens(0, 0).tolist() == [many.size - 1, many.eos]


def test_skipped_pairs_are_counted_by_reason(build):
    pairs = [
        ("", "leer"), ("leer", " \t\u2003"),
        ("x" * 20, "y" * 20), ("x" * 19, "y" * 19),  # with <eos> 21 and 20 tokens
        ("x" * 1_000_000, "y"),
        ("x" * 12, "yy"), ("x" * 9, "y"),  # 13 to 3 tokens, and 10 to 2: too short to judge
    ]  # fmt: skip
    store, report = build(pairs, max_length=20, max_ratio=4.0)
    assert texts(store) == [("x" * 19, "y" * 19), ("x" * 9, "y")]
    assert report.skipped == {"empty": 2, "too long": 2, "bad ratio": 1}
    assert (report.kept, report.total) == (2, 7)


def test_default_has_no_length_ratio_limit(build):
    assert build([("x" * 50, "y")])[1].skipped == {}


def test_files_without_a_usable_pair_are_refused(build, tmp_path):
    with pytest.raises(
        InputError, match=r"x.en and .*x.de: no example to learn from \(0 kept, 1 empty\)"
    ):
        build([("a", "")])
    assert list((tmp_path / "stores").iterdir()) == []


def test_store_does_not_depend_on_chunk_size(build, monkeypatch, tmp_path):
    pairs = [(f"source {n}", f"Ziel {n * n}") for n in range(50)] + [("", "leer")]
    expected, report = build(pairs)
    for name, value in (("CHUNK_ITEMS", 7), ("CHUNK_CHARACTERS", 40)):
        shutil.rmtree(tmp_path / "stores")
        monkeypatch.setattr(pieces, name, value)
        store, again = build(pairs)
        assert texts(store) == texts(expected) == pairs[:-1]
        assert again == report


def test_existing_store_is_reused_with_its_report(build, monkeypatch):
    store, report = build([*PAIRS, ("", "leer")])
    monkeypatch.setattr(module, "_Writer", None)  # writing would now fail
    again, same = build([*PAIRS, ("", "leer")])
    assert again.fingerprint == store.fingerprint
    assert same == report
    assert same.skipped == {"empty": 1}
    assert texts(again) == PAIRS


def test_fingerprint_depends_on_data_tokenizers_and_limits(build):
    characters = Tokenizer.learn(["a dog"], "character", 50)
    stores = [
        build(),
        build(PAIRS[:2]),
        build(max_length=99),
        build(max_ratio=3.0),
        build(tokenizers=(characters, BYTE)),
        build(tokenizers=(BYTE, characters)),
    ]
    assert len({store.fingerprint for store, _ in stores}) == len(stores)


def flip(path, position):
    """Flip one bit: at the beginning (0), in the middle or at the end (1) of a file."""
    content = bytearray(path.read_bytes())
    content[round(position * (len(content) - 1))] ^= 4
    path.write_bytes(content)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


FILES = [f"{side}.{name}" for side in range(2) for name in ("tokens", "lengths", "offsets")]
DAMAGES = {
    **{f"flip {f} {p}": lambda d, f=f, p=p: flip(d / f, p) for f in FILES for p in (0, 0.5, 1)},
    **{f"cut {f}": lambda d, f=f: os.truncate(d / f, (d / f).stat().st_size - 1) for f in FILES},
    **{f"extra {f}": lambda d, f=f: (d / f).open("ab").write(bytes(8)) for f in FILES},
    **{f"no {f}": lambda d, f=f: (d / f).unlink() for f in [*FILES, "store.json"]},
    "flip manifest": lambda d: flip(d / "store.json", 0.5),
    "cut manifest": lambda d: os.truncate(d / "store.json", 40),
    "deep manifest": lambda d: (d / "store.json").write_text("[" * 100_000),
    "no object": lambda d: (d / "store.json").write_text("[1]"),
    "skipped": lambda d: change(d / "store.json", report={"kept": 3, "skipped": {"empty": 1}}),
    "fingerprint": lambda d: change(d / "store.json", fingerprint="0" * 64),
    "types": lambda d: change(d / "store.json", types=["uint16", "float32"]),
    "files": lambda d: change(d / "store.json", files={}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_store_is_refused_and_rebuilt(damage, build, capsys):
    store, _ = build()
    folder = store.folder
    DAMAGES[damage](folder)
    with pytest.raises(InputError, match=f"^{folder}: damaged token store \\(.*\\)$") as caught:
        Store(folder)
    capsys.readouterr()
    again, _ = build(quiet=True)
    assert capsys.readouterr().err == f"regard: {caught.value}; rebuilding it\n"
    assert texts(again) == PAIRS
    assert [path.name for path in folder.parent.iterdir()] == [store.fingerprint]
    build()
    assert capsys.readouterr().err == ""


def test_flipped_bits_of_the_manifest_are_detected_except_in_whitespace(build):
    store, _ = build()
    path = store.folder / "store.json"
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        try:
            assert vars(Store(store.folder).report) == vars(store.report)
            assert content[position : position + 1].isspace()
        except InputError:
            pass


def test_store_of_the_previous_version_is_rebuilt_with_the_same_fingerprint(build, capsys):
    """Checkpoints record the fingerprint; runs could not be resumed with a different one."""
    store, _ = build()
    assert store.fingerprint == OLD_FINGERPRINT
    new = json.loads((store.folder / "store.json").read_text())
    del new["checksum"]
    sizes = {name: entry["bytes"] for name, entry in new["files"].items()}
    old = {**new, "version": 1, "files": sizes}
    (store.folder / "store.json").write_text(json.dumps(old))
    again, _ = build()
    assert (texts(again), again.fingerprint) == (PAIRS, OLD_FINGERPRINT)
    assert capsys.readouterr().err == (
        f"regard: {store.folder}: outdated token store (a different version of regard built it); "
        "rebuilding it\n"
    )


def test_unchanged_store_is_verified_once_per_process(build, monkeypatch):
    folder = build()[0].folder
    read = []
    monkeypatch.setattr(manifest, "checksum", lambda path: read.append(path.name) or checksum(path))
    Store(folder)
    Store(folder)
    assert sorted(read) == sorted(
        [*FILES, *FILES]
    )  # files that changed recently are verified again
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    read.clear()
    Store(folder)
    Store(folder)
    assert sorted(read) == sorted(FILES)
    flip(folder / "1.offsets", 0.5)
    with pytest.raises(InputError, match="the checksum of 1.offsets differs"):
        Store(folder)


@pytest.mark.parametrize("error", [RuntimeError("crash"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["add", "sync_file", "_publish"])
def test_crash_leaves_no_incomplete_store(where, error, build, monkeypatch, tmp_path):
    def crash(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module._Writer if where == "add" else manifest, where, crash)
        with pytest.raises(type(error)):
            build()
    assert list((tmp_path / "stores").iterdir()) == []
    assert texts(build()[0]) == PAIRS


def test_invalid_line_leaves_no_incomplete_store(write, tmp_path):
    paths = write(PAIRS)
    with paths[1].open("ab") as file:
        file.write(b"\xff\n")
    with paths[0].open("ab") as file:
        file.write(b"more\n")
    with pytest.raises(InputError, match="x.de:4: not UTF-8"):
        build_pairs(paths, (BYTE, BYTE), tmp_path / "stores", 100)
    with paths[0].open("ab") as file:
        file.write(b"and more\n")
    paths[1].write_bytes(paths[1].read_bytes().replace(b"\xff", b"mehr"))
    with pytest.raises(InputError, match="x.en has 5 lines but .*x.de has 4: line 5 of"):
        build_pairs(paths, (BYTE, BYTE), tmp_path / "stores", 100)
    assert list((tmp_path / "stores").iterdir()) == []


def test_temporary_folders_of_dead_processes_only_are_removed(build, tmp_path):
    finished = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    dead = tmp_path / "stores" / f".tmp-{finished.stdout.strip()}-0a"
    living = tmp_path / "stores" / f".tmp-{os.getppid()}-0b"
    for folder in (dead, living):
        folder.mkdir(parents=True)
        (folder / "0.tokens").write_bytes(b"half")
    build()
    assert not dead.exists()
    assert living.exists()


def test_slower_of_two_builders_uses_the_store_of_the_faster(build, monkeypatch, tmp_path):
    publish = manifest._publish
    winner = []

    def late(temporary, final, replace):
        if not winner:
            winner.append(None)
            winner[0] = build()[0].folder.stat().st_ino  # a complete build by the other process
        publish(temporary, final, replace)

    monkeypatch.setattr(manifest, "_publish", late)
    store, _ = build()
    assert store.folder.stat().st_ino == winner[0]
    assert texts(store) == PAIRS
    assert [path.name for path in (tmp_path / "stores").iterdir()] == [store.fingerprint]


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_builders_can_both_replace_a_damaged_store(when, build, monkeypatch, tmp_path):
    """The second replaces the store of the first, before or after the first has published it."""
    publish = manifest._publish
    others = []
    (build()[0].folder / "0.tokens").unlink()

    def late(temporary, final, replace):
        assert replace
        if not others:
            others.append(None)
            if when == "after":
                publish(temporary, final, replace)
                (final / "0.tokens").unlink()  # the state that the other builder still sees
            others[0], _ = build()
            if when == "after":
                return
        publish(temporary, final, replace)

    monkeypatch.setattr(manifest, "_publish", late)
    store, _ = build()
    assert texts(store) == texts(others[0]) == PAIRS
    monkeypatch.undo()
    assert texts(Store(store.folder)) == PAIRS
    assert [path.name for path in (tmp_path / "stores").iterdir()] == [store.fingerprint]


def test_concurrent_builders_share_one_store(write, tmp_path):
    paths = write([(f"source {n}", f"Ziel {n}") for n in range(2000)])
    program = (
        "import sys; from regard.text.store import build_pairs; from regard.text.tokenizer import Tokenizer; "
        "t = Tokenizer('byte'); print(len(build_pairs(sys.argv[1:3], (t, t), sys.argv[3], 100)[0]))"
    )
    command = [sys.executable, "-c", program, *map(str, paths), str(tmp_path / "stores")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in running] == ["2000"] * 4
    assert len(list((tmp_path / "stores").iterdir())) == 1


@pytest.mark.parametrize("estimate", [False, True])
def test_full_disk_is_an_input_error_and_leaves_no_files(estimate, build, monkeypatch, tmp_path):
    pairs = [("a" * 10, "b" * 10)] * 5000
    room = iter(range(4 if estimate else 0))  # number of chunks that fit on the disk
    add = module._Writer.add

    def full(self, side, rows):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, side, rows)

    monkeypatch.setattr(module._Writer, "add", full)
    monkeypatch.setattr(pieces, "CHUNK_ITEMS", 2000)
    with pytest.raises(InputError) as caught:
        build(pairs)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'stores'}: the disk is full (0.")
    assert (", about 0.3 MB needed in all)" in message) == estimate
    assert list((tmp_path / "stores").iterdir()) == []


def test_folder_that_cannot_be_created_is_named(write, tmp_path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match=r"file: cannot be written \(File exists\)"):
        build_pairs(write(PAIRS), (BYTE, BYTE), tmp_path / "file", 100)
    with pytest.raises(InputError, match=r"sub: cannot be written \(Not a directory\)"):
        build_pairs(write(PAIRS), (BYTE, BYTE), tmp_path / "file" / "sub", 100)


def test_a_missing_corpus_is_named(tmp_path):
    with pytest.raises(InputError, match="no.en: no such file"):
        build_pairs(
            (tmp_path / "no.en", tmp_path / "no.de"), (BYTE, BYTE), tmp_path / "stores", 100
        )


def test_multi30k_is_stored_completely(tmp_path):
    if "REGARD_DATA" not in os.environ:
        pytest.skip("REGARD_DATA is not set")
    folder = Path(os.environ["REGARD_DATA"]) / "multi30k"
    paths = folder / "val.en.xz", folder / "val.de.xz"
    lines = [[line for _, line in open_text(path)] for path in paths]
    tokenizer = Tokenizer.learn(lines[0] + lines[1], "bpe", 2000)
    store, report = build_pairs(paths, (tokenizer, tokenizer), tmp_path, 256, quiet=True)
    assert (len(store), report.skipped) == (1014, {})
    for side in range(2):
        assert [tokenizer.decode(store.tokens(side, i).tolist()) for i in range(1014)] == lines[
            side
        ]
