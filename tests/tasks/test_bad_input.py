"""What is wrong with the input of a task is one line that says where, and nothing is written."""

import json
import os
from pathlib import Path

import pytest

import regard

TASKS = ("translate", "answer", "generate", "classify", "fill", "embed")
SMALL = [
    f"--set={setting}"
    for setting in (
        "model.d_model=16", "model.heads=2", "model.d_ff=16", "training.steps=1", "training.batch_tokens=400",
        "data.max_length=64", "data.vocabulary_size=330",
    )
]  # fmt: skip
LAYERS = {
    "encoder": ["--set=model.encoder_layers=1"], "decoder": ["--set=model.decoder_layers=1"],
    "encoder-decoder": ["--set=model.encoder_layers=1", "--set=model.decoder_layers=1"],
}  # fmt: skip
STYLE = {"generate": "decoder", "translate": "encoder-decoder", "answer": "encoder-decoder"}


@pytest.fixture
def write(tmp_path):
    """write("rows.tsv", "a line", {"a": "row"}): the path of a file with these lines."""

    def make(name, *rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return tmp_path / name

    return make


@pytest.fixture
def refused(call, tmp_path, cache_folder):
    """refused("train", ...): the one line that is said; nothing else may have happened."""

    def run(*command, stdin=()):
        before = set(tmp_path.rglob("*")) | {tmp_path / "stdin"}
        code, out, err = call(*command, stdin=stdin)
        assert (code, out) == (2, ""), err
        assert err.startswith("regard: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert set(tmp_path.rglob("*")) <= before
        assert not list(cache_folder.glob(".tmp-*"))
        return err.removeprefix("regard: ").removesuffix("\n")

    return run


@pytest.fixture
def training(refused, data, tmp_path):
    """training("fill", train=[...], valid=[...]): what `regard train` says of these files."""

    def run(task, *more, train=None, valid=None):
        files = [train or data[task][0], valid or data[task][1]]
        names = [
            word
            for flag, some in zip(("--train", "--valid"), files, strict=True)
            for word in (flag, *some)
        ]
        layers = LAYERS[STYLE.get(task, "encoder")]
        return refused(
            "train", "--task", task, *names, "--out", tmp_path / "run", *SMALL, *layers, *more
        )

    return run


# ---- labels -----------------------------------------------------------------------------


def test_a_label_that_was_never_seen_in_training(training, refused, write, trained):
    rows = write(
        "valid.tsv", "en\tThe dog slept.", "de\tDer Hund schlief.", "fr\tLe chien dormait."
    )
    said = f"{rows}:3: the label 'fr' was never seen in training (known: de, en, number)"
    assert training("classify", valid=[rows]) == said
    assert refused("evaluate", "-m", trained("classify"), "--data", rows) == said


def test_a_class_that_is_declared_and_has_no_example(training, write, tmp_path, data):
    write("config.yaml", "data: {labels: [en, de, number, fr]}")
    said = training("classify", "--config", tmp_path / "config.yaml")
    assert said == f"{data['classify'][0][0]}: the class 'fr' of data.labels has no example"


def test_a_label_that_is_not_among_those_declared(training, write, tmp_path, data):
    write("config.yaml", "data: {labels: [en, de]}")
    said = training("classify", "--config", tmp_path / "config.yaml")
    assert said == f"{data['classify'][0][0]}:1: the label 'number' is not one of data.labels"


def test_labels_that_are_no_texts_or_stand_there_twice(training, write, tmp_path):
    for labels in ("[en, en]", "[en, 3]", "en"):
        write("config.yaml", f"data: {{labels: {labels}}}")
        assert "data.labels" in training("classify", "--config", tmp_path / "config.yaml")


def test_only_one_class(training, write):
    rows = write("rows.tsv", "en\tThe dog slept.", "en\tThe cat slept.")
    said = f"{rows}: only one class, 'en': at least two are needed"
    assert training("classify", train=[rows], valid=[rows]) == said


# ---- rows -------------------------------------------------------------------------------

GOOD = {
    "answer": [{"context": "c", "question": "q", "answer": f"a{i}"} for i in range(2)],
    "classify": [{"text": "The dog slept.", "label": "en"}, {"text": "Der Hund", "label": "de"}],
    "generate": [{"text": "The dog slept."}, {"text": "The cat slept."}],
    "fill": [{"text": "The dog slept."}, {"text": "The cat slept."}],
    "embed": [{"a": "The dog", "b": "Der Hund"}, {"a": "The cat", "b": "Die Katze"}],
}
BAD = [
    ("answer", {"context": "c", "question": " ", "answer": "a"}, "the question is empty: remove the row"),
    ("answer", {"context": "c", "question": "q", "answer": ""}, "the answer is empty: remove the row"),
    ("answer", {"context": "c", "question": "q"}, 'no "answer" (expected {"context", "question", "answer"})'),
    ("answer", {"context": 3, "question": "q", "answer": "a"}, '"context" must be a string, not a number'),
    ("classify", {"text": "\t", "label": "en"}, "the text is empty: remove the row"),
    ("classify", {"text": "x", "label": " "}, "the label is empty"),
    ("classify", {"text": "x", "label": None}, '"label" must be a string, not null'),
    ("generate", {"text": " \n"}, "the document is empty: remove the row"),
    ("generate", {"texts": "x"}, 'no "text" (expected {"text"})'),
    ("fill", {"text": ""}, "the document is empty: remove the row"),
    ("fill", ["x"], 'expected an object {"text"}, not a list'),
    ("embed", {"a": "", "b": "x"}, '"a" is empty: remove the row'),
    ("embed", {"a": "x", "b": " "}, '"b" is empty: remove the row'),
    ("embed", {"a": "x", "b": "y", "score": "high"}, '"score" must be a finite number, not a string'),
    ("embed", {"a": "x", "b": "y", "score": 3}, "a score, but the rows before it have none"),
    *((task, '{"broken', "not JSON (Unterminated string starting at at column 2;") for task in GOOD),
    *((task, "no JSON at all", "not JSON (Expecting value at column 1;") for task in GOOD),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "row", "said"), BAD, ids=[f"{task} {row}"[:60] for task, row, _ in BAD]
)
def test_a_bad_row_is_named_wherever_it_stands(task, row, said, training, refused, write, trained):
    rows = write("rows.jsonl", *GOOD[task], "", row)
    expected = f"{rows}:4: {said}"
    assert training(task, train=[rows]).startswith(expected)
    assert training(task, valid=[rows]).startswith(expected)
    assert refused("evaluate", "-m", trained(task), "--data", rows).startswith(expected)


@pytest.mark.parametrize("vocabulary", ["byte", "character"])
def test_a_bad_row_is_found_with_every_vocabulary(vocabulary, training, write):
    rows = write("rows.jsonl", *GOOD["classify"], {"text": " ", "label": "en"})
    more = f"--set=data.vocabulary={vocabulary}"
    assert training("classify", more, train=[rows]).startswith(f"{rows}:3: the text is empty")


def test_a_line_without_a_tab(training, write):
    rows = write("rows.tsv", "en\tThe dog slept.", "de Der Hund schlief.")
    assert training("classify", train=[rows]) == f"{rows}:2: no tab (expected label<TAB>text)"


@pytest.mark.parametrize("task", TASKS)
def test_a_file_that_is_empty_or_blank_or_not_text_or_not_there(
    task, training, write, tmp_path, data
):
    second = [] if task != "translate" else [data[task][0][1]]
    for content in (b"", b"\n \n\n"):
        (tmp_path / "rows.txt").write_bytes(content)
        said = training(task, train=[tmp_path / "rows.txt", *second])
        if task == "translate":  # the other side has lines
            assert "lines but" in said
        else:
            assert said == f"{tmp_path / 'rows.txt'} is empty: there is nothing to learn from"
    for vocabulary in ("bpe", "byte"):
        (tmp_path / "rows.txt").write_bytes(b"fine\nen\tcaf\xe9\n")
        said = training(
            task, f"--set=data.vocabulary={vocabulary}", train=[tmp_path / "rows.txt", *second]
        )
        assert str(tmp_path / "rows.txt") in said or "lines but" in said
    assert (
        training(task, train=[tmp_path / "nothing", *second])
        == f"{tmp_path / 'nothing'}: no such file"
    )
    assert training(task, train=[tmp_path, *second]) == f"{tmp_path}: is a folder, not a file"


@pytest.mark.parametrize("task", ["translate", "generate"])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_pipe_cannot_be_trained_on(split, task, training, tmp_path, data):
    """It would be empty when it is read for the second time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    second = [] if task != "translate" else [data[task][0][1]]
    assert training(task, **{split: [pipe, *second]}) == (
        f"{pipe}: is a pipe, which cannot be read twice: write its content to a file first"
    )


def test_two_empty_files_are_both_named(training, write):
    files = [write("empty.en"), write("empty.de")]
    said = training("translate", train=files)
    assert said == f"{files[0]} {files[1]} are empty: there is nothing to learn from"


def test_a_question_longer_than_the_model(training, refused, write, trained):
    long = GOOD["answer"][0] | {"question": "Where is the dog? " * 30}
    rows = write("rows.jsonl", GOOD["answer"][0], long)
    for said in (
        training("answer", valid=[rows]),
        refused("evaluate", "-m", trained("answer"), "--data", rows),
        refused("answer", "-m", trained("answer"), json.dumps(long)).replace("text:1", f"{rows}:2"),
    ):
        assert said.startswith(f"{rows}:2: the question has ")
        assert said.endswith(" tokens: with its context the model reads at most 64")


def test_a_text_to_fill_without_a_gap(refused, trained):
    assert (
        refused("fill", "-m", trained("fill"), "none")
        == "text:1: there is no <mask> to fill: write it in place of a word"
    )


@pytest.mark.parametrize("first", [{"score": 1}, {}])
def test_rows_with_and_without_a_score(first, training, refused, write, trained):
    second = {} if first else {"score": 2}
    rows = write("rows.jsonl", GOOD["embed"][0] | first, GOOD["embed"][1] | second)
    expected = (
        "no score, but the rows before it have one"
        if first
        else "a score, but the rows before it have none"
    )
    for said in (
        training("embed", train=[rows]), training("embed", valid=[rows]),
        refused("evaluate", "-m", trained("embed"), "--data", rows),
    ):  # fmt: skip
        assert said == f"{rows}:2: {expected}"


# ---- duplicates -------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["answer", "classify", "embed"])
@pytest.mark.parametrize("vocabulary", ["bpe", "byte"])
def test_rows_that_stand_there_twice_are_refused_kept_or_dropped(
    task, vocabulary, training, call, write, tmp_path, data
):
    one = write("one.jsonl", *GOOD[task], GOOD[task][0])
    other = write("other.jsonl", "", GOOD[task][1])
    options = f"--set=data.vocabulary={vocabulary}"
    said = training(task, options, "--set=data.duplicates=refuse", train=[one])
    assert (
        said
        == f"{one}:3: the same row as {one}:1: remove it, or set data.duplicates to keep or drop"
    )
    said = training(task, options, "--set=data.duplicates=refuse", train=[other, one])
    assert said.startswith(f"{one}:2: the same row as {other}:2: ")
    assert training(task, "--set=data.duplicates=refuse", valid=[one]).startswith(
        f"{one}:3: the same row as {one}:1"
    )
    layers = LAYERS[STYLE.get(task, "encoder")]
    for what, kept, left in (("keep", "kept", 4), ("drop", "left out", 2)):
        out = tmp_path / what
        code, _, err = call(
            "train", "--task", task, "--train", one, other, "--out", out, *SMALL, *layers, options,
            f"--set=data.duplicates={what}", "--set=training.batch_tokens=200",
        )  # fmt: skip
        assert code == 0, err
        flat = " ".join(err.split())
        assert flat.count("the same row as") == 1
        assert (
            f"{one}:3: the same row as {one}:1 (2 such rows, all {kept}: see data.duplicates)"
            in flat
        )
        assert f"kept {left} 100.0%" in flat
        assert regard.load(out, "cpu").task.name == task


# ---- files and options ------------------------------------------------------------------


@pytest.mark.parametrize("task", ["answer", "generate", "classify", "fill", "embed"])
def test_the_same_file_twice(task, training, data, refused, trained):
    file = data[task][0][0]
    assert training(task, train=[file, file]) == f"{file} is given twice"
    assert training(task, valid=[file, file]) == f"{file} is given twice"
    assert (
        refused("evaluate", "-m", trained(task), "--data", file, file) == f"{file} is given twice"
    )


def test_the_wrong_number_of_files(training, refused, data, trained):
    source, target = data["translate"][0]
    message = (
        "translate takes two files: source, then target; or one file with both (.tsv, .csv, "
        ".jsonl, .json, .parquet)"
    )
    assert training("translate", train=[source]) == message
    assert training("translate", train=[source, target, target]) == message
    assert training("translate", valid=[source]) == message
    assert refused("evaluate", "-m", trained("translate"), "--data", source) == message


def test_an_unknown_task_names_the_nearest(refused, data, tmp_path):
    for wrong, near in (
        ("clasify", "classify"),
        ("filling", "fill"),
        ("generation", "generate"),
        ("awnser", "answer"),
    ):
        said = refused(
            "train", "--task", wrong, "--train", *data["fill"][0], "--out", tmp_path / "run"
        )
        assert said == f"unknown task '{wrong}'; did you mean '{near}'?"


@pytest.mark.parametrize(
    ("task", "style", "needs"),
    [
        ("generate", "encoder", "decoder"), ("generate", "encoder-decoder", "decoder"),
        ("fill", "decoder", "encoder"), ("fill", "encoder-decoder", "encoder"),
        ("embed", "encoder-decoder", "encoder or decoder"),
    ],
)  # fmt: skip
def test_a_style_that_a_task_does_not_have(task, style, needs, refused, data, tmp_path):
    said = refused(
        "train",
        "--task",
        task,
        "--train",
        *data[task][0],
        "--out",
        tmp_path / "run",
        "--style",
        style,
    )
    assert (
        said
        == f"the task {task} and model.style={style} cannot be combined: the task needs {needs}"
    )


def test_a_style_that_does_not_exist(refused, data, tmp_path):
    for task in ("fill", "translate"):
        said = refused(
            "train",
            "--task",
            task,
            "--train",
            *data[task][0],
            "--out",
            tmp_path / "run",
            "--style",
            "decode",
        )
        assert said == "unknown model.style 'decode'; did you mean 'decoder'?"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.mask=0", "data.mask must be above 0, not 0.0"),
        ("data.mask=1", "data.mask must be below 1, not 1.0"),
        ("data.duplicates=forget", "unknown data.duplicates 'forget'"),
        ("data.documents=page", "unknown data.documents 'page'"),
        ("data.share=0", "data.share must be above 0, not 0.0"),
        ("data.whole_words=3", "data.whole_words must be bool, not 3"),
        ("training.balance=yes", "training.balance must be bool, not 'yes'"),
        ("training.similarity_scale=-1", "training.similarity_scale must be above 0, not -1.0"),
        ("training.similarity_scale=0", "training.similarity_scale must be above 0, not 0.0"),
        (
            "training.similarity_scale=10",
            "the task fill and training.similarity_scale=10.0 cannot be combined: it is an option of "
            "embed",
        ),
        (
            "data.shared_vocabulary=false",
            "the task fill and data.shared_vocabulary=false cannot be combined",
        ),
        ("data.vocabulary_size=20", "data.vocabulary_size is 20 but bpe needs at least 263"),
        (
            "training.batch_tokens=3",
            "training.batch_tokens=3 is less than the longest example needs",
        ),
    ],
)
def test_an_option_that_cannot_be(setting, said, training):
    assert training("fill", f"--set={setting}", "--quiet").startswith(said)


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("classify", "data.documents=file"), ("embed", "data.whole_words=true"), ("generate", "data.whole_words=true"),
        ("fill", "data.bpe_dropout=0.1"), ("classify", "data.bpe_dropout=0.1"), ("embed", "training.r_drop=1"),
    ],
)  # fmt: skip
def test_an_option_that_the_task_does_not_have(task, setting, training):
    name = setting.partition("=")[0]
    said = training(task, f"--set={setting}")
    assert said.startswith(f"the task {task} and {name}")
    assert "cannot be combined" in said


CAN = {"embed": {"embed", "fill", "classify", "generate"}}


@pytest.mark.parametrize("verb", TASKS)
def test_a_verb_refuses_a_model_of_another_task(verb, refused, trained):
    for task in TASKS:
        if task in CAN.get(verb, {verb}):
            continue
        said = f"this model was trained to {task}: it cannot {verb}"
        assert refused(verb, "-m", trained(task), "a <mask> text") == said
        assert refused(verb, "-m", trained(task), stdin=["a\tline"]) == said
        assert refused(verb, "-m", trained(task)) == said  # nothing to do, and yet not right
        if verb in ("translate", "generate"):
            assert refused(verb, "-m", trained(task), "--stream", "text") == said


def test_python_refuses_a_model_of_another_task_in_the_same_words(loaded):
    for verb in ("translate", "generate", "classify", "fill"):
        model = loaded("answer")
        with pytest.raises(
            regard.InputError, match=f"this model was trained to answer: it cannot {verb}"
        ):
            getattr(model, verb)("text")
    with pytest.raises(regard.InputError, match="this model was trained to fill: it cannot answer"):
        loaded("fill").answer("q", "c")
    with pytest.raises(regard.InputError, match="a text is a string, not 3"):
        loaded("classify").classify(["x", 3])


def test_python_says_what_it_expects_of_arguments_of_another_kind(loaded, trained):
    folder = trained("fill")
    for call, said in (
        (lambda: loaded("translate").score([1]), r"a pair is \(source, translation\), not 1"),
        (lambda: loaded("translate").score(["ab"]), r"a pair is \(source, translation\), not 'ab'"),
        (lambda: loaded("translate").translate(None), "a string or several strings, not None"),
        (
            lambda: loaded("fill").fill("a <mask>", top="a"),
            "top must be an integer of at least 1, not 'a'",
        ),
        (lambda: regard.load(None), 'a model is a folder, or "box:translate", not None'),
        (lambda: regard.load(folder, device="tpu"), "unknown device 'tpu'; did you mean 'cpu'?"),
    ):
        with pytest.raises(regard.InputError, match=said):
            call()


def test_no_run_is_begun_over_another(call, trained, data):
    folder = trained("fill")
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    code, _, err = call(
        "train", "--task", "fill", "--train", *data["fill"][0], "--out", folder, *SMALL
    )
    assert (code, err.count("\n")) == (2, 1)
    assert f"{folder} is already a run" in err
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before
