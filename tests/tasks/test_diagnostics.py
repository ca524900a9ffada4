"""The table of classes, and warnings about data that is probably wrong."""

import os
from pathlib import Path

import pytest

from regard.tasks.diagnostics import LabelStatistics
from regard.text.corpus import read_classified

FILE = Path("train.tsv")
DATA = Path(os.environ.get("REGARD_DATA", "/nowhere"))
TEXTS = [f"this is the review number {i} of a film" for i in range(40)]


def statistics(rows):
    result = LabelStatistics()
    for line, (label, text) in enumerate(rows, 1):
        result.add(FILE, line, text, label)
    return result


def ordinary_rows():
    return [("good" if i % 3 else "bad", text) for i, text in enumerate(TEXTS)]


def test_ordinary_data_causes_no_warning():
    assert list(statistics(ordinary_rows()).warnings()) == []
    assert list(statistics(ordinary_rows()[:4]).warnings()) == []


@pytest.mark.parametrize(
    "header", [("label", "text"), ("Sentiment", "Review"), ("CLASS", "x"), ("klasse", "sentence")]
)
def test_header_row_is_reported_with_line_number(header):
    [warning] = statistics([header, *ordinary_rows()]).warnings()
    assert warning.startswith("train.tsv:1: the first row (")
    assert "looks like a header" in warning


def test_class_with_name_of_column_is_not_a_header():
    rows = [("topic" if i % 2 else "text", text) for i, text in enumerate(TEXTS)]
    assert list(statistics(rows).warnings()) == []


def test_classes_with_one_example_are_counted_and_named():
    rows = [*ordinary_rows(), ("rare", "one"), ("odd", "two")]
    [warning] = statistics(rows).warnings()
    assert warning.startswith("2 of 4 classes have only one example (odd, rare)")
    [warning] = statistics(rows[:-1]).warnings()
    assert warning.startswith("1 of 3 classes has only one example (rare)")


def test_swapped_columns_cause_one_warning():
    [warning] = statistics([(text, label) for label, text in ordinary_rows()]).warnings()
    assert warning.startswith("40 classes in only 40 training examples")
    assert warning.endswith(
        "the label and text columns are probably swapped (a line is label<TAB>text)"
    )
    rows = [(TEXTS[i % 12], "good" if i % 2 else "bad") for i in range(40)]
    [warning] = statistics(rows).warnings()
    assert "the labels are longer and more varied than the texts" in warning


def test_ids_as_labels_cause_one_warning():
    [warning] = statistics([(str(i), text) for i, text in enumerate(TEXTS)]).warnings()
    assert warning == (
        "40 classes in only 40 training examples: nearly every example has its own label"
    )


def test_table_has_at_most_20_rows_and_a_sum():
    lines = statistics(ordinary_rows()).table()
    assert lines == [
        "2 classes in 40 training examples:", "  good  26   65.0%", "  bad   14   35.0%",
    ]  # fmt: skip
    many = statistics([(f"class {i % 50:02}", text) for i, text in enumerate(TEXTS * 5)]).table()
    assert len(many) == 21
    assert many[-1].split()[:4] == ["...", "31", "more", "classes"]
    assert many[-1].split()[-2:] == ["124", "62.0%"]


@pytest.mark.skipif(not DATA.is_dir(), reason="REGARD_DATA is not a data folder")
@pytest.mark.parametrize("name", ["agnews/test", "sst2/dev", "trec/train", "trec/test"])
def test_real_data_causes_no_warning(name):
    result = LabelStatistics()
    path = DATA / f"{name}.tsv.xz"
    for row in read_classified(path):
        result.add(path, row.line, row.text, row.label)
    assert list(result.warnings()) == []
