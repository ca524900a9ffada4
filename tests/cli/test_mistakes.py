"""Mistakes of a new user on the command line: each has one line that says what to do."""

import pytest

from command import error_of, regard


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --data x", "unknown option '--data'; did you mean --train?"),
        ("train --output q", "unknown option '--output'; did you mean --out?"),
        ("--verison", "unknown option '--verison'; did you mean --version?"),
        ("translate --input f", "unknown option '--input'; read a file with: regard translate < INPUT > OUTPUT"),
        ("info --model x", "unknown option '--model'; write: regard info MODEL"),
        ("bench", "unknown verb 'bench'; did you mean 'lab'?"),
        ("train --out o --device gpu", "--device must be auto, cpu, cuda, cuda:INDEX or mps, not 'gpu'; did you mean cuda?"),
        ("translate --beam x", "--beam must be an integer, not 'x'"),
        ("translate --length-penalty x", "--length-penalty must be a number, not 'x'"),
        ("translate --beam 3 --n-best 5 hi", "decoding.n_best=5 needs a beam of at least 5, but decoding.beam=3"),
        ("train --out o --valid -5%", "--valid needs a value (see: regard train --help)"),
        ("train --out o --valid 0.05", "--valid must be files or a percentage of the training data, not '0.05'; did you mean 5%?"),
        ("train --out o --task translate", "--train is required (see: regard train --help)"),
        ("train --out o --columns text=a,text=b", "--columns must name each field once, not 'text=a,text=b'"),
        ("train --out o --steps 4 --set training.steps=3", "--steps 4 and --set training.steps=3 cannot be combined: set one of them"),
        ("train --out o --steps 4 --set training.epochs=3", "--steps 4 and --set training.epochs=3 cannot be combined: set one of them"),
        ("translate --beam 3 --set decoding.beam=4 hi", "--beam 3 and --set decoding.beam=4 cannot be combined: set one of them"),
        ("train --out o --resume --preset tiny", "--resume continues a run with its own options: leave out --preset (only --steps and --epochs can be changed)"),
        ("train --out o --resume --set model.heads=4", "--resume continues a run with its own options: leave out --set model.heads (only --steps and --epochs can be changed)"),
        ("translate --stream --n-best 2 hi", "--stream and --n-best cannot be combined: a stream has one output"),
        ("generate --stream --n-best 2 hi", "--stream and --n-best cannot be combined: a stream has one output"),
        ("finish box:translate", "box:translate comes with the package and is finished: finish needs a run folder"),
        ("translate -m nowhere hi", "nowhere: no such folder (expected a model folder or box:NAME)"),
        ("answer --context x y", "-m is required: no model for the task answer comes with the package"),
        ("evaluate --data 5% -m box:classify", "5%: the model was not trained with data.valid=5%: use a file of test data"),
    ],
)  # fmt: skip
def test_mistake_is_explained(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of(*arguments.split()) == message


def test_equal_values_of_an_option_and_set_do_not_contradict():
    assert error_of("train", "--out", "o", "--steps", 4, "--set", "training.steps=4").startswith(
        "--task"
    )


def test_train_suggests_preset_instead_of_model():
    assert "did you mean --preset?" in error_of("train", "--out", "o", "--model", "tiny")


def test_table_without_header_is_explained(tmp_path):
    (tmp_path / "a.csv").write_text("hide new secretions from the parental units,0\n")
    message = error_of(
        "train", "--task", "classify", "--out", tmp_path / "o", "--train", tmp_path / "a.csv"
    )
    assert "the first line must name the columns" in message
    assert message.endswith("insert a header line, such as text,label")


def test_model_to_start_from_keeps_its_structure(tmp_path):
    (tmp_path / "a.tsv").write_text("0\ta\n1\tb\n")
    arguments = (
        "train",
        "--task",
        "classify",
        "--train",
        tmp_path / "a.tsv",
        "--out",
        tmp_path / "o",
    )
    message = error_of(*arguments, "--from", "box:fill", "--set", "model.d_model=64")
    assert message.startswith("model.d_model=64 and a model to start from with model.d_model=")
    message = error_of(*arguments, "--from", "box:fill", "--style", "decoder")
    assert "a model to start from with model.style=encoder cannot be combined" in message


def test_text_of_several_lines_is_one_line_of_output():
    out, err, code = regard("translate", "A dog.\nA cat.\n", "--device", "cpu")
    assert (code, err, out.count("\n")) == (0, "", 1)


def test_file_name_as_text_gives_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.en").write_text("A dog.\n")
    out, err, code = regard("classify", "t.en", "--device", "cpu")
    assert (code, out.count("\n")) == (0, 1)
    assert err == (
        "regard: 't.en' is the name of a file, but is used as a text; to read the lines of the "
        "file: regard classify < t.en\n"
    )


def test_too_few_different_samples_give_a_warning():
    options = ("--temperature", 0.001, "--beam", 1, "--n-best", 3, "--device", "cpu")
    out, err, code = regard("translate", "A dog sleeps.", *options)
    assert (code, out.count("\t")) == (0, 0)
    assert err == "regard: text:1: only 1 different output was found, but 3 were requested\n"


def test_evaluate_names_the_default_model_and_useless_options(tmp_path):
    (tmp_path / "a.tsv").write_text("A dog.\tEin Hund.\n" * 3)
    _, err, code = regard("evaluate", "--data", tmp_path / "a.tsv", "--samples", 5, "--quiet")
    assert code == 0, err
    assert err.splitlines() == [
        "regard: no model is selected with -m: evaluating box:translate",
        "regard: --samples 5 is too few for intervals: use at least 100",
    ]
    (tmp_path / "c.tsv").write_text("positive\tgood\nnegative\tbad\n")
    arguments = ("-m", "box:classify", "--data", tmp_path / "c.tsv", "--quiet", "--beam", 5)
    _, err, _ = regard("evaluate", *arguments)
    assert "--beam has no effect on the task classify" in err


def test_resume_needs_only_the_new_number_of_steps(tmp_path):
    (tmp_path / "a.tsv").write_text("good\tThe dog slept.\nbad\tThe dog barked.\n" * 10)
    run = tmp_path / "run"
    sizes = [f"--set=model.{name}=16" for name in ("d_model", "d_ff")] + ["--set=model.heads=2"]
    _, err, code = regard(
        "train", "--task", "classify", "--train", tmp_path / "a.tsv", "--out", run, "--steps", 2,
        "--set=model.encoder_layers=1", "--set=data.vocabulary_size=280", "--device", "cpu", *sizes,
    )  # fmt: skip
    assert code == 0, err
    _, err, code = regard("train", "--resume", "--out", run, "--steps", 4, "--device", "cpu")
    assert code == 0, err
    assert "steps: 4\n" in (run / "config.yaml").read_text()
