"""Valid and cheap calls, one function for each verb, from which `calls.py` starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .stock import MODELS, TASKS, data_files, task_of, training_options
from .values import Word

Verb = tuple[str, ...]
TEXTS = ["A dog runs.", "The animal didn't cross the street because it was too tired.", "Hallo"]
# demo takes minutes with any options; serve runs until it is stopped (see tests/serve/fuzz.py).
SKIPPED: set[Verb] = {("demo",), ("serve",)}
COLUMNS = [
    "text=1,label=0",
    "source=0,target=1",
    "a=b",
    "text=text",
    "label=",
    "=",
    "text=a,text=b",
]
QUESTION = '{"context": "Mary went to the garden.", "question": "Where is Mary?"}'


@dataclass
class Draft:
    """A valid call: the verb, its options and texts, and the files that it reads."""

    verb: Verb
    # The value lists of each option: an option with two value lists occurs twice.
    options: dict[str, list[list[Word]]] = field(default_factory=dict)
    texts: list[Word] = field(default_factory=list)  # positional arguments
    models: list[str] = field(default_factory=list)  # model folders in the working folder
    files: list[str] = field(default_factory=list)  # data files in the working folder
    sections: tuple[str, ...] = ("model",)  # of the configuration that `--set` may change
    stdin: str = ""
    reads_stdin: bool = False  # whether it reads standard input if there are no texts

    def set(self, flag: str, *words: Word) -> None:
        self.options[flag] = [list(words)]

    def rename(self, old: str, new: str) -> None:
        """Replace the name of a file everywhere in the call."""
        self.files = [new if name == old else name for name in self.files]
        for groups in self.options.values():
            for group in groups:
                group[:] = [new if word == old else word for word in group]


def bring_model(random: Random, draft: Draft, folder: Path, stock: Path, task: str) -> str:
    """Copy a model of the task (sometimes of another one) into the folder; returns its name."""
    fitting = [name for name in MODELS if task_of(name) == task]
    name = random.choice(fitting if fitting and random.random() < 0.93 else list(MODELS))
    target = f"model-{len(draft.models)}"
    left_out = shutil.ignore_patterns("checkpoints")
    shutil.copytree(stock / "models" / name, folder / target, ignore=left_out)
    draft.models.append(target)
    return target


def bring_data(draft: Draft, folder: Path, stock: Path, task: str, split: str) -> list[Word]:
    names = data_files(task, split)
    for name in names:
        shutil.copy(stock / "data" / name, folder / name)
    draft.files += names
    return list(names)


def text_verb(task: str) -> Callable[[Random, Path, Path], Draft]:
    """Drafts for translate, answer, generate, classify, fill, embed or search."""

    def make(random: Random, folder: Path, stock: Path) -> Draft:
        kind = "embed" if task == "search" else task
        draft = Draft((task,), reads_stdin=True, sections=("decoding",))
        if random.random() < 0.95 or kind == "answer":
            draft.set("-m", bring_model(random, draft, folder, stock, kind))
        texts = random.sample(TEXTS, random.choice([0, 1, 1, 2]))
        draft.texts = [f"{text} <mask>" if task == "fill" else text for text in texts]
        draft.stdin = {"answer": QUESTION + "\n", "fill": "The <mask> runs.\n"}.get(task, "")
        if task == "answer" and draft.texts:
            draft.set("--context", "Mary went to the garden. John went to the office.")
        if task == "generate" and random.random() < 0.8:
            draft.set("--max-length", "6")
        if task == "search":
            draft.set("--documents", *bring_data(draft, folder, stock, "generate", "valid"))
            if random.random() < 0.5:
                draft.set("--index", "index")
        if task == "translate" and random.random() < 0.2:
            draft.set("--no-split")
        if random.random() < 0.3:
            draft.set("--json")
        return draft

    return make


def evaluate(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("evaluate",), sections=("decoding",))
    task = random.choice(TASKS)
    draft.set("-m", bring_model(random, draft, folder, stock, task))
    draft.set("--data", *bring_data(draft, folder, stock, task, "valid"))
    draft.set("--samples", "5")
    if random.random() < 0.2:
        draft.set("--against", bring_model(random, draft, folder, stock, task))
    return draft


def info(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("info",))
    if random.random() < 0.6:
        draft.texts = [bring_model(random, draft, folder, stock, "")]
    elif random.random() < 0.9:
        draft.set("--preset", "tiny")
    return draft


def pack(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("pack",))
    draft.texts = [bring_model(random, draft, folder, stock, "")]
    draft.set("--out", "packed")
    return draft


def export(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("export",))
    draft.texts = [bring_model(random, draft, folder, stock, "")]
    draft.set("--to", random.choice(["hf", "ctranslate2", "onnx", "gguf"]))
    draft.set("--out", "exported")
    draft.set("--count", "2")
    return draft


def import_vocabulary(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("import",), texts=["vocab.txt"], files=["vocab.txt"])
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    draft.set("--out", "imported")
    draft.set("--count", "5")
    return draft


def chat(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("chat",), sections=("decoding",), stdin="Hello\n/reset\nBye\n")
    draft.set("--model", bring_model(random, draft, folder, stock, "generate"))
    draft.set("--max-length", "3")
    return draft


def train(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("train",), sections=("model", "data", "training", "training", "decoding"))
    if random.random() < 0.3:
        return resume(random, draft, folder, stock)
    name = random.choice(list(MODELS))
    task = task_of(name)
    draft.set("--task", task)
    draft.set("--train", *bring_data(draft, folder, stock, task, "train"))
    if random.random() < 0.6:
        draft.set("--valid", *bring_data(draft, folder, stock, task, "valid"))
    elif random.random() < 0.5:
        draft.set("--valid", random.choice(["20%", "50%"]))
    if random.random() < 0.15:
        draft.set("--columns", random.choice(COLUMNS))
    draft.set("--out", "run")
    settings = training_options(task, MODELS[name])
    if random.random() < 0.2:
        draft.set("--steps", settings.pop("training.steps"))
        draft.set("--batch-tokens", settings.pop("training.batch_tokens"))
    if random.random() < 0.15:
        draft.set("--from", bring_model(random, draft, folder, stock, task))
        settings = {k: v for k, v in settings.items() if k.startswith("training.")}
    else:
        draft.set("--preset", "tiny")
        draft.set("--style", MODELS[name])
    if random.random() < 0.3:
        write_configuration(folder / "config.yaml", settings)
        draft.files.append("config.yaml")
        draft.set("--config", "config.yaml")
    else:
        draft.options["--set"] = [[f"{key}={value}"] for key, value in settings.items()]
    return draft


def bring_run(random: Random, draft: Draft, folder: Path, stock: Path) -> str:
    """Copy a run without its final weights to `run`; returns the name of its model."""
    name = random.choice(list(MODELS))
    shutil.copytree(stock / "models" / name, folder / "run")
    (folder / "run" / "model.safetensors").unlink()
    draft.models.append("run")
    return name


def finish(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("finish",))
    name = bring_run(random, draft, folder, stock)
    for split in ("train", "valid"):
        bring_data(draft, folder, stock, task_of(name), split)
    draft.texts = ["run"]
    return draft


def resume(random: Random, draft: Draft, folder: Path, stock: Path) -> Draft:
    """Resume a run that has completed its last step, sometimes with all its options repeated."""
    name = bring_run(random, draft, folder, stock)
    task, style = task_of(name), MODELS[name]
    files = {split: bring_data(draft, folder, stock, task, split) for split in ("train", "valid")}
    draft.set("--resume")
    draft.set("--out", "run")
    draft.set("--quiet")
    if random.random() < 0.5:
        draft.set("--task", task)
        draft.set("--style", style)
        draft.set("--preset", "tiny")
        for split, names in files.items():
            draft.set(f"--{split}", *names)
        settings = training_options(task, style) | {"training.steps": random.choice("345")}
        draft.options["--set"] = [[f"{key}={value}"] for key, value in settings.items()]
    return draft


def write_configuration(path: Path, settings: dict[str, str]) -> None:
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"  {name}: {value}\n")
    path.write_text("".join(f"{name}:\n{''.join(keys)}" for name, keys in sections.items()))


def view_attention(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("view", "attention"), reads_stdin=True)
    task = random.choice(list(MODELS))
    draft.set("-m", bring_model(random, draft, folder, stock, task_of(task)))
    draft.texts = [random.choice(TEXTS)]
    draft.stdin = "A dog runs.\n"
    draft.set("--out", random.choice(["a.png", "a.html", "new/a.svg"]))
    if task_of(task) == "answer":
        draft.set("--context", "Mary went to the garden.")
    return draft


def view_walk(random: Random, folder: Path, stock: Path) -> Draft:
    return Draft(("view", "walk"), texts=["A dog runs."])


def view_curves(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("view", "curves"))
    draft.texts = [bring_model(random, draft, folder, stock, "")]
    return draft


def view_positions(random: Random, folder: Path, stock: Path) -> Draft:
    draft = Draft(("view", "positions"))
    if random.random() < 0.5:
        draft.set("-m", bring_model(random, draft, folder, stock, ""))
    draft.set("--length", "16")
    return draft


def lab(name: str, *words: str) -> Callable[[Random, Path, Path], Draft]:
    """A measurement with small bounds: `words` are options with one value each."""

    def make(random: Random, folder: Path, stock: Path) -> Draft:
        draft = Draft(("lab", name), sections=("model", "training", "decoding"))
        for flag, value in zip(words[::2], words[1::2], strict=True):
            draft.set(flag, *value.split())
        draft.set("--quiet")
        if name in ("styles", "ablate"):
            for split in ("train", "valid"):
                draft.set(f"--{split}", *bring_data(draft, folder, stock, "translate", split))
            settings = training_options("translate", "encoder-decoder")
            draft.options["--set"] = [[f"{key}={value}"] for key, value in settings.items()]
        return draft

    return make


RECALL_TASK = (
    "--kinds",
    "attention",
    "--layers",
    "1",
    "--d-model",
    "8",
    "--steps",
    "1",
    "--seed",
    "1",
)
# The weight of each verb, and its draft. The measurements take seconds, so they are rare.
DRAFTS: dict[Verb, tuple[float, Callable[[Random, Path, Path], Draft]]] = {
    **{(task,): (8, text_verb(task)) for task in ("translate", "answer", "generate", "search")},
    **{(task,): (6, text_verb(task)) for task in ("classify", "fill", "embed")},
    ("evaluate",): (7, evaluate),
    ("info",): (6, info),
    ("pack",): (6, pack),
    ("export",): (3, export),
    ("import",): (2, import_vocabulary),
    ("chat",): (2, chat),
    ("train",): (18, train),
    ("finish",): (4, finish),
    ("view", "attention"): (5, view_attention),
    ("view", "walk"): (3, view_walk),
    ("view", "curves"): (4, view_curves),
    ("view", "positions"): (3, view_positions),
    ("lab", "complexity"): (
        0.5, lab("complexity", "--kinds", "attention", "--lengths", "8 16", "--widths", "8",
                 "--limit", "0.01", "--out", "lab"),
    ),
    ("lab", "styles"): (0.5, lab("styles", "--steps", "1", "--out", "lab")),
    ("lab", "ablate"): (0.5, lab("ablate", "--steps", "1", "--rows", "base", "--out", "lab")),
    ("lab", "positions"): (
        0.5, lab("positions", "--length", "16", "--d-model", "8", "--steps", "1", "--seed", "1",
                 "--base", "100", "--out", "lab"),
    ),
    ("lab", "path"): (0.5, lab("path", "--length", "16", "--out", "lab", *RECALL_TASK)),
    ("lab", "recall"): (0.5, lab("recall", "--distances", "1 2", "--out", "lab", *RECALL_TASK)),
}  # fmt: skip
