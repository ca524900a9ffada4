"""The files that calls start from: small corpora, tiny models of every task, and native code."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from subprocess import SubprocessError

TASKS = ("translate", "answer", "generate", "classify", "fill", "embed")
# Models to train: the task and its style. Every task, and every style once more where it is cheap.
MODELS = {
    "translate": "encoder-decoder", "answer": "encoder-decoder", "generate": "decoder",
    "classify": "encoder", "fill": "encoder", "embed": "encoder", "translate-decoder": "decoder",
    "answer-decoder": "decoder", "classify-decoder": "decoder", "classify-both": "encoder-decoder",
}  # fmt: skip
SMALL_MODEL = {"d_model": "16", "heads": "2", "d_ff": "32"}
SHORT_TRAINING = {
    "training.steps": "3", "training.batch_tokens": "300", "training.warmup": "2",
    "training.validate_every": "2", "training.checkpoint_every": "1", "training.keep": "2",
    "training.average": "2", "data.vocabulary_size": "300", "data.max_length": "64",
    "decoding.max_length": "8",
}  # fmt: skip
PEOPLE = ("Mary", "John", "Anna", "Peter")
PLACES = ("kitchen", "garden", "office", "cellar")


def task_of(model: str) -> str:
    return model.split("-")[0]


def data_files(task: str, split: str) -> list[str]:
    """The names of a task's files below the folder `data` of the stock."""
    names = {
        "translate": [f"{split}.en", f"{split}.de"], "answer": [f"{split}-questions.jsonl"],
        "generate": [f"{split}.txt"], "fill": [f"{split}.txt"], "classify": [f"{split}-labels.tsv"],
        "embed": [f"{split}-pairs.jsonl"],
    }  # fmt: skip
    return names[task]


def write_data(folder: Path) -> None:
    """Small files of every task: 40 examples to train on and 8 to validate on."""
    from regard.text.builtin import builtin_corpus

    folder.mkdir(parents=True, exist_ok=True)
    random = Random(1)
    for split, count in (("train", 40), ("valid", 8)):
        pairs = builtin_corpus(split, count)
        english, german = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        blocks = ["\n".join(english[i : i + 5]) for i in range(0, count, 5)]
        questions = []
        for i in range(count):
            person, room = random.choice(PEOPLE), random.choice(PLACES)
            context = f"Day {i}. {person} went to the {room}."
            question = {"context": context, "question": f"Where is {person}?", "answer": room}
            questions.append(question)
        labelled = [f"de\t{pair[1]}" if i % 3 else f"en\t{pair[0]}" for i, pair in enumerate(pairs)]
        similar = [{"a": a, "b": b, "score": i % 5} for i, (a, b) in enumerate(pairs)]
        contents = {
            f"{split}.en": english, f"{split}.de": german, f"{split}.txt": "\n\n".join(blocks).split("\n"),
            f"{split}-labels.tsv": labelled,
            f"{split}-questions.jsonl": [json.dumps(row) for row in questions],
            f"{split}-pairs.jsonl": [json.dumps(row, ensure_ascii=False) for row in similar],
        }  # fmt: skip
        for name, lines in contents.items():
            (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def training_options(task: str, style: str) -> dict[str, str]:
    """`--set` of a training that takes less than a second."""
    sizes = {f"model.{name}": value for name, value in SMALL_MODEL.items()}
    layers = {f"model.{stack}_layers": "1" for stack in style.split("-")}
    return sizes | layers | SHORT_TRAINING


def training_command(model: str) -> list[str]:
    """The words after `regard` that train one of `MODELS`, in the folder of the data."""
    task, style = task_of(model), MODELS[model]
    words = ["train", "--task", task, "--style", style, "--preset", "tiny", "--quiet"]
    words += ["--out", f"../models/{model}"]
    for split in ("train", "valid"):
        words += [f"--{split}", *data_files(task, split)]
    for key, value in training_options(task, style).items():
        words += ["--set", f"{key}={value}"]
    return words


def copy_native(folder: Path) -> None:
    """Build the native libraries where they are not built yet and copy them to `folder`."""
    from regard.ops.cpu import build as native

    folder.mkdir(parents=True, exist_ok=True)
    chosen = native.variant()
    for source in sorted(native.FOLDER.glob("*.cpp")) if chosen else ():
        with suppress(OSError, SubprocessError):  # no compiler: calls use the fallback in PyTorch
            shutil.copy(native.built(source.stem, str(chosen)), folder)
