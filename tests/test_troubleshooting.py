"""docs/guides/troubleshooting.md: each command of the page prints the message below it.

The commands run in this process, in a folder with the files and models that they name. A comment
above a command names a situation (a full disk, no compiler), which a function here simulates.
"""

import lzma
import os
import re
import shlex
import shutil
import signal
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

import command
from regard.ops.cpu import build as native
from regard.tasks.translate import Translate
from regard.text.builtin import builtin_corpus
from regard.training import checkpoint
from regard.training.losses import token_loss

DOCUMENT = Path(__file__).parents[1] / "docs" / "guides" / "troubleshooting.md"
EXAMPLE = re.compile(r"(?:<!-- (.+) -->\n)?```console\n\$ regard (.+)\n((?:.+\n)+)```")
EXAMPLES = EXAMPLE.findall(DOCUMENT.read_text(encoding="utf-8"))
SMALL = """\
model: {d_model: 16, heads: 2, d_ff: 16}
data: {vocabulary_size: 330, max_length: 64}
training:
  {steps: 12, warmup: 12, learning_rate: 1.0e-4, batch_tokens: 400, checkpoint_every: 4, keep: 3,
   average: 3}
decoding: {max_length: 5}
"""


def write_files(folder):
    """Write all files that the page names."""
    pairs = builtin_corpus("train", 60)
    english, german = ([pair[side] for pair in pairs] for side in (0, 1))
    labelled = [f"{'de' if i % 2 else 'en'}\t{pair[i % 2]}" for i, pair in enumerate(pairs)]
    text = {
        "train.en": english,
        "train.de": german,
        "short.de": german[:-1],
        "empty.txt": [],
        "long.en": [english[0], " ".join(english[:20])],
        "train.tsv": labelled,
        "spaces.tsv": [labelled[0], labelled[1].replace("\t", " ")],
        "header.tsv": ["sentiment\ttweet", *labelled],
        "swapped.tsv": [
            f"{text}\t{label}" for label, text in zip(["en", "de"] * 30, english, strict=True)
        ],
        "french.tsv": [labelled[0], "fr\tLe chien dort."],
        "english.tsv": labelled[::2],
        "questions.jsonl": ['{"context": "Mary went home.", "question": "Where is Mary?"}'],
        "reviews.txt": english,
        "small.yaml": SMALL.splitlines(),
        "wrong.yaml": ["training:", "  step: 100"],
        "broken.yaml": ["training: {steps: 100"],
        "thesis/chapter1.txt": ["Years of work."],
    }
    (folder / "thesis").mkdir()
    for name, lines in text.items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    for name in ("latin1.de", "latin1.txt"):
        (folder / name).write_bytes("Guten Tag.\nDer Hund bellt.\nDer Käse.\n".encode("latin-1"))
    os.mkfifo(folder / "pipe.en")
    compressed = lzma.compress((folder / "train.en").read_bytes())
    (folder / "cut.en.xz").write_bytes(compressed[: len(compressed) // 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with these files, three models (run, languages and masked) and damaged copies."""
    folder = tmp_path_factory.mktemp("here")
    write_files(folder)
    with pytest.MonkeyPatch.context() as patch, torch.enable_grad():
        patch.chdir(folder)
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name, task, files in (
            ("run", "translate", ["train.en", "train.de"]),
            ("languages", "classify", ["train.tsv"]),
            ("masked", "fill", ["reviews.txt"]),
        ):
            words = ["--task", task, "--train", *files, "--out", name, "--preset", "tiny"]
            result = command.regard("train", *words, "--config", "small.yaml", "--quiet")
            assert result == ("", "", 0)
    for name in ("stopped", "hurt", "damaged", "edited"):
        shutil.copytree(folder / "run", folder / name)
    (folder / "stopped/model.safetensors").unlink()
    text = (folder / "edited/config.yaml").read_text("utf-8")
    assert "length_penalty: 0.6" in text
    (folder / "edited/config.yaml").write_text(
        text.replace("length_penalty: 0.6", "length_penalty: 1")
    )
    for name in ("hurt/checkpoints/step-12/model.safetensors", "damaged/model.safetensors"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-100])
    return folder


# ---- situations that a command cannot cause ---------------------------------------------


@contextmanager
def no_compiler(patch, cache):
    for known in (native.opened, native.report_missing):
        known.cache_clear()
    patch.setenv("REGARD_CACHE", str(cache))
    patch.delenv("REGARD_NATIVE", raising=False)
    patch.setattr(native.shutil, "which", lambda _: None)
    yield
    for known in (native.opened, native.report_missing):
        known.cache_clear()


@contextmanager
def no_gpu(patch, cache):
    patch.setattr(torch.cuda, "is_available", lambda: False)
    yield


@contextmanager
def full_disk(patch, cache):
    real, calls = checkpoint.checksum, []

    def full(path):
        calls.append(path)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return real(path)

    patch.setattr(checkpoint, "checksum", full)
    yield


@contextmanager
def little_memory(patch, cache):
    patch.setattr(Translate, "loss", before_each_loss(out_of_memory))
    yield


@contextmanager
def interrupted(patch, cache):
    patch.setattr(
        Translate, "loss", before_each_loss(lambda _: os.kill(os.getpid(), signal.SIGINT))
    )
    yield


def before_each_loss(action):
    def loss(model, batch, smoothing=0.0, r_drop=0.0):
        action(batch)
        return token_loss(model, batch, smoothing, r_drop)

    return staticmethod(loss)


def out_of_memory(batch):
    if len(batch.target) > 12:
        raise torch.OutOfMemoryError("CUDA out of memory")


@contextmanager
def changed_files(patch, cache):
    files = [Path("train.en"), Path("train.de")]
    before = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(file.read_bytes() + b"Oh.\n")
    yield
    for file, content in zip(files, before, strict=True):
        file.write_bytes(content)


@contextmanager
def no_matplotlib(patch, cache):
    patch.setitem(sys.modules, "matplotlib", None)
    yield


SITUATIONS = {
    "no compiler": no_compiler,
    "no GPU": no_gpu,
    "full disk": full_disk,
    "little memory": little_memory,
    "interrupted": interrupted,
    "changed files": changed_files,
    "no matplotlib": no_matplotlib,
}


@pytest.mark.parametrize(
    ("notes", "line", "message"), EXAMPLES, ids=[example[1][:60] for example in EXAMPLES]
)
def test_command_of_the_page_prints_the_message_below_it(
    notes, line, message, folder, monkeypatch, tmp_path
):
    """The message is printed, and if the command fails, it is the last output; … matches any text."""
    line, _, source = line.partition(" < ")
    notes = notes.split(", ") if notes else []
    codes = [int(note.removeprefix("exit ")) for note in notes if note.startswith("exit ")]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    with monkeypatch.context() as patch, ExitStack() as stack:
        for note in notes:
            if note in SITUATIONS:
                stack.enter_context(SITUATIONS[note](patch, tmp_path))
            else:
                assert note.startswith("exit ")
        patch.setattr("sys.stdin", stack.enter_context(Path(source or os.devnull).open()))
        out, err, code = command.regard(*shlex.split(line))
    shutil.rmtree(folder / "new", ignore_errors=True)
    printed = " ".join((out + err).split())
    expected = ".*".join(re.escape(" ".join(part.split())) for part in message.split("…"))
    assert code == (codes or [2])[0], printed
    assert re.search(expected + ("" if code == 0 else "$"), printed), printed


def test_every_situation_is_in_the_page():
    noted = {note for notes, _, _ in EXAMPLES for note in notes.split(", ")}
    assert set(SITUATIONS) <= noted
