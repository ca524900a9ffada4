"""The built-in corpus: English and German sentences from a small grammar, with the words of
builtin.toml.

Its German requires attention to distant words: articles and adjectives agree with the gender and
case of a noun, the verb ends a subordinate clause, and in "The animal didn't cross the street
because it was too tired" (or "too wide") `it` becomes `es` or `sie` depending on a later word.

A composition is (subject, verb, objects), for example (animal, cross, street), independent of
articles, adjectives and the sentence around it. The hash of a composition determines its split, so
no composition of a test sentence occurs in training, but all of its words do.
"""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from regard.errors import InputError, unknown

T = TypeVar("T")

SIZES = {"train": 20_000, "valid": 500, "test": 500}

# The authors' example of a pronoun that self-attention resolves; the test split starts with it.
PRONOUN_SENTENCE = (
    ("The animal didn't cross the street because it was too tired.",
     "Das Tier überquerte die Straße nicht, weil es zu müde war."),
    ("The animal didn't cross the street because it was too wide.",
     "Das Tier überquerte die Straße nicht, weil sie zu breit war."),
)  # fmt: skip
PRONOUN_PHRASES = (("The animal", "the street"), ("Das Tier", "die Straße"))  # what it can be
PRONOUN_COMPOSITION = ("animal", "cross", "street")

# ---- the words ------------------------------------------------------------------------------

WORDS: dict[str, Any] = tomllib.loads(
    files("regard.text").joinpath("builtin.toml").read_text("utf-8")
)
PRONOUNS = {"m": "er", "f": "sie", "n": "es"}


class Noun(NamedTuple):
    kind: str
    attributes: list[str]
    english: str
    gender: str
    german: str
    declined: str  # in accusative and dative
    qualities: list[str]


class Verb(NamedTuple):
    base: str
    past: str
    german: str  # the past: second in a main clause, last in a subordinate one
    preposition: str  # before the object
    particle: str  # what a separable verb leaves at the end of a main clause
    case: str  # of the object
    subjects: list[str]
    objects: list[str]


def read_nouns(kind: str, attributes: str, row: str) -> Iterator[Noun]:
    for entry in row.split(","):
        english, gender, german, *qualities = entry.split()
        nominative, _, declined = german.partition("/")
        forms = nominative, declined or nominative
        yield Noun(kind, attributes.split(), english, gender, *forms, qualities)


def read_verbs(table: str) -> list[Verb]:
    return [read_verb(line) for line in table.strip().replace("human", "adult child").splitlines()]


def read_verb(line: str) -> Verb:
    english, german, case, subjects, objects = (part.strip() for part in line.split("|"))
    base, past = english.split(", ")
    before, _, particle = german.partition("…")
    verb, _, preposition = before.strip().partition(" ")
    kinds = subjects.split(), objects.split()
    return Verb(base, past, verb, preposition, particle.strip(), case, *kinds)


LEXICON = [noun for kind, row in WORDS["nouns"].items() for noun in read_nouns(kind, *row)]
ACTS, GIFTS, STAYS, EVENTS = map(read_verbs, WORDS["verbs"].values())
# The verbs of the pronoun sentences: what an animal does to one kind of thing.
DEEDS = [verb for verb in ACTS if "animal" in verb.subjects and len(verb.objects) == 1]


@cache
def nouns(*kinds: str, gender: str = "mfn") -> list[Noun]:
    return [noun for noun in LEXICON if noun.kind in kinds and noun.gender in gender]


# ---- the grammar ----------------------------------------------------------------------------


def words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


class Phrase(NamedTuple):
    """A noun with its article and perhaps an adjective."""

    noun: Noun
    english: str
    german: str


def phrase(noun: Noun, case: str, article: str = "the", adjective: str = "") -> Phrase:
    """phrase(dog, "acc", "a", "old") is "an old dog", "einen alten Hund"."""
    articles, endings = (
        row.split()["mfn".index(noun.gender)] for row in WORDS["agreement"][article][case]
    )
    english = words(adjective, noun.english)
    an = "n" if article == "a" and english[0] in "aeiou" else ""
    stem = adjective and WORDS["stems"][adjective] + endings
    german = words(articles, stem, noun.german if case == "nom" else noun.declined)
    return Phrase(noun, f"{article}{an} {english}", german)


