"""The trainings of docs/results.md: each recipe with its command, data and test sets.

DATA stands for the folder of published data sets (docs/results.md lists them), RUNS for the folder
of trained models. experiments/data.py makes the derived data sets in RUNS/data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DATA, RUNS = "$REGARD_DATA", "runs"
RECIPE_FOLDER = Path("experiments/recipes")  # from the root of the repository
Files = tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """One training: its data, configuration and tests."""

    name: str
    train: Files
    valid: Files = ()
    tests: Mapping[str, Files] = field(default_factory=dict)  # files of each test
    config: str = ""  # file in experiments/recipes (default: the name)
    options: tuple[str, ...] = ()  # values of --set
    start: str = ""  # the recipe of the model that training starts from
    device: str = "cpu"  # that the recipe was made for
    seeds: tuple[int, ...] = ()  # one training for each (default: the seed of the configuration)
    curve: str = ""  # the test on which every stored checkpoint is scored as well
    box: str = ""  # the verb of the shipped model that it makes

    @property
    def files(self) -> list[str]:
        """All files that the recipe reads."""
        return [*self.train, *self.valid, *(file for test in self.tests.values() for file in test)]

    def run(self, seed: int | None = None) -> str:
        """The folder of the training."""
        return f"{RUNS}/{self.name}" + ("" if seed is None else f"-{seed}")

    def train_command(self, seed: int | None = None) -> list[str]:
        sets = [word for option in self.options for word in ("--set", option)]
        config = ["--config", str(RECIPE_FOLDER / f"{self.config or self.name}.yaml")]
        start = ["--from", f"{RUNS}/{self.start}"] if self.start else []
        valid = ["--valid", *self.valid] if self.valid else []
        seeded = [] if seed is None else ["--seed", str(seed)]
        return [
            "train", *config, *start, "--train", *self.train, *valid, "--out",
            self.run(seed), *seeded, *sets,
        ]  # fmt: skip

    def test_command(self, files: Files, seed: int | None = None) -> list[str]:
        return ["evaluate", "-m", self.run(seed), "--dtype", "float32", "--data", *files]


def prepared(name: str, train: str, valid: str) -> tuple[Files, Files]:
    """Training and validation file of a derived data set."""
    return (f"{RUNS}/data/{name}/{train}",), (f"{RUNS}/data/{name}/{valid}",)


def sides(start: str, end: str = ".xz") -> Files:
    """Two aligned files: English, German."""
    return f"{start}.en{end}", f"{start}.de{end}"


def classified(name: str) -> Recipe:
    test = {"test": (f"{DATA}/{name}/test.tsv.xz",)}
    return Recipe(name, *prepared(name, "train.tsv", "valid.tsv"), test)


def sst2(percent: int, start: str, gpu: bool) -> Recipe:
    """Sentiment with a part of the labels, from random weights or from a pre-trained encoder."""
    kind, suffix = "pretrained" if start else "scratch", "-gpu" if gpu else ""
    few = {1: ("training.steps=300", "training.validate_every=50"),
           10: ("training.steps=600", "training.validate_every=50")}  # fmt: skip
    options = (f"data.share={percent / 100:g}", *few[percent]) if percent in few else ()
    tests = {name: (f"{DATA}/sst2/{name}.tsv.xz",) for name in ("dev", "test")}
    return Recipe(
        f"sst2-{percent}-{kind}{suffix}", (f"{DATA}/sst2/train.tsv.xz",), tests["dev"], tests,
        "sst2-pretrained" if start else f"sst2-scratch{suffix}", options, start,
        "cuda" if gpu else "cpu",
    )  # fmt: skip


STS = {name: (f"{DATA}/stsb/{name}.jsonl.xz",) for name in ("train", "dev", "test")}
STS_TESTS = {name: STS[name] for name in ("dev", "test")}


def stsb(start: str, gpu: bool) -> Recipe:
    kind, suffix = "pretrained" if start else "scratch", "-gpu" if gpu else ""
    config = "stsb-pretrained" if start else f"stsb-scratch{suffix}"
    return Recipe(
        f"stsb-{kind}{suffix}", STS["train"], STS["dev"], STS_TESTS, config, start=start,
        device="cuda" if gpu else "cpu",
    )  # fmt: skip


REVIEWS = prepared("imdb", "train.txt", "valid.txt")
PLAYS = prepared("shakespeare", "train.txt", "valid.txt")
SENTIMENT = prepared("sst2", "train.tsv", "dev.tsv")
SENTIMENT_TESTS = {"dev": SENTIMENT[1], "test": (f"{RUNS}/data/sst2/test.tsv",)}
ALIKE = prepared("alike", "train.jsonl", "valid.jsonl")
ALIKE_TESTS = {name: (f"{RUNS}/data/alike/{name}.jsonl",) for name in ("multi30k", "newstest2014")}
BABI = prepared("babi", "train.jsonl", "valid.jsonl")
BABI_TEST = {"test": (f"{DATA}/babi/test.jsonl.xz",)}
SQUAD = (f"{DATA}/squad/train.jsonl.xz",), (f"{DATA}/squad/valid.jsonl.xz",)
CAPTIONS = {name: sides(f"{DATA}/multi30k/{name}") for name in ("train", "val")}
CAPTIONS["test2016"] = sides(f"{DATA}/multi30k/test_2016_flickr")
TOKENISED = {name: sides(f"{RUNS}/data/multi30k-tok/{name}", "") for name in ("train", "val")}
TOKENISED["test2016"] = sides(f"{RUNS}/data/multi30k-tok/test_2016_flickr", "")
NEWS = {f"newstest{year}": sides(f"{DATA}/newstest/newstest{year}") for year in (2013, 2014)}
DEBATES = {"europarl": sides(f"{DATA}/europarl/test")}


def captions(name: str, files: Mapping[str, Files]) -> Recipe:
    """Multi30k in the published protocol: three seeds, no selection by validation score."""
    tests = {name: files[name] for name in ("val", "test2016")}
    return Recipe(name, files["train"], (), tests, device="cuda", seeds=(1, 2, 3))


RECIPES = [
    captions("multi30k", TOKENISED),
    captions("multi30k-cased", CAPTIONS),
    Recipe(
        "multi30k-defaults", CAPTIONS["train"], CAPTIONS["val"],
        {"test2016": CAPTIONS["test2016"]}, device="cuda",
    ),
    Recipe(
        "europarl-base", sides(f"{DATA}/europarl/train"), NEWS["newstest2013"],
        {"newstest2014": NEWS["newstest2014"], "newstest2013": NEWS["newstest2013"], **DEBATES},
        device="cuda", curve="newstest2014",
    ),
    Recipe(
        "en-de", sides(f"{RUNS}/data/en-de/train", ""), sides(f"{RUNS}/data/en-de/valid", ""),
        {"multi30k": CAPTIONS["test2016"], **NEWS, **DEBATES,
         "tatoeba": sides(f"{RUNS}/data/tatoeba/test", "")},
        device="cuda", box="translate",
    ),
    Recipe("box-fill", *REVIEWS, {"valid": REVIEWS[1]}, device="cuda", box="fill"),
    Recipe(
        "box-classify", *SENTIMENT, SENTIMENT_TESTS, start="box-fill", device="cuda",
        box="classify",
    ),
    Recipe("box-pairs", *ALIKE, {**ALIKE_TESTS, **STS_TESTS}, device="cuda"),
    Recipe(
        "box-embed", STS["train"], STS["dev"], {**STS_TESTS, **ALIKE_TESTS}, start="box-pairs",
        box="embed",
    ),
    Recipe("box-generate", *PLAYS, {"valid": PLAYS[1]}, box="generate"),
    Recipe("shakespeare", *PLAYS, {"valid": PLAYS[1]}),
    Recipe("shakespeare-gpu", *PLAYS, {"valid": PLAYS[1]}, device="cuda"),
    classified("trec"),
    classified("agnews"),
    Recipe("imdb-fill", *REVIEWS, {"valid": REVIEWS[1]}),
    Recipe("imdb-fill-gpu", *REVIEWS, {"valid": REVIEWS[1]}, device="cuda"),
    *(sst2(percent, start, False) for percent in (1, 10, 100) for start in ("", "imdb-fill")),
    *(sst2(percent, start, True) for percent in (1, 10, 100) for start in ("", "imdb-fill-gpu")),
    *(stsb(start, False) for start in ("", "imdb-fill")),
    *(stsb(start, True) for start in ("", "imdb-fill-gpu")),
    Recipe("babi", *BABI, BABI_TEST),
    Recipe("babi-gpu", *BABI, BABI_TEST, device="cuda"),
    Recipe("squad", *SQUAD, {"test": (f"{DATA}/squad/test.jsonl.xz",)}),
]  # fmt: skip
