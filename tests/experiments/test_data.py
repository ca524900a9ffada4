"""The data sets of the recipes: held-out sentences are never in the training data."""

import json
import lzma
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import data
from regard.errors import InputError

# Few words, so that sentences often share translations.
words = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "A", "B"])
sentences = st.lists(words, min_size=1, max_size=2).map(" ".join)
some_pairs = st.lists(st.tuples(sentences, sentences), max_size=60)


def keys(pairs):
    return {data.key(side) for pair in pairs for side in pair}


@settings(max_examples=200, deadline=None)
@given(some_pairs, some_pairs, st.integers(0, 20))
def test_a_held_out_test_set_shares_no_sentence_with_the_rest_nor_with_the_development_set(
    whole, apart, most
):
    rest, test = data.hold_out(whole, apart, most)
    assert not keys(test) & keys(rest)
    assert not keys(test) & keys(apart)
    assert len(test) <= most
    assert sorted(rest + test) == sorted(whole)


@given(some_pairs)
def test_families_are_the_pairs_that_share_a_sentence_directly_or_through_others(whole):
    groups = data.families(whole)
    assert sorted(i for family in groups for i in family) == list(range(len(whole)))
    every = [keys([whole[i] for i in family]) for family in groups]
    assert sum(map(len, every)) == len(set().union(*every))  # no pair is in two of them


def test_a_family_is_found_through_two_translations():
    chain = [("One.", "Eins."), ("one.", "Einer."), ("Somebody.", "einer. "), ("Two.", "Zwei.")]
    assert sorted(map(sorted, data.families(chain))) == [[0, 1, 2], [3]]


def test_held_out_pairs_do_not_depend_on_the_order_of_the_file():
    whole = [(f"sentence {i}", f"Satz {i}") for i in range(50)]
    _, test = data.hold_out(whole, [], 10)
    _, again = data.hold_out(whole[::-1], [], 10)
    assert len(test) == 10
    assert sorted(test) == sorted(again)


def test_large_family_of_sentences_stays_in_the_training_data():
    crowd = [("hello", f"Gruß {i}") for i in range(data.CROWD + 1)]
    rest, test = data.hold_out([*crowd, ("tree", "Baum")], [], 100)
    assert test == [("tree", "Baum")]
    assert rest == crowd


@pytest.fixture
def published(tmp_path):
    """A small folder with the structure of the published data."""

    def write(name, lines):
        path = tmp_path / "published" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(path, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    sizes = {
        "tatoeba/train": 3000,
        "tatoeba/dev": 800,
        "multi30k/train": 40,
        "multi30k/val": 700,
        "multi30k/test_2016_flickr": 5,
        "europarl/train": 60,
        "europarl/dev": 700,
        "europarl/test": 5,
        "newstest/newstest2013": 5,
        "newstest/newstest2014": 5,
    }
    for name, size in sizes.items():
        for side in data.SIDES:
            write(f"{name}.{side}.xz", [f"{name} {side} {i}" for i in range(size)])
    # Three sentences that must not be in the training data, on either side, in any case.
    write("europarl/train.en.xz", ["NEWSTEST/newstest2013 en 1 ", *map(str, range(59))])
    write("multi30k/train.de.xz", ["multi30k/test_2016_flickr de 2", *map(str, range(100, 139))])
    write("sst2/train.tsv.xz", ["1\tit 's a joy , really !", "0\tdull"])
    for name in ("dev", "test"):
        write(f"sst2/{name}.tsv.xz", ["0\tis n't it ( sad ) ?"])
        write(f"stsb/{name}.jsonl.xz", ['{"a": "MULTI30K/train en 3", "b": "b", "score": 1}'])
    return tmp_path / "published"


def test_no_sentence_of_a_test_or_development_set_is_in_the_translators_training_data(
    published, tmp_path
):
    data.prepare(published, tmp_path, ["en-de", "tatoeba"])
    folder = tmp_path / "data"
    train = {data.key(line) for side in data.SIDES
             for line in (folder / f"en-de/train.{side}").read_text().splitlines()}  # fmt: skip
    names = [f"{name}.{side}" for side in data.SIDES
            for name in ("tatoeba/dev", "multi30k/val", "multi30k/test_2016_flickr", "europarl/dev",
                         "europarl/test", "newstest/newstest2013", "newstest/newstest2014")]  # fmt: skip
    seen = {data.key(line) for name in names for line in data.lines(published / f"{name}.xz")}
    seen |= {data.key(line) for side in data.SIDES
             for line in (folder / f"tatoeba/test.{side}").read_text().splitlines()}  # fmt: skip
    assert not train & seen


def test_mix_counts_excluded_pairs_and_repetitions(published, tmp_path):
    data.prepare(published, tmp_path, ["en-de"])
    about = json.loads((tmp_path / "data/en-de/about.json").read_text())
    assert about["europarl"] == {"pairs": 60, "left_out": 1, "times": data.TIMES["europarl"]}
    assert about["multi30k"] == {"pairs": 40, "left_out": 1, "times": data.TIMES["multi30k"]}
    assert about["tatoeba"]["pairs"] == 3000 - data.HELD_OUT
    english = (tmp_path / "data/en-de/train.en").read_text().splitlines()
    assert len(english) == about["lines"]
    assert english.count("multi30k/train en 7") == data.TIMES["multi30k"]
    valid = (tmp_path / "data/en-de/valid.en").read_text().splitlines()
    assert len(valid) == 3 * data.VALID


def test_similar_pairs_are_translations_and_sentences_with_a_common_translation(
    published, tmp_path
):
    with lzma.open(published / "multi30k/train.de.xz", "wt", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in ["same", "Same", *map(str, range(2, 40))]))
    data.prepare(published, tmp_path, ["alike"])
    text = (tmp_path / "data/alike/train.jsonl").read_text().splitlines()
    pairs = [tuple(json.loads(line).values()) for line in text]
    assert ("multi30k/train en 0", "same") in pairs
    assert ("multi30k/train en 0", "multi30k/train en 1") in pairs
    sentences = {data.key(side) for pair in pairs for side in pair}
    assert "multi30k/train en 3" not in sentences  # similarity scored by people
    assert "multi30k/train en 4" in sentences
    assert "newstest/newstest2013 en 1" not in sentences
    test = (tmp_path / "data/alike/newstest2014.jsonl").read_text().splitlines()
    assert json.loads(test[2]) == {
        "a": "newstest/newstest2014 en 2",
        "b": "newstest/newstest2014 de 2",
    }


