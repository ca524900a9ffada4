"""`Model.evaluate`: paths, rows and tables, as `regard.train` accepts them."""

import pytest

import regard
from regard import InputError
from regard.tasks.evaluation import read_examples

ROWS = [("a good film", "good"), ("a bad film", "bad")] * 8


class Table:
    """A table like a pandas DataFrame."""

    columns = ("text", "stars")

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __iter__(self):
        return iter(self.columns)

    def itertuples(self, index, name):
        return iter(self.rows)


@pytest.fixture(scope="module")
def classifier():
    sizes = {"encoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16}
    settings = {"model": sizes, "data.vocabulary_size": 300}
    return regard.train(
        "classify", ROWS, preset="tiny", steps=2, warmup=1, settings=settings, device="cpu",
        quiet=True,
    )  # fmt: skip


def test_every_kind_of_data_gives_the_same_scores(classifier, tmp_path):
    path = tmp_path / "test.csv"
    path.write_text("text,stars\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    columns = {"label": "stars"}
    examples = read_examples(classifier.task, [path], classifier.config, columns)
    expected = classifier.evaluate_examples(examples).scores
    assert expected["accuracy"] >= 0
    for data, names in (
        (ROWS, None),
        (iter(ROWS), None),
        ([{"text": text, "label": label} for text, label in ROWS], None),
        (str(path), columns),
        ([path], columns),
        (Table(), columns),
    ):
        assert classifier.evaluate(data, columns=names).scores == expected


def test_the_repr_has_the_scores_only(classifier):
    text = repr(classifier.evaluate(ROWS))
    assert text.startswith("Evaluation(")
    assert "accuracy=" in text
    assert "examples=16" in text
    assert "lambda" not in text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the data is empty"),
        ([("a film", "unseen")], r"data: row 1: .*unseen"),
        (["typo.csv"], r"typo\.csv: no such file"),
        (5, "data=5 is not data"),
        ([(1, "a film", "good")], "row 1"),
    ],
)
def test_other_data_is_refused(classifier, data, message):
    with pytest.raises(InputError, match=message):
        classifier.evaluate(data)


def test_no_examples_are_refused(classifier):
    with pytest.raises(InputError, match="the data is empty"):
        classifier.evaluate_examples([])
