"""Weights that are mapped into memory: the same predictions, and files that cannot harm."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regard import load
from regard.decoding.engines.cpu import cpu_model
from regard.errors import RegardWarning
from regard.predictor.loading import open_folder
from regard.training import mapped
from regard.training.mapped import mapped_tensors, read_mapped, write_mapped

TEXTS = ["A man is walking his dog.", "Two children play football.", "hello"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache, which still has the compiled libraries."""
    native = mapped.cache_folder() / "native"
    native.mkdir(exist_ok=True)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (mapped.cache_folder() / "native").symlink_to(native)
    return tmp_path / "cache"


def open_mapped(dtype="float32", name="box:translate"):
    return open_folder(name, "cpu", dtype, mapped=True)


def files(cache):
    return sorted((cache / "weights").glob("*"))


def mapped_ranges():
    """The address ranges of this process that are mapped from files of the cache."""
    with open("/proc/self/maps") as lines:
        fields = [line.split() for line in lines if line.rstrip().endswith(mapped.SUFFIX)]
    return [[int(end, 16) for end in each[0].split("-")] for each in fields]


def is_mapped(tensor):
    return any(low <= tensor.data_ptr() < high for low, high in mapped_ranges())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_predictions_and_weights_are_those_of_an_ordinary_load(dtype, own_cache):
    plain = load("box:translate", "cpu", dtype)
    for model in (open_mapped(dtype), open_mapped(dtype)):  # the one that writes, one that reads
        state = model.transformer.state_dict()
        assert list(state) == list(plain.transformer.state_dict())
        for name, tensor in plain.transformer.state_dict().items():
            assert tensor.dtype == state[name].dtype, name
            assert torch.equal(tensor, state[name]), name
        assert all(map(is_mapped, state.values()))
        for options in ({"beam": 4, "n_best": 2}, {"beam": 1, "attention": True}):
            for ours, theirs in zip(
                model.predict(TEXTS, **options), plain.predict(TEXTS, **options), strict=True
            ):
                assert ours.text == theirs.text
                assert ours.score == theirs.score
        assert not model.transformer.training
        assert model.transformer.precision == plain.transformer.precision
    assert len(files(own_cache)) == 1


def test_the_blocked_layout_is_mapped_and_changed_weights_are_noticed():
    model, text = open_mapped(), TEXTS[:1]
    compiled = cpu_model(model.transformer)
    if compiled is None:
        pytest.skip("no native code")
    assert compiled.blocks
    assert all(map(is_mapped, compiled.blocks.values()))
    before = model.predict(text)[0].score
    with torch.no_grad():
        for weight in model.transformer.parameters():
            weight.mul_(0.5)
    assert cpu_model(model.transformer) is not compiled
    assert model.predict(text)[0].score != before
    assert open_mapped().predict(text)[0].score == before  # the file has not changed


def truncate(path):
    os.truncate(path, path.stat().st_size // mapped.PAGE // 2 * mapped.PAGE)


def truncate_to_nothing(path):
    os.truncate(path, 0)


def overwrite(place):
    def change(path):
        with path.open("r+b") as file:
            file.seek(place % path.stat().st_size)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    return change


def zero_a_page(path):
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // mapped.PAGE // 2 * mapped.PAGE)
        file.write(bytes(mapped.PAGE))


def exchange_pages(path):
    content = path.read_bytes()
    one, two = (content[at * mapped.PAGE : (at + 1) * mapped.PAGE] for at in (50, 60))
    with path.open("r+b") as file:
        file.seek(50 * mapped.PAGE)
        file.write(two)
        file.seek(60 * mapped.PAGE)
        file.write(one)


@pytest.mark.parametrize(
    "damage",
    [truncate, truncate_to_nothing, zero_a_page, exchange_pages]
    + [overwrite(place) for place in (3, 20, 50, 60, 100_000)],
)
def test_a_damaged_file_is_written_again(damage, own_cache):
    open_mapped(name="box:generate")
    (path,) = files(own_cache)
    content = path.read_bytes()
    damage(path)
    with pytest.raises(ValueError, match=path.stem):
        read_mapped(path)
    open_mapped(name="box:generate")
    assert path.read_bytes() == content


def test_tensors_are_read_as_they_were_written(tmp_path):
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.arange(7, dtype=torch.int32),
        "c": torch.randn(2, 3, dtype=torch.bfloat16),
        "transposed": torch.randn(4, 6).T,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }
    write_mapped(tmp_path / "file", tensors)
    again = read_mapped(tmp_path / "file")
    assert list(again) == list(tensors)
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)
        assert again[name].data_ptr() % mapped.ALIGNMENT == 0
        assert again[name].is_contiguous()
    again["a"].zero_()
    assert torch.equal(read_mapped(tmp_path / "file")["a"], tensors["a"])
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]


