"""The built-in corpus: correct German, balanced pronouns, and a test set disjoint from training."""

import hashlib
import re
from collections import Counter

import pytest

from regard import InputError
from regard.text.builtin import (
    LEXICON,
    PRONOUN_SENTENCE,
    builtin_corpus,
    examples,
    phrase,
    pronoun_accuracy,
    pronoun_of,
)

SPLITS = {split: examples(split) for split in ("train", "valid", "test")}
EVERYTHING = [example for split in SPLITS.values() for example in split]
GENDER = {"er": "m", "sie": "f", "es": "n"}
NOUN = {noun.english: noun for noun in LEXICON}
AMBIGUOUS = re.compile(r"The (?:\w+ )??(\w+) didn't ([\w ]+) the (\w+) because it was too (\w+)\.$")


def words_of(texts):
    return {word for text in texts for word in re.findall(r"[\w']+", text)}


def ambiguous(split):
    """(animal, verb, thing, adjective, pronoun), parsed from the text of each sentence."""
    matches = ((AMBIGUOUS.match(english), german) for english, german, _ in SPLITS[split])
    return [(*match.groups(), pronoun_of(german)) for match, german in matches if match]


# ---- reproducibility ------------------------------------------------------------------------


def test_the_corpus_is_the_same_on_every_machine():
    text = "\n".join("\t".join(example[:2]) for example in EVERYTHING)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "7f4e46addf4ade12"


def test_smaller_corpus_has_the_first_sentences():
    for split, whole in SPLITS.items():
        assert builtin_corpus(split, 40) == [example[:2] for example in whole[:40]]
    assert builtin_corpus("test", 1) == [PRONOUN_SENTENCE[0]]
    assert builtin_corpus("train", 0) == []


def test_an_unknown_split_and_too_many_sentences_are_refused():
    with pytest.raises(InputError, match="unknown split of the built-in corpus 'tests'.*'test'"):
        builtin_corpus("tests")
    with pytest.raises(InputError, match="no 100000 test sentences: choose a smaller size"):
        builtin_corpus("test", 100_000)


# ---- disjoint splits ------------------------------------------------------------------------


def test_no_sentence_occurs_twice_and_none_has_two_translations():
    assert [len(split) for split in SPLITS.values()] == [20_000, 500, 500]
    assert len({example.english for example in EVERYTHING}) == len(EVERYTHING)


def test_no_composition_is_in_two_splits():
    train, valid, test = ({example.composition for example in split} for split in SPLITS.values())
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert len(test) > 200


def test_no_combination_in_pronoun_sentences_is_in_two_splits():
    train, valid, test = ({row[:3] for row in ambiguous(split)} for split in SPLITS)
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert len(test) > 20


def test_every_word_of_valid_and_test_is_in_train():
    for side in (0, 1):
        known = words_of(example[side] for example in SPLITS["train"])
        for split in ("valid", "test"):
            assert words_of(example[side] for example in SPLITS[split]) <= known


def test_street_example_is_only_in_the_test_split():
    assert [example[:2] for example in SPLITS["test"][:2]] == list(PRONOUN_SENTENCE)
    for split in ("train", "valid"):
        for english, _, _ in SPLITS[split]:
            assert not re.search(r"animal (didn't cross|crossed) (the|a)( \w+)? street", english)


# ---- pronouns -------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_a_quarter_of_each_split_has_an_ambiguous_pronoun(split):
    rows = ambiguous(split)
    assert len(rows) == sum(pronoun_of(example.german) is not None for example in SPLITS[split])
    assert 0.24 < len(rows) / len(SPLITS[split]) < 0.26


@pytest.mark.parametrize("split", SPLITS)
def test_pronoun_has_the_gender_of_exactly_one_noun(split):
    for animal, _, thing, _, pronoun in ambiguous(split):
        assert NOUN[animal].kind == "animal"
        assert NOUN[animal].gender != NOUN[thing].gender
        assert GENDER[pronoun] in (NOUN[animal].gender, NOUN[thing].gender)


@pytest.mark.parametrize("split", SPLITS)
def test_rules_without_the_adjective_predict_less_than_60_percent_of_pronouns(split):
    rows = ambiguous(split)
    for rule in (
        lambda animal, verb, thing: (),  # always the same pronoun
        lambda animal, verb, thing: NOUN[animal].gender,  # the most frequent pronoun of the subject
        lambda animal, verb, thing: NOUN[thing].gender,
        lambda animal, verb, thing: (NOUN[animal].gender, NOUN[thing].gender),
    ):
        seen = Counter((rule(*row[:3]), row[4]) for row in rows)
        best = {}
        for (key, _), count in seen.items():
            best[key] = max(best.get(key, 0), count)
        assert sum(best.values()) / len(rows) < 0.6
    subject = sum(GENDER[pronoun] == NOUN[animal].gender for animal, *_, pronoun in rows)
    assert 0.49 < subject / len(rows) < 0.51


