"""Derived data sets: split, tokenised or mixed from the published ones.

Each is a folder runs/data/NAME, made from the folder of published sets when a recipe needs it. A
folder that already exists is used as it is, so that it can be copied to a machine without the
published sets. Everything is deterministic. about.json counts what was left out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from regard.errors import InputError
from regard.files import new_folder

SIDES = ("en", "de")
Pairs = list[tuple[str, str]]  # English, German
About = dict[str, object]

# How often a pair is repeated in the training data of the translator. Europarl has ten times as
# many words as the other two sets together, and few users translate parliamentary debates.
TIMES = {"europarl": 1, "tatoeba": 3, "multi30k": 2}
HELD_OUT = 2_000  # pairs of Tatoeba in the test set
CROWD = 20  # pairs; larger families of sentences that share translations stay in the training data
SHORT, DEBATES = 40, 250_000  # most words, and number of Europarl pairs, for the embedder
VALID = 700  # pairs of each development set in the validation set of the translator


def prepare(data: Path, runs: Path, names: Iterable[str]) -> None:
    """Make the data sets with these names that do not exist yet."""
    for name in names:
        folder = runs / "data" / name
        if folder.is_dir():
            continue
        with new_folder(folder) as out:
            about = MAKERS[name](data, out)
            if about:
                write(out / "about.json", json.dumps(about, indent=1) + "\n")


def needed(files: Iterable[str], runs: str) -> list[str]:
    """The names of the derived data sets that these files belong to: runs/data/NAME/FILE."""
    start = f"{runs}/data/"
    names = [file.removeprefix(start).split("/")[0] for file in files if file.startswith(start)]
    return list(dict.fromkeys(names))


# ---- reading and writing --------------------------------------------------------------------


def text(path: Path) -> str:
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        raise InputError(f"{path} is missing: docs/results.md lists the sources") from None
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): download it again") from None


def lines(path: Path) -> list[str]:
    """The lines of an xz-compressed file."""
    return text(path).removesuffix("\n").split("\n")


def pairs(data: Path, name: str) -> Pairs:
    """The sentence pairs of a set such as `multi30k/train`."""
    english, german = (lines(data / f"{name}.{side}.xz") for side in SIDES)
    if len(english) != len(german):
        raise InputError(
            f"{data / name}: {len(english):,} English lines but {len(german):,} German ones"
        )
    return list(zip(english, german, strict=True))


def write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8", newline="")


def write_pairs(out: Path, name: str, chosen: Pairs) -> None:
    for i, side in enumerate(SIDES):
        write(out / f"{name}.{side}", "".join(f"{pair[i]}\n" for pair in chosen))


# ---- split -----------------------------------------------------------------------------------


def split(path: str, suffix: str, end: str, every: int) -> Callable[[Path, Path], About]:
    """A function that holds out every n-th part of a file for validation.

    Args:
        end: what separates the parts: lines or documents.
        every: n.
    """

    def make(data: Path, out: Path) -> About:
        parts = text(data / path).rstrip("\n").split(end)
        for name, training in (("train", True), ("valid", False)):
            chosen = [row for i, row in enumerate(parts) if (i % every != every - 1) == training]
            write(out / f"{name}.{suffix}", end.join(chosen) + "\n")
        return {}

    return make


def split_plays(data: Path, out: Path) -> About:
    """Split tiny shakespeare after nine tenths of its characters, as nanoGPT does."""
    plays = text(data / "shakespeare/input.txt.xz")
    at = int(0.9 * len(plays))
    write(out / "train.txt", plays[:at])
    write(out / "valid.txt", plays[at:])
    return {}


# ---- translation ----------------------------------------------------------------------------


def tokenised(data: Path, out: Path) -> About:
    """Multi30k in the protocol of the published text-only scores: lower-case, normalised
    punctuation, Moses tokenisation without escapes such as &apos;."""
    if find_spec("sacremoses") is None:
        raise InputError(
            f"making {out.parent / 'multi30k-tok'} needs sacremoses: pip install sacremoses, "
            "or copy the folder from a machine that has it"
        )
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    for side in SIDES:
        normaliser, tokenizer = MosesPunctNormalizer(lang=side), MosesTokenizer(lang=side)
        for name in ("train", "val", "test_2016_flickr"):
            tokens = (
                tokenizer.tokenize(normaliser.normalize(line.lower()), escape=False)
                for line in lines(data / f"multi30k/{name}.{side}.xz")
            )
            write(out / f"{name}.{side}", "".join(" ".join(words) + "\n" for words in tokens))
    return {}


def key(sentence: str) -> str:
    """Sentences with the same key count as the same sentence."""
    return sentence.strip().casefold()


def number(sentence: str) -> str:
    """A sort key that is independent of the content of the sentence, the same on every machine."""
    return hashlib.sha256(sentence.encode()).hexdigest()


def families(chosen: Pairs) -> list[list[int]]:
    """Group pairs that share a sentence, directly or through other pairs. Returns the indices of
    the pairs of each group."""
    parent: dict[str, str] = {}

    def root(sentence: str) -> str:
        while (above := parent.setdefault(sentence, sentence)) != sentence:
            parent[sentence] = parent[above]  # shorten the path for later calls
            sentence = above
        return sentence

    for english, german in chosen:
        parent[root(key(english))] = root(key(german))
    groups = defaultdict[str, list[int]](list)
    for i, (english, _) in enumerate(chosen):
        groups[root(key(english))].append(i)
    return list(groups.values())


def hold_out(chosen: Pairs, apart: Pairs, limit: int) -> tuple[Pairs, Pairs]:
    """Split off a test set of at most `most` pairs that shares no sentence, on either side, with
    the rest or with `apart`. It consists of whole families in the order of `number`."""
    excluded = {key(side) for pair in apart for side in pair}

    def place(family: list[int]) -> str:
        return min(number(key(chosen[i][0])) for i in family)

    held_out: set[int] = set()
    for family in sorted(families(chosen), key=place):
        shared = any(key(side) in excluded for i in family for side in chosen[i])
        if not shared and len(family) <= min(CROWD, limit - len(held_out)):
            held_out.update(family)
    rest = [pair for i, pair in enumerate(chosen) if i not in held_out]
    return rest, [chosen[i] for i in sorted(held_out)]


def split_tatoeba(data: Path, out: Path) -> About:
    whole, dev = (pairs(data, f"tatoeba/{name}") for name in ("train", "dev"))
    rest, test = hold_out(whole, dev, HELD_OUT)
    write_pairs(out, "train", rest)
    write_pairs(out, "test", test)
    return {"train": len(rest), "test": len(test)}


def without(chosen: Pairs, seen: set[str]) -> Pairs:
    """The pairs that share no sentence with `seen`."""
    return [pair for pair in chosen if not any(key(side) in seen for side in pair)]


def spread(chosen: Pairs, count: int) -> Pairs:
    """`count` pairs at equal distances, or all if there are fewer."""
    count = min(count, len(chosen))
    return [chosen[i * len(chosen) // count] for i in range(count)]


def translations(
    data: Path,
) -> tuple[dict[str, Pairs], dict[str, Pairs], dict[str, dict[str, int]]]:
    """Training pairs of each source without the sentences of the development and test sets, the
    development pairs of each source, and the numbers of pairs that were left out."""
    rest, tatoeba_test = hold_out(
        pairs(data, "tatoeba/train"), dev := pairs(data, "tatoeba/dev"), HELD_OUT
    )
    developed = {
        "tatoeba": dev, "multi30k": pairs(data, "multi30k/val"),
        "europarl": pairs(data, "europarl/dev"),
    }  # fmt: skip
    tests = [
        pairs(data, name)
        for name in ("newstest/newstest2013", "newstest/newstest2014", "europarl/test",
                     "multi30k/test_2016_flickr")
    ]  # fmt: skip
    held_out = [*developed.values(), tatoeba_test, *tests]
    seen = {key(side) for some in held_out for pair in some for side in pair}
    train = {"tatoeba": rest} | {n: pairs(data, f"{n}/train") for n in ("multi30k", "europarl")}
    training = {name: without(some, seen) for name, some in train.items()}
    about = {
        name: {"pairs": len(some), "left_out": len(some) - len(training[name])}
        for name, some in train.items()
    }
    return training, developed, about


def mixed(data: Path, out: Path) -> About:
    """The data of the translator: everyday sentences, captions and parliamentary debates."""
    train, developed, about = translations(data)
    whole = [pair for name, times in TIMES.items() for pair in train[name] * times]
    write_pairs(out, "train", whole)
    write_pairs(out, "valid", [p for some in developed.values() for p in spread(some, VALID)])
    counts = {name: {**about[name], "times": times} for name, times in TIMES.items()}
    return {**counts, "lines": len(whole)}


# ---- sentences that mean the same -----------------------------------------------------------


def alike(data: Path, out: Path) -> About:
    """The data of the embedder: sentences with their translations, and English sentences that share
    a translation, without the sentences of the scored pairs that it is tested on."""
    train, developed, _ = translations(data)
    scored = [json.loads(line) for name in ("dev", "test")
              for line in lines(data / f"stsb/{name}.jsonl.xz")]  # fmt: skip
    seen = {key(row[side]) for row in scored for side in "ab"}
    debates = [pair for pair in train["europarl"] if len(pair[0].split()) <= SHORT]
    near = [*train["tatoeba"], *train["multi30k"]]
    chosen = list(dict.fromkeys(without([*near, *spread(debates, DEBATES)], seen)))
    english = defaultdict[str, dict[str, str]](dict)
    for source, german in near:
        english[key(german)].setdefault(key(source), source)
    shared = [
        pair for some in english.values() for pair in itertools.combinations(some.values(), 2)
    ]
    chosen += without(shared, seen)
    write_alike(out, "train", chosen)
    write_alike(out, "valid", [p for some in developed.values() for p in spread(some, VALID)])
    write_alike(out, "multi30k", pairs(data, "multi30k/test_2016_flickr"))
    write_alike(out, "newstest2014", pairs(data, "newstest/newstest2014"))
    return {}


def write_alike(out: Path, name: str, chosen: Pairs) -> None:
    rows = ({"a": a, "b": b} for a, b in chosen if a.strip() and b.strip())
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write(out / f"{name}.jsonl", text)


# ---- sentiment ------------------------------------------------------------------------------

LABELS = {"0": "negative", "1": "positive"}
JOINED = re.compile(r" (?=n't\b|'(?:s|re|ve|ll|d|m)\b|[.,;:!?])|(?<=[(]) | (?=[)])|(?<= `) ")


def as_written(sentence: str) -> str:
    """A tokenised, lower-case phrase in ordinary spelling: joined, first letter capitalised."""
    joined = JOINED.sub("", sentence).strip()
    return joined[:1].upper() + joined[1:]


def named(data: Path, out: Path) -> About:
    """SST-2 with words as labels. Its text is lower-case and tokenised; the training set contains
    each phrase in this form and in ordinary spelling, so that a model learns both."""
    for name in ("train", "dev", "test"):
        rows = [line.split("\t", 1) for line in lines(data / f"sst2/{name}.tsv.xz")]
        examples = [(LABELS[label], phrase) for label, phrase in rows]
        if name == "train":
            examples = [form for label, phrase in examples for form in both(label, phrase)]
        write(out / f"{name}.tsv", "".join(f"{label}\t{phrase}\n" for label, phrase in examples))
    return {}


def both(label: str, phrase: str) -> Sequence[tuple[str, str]]:
    """An example in both forms."""
    return (label, phrase), (label, as_written(phrase))


MAKERS: dict[str, Callable[[Path, Path], About]] = {
    "trec": split("trec/train.tsv.xz", "tsv", "\n", 10),
    "agnews": split("agnews/train.tsv.xz", "tsv", "\n", 10),
    "babi": split("babi/train.jsonl.xz", "jsonl", "\n", 10),
    "imdb": split("imdb_reviews/unlabelled.txt.xz", "txt", "\n\n", 50),
    "shakespeare": split_plays,
    "multi30k-tok": tokenised,
    "tatoeba": split_tatoeba,
    "en-de": mixed,
    "alike": alike,
    "sst2": named,
}
