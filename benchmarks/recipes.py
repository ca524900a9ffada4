"""What docs/results.md reports: every training with its command, data, and test set.

DATA stands for the folder of data sets (see docs/results.md for where each is published), RUNS for
where trained models go. Splits that a data set does not come with are made by `split`.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DATA, RUNS = "$REGARD_DATA", "runs"


@dataclass(frozen=True)
class Recipe:
    name: str
    config: str  # in recipes/; "": translate, as it is by default
    train: tuple[str, ...]
    valid: tuple[str, ...]
    tests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> files
    options: tuple[str, ...] = ()  # of --set
    start: str = ""  # the recipe whose model it starts from
    device: str = "cpu"

    def train_command(self) -> list[str]:
        sets = [word for option in self.options for word in ("--set", option)]
        begin = ["--from", f"{RUNS}/{self.start}"] if self.start else ["--preset", "tiny"]
        what = ["--config", f"recipes/{self.config}.yaml"] if self.config else []
        return [
            "train", *(what or ["--task", "translate"]), *begin, "--train", *self.train,
            "--valid", *self.valid, "--out", f"{RUNS}/{self.name}", *sets,
        ]  # fmt: skip

    def test_command(self, files: tuple[str, ...]) -> list[str]:
        return ["evaluate", "-m", f"{RUNS}/{self.name}", "--dtype", "float32", "--data", *files]


def classified(name: str, config: str = "classify", **options: object) -> Recipe:
    test = f"{DATA}/{name}/test.tsv.xz"
    files = (f"{RUNS}/data/{name}.train.tsv",), (f"{RUNS}/data/{name}.valid.tsv",)
    return Recipe(name, config, *files, {"test": (test,)}, **options)  # type: ignore[arg-type]


SST = {name: (f"{DATA}/sst2/{name}.tsv.xz",) for name in ("dev", "test")}
STS = {name: (f"{DATA}/stsb/{name}.jsonl.xz",) for name in ("dev", "test")}
WIDE = ("model.d_model=256", "model.d_ff=1024", "model.activation=gelu")  # as recipes/fill-gpu
FINE = ("training.learning_rate=0.0003", "model.dropout=0.2")


def sst2(percent: int, start: str, gpu: bool) -> Recipe:
    """Sentiment with a part of the labels, from nothing or from a pre-trained encoder."""
    steps = {1: 300, 10: 600, 100: 1500}[percent]
    every = 50 if percent < 100 else 100
    options = [f"data.share={percent / 100:g}", f"training.steps={steps}",
               f"training.validate_every={every}"]  # fmt: skip
    if start:
        options += FINE
    elif gpu:
        options += WIDE
    name = f"sst2-{percent}-{'pretrained' if start else 'scratch'}{'-gpu' if gpu else ''}"
    return Recipe(
        name, "classify", (f"{DATA}/sst2/train.tsv.xz",), SST["dev"], SST, tuple(options), start,
        "cuda" if gpu else "cpu",
    )  # fmt: skip


def stsb(start: str, gpu: bool) -> Recipe:
    name = f"stsb-{'pretrained' if start else 'scratch'}{'-gpu' if gpu else ''}"
    options = FINE if start else WIDE if gpu else ()
    return Recipe(
        name, "embed", (f"{DATA}/stsb/train.jsonl.xz",), STS["dev"], STS, options, start,
        "cuda" if gpu else "cpu",
    )  # fmt: skip


REVIEWS = (f"{RUNS}/data/imdb.train.txt",), (f"{RUNS}/data/imdb.valid.txt",)
PLAYS = (f"{RUNS}/data/shakespeare.train.txt",), (f"{RUNS}/data/shakespeare.valid.txt",)
BABI = ("data.max_length=1500", "data.vocabulary_size=600")
babi_files = (f"{RUNS}/data/babi.train.jsonl",), (f"{RUNS}/data/babi.valid.jsonl",)
babi_test = {"test": (f"{DATA}/babi/test.jsonl.xz",)}
squad_files = (f"{DATA}/squad/train.jsonl.xz",), (f"{DATA}/squad/valid.jsonl.xz",)


def pair(name: str) -> tuple[str, ...]:
    return tuple(f"{DATA}/multi30k/{name}.{side}.xz" for side in ("en", "de"))


RECIPES = [
    Recipe(
        "multi30k", "", pair("train"), pair("val"), {"test2016": pair("test_2016_flickr")},
        device="cuda",
    ),
    Recipe("shakespeare", "characters", *PLAYS, {"valid": PLAYS[1]}),
    Recipe("shakespeare-gpu", "characters-gpu", *PLAYS, {"valid": PLAYS[1]}, device="cuda"),
    classified("trec", options=("training.steps=600", "training.batch_tokens=2048")),
    classified("agnews", options=("training.steps=900",)),
    Recipe("imdb-fill", "fill", *REVIEWS, {"valid": REVIEWS[1]}),
    Recipe("imdb-fill-gpu", "fill-gpu", *REVIEWS, {"valid": REVIEWS[1]}, device="cuda"),
    *(sst2(percent, start, False) for percent in (1, 10, 100) for start in ("", "imdb-fill")),
    *(sst2(percent, start, True) for percent in (1, 10, 100) for start in ("", "imdb-fill-gpu")),
    *(stsb(start, False) for start in ("", "imdb-fill")),
    *(stsb(start, True) for start in ("", "imdb-fill-gpu")),
    Recipe("babi", "answer", *babi_files, babi_test, (*BABI, "model.positions=rotary")),
    Recipe(
        "babi-gpu", "answer", *babi_files, babi_test, device="cuda",
        options=(*BABI, "training.steps=5000", "training.batch_tokens=10394",
                 "training.warmup=400", "training.validate_every=1000"),
    ),
    Recipe("squad", "answer", *squad_files, {"test": (f"{DATA}/squad/test.jsonl.xz",)},
           ("model.positions=rotary", "data.vocabulary_size=4000", "training.batch_tokens=4158",
            "training.steps=1300", "training.schedule=cosine")),
]  # fmt: skip


# The paper's Table 3: 28 rows with two seeds, on the development set as there. One set of final
# weights is enough (average, keep), and four validations show when quality came.
ABLATION = [
    "lab", "ablate", "--train", *pair("train"), "--valid", *pair("val"), "--preset", "tiny",
    "--seed", "1", "2", "--steps", "1000", "--jobs", "8", "--device", "cuda",
    *(word for option in ("validate_every=250", "checkpoint_every=500", "average=1", "keep=1")
      for word in ("--set", f"training.{option}")),
    "--out", f"{RUNS}/ablate",
]  # fmt: skip


def split(data: Path, runs: Path) -> None:
    """Cut what has no validation set of its own: every tenth row (every fiftieth document), and
    tiny shakespeare after nine tenths of its characters, where nanoGPT cuts it."""
    out = runs / "data"
    if (out / "done").exists():
        return
    out.mkdir(parents=True, exist_ok=True)

    def text(name: str) -> str:
        with lzma.open(data / name, "rt", encoding="utf-8", newline="") as file:
            return file.read()

    def write(name: str, content: str) -> None:
        (out / name).write_text(content, encoding="utf-8", newline="")

    rows = [("trec", "trec/train.tsv.xz", "tsv", "\n", 10),
            ("agnews", "agnews/train.tsv.xz", "tsv", "\n", 10),
            ("babi", "babi/train.jsonl.xz", "jsonl", "\n", 10),
            ("imdb", "imdb_reviews/unlabelled.txt.xz", "txt", "\n\n", 50)]  # fmt: skip
    for name, path, suffix, end, every in rows:
        parts = text(path).rstrip("\n").split(end)
        for part, kept in (("train", True), ("valid", False)):
            chosen = [row for i, row in enumerate(parts) if (i % every != every - 1) == kept]
            write(f"{name}.{part}.{suffix}", end.join(chosen) + "\n")
    plays = text("shakespeare/input.txt.xz")
    cut = int(0.9 * len(plays))
    write("shakespeare.train.txt", plays[:cut])
    write("shakespeare.valid.txt", plays[cut:])
    (out / "done").touch()