def test_threads_that_load_at_once_write_one_file(own_cache, monkeypatch):
    written, write = [], mapped.write_mapped
    monkeypatch.setattr(mapped, "write_mapped", lambda *args: (written.append(1), write(*args)))
    barrier = threading.Barrier(4)

    def use(_):
        barrier.wait(20)
        return open_mapped().predict(TEXTS[:1])[0].score

    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(use, range(4)))
    assert len(set(scores)) == 1
    assert len(written) == 1
    assert len(files(own_cache)) == 1


def test_a_cache_that_cannot_be_written_gives_a_warning(own_cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped, "write_mapped", full)
    with pytest.warns(RegardWarning, match="No space left"):
        model = open_mapped()
    assert (
        model.predict(TEXTS[:1])[0].text == load("box:translate", "cpu").predict(TEXTS[:1])[0].text
    )
    assert not any(map(is_mapped, model.transformer.parameters()))


def test_old_files_are_removed(own_cache, monkeypatch):
    made = {"x": torch.ones(mapped.PAGE)}
    monkeypatch.setattr(mapped, "MOST_BYTES", 3 * 5 * mapped.PAGE)  # three files of five pages
    for i, key in enumerate("abc"):
        mapped_tensors(key, lambda: made)
        os.utime(own_cache / "weights" / (key + mapped.SUFFIX), (i, i))
    kept = mapped_tensors("a", lambda: pytest.fail("it is in the cache"))  # used: b is the oldest
    mapped_tensors("d", lambda: made)
    assert [path.name[0] for path in files(own_cache)] == ["a", "c", "d"]
    monkeypatch.setattr(mapped, "MOST_BYTES", 1)
    mapped_tensors("e", lambda: made)
    assert [path.name[0] for path in files(own_cache)] == ["e"]
    assert torch.equal(kept["x"], made["x"])  # a mapped file that is removed stays readable


def test_another_model_dtype_or_library_is_another_file(own_cache, monkeypatch, tmp_path):
    open_mapped("float32")
    open_mapped("int8")
    assert len(files(own_cache)) == 2
    monkeypatch.setenv("REGARD_NATIVE", "off")
    model = open_mapped("float32")
    assert len(files(own_cache)) == 3
    assert cpu_model(model.transformer) is None


def test_ordinary_loading_does_not_write_to_the_cache(own_cache):
    load("box:translate", "cpu")
    assert not (own_cache / "weights").exists()


SHARE = """
import sys
from regard.predictor.loading import open_folder
model = open_folder("box:translate", "cpu", "float32", mapped=True)
model.predict(["A man is walking his dog."])
print("loaded", flush=True)
sys.stdin.read()
"""


def shared_bytes(process):
    """Pss and Private_Dirty of the mapped files of a process, in bytes."""
    totals, counted = {"Pss": 0, "Private_Dirty": 0}, False
    with open(f"/proc/{process}/smaps") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if "-" in name.split()[0]:  # a new range of addresses
                counted = line.rstrip().endswith(mapped.SUFFIX)
            elif counted and name in totals:
                totals[name] += int(value.split()[0]) * 1024
    return totals["Pss"], totals["Private_Dirty"]


def test_processes_share_the_memory(own_cache):
    open_mapped()
    (path,) = files(own_cache)
    command = [sys.executable, "-c", SHARE]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == b"loaded\n"
        used = [shared_bytes(process.pid) for process in processes]
        assert sum(pss for pss, _ in used) < 1.2 * path.stat().st_size
        assert [dirty for _, dirty in used] == [0, 0]
    finally:
        for process in processes:
            process.stdin.close()
            process.wait(20)
            process.stdout.close()