def test_each_adjective_refers_always_to_the_animal_or_always_to_the_thing():
    antecedents = {}
    for animal, _, _, adjective, pronoun in ambiguous("train"):
        antecedents.setdefault(adjective, set()).add(GENDER[pronoun] == NOUN[animal].gender)
    assert all(len(answers) == 1 for answers in antecedents.values())
    assert antecedents["tired"] == {True}
    assert antecedents["wide"] == {False}


def test_pronoun_accuracy_counts_only_sentences_with_an_ambiguous_pronoun():
    tired, wide = (german for _, german in PRONOUN_SENTENCE)
    other = "Der Mann schlief, weil der Hund den Kuchen fraß."
    assert (pronoun_of(tired), pronoun_of(wide), pronoun_of(other)) == ("es", "sie", None)
    assert pronoun_accuracy([tired, wide, other], [tired, tired, ""]) == (1, 2)
    assert pronoun_accuracy([tired, wide], ["weil es", "weil sie schlief"]) == (2, 2)
    assert pronoun_accuracy([wide], [other]) == (0, 1)
    assert pronoun_accuracy([], []) == (0, 0)
    with pytest.raises(ValueError, match="shorter"):
        pronoun_accuracy([tired, wide], [tired])


# ---- German ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noun", "case", "article", "adjective", "english", "german"),
    [
        ("dog", "nom", "the", "old", "the old dog", "der alte Hund"),
        ("dog", "acc", "the", "old", "the old dog", "den alten Hund"),
        ("dog", "dat", "a", "old", "an old dog", "einem alten Hund"),
        ("dog", "nom", "a", "big", "a big dog", "ein großer Hund"),
        ("bear", "acc", "a", "", "a bear", "einen Bären"),
        ("boy", "dat", "the", "small", "the small boy", "dem kleinen Jungen"),
        ("cat", "acc", "a", "young", "a young cat", "eine junge Katze"),
        ("cat", "dat", "the", "young", "the young cat", "der jungen Katze"),
        ("animal", "nom", "a", "", "an animal", "ein Tier"),
        ("book", "acc", "a", "new", "a new book", "ein neues Buch"),
        ("book", "dat", "a", "new", "a new book", "einem neuen Buch"),
        ("egg", "acc", "the", "fresh", "the fresh egg", "das frische Ei"),
    ],
)
def test_article_and_adjective_agree_with_gender_and_case(
    noun, case, article, adjective, english, german
):
    assert phrase(NOUN[noun], case, article, adjective)[1:] == (english, german)


PATTERNS = {
    "verb second": r"^(Der|Die|Das) (\w+ )?\w+ (aß|fraß) (den|die|das) ",
    "dative before accusative": r" (gab|zeigte) (dem|der) (\w+ )?\w+ (den|die|das|einen|eine|ein) ",
    "dative object": r" (folgte|half) (dem|der|einem|einer) ",
    "contracted preposition": r" im \w+",
    "separable verb in a main clause": r" rief (den|die|das|einen|eine|ein) .* an\.$",
    "separable verb in a subordinate clause": r", (dass|weil|obwohl|während|bevor) .* anrief\.$",
    "verb last": r", (weil|obwohl|während|bevor) .* (den|die|das) (\w+ )?\w+ (aß|fraß|sah|fand)\.$",
    "inversion": r"^(Weil|Obwohl|Während|Bevor) .*, (schlief|wartete|lachte|weinte) (der|die|das) ",
    "relative clause": r"^(Der (\w+ )?\w+, der|Die (\w+ )?\w+, die|Das (\w+ )?\w+, das) .*, \w+( weg)?\.$",
    "negation before a preposition": r" (sprang|kletterte) nicht über (den|die|das) \w+, weil ",
    "negation after the object": r" hob (den|die|das) \w+ nicht auf, weil ",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_of_german_word_order_is_trained_and_tested(pattern):
    for split, fewest in (("train", 100), ("test", 2)):
        texts = [example.german for example in SPLITS[split]]
        assert sum(bool(re.search(PATTERNS[pattern], text)) for text in texts) >= fewest


def test_german_verb_for_eating_depends_on_the_subject():
    for english, german, _ in SPLITS["train"]:
        simple = re.match(r"(?:The|An?) (?:\w+ )?(\w+) ate ", english)
        if simple and simple[1] not in ("who", "that"):
            verb = "fraß" if NOUN[simple[1]].kind == "animal" else "aß"
            assert f" {verb} " in german


def test_sentences_have_correct_capitals_punctuation_and_articles():
    for example in EVERYTHING:
        for text in (example.english, example.german):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w' ]+(, [\w' ]+)*\.", text)
            assert "  " not in text
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", example.english)
        assert not re.search(r"\bin dem\b", example.german)
