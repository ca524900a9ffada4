"""Invalid options, settings and models of a task: a one-line error, and no output files."""

from pathlib import Path

import pytest

import regard

TASKS = ("translate", "answer", "generate", "classify", "fill", "embed")


@pytest.mark.parametrize("task", ["answer", "generate", "classify", "fill", "embed"])
def test_duplicate_file_is_reported(task, training_error, data, error_message, trained):
    file = data[task][0][0]
    assert training_error(task, train=[file, file]) == f"{file} is given twice"
    assert training_error(task, valid=[file, file]) == f"{file} is given twice"
    assert (
        error_message("evaluate", "-m", trained(task), "--data", file, file)
        == f"{file} is given twice"
    )


def test_wrong_number_of_files_is_reported(training_error, error_message, data, trained):
    source, target = data["translate"][0]
    message = (
        "translate takes two files: source, then target; or one file with both (.tsv, .csv, "
        ".jsonl, .json, .parquet)"
    )
    assert training_error("translate", train=[source]) == message
    assert training_error("translate", train=[source, target, target]) == message
    assert training_error("translate", valid=[source]) == message
    assert error_message("evaluate", "-m", trained("translate"), "--data", source) == message


def test_unknown_task_gets_suggestion(error_message, data, tmp_path):
    for wrong, near in (
        ("clasify", "classify"),
        ("filling", "fill"),
        ("generation", "generate"),
        ("awnser", "answer"),
    ):
        message = error_message(
            "train", "--task", wrong, "--train", *data["fill"][0], "--out", tmp_path / "run"
        )
        assert message == f"unknown task '{wrong}'; did you mean '{near}'?"


@pytest.mark.parametrize(
    ("task", "style", "needs"),
    [
        ("generate", "encoder", "decoder"), ("generate", "encoder-decoder", "decoder"),
        ("fill", "decoder", "encoder"), ("fill", "encoder-decoder", "encoder"),
        ("embed", "encoder-decoder", "encoder or decoder"),
    ],
)  # fmt: skip
def test_unsupported_style_of_task_is_reported(task, style, needs, error_message, data, tmp_path):
    message = error_message(
        "train", "--task", task, "--train", *data[task][0], "--out", tmp_path / "run",
        "--style", style,
    )  # fmt: skip
    assert (
        message
        == f"the task {task} and model.style={style} cannot be combined: the task needs {needs}"
    )


def test_unknown_style_gets_suggestion(error_message, data, tmp_path):
    for task in ("fill", "translate"):
        message = error_message(
            "train", "--task", task, "--train", *data[task][0], "--out", tmp_path / "run",
            "--style", "decode",
        )  # fmt: skip
        assert message == "unknown model.style 'decode'; did you mean 'decoder'?"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.mask=0", "data.mask must be above 0, not 0.0"),
        ("data.mask=1", "data.mask must be below 1, not 1.0"),
        ("data.duplicates=forget", "unknown data.duplicates 'forget'"),
        ("data.documents=page", "unknown data.documents 'page'"),
        ("data.share=0", "data.share must be above 0, not 0.0"),
        ("data.whole_words=3", "data.whole_words must be true or false, not 3"),
        ("training.balance=yes", "training.balance must be true or false, not 'yes'"),
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
def test_invalid_setting_is_reported(setting, message, training_error):
    assert training_error("fill", f"--set={setting}", "--quiet").startswith(message)


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("classify", "data.documents=file"), ("embed", "data.whole_words=true"), ("generate", "data.whole_words=true"),
        ("fill", "data.bpe_dropout=0.1"), ("classify", "data.bpe_dropout=0.1"), ("embed", "training.r_drop=1"),
    ],
)  # fmt: skip
def test_setting_of_another_task_is_reported(task, setting, training_error):
    name = setting.partition("=")[0]
    message = training_error(task, f"--set={setting}")
    assert message.startswith(f"the task {task} and {name}")
    assert "cannot be combined" in message


SUPPORTED = {"embed": {"embed", "fill", "classify", "generate"}}


@pytest.mark.parametrize("verb", TASKS)
def test_verb_refuses_model_of_another_task(verb, error_message, trained):
    for task in TASKS:
        if task in SUPPORTED.get(verb, {verb}):
            continue
        message = f"this model was trained to {task}: it cannot {verb}"
        assert error_message(verb, "-m", trained(task), "a <mask> text") == message
        assert error_message(verb, "-m", trained(task), stdin=["a\tline"]) == message
        assert error_message(verb, "-m", trained(task)) == message  # also without any text
        if verb in ("translate", "generate"):
            assert error_message(verb, "-m", trained(task), "--stream", "text") == message


def test_python_reports_model_of_another_task_in_the_same_words(loaded):
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


def test_python_reports_arguments_of_wrong_type(loaded, trained):
    folder = trained("fill")
    for call, message in (
        (lambda: loaded("translate").score([1]), r"a pair is \(source, translation\), not 1"),
        (lambda: loaded("translate").score(["ab"]), r"a pair is \(source, translation\), not 'ab'"),
        (lambda: loaded("translate").translate(None), "a string or several strings, not None"),
        (
            lambda: loaded("fill").fill("a <mask>", top="a"),
            "top must be an integer of at least 1, not 'a'",
        ),
        (lambda: regard.load(None), 'a model is a folder, or "box:translate", not None'),
        (
            lambda: regard.load(folder, device="tpu"),
            "device=tpu: choose auto, cpu, cuda, cuda:INDEX or mps",
        ),
    ):
        with pytest.raises(regard.InputError, match=message):
            call()


def test_training_does_not_overwrite_existing_run(call, trained, data, small_options):
    folder = trained("fill")
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    code, _, err = call(
        "train",
        "--task",
        "fill",
        "--train",
        *data["fill"][0],
        "--out",
        folder,
        *small_options("fill"),
    )
    assert (code, err.count("\n")) == (2, 1)
    assert f"{folder} already contains a run" in err
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before
