"""A percentage of the training data is held out by its text; overlap is counted."""

from pathlib import Path

import pytest

from regard.config.sections import DataConfig
from regard.errors import InputError
from regard.text import split
from regard.text.split import Overlap, Part, part_of, text_hash

TEXTS = [f"text number {n}" for n in range(2000)]


def select(texts, share, held_out):
    part = Part([], share, held_out)
    return list(part.select(lambda: iter(texts), lambda: iter(texts), lambda text: text))


def test_the_parts_are_disjoint_complete_and_of_about_the_requested_size():
    held_out, rest = (select(TEXTS, 0.1, side) for side in (True, False))
    assert 150 < len(held_out) < 250
    assert sorted(held_out + rest) == sorted(TEXTS)
    assert set(held_out).isdisjoint(rest)
    assert set(select(TEXTS, 0.05, True)) < set(held_out)


def test_the_split_depends_on_the_text_alone():
    held_out = set(select(TEXTS, 0.1, True))
    assert set(select(TEXTS[::-1], 0.1, True)) == held_out
    assert set(select(TEXTS[:500], 0.1, True)) == held_out & set(TEXTS[:500])
    spaced = [f"  {text} ".replace(" ", "\t ") for text in TEXTS]
    assert [" ".join(text.split()) for text in select(spaced, 0.1, True)] == select(
        TEXTS, 0.1, True
    )
    assert select(TEXTS * 2, 0.1, True) == select(TEXTS, 0.1, True) * 2


def test_the_hash_is_the_same_in_every_process_and_version():
    assert [text_hash("a  b\n"), text_hash("é")] == [17673416760714696011, 7120872720655372925]


def test_at_least_one_example_is_held_out():
    for texts in (TEXTS[:1], TEXTS[:3]):
        held_out = select(texts, 1e-9, True)
        assert held_out == [min(texts, key=text_hash)]
        assert select(texts, 1e-9, False) == [text for text in texts if text not in held_out]


def test_part_applies_only_to_the_training_files():
    data = DataConfig(train=["a", "b"], valid=["5%"])
    a, b = Path("a"), Path("b")
    assert part_of([a, b], data) == Part([a, b], 0.05, False)
    assert part_of([Path("5%")], data) == Part([a, b], 0.05, True)
    assert part_of([a], data) is None
    assert part_of([a, b], DataConfig(train=["a", "b"], valid=["c"])) is None
    with pytest.raises(InputError, match="10%: the model was not trained with data.valid=10%"):
        part_of([Path("10%")], data)


@pytest.mark.parametrize(
    ("value", "names", "share"),
    [
        ("5%", ["5%"], 0.05),
        (0.05, ["5%"], 0.05),
        (1 / 3, ["33.3333333%"], 0.333333333),
        (["12.5%"], ["12.5%"], 0.125),
        ("file.tsv", ["file.tsv"], 0.0),
        (["./5%"], ["./5%"], 0.0),
    ],
)
def test_validation_data_is_files_or_a_percentage(value, names, share):
    data = DataConfig(valid=value)
    assert (data.valid, data.valid_share) == (names, pytest.approx(share))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0%", "data.valid must be files or a percentage above 0% and below 100%, not 0%"),
        ("100%", "data.valid must be files or a percentage above 0% and below 100%, not 100%"),
        (1.0, "data.valid must be files or a percentage above 0% and below 100%, not 100%"),
        (["5%", "file"], "data.valid must be files or one percentage, not both"),
        (5, "data.valid must be a list, not 5"),
    ],
)
def test_invalid_percentage_is_refused(value, message):
    with pytest.raises(InputError) as caught:
        DataConfig(valid=value)
    assert str(caught.value) == message


@pytest.mark.parametrize("chunk", [1, 7, 2**16])
def test_the_overlap_counts_validation_examples(chunk, monkeypatch):
    monkeypatch.setattr(split, "CHUNK", chunk)
    overlap = Overlap()
    for text in ("a b", "c", "d", "a  b ", "e"):
        overlap.add_validation(text)
    for text in ("x", " a b", "e", "e", *TEXTS[:50]):
        overlap.add_training(text)
    assert overlap.count() == 3
    assert overlap.message().startswith("3 of 5 validation examples (60.0%) are also in the train")


def test_there_is_no_message_without_overlap():
    overlap = Overlap()
    overlap.add_validation("a")
    overlap.add_training("b")
    assert (overlap.count(), overlap.message()) == (0, "")
