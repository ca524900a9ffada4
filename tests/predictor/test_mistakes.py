"""Frequent mistakes in calls of the Python interface: each is an error or a warning."""

import pytest

import regard
from regard import InputError
from regard.predictor.data import as_paths, as_share

PAIRS = [{"english": f"cat {i}", "german": f"Katze {i}"} for i in range(40)]
COLUMNS = {"source": "english", "target": "german"}
SMALL = {
    "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16},
    "data.vocabulary_size": 300,
    "decoding.max_length": 5,
}


class Table:
    """A table like a pandas DataFrame, whose iterator yields the column names."""

    columns = ("english", "german")

    def __iter__(self):
        return iter(self.columns)


def small(data=PAIRS, valid=None, **options):
    """Train a very small model for one step."""
    options = {"preset": "tiny", "steps": 1, "warmup": 1, "settings": SMALL, **options}
    return regard.train("translate", data, valid, device="cpu", quiet=True, **options)


@pytest.mark.parametrize("share", ["10%", 0.1, "10 %"])
def test_rows_with_columns_and_a_share(share):
    model = small(valid=share, columns=COLUMNS)
    assert model.config.data.valid == ["10%"]
    assert set(model.scores) >= {"loss", "bleu"}


def test_rows_with_columns_and_a_file(tmp_path):
    path = tmp_path / "valid.tsv"
    path.write_text("english\tgerman\ncat\tKatze\n")
    with pytest.raises(InputError, match="columns cannot be combined with a file and rows"):
        small(valid=path, columns=COLUMNS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["english", "german"]}, "columns must be a dict"),
        ({"settings": "training.steps=3"}, "settings must be a dict"),
        ({"settings": [("steps", 3)]}, "settings must be a dict"),
        ({"dtype": "float16"}, "float16 overflows"),
        ({"steps": 2, "settings": {"training.steps": 3}}, r"settings\['training.steps'\] differ"),
        ({"valid": 5}, "valid=5 is not data"),
        ({"valid": True}, "valid=True is not data"),
        ({"data": ["typo.tsv"]}, r"typo\.tsv: no such file"),
    ],
)
def test_arguments_of_the_wrong_type(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


def test_a_list_with_a_misspelt_file_name_is_never_text(tmp_path):
    path = tmp_path / "corpus"
    path.write_text("text\n")
    names = [str(path), "no/such/file"]
    assert as_paths(names) == names
    assert as_paths(["typo.txt", "other.csv.gz"]) == ["typo.txt", "other.csv.gz"]
    assert as_paths(["A text.", "Save it as notes.txt"]) is None
    assert as_paths([("a", "b")]) is None
    with pytest.raises(InputError, match="no such file"):
        regard.train("generate", names, preset="tiny", steps=1, quiet=True)


def test_a_share_is_a_percentage():
    assert as_share(0.05, "valid") == as_share(" 5 %", "valid") == "5%"
    assert as_share("valid.tsv", "valid") is None


def test_an_error_in_a_row_names_the_row():
    rows = [("a", "b", 0.5)] * 3 + [("a", "b")]
    with pytest.raises(InputError, match=r"^train: row 4: no score, but"):
        regard.train("embed", rows, preset="tiny", steps=1, quiet=True, device="cpu")


@pytest.mark.parametrize(
    "which", [("translate", "encoder-decoder"), ("classify", "encoder")], ids="-".join
)
def test_training_mode_is_refused(model, which):
    model = model(*which)
    calls = {
        "translate": [
            lambda: model.translate("a"), lambda: model.score(("a", "b")),
            lambda: list(model.stream("a")), lambda: model.evaluate([("a", "b")]),
        ],
        "classify": [lambda: model.classify("a"), lambda: model.embed("a")],
    }[model.task.name]  # fmt: skip
    model.transformer.train()
    try:
        for call in [*calls, lambda: model.predict("a"), lambda: model.attention("a")]:
            with pytest.raises(InputError, match=r"training mode.*model\.transformer\.eval\(\)"):
                call()
    finally:
        model.transformer.eval()
    assert model.predict(["a"])


def test_a_table_is_no_list_of_texts(model):
    model = model("translate", "encoder-decoder")
    for call in (model.translate, model.predict, model.score):
        with pytest.raises(InputError, match="table with the columns 'english', 'german'"):
            call(Table())


def test_a_run_is_resumed_with_more_steps(tmp_path):
    small(out=tmp_path / "run", columns=COLUMNS)
    again = {"out": tmp_path / "run", "resume": True, "device": "cpu", "quiet": True}
    assert regard.train(steps=2, **again).history[-1]["step"] == 2
    assert regard.train("translate", steps=3, **again).history[-1]["step"] == 3
    with pytest.raises(InputError, match="the run is for translate"):
        regard.train("classify", steps=4, **again)


def test_a_warm_up_that_is_longer_than_the_epochs():
    with pytest.warns(
        regard.errors.RegardWarning, match=r"warmup=500 .* training.epochs=1: \d+, so"
    ):
        small(columns=COLUMNS, steps=None, epochs=1, warmup=None)


def test_a_function_that_is_never_called():
    with pytest.warns(regard.errors.RegardWarning, match="on_validation is never called"):
        model = small(PAIRS[:20], columns=COLUMNS, on_validation=print)
    assert model.scores == {}