def test_sentiment_has_words_for_labels_and_each_training_phrase_in_both_forms(published, tmp_path):
    data.prepare(published, tmp_path, ["sst2"])
    assert (tmp_path / "data/sst2/train.tsv").read_text().splitlines() == [
        "positive\tit 's a joy , really !",
        "positive\tIt's a joy, really!",
        "negative\tdull",
        "negative\tDull",
    ]
    assert (tmp_path / "data/sst2/dev.tsv").read_text() == "negative\tis n't it ( sad ) ?\n"
    assert data.as_written("is n't it ( sad ) ?") == "Isn't it (sad)?"


def test_existing_data_set_is_not_generated_again(published, tmp_path, monkeypatch):
    ready = tmp_path / "data/multi30k-tok"
    ready.mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    data.prepare(published, tmp_path, ["multi30k-tok"])
    assert list(ready.iterdir()) == []


def test_missing_sacremoses_is_reported_and_no_file_is_left(published, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(InputError, match="multi30k-tok needs sacremoses.* or copy the folder"):
        data.prepare(published, tmp_path, ["multi30k-tok"])
    assert list((tmp_path / "data").iterdir()) == []


def test_captions_are_tokenised_in_lower_case_without_escapes(published, tmp_path):
    pytest.importorskip("sacremoses")
    for name in ("train", "val", "test_2016_flickr"):
        for side, line in (("en", "A dog's   “toy” isn't here."), ("de", "Ein Hund & 2,5 Männer.")):
            with lzma.open(published / f"multi30k/{name}.{side}.xz", "wt") as file:
                file.write(f"{line}\n")
    data.prepare(published, tmp_path, ["multi30k-tok"])
    folder = tmp_path / "data/multi30k-tok"
    assert (folder / "val.en").read_text() == "a dog 's \" toy \" isn 't here .\n"
    assert (folder / "train.de").read_text() == "ein hund & 2,5 männer .\n"


def test_damaged_file_and_file_of_wrong_length_are_named(published, tmp_path):
    (published / "europarl/dev.en.xz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"europarl.dev\.en\.xz is damaged"):
        data.pairs(published, "europarl/dev")
    with lzma.open(published / "europarl/test.en.xz", "wt") as file:
        file.write("one\n")
    with pytest.raises(InputError, match="test: 1 English lines but 5 German ones"):
        data.pairs(published, "europarl/test")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"trec/train.tsv.xz is missing: docs/results.md lists"):
        data.prepare(tmp_path, tmp_path, ["trec"])


def test_data_sets_of_files_are_identified():
    files = ["runs/data/imdb/train.txt", "$REGARD_DATA/x/y.xz", "runs/data/imdb/valid.txt"]
    assert data.needed(files, "runs") == ["imdb"]