class Clause(NamedTuple):
    """A clause. Its German parts are separate: their order depends on the kind of clause."""

    subject: Phrase
    verb: Verb
    predicate: str  # ate the cake
    rest: str  # den Kuchen
    composition: tuple[str, ...]

    def english(self) -> str:
        return words(self.subject.english, self.predicate)

    def main(self) -> str:
        return words(self.subject.german, self.verb.german, self.rest, self.verb.particle)

    def inverted(self) -> str:
        return words(self.verb.german, self.subject.german, self.rest, self.verb.particle)

    def final(self, subject: str = "") -> str:
        verb = self.verb.particle + self.verb.german
        return words(subject or self.subject.german, self.rest, verb)


class Example(NamedTuple):
    english: str
    german: str
    composition: tuple[str, ...]

    @classmethod
    def of(cls, clause: Clause, english: str, german: str) -> Example:
        english, german = (text[0].upper() + text[1:] + "." for text in (english, german))
        return cls(english, german, clause.composition)


class Dice:
    """Random choices that are the same in all versions of Python, because they use only
    `random()`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def phrase(self, kinds: Sequence[str], case: str, without: Sequence[str] = ()) -> Phrase:
        noun = self.pick([noun for noun in nouns(*kinds) if noun.english not in without])
        article = "the" if self.random() < 0.65 else "a"
        adjective = self.pick(noun.attributes) if self.random() < 0.35 else ""
        return phrase(noun, case, article, adjective)


def some_clause(dice: Dice) -> Clause:
    """A random clause with an object, with a gift and its receiver, or with a place."""
    verb = dice.pick(dice.pick((ACTS, ACTS, ACTS, GIFTS, STAYS)))
    subject = dice.phrase(verb.subjects, "nom")
    thing = dice.phrase(verb.objects, verb.case, without=[subject.noun.english])
    composition: tuple[str, ...] = (subject.noun.english, verb.base, thing.noun.english)
    rest = words(verb.preposition, thing.german).replace("in dem ", "im ")
    if verb not in GIFTS:
        return Clause(subject, verb, words(verb.past, thing.english), rest, composition)
    receiver = dice.phrase(("adult", "child", "animal"), "dat", without=composition)
    predicate = words(verb.past, receiver.english, thing.english)
    composition += (receiver.noun.english,)
    return Clause(subject, verb, predicate, words(receiver.german, rest), composition)


def some_event(dice: Dice, inner: Clause) -> Clause:
    """A random clause without objects, whose subject is not in the inner clause."""
    verb = dice.pick(EVENTS)
    subject = dice.phrase(verb.subjects, "nom", without=inner.composition)
    return Clause(subject, verb, verb.past, "", ())


def simple(dice: Dice) -> Example:
    inner = some_clause(dice)
    return Example.of(inner, inner.english(), inner.main())


def subordinate(dice: Dice, first: bool) -> Example:
    """A sentence with a subordinate clause at the start or at the end."""
    inner = some_clause(dice)
    outer = some_event(dice, inner)
    because, weil = dice.pick(list(WORDS["conjunctions"].items()))
    because, weil = f"{because} {inner.english()}", f"{weil} {inner.final()}"
    if first:
        english, german = f"{because}, {outer.english()}", f"{weil}, {outer.inverted()}"
    else:
        english, german = f"{outer.english()} {because}", f"{outer.main()}, {weil}"
    return Example.of(inner, english, german)


def reported(dice: Dice) -> Example:
    inner = some_clause(dice)
    speaker = dice.phrase(("adult", "child"), "nom", without=inner.composition)
    verb, german_verb = dice.pick(list(WORDS["reports"].items()))
    speech = (f"{speaker.english} {verb}", f"{speaker.german} {german_verb}")
    english, german = dice.pick((("I know", "ich weiß"), ("we know", "wir wissen"), speech))
    return Example.of(inner, f"{english} that {inner.english()}", f"{german}, dass {inner.final()}")


def relative(dice: Dice) -> Example:
    inner = some_clause(dice)
    subject = inner.subject
    pronoun = "that" if subject.noun.kind == "animal" else "who"
    der = phrase(subject.noun, "nom").german.split()[0]  # the relative pronoun is the article
    verb = dice.pick([verb for verb in EVENTS if subject.noun.kind in verb.subjects])
    english = f"{subject.english} {pronoun} {inner.predicate} {verb.past}"
    german = f"{subject.german}, {inner.final(der)}, {words(verb.german, verb.particle)}"
    return Example.of(inner, english, german)


def pronoun(dice: Dice, of_subject: bool) -> Example:
    """A sentence in which only the last adjective determines the meaning of `it`; subject and
    object differ in gender."""
    verb = dice.pick(DEEDS)
    genders = dice.pick(("mf", "mn", "fm", "fn", "nm", "nf"))
    animal = dice.pick(nouns("animal", gender=genders[0]))
    thing = dice.pick(nouns(*verb.objects, gender=genders[1]))
    subject = phrase(animal, "nom", "the", dice.pick(animal.attributes + [""] * 6))
    object_phrase = phrase(thing, verb.case)
    over = words(verb.preposition, object_phrase.german)
    rest = f"nicht {over}" if verb.preposition else f"{over} nicht"
    composition = (animal.english, verb.base, thing.english)
    outer = Clause(subject, verb, f"didn't {verb.base} {object_phrase.english}", rest, composition)
    moods = WORDS["moods"]
    es = PRONOUNS[animal.gender if of_subject else thing.gender]
    tired = dice.pick(list(moods) if of_subject else thing.qualities)
    because, weil = (
        f"because it was too {tired}",
        f"weil {es} zu {(moods | WORDS['qualities'])[tired]} war",
    )
    return Example.of(outer, f"{outer.english()} {because}", f"{outer.main()}, {weil}")


# Sentence i of a split has pattern i modulo 16, so every prefix of a split is balanced.
PRONOUN_PAIR = (partial(pronoun, of_subject=True), partial(pronoun, of_subject=False))
LAST, FIRST = partial(subordinate, first=False), partial(subordinate, first=True)
PATTERNS: tuple[Callable[[Dice], Example], ...] = (
    *PRONOUN_PAIR, simple, LAST, simple, reported, simple, FIRST,
    *PRONOUN_PAIR, simple, LAST, simple, reported, LAST, relative,
)  # fmt: skip

# ---- the corpus -----------------------------------------------------------------------------


@cache
def split_of(composition: tuple[str, ...]) -> str:
    """The split of a composition: a tenth is for the test, a tenth for validation."""
    if composition == PRONOUN_COMPOSITION:
        return "test"
    digest = hashlib.sha256(" ".join(composition).encode()).digest()
    return {0: "test", 1: "valid"}.get(int.from_bytes(digest[:4], "big") % 10, "train")


def examples(split: str, size: int | None = None) -> list[Example]:
    """The sentences of a split with their compositions; no two have the same English."""
    if split not in SIZES:
        raise unknown("split of the built-in corpus", split, SIZES)
    size = SIZES[split] if size is None else size
    dice = Dice(seed=list(SIZES).index(split))
    sentences: dict[str, Example] = {}  # by English text
    if split == "test":
        sentences = {pair[0]: Example(*pair, PRONOUN_COMPOSITION) for pair in PRONOUN_SENTENCE}
    while len(sentences) < size:
        pattern = PATTERNS[len(sentences) % len(PATTERNS)]
        for _ in range(20_000):
            example = pattern(dice)
            if split_of(example.composition) == split and example.english not in sentences:
                sentences[example.english] = example
                break
        else:
            raise InputError(
                f"the built-in corpus has no {size} {split} sentences: choose a smaller size"
            )
    return list(sentences.values())[:size]


def builtin_corpus(split: str, size: int | None = None) -> list[tuple[str, str]]:
    """The (English, German) pairs of a split; they are the same on every machine.

    Args:
        split: "train", "valid" or "test".
        size: the number of pairs (default: all).

    Raises:
        InputError: the split is unknown or has fewer pairs.
    """
    return [(example.english, example.german) for example in examples(split, size)]


def pronoun_of(german: str) -> str | None:
    """The translation of the ambiguous `it`: er, sie or es; None if the sentence has none."""
    match = re.search(r"\bweil (er|sie|es)\b", german)
    return match and match[1]


def pronoun_accuracy(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """(correct, total) over the sentences whose reference has an ambiguous pronoun."""
    pairs = zip(map(pronoun_of, references), map(pronoun_of, hypotheses), strict=True)
    correct = [expected == actual for expected, actual in pairs if expected is not None]
    return sum(correct), len(correct)
