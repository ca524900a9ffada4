"""The output of the command line: user text is literal, JSON and errors are one line each."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest

import command
import regard
from command import error_of
from regard.cli.evaluate import show
from regard.cli.main import build_parser
from regard.cli.options import bounded
from regard.config.sections import DecodingConfig
from regard.console import as_json, make_console, make_progress, print_counts, visible, visible_line
from regard.tasks.evaluation import EvaluationReport
from regard.tasks.task import Evaluation
from regard.text.corpus import CorpusReport
from regard.training.progress import Progress
from regard.view.info import parameter_table

HOSTILE = "[/b] [bold]x[/bold] :smile: \x1b[31mred\x07 \u202eabc"
ESCAPED = r"[/b] [bold]x[/bold] :smile: \x1b[31mred\x07 \u202eabc"
SOURCES = Path(regard.__file__).parent


# ---- user text and rich -----------------------------------------------------------------


def test_consoles_and_progress_bars_are_created_in_one_module():
    constructor = re.compile(
        r"(?<!make_)\b(?:Console|Progress)\(|from_markup|get_console|rich import print"
    )
    # These use the `Progress` of training.
    training_progress = {"training/run.py", "lab/common/timing.py", "lab/common/synthetic.py"}
    users = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if constructor.search(line) and path.name != "console.py"
    ]
    assert set(users) <= training_progress
    for name in training_progress:
        assert "rich.progress" not in (SOURCES / name).read_text(encoding="utf-8")


def test_console_prints_text_and_tables_literally(capsys):
    from rich.table import Table

    console = make_console(width=200)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    console.print(HOSTILE, soft_wrap=True)
    console.print(table)
    assert capsys.readouterr().out.count(ESCAPED) == 4


def test_the_description_of_a_progress_bar_is_not_markup(capsys):
    console = make_console(width=200)
    with make_progress(console) as bar:
        bar.add_task("[/b] [bold]")
        console.print(bar)
    assert "[/b] [bold]" in capsys.readouterr().out


def test_control_characters_are_escaped_and_ordinary_text_is_not():
    text = "Grüße, 世界 👩‍🚀 नमस्ते\tx\ny"
    assert visible(text) == text
    assert visible_line("a\nb\tc\r") == r"a\nb\tc\r"
    assert visible("\x1b[2J\x9b\u2028\udcff") == r"\x1b[2J\x9b\u2028\udcff"


def test_evaluate_shows_labels_and_paths_literally(capsys):
    details = {
        "labels": [HOSTILE, "b"],
        "confusion": [[1, 2], [3, 4]],
        "exact_by_task": {HOSTILE: 1},
    }
    scores = {f"f1_{HOSTILE}": 0.5, f"{HOSTILE}_signature": HOSTILE}
    evaluation = Evaluation(scores, count=10, details=details)
    theirs = {f"f1_{HOSTILE}": 0.4}
    report = EvaluationReport("classify", evaluation, {}, {}, "models/[/b]:smile:\x1b", theirs)
    show(report)
    out = capsys.readouterr().out
    assert out.count(ESCAPED) == 6
    assert r"b]:smile:\x1b" in out


def test_evaluate_with_labels_that_look_like_markup(tmp_path, monkeypatch):
    labels = ["[/b]", "[bold]"]
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{labels[i % 2]}\tthe {i} cat\n" for i in range(20)), encoding="utf-8")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_NATIVE", "off")  # no native code is compiled
    small = [f"model.{name}" for name in ("d_model=16", "heads=2", "d_ff=16", "encoder_layers=1")]
    small += ["training.steps=2", "training.batch_tokens=200", "data.vocabulary_size=280"]
    run = tmp_path / "[/b]:smile:"
    options = [word for setting in small for word in ("--set", setting)]
    out, err, code = command.regard(
        "train", "--task", "classify", "--train", data, "--valid", data, "--out", run,
        "--preset", "tiny", "--device", "cpu", *options,
    )  # fmt: skip
    assert (out, code) == ("", 0), err
    assert f"{run} is ready" in err
    out, err, code = command.regard("evaluate", "-m", run, "--data", data, "--samples", 100)
    assert (err, code) == ("", 0)
    assert out.count("[/b]") == out.count("[bold]") >= 2
    out, err, code = command.regard("info", run)
    assert (err, code) == ("", 0)
    assert "[/b]:smile:, encoder: 1" in " ".join(out.split())
    out, err, code = command.regard("view", "curves", run)
    assert (out, code) == (f"{run}/curves.png\n{run}/curves.svg\n", 0), err


def test_info_prints_the_model_name_literally(capsys):
    parameter_table(regard.ModelConfig.preset("tiny", vocabulary_size=100)).show("[/b] [red]x")
    assert "[/b] [red]x, encoder-decoder" in capsys.readouterr().out


def test_training_shows_samples_and_counts_literally(capsys):
    progress = Progress(10, quiet=False)
    progress.say(f"  {HOSTILE}")
    counts = CorpusReport(kept=1)
    counts.skip(HOSTILE)
    print_counts(counts.counts, counts.total, make_console(stderr=True))
    assert capsys.readouterr().err.count(ESCAPED) == 2


@pytest.mark.parametrize("name", ["[/b]", "[bold]x", ":smile:", "a\nb", "\x1b[31mred"])
def test_missing_path_with_special_characters_prints_one_line(name):
    for words in (
        ["info", name], ["pack", name, "--out", "x"], ["view", "curves", name],
        ["view", "positions", "-m", name], ["classify", "-m", name, "text"],
        ["evaluate", "-m", "box:classify", "--data", name],
        ["lab", "styles", "--train", name, name, "--valid", name, name, "--out", "x"],
    ):  # fmt: skip
        message = error_of(*words)
        assert visible_line(name) in message
        assert "\x1b" not in message


def test_lab_prints_file_names_literally(tmp_path):
    out = tmp_path / "[bold]:smile:"
    words = ["--steps", 1, "--kinds", "gru", "--length", 8, "--seed", 1, "--device", "cpu"]
    printed, err, code = command.regard("lab", "path", *words, "--out", out)
    assert code == 0, err
    assert f"written: {out}/path.json" in printed


def test_picture_of_any_text_is_valid_xml(tmp_path):
    words = ["view", "attention", "a \x1b[31m $^$ </svg>", "--out", tmp_path / "p.svg"]
    out, err, code = command.regard(*words)
    assert (err, code) == ("", 0)
    assert "\x1b" not in out
    ElementTree.parse(tmp_path / "p.svg")


def test_walk_shows_control_characters_by_their_code_points():
    out, err, code = command.regard("view", "walk", "a\x1b[/b]")
    assert (err, code) == ("", 0)
    assert "\x1b[/b]" not in out
    assert "U+001B" in out


# ---- JSON -------------------------------------------------------------------------------

SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\nj\rk"


def test_json_is_one_line_and_preserves_the_text():
    for value in (SEPARATORS, "Grüße 世界 👩‍🚀", "\udcff", "\x7f\x9b"):
        line = as_json({"text": value})
        assert len(line.splitlines()) == 1
        assert json.loads(line) == {"text": value}
        line.encode("utf-8")
    assert as_json("Grüße") == '"Grüße"'


def test_verbs_print_one_json_line_per_text():
    text = SEPARATORS.replace("\n", "").replace("\r", "")
    for words in (
        ["classify", text, "second"], ["embed", text, "second"], ["fill", text + " <mask>", "<mask>"],
    ):  # fmt: skip
        out, err, code = command.regard(*words, "--json")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert len(lines) == 2
        assert json.loads(lines[0])["text"] == words[1]


def test_verbs_print_json_with_as_json_only():
    for path in SOURCES.rglob("*.py"):
        if "print(json.dumps" in path.read_text(encoding="utf-8"):
            pytest.fail(f"{path.name} prints json.dumps: use regard.console.as_json")


# ---- numbers ----------------------------------------------------------------------------


def numeric_options(parser, verb=()):
    """(verb, option, metavar) of every option of a parser that is not text, a path or a flag."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from numeric_options(child, (*verb, name))
        elif action.type is not None and action.type.__name__ in ("int", "float"):
            yield verb, action


OF_DECODING = {field.name for field in fields(DecodingConfig)}  # DecodingConfig checks these


def test_every_numeric_option_has_bounds():
    checked = 0
    for verb, action in numeric_options(build_parser()):
        if action.type.__qualname__.startswith("number."):  # any number
            assert action.dest in OF_DECODING, (verb, action.dest)
            continue
        for text in ("-1e400", "1e400", "nan", "9" * 6000, "-" + "9" * 400, "x", "", "1e5 "):
            if text == "1e5 " and action.type.__name__ == "float":
                continue
            with pytest.raises(argparse.ArgumentTypeError, match=r"^must be ") as error:
                action.type(text)
            assert len(str(error.value)) < 200
        checked += 1
    assert checked > 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "--data", "x", "--samples", 10**12], "--samples must be at most 10,000, not 1000000000000"),
        (["evaluate", "--data", "x", "--samples", 0], "--samples must be at least 1, not 0"),
        (["evaluate", "--data", "x", "--samples", "1e5"], "--samples must be an integer, not '1e5'"),
        (["translate", "a", "--json", "--alternatives", 10**9], "--alternatives must be at most 1,000, not 1000000000"),
        (["translate", "a", "--length-penalty", 1000], "decoding.length_penalty must be at most 10, not 1000.0"),
        (["translate", "a", "--set", "decoding.length_penalty=11"], "decoding.length_penalty must be at most 10, not 11.0"),
        (["fill", "<mask>", "--top", 10**9], "--top must be at most 1,000, not 1000000000"),
        (["search", "a", "--documents", "x", "--top", -1], "--top must be at least 1, not -1"),
        (["info", "--vocab", 10**12], "--vocab must be at most 10,000,000, not 1000000000000"),
        (["lab", "ablate", "--jobs", 10**6], "--jobs must be at most 1,024, not 1000000"),
        (["lab", "path", "--seconds", "inf"], "--seconds must be finite, not inf"),
        (["lab", "recall", "--distances", 10**9], "--distances must be at most 10,000,000, not 1000000000"),
        (["lab", "complexity", "--limit", "1e9"], "--limit must be at most 1e+06, not 1e+09"),
        (["lab", "styles", "--seed", 2**64], "--seed must be at most 4,294,967,295, not 18446744073709551616"),
        (["view", "walk", "a", "--seed", 2**63], "--seed must be at most 9,223,372,036,854,775,807, not 9223372036854775808"),
        (["view", "positions", "--length", 10**30], f"--length must be at most 10,000,000, not {10**30}: positions are compared"),
        (["view", "attention", "a", "--layer", 0], "--layer must be at least 1, not 0"),
    ],
    ids=lambda value: " ".join(map(str, value[:4])) if isinstance(value, list) else "",
)  # fmt: skip
def test_number_out_of_bounds_prints_one_line(words, message):
    assert error_of(*words) == message


def test_bounds_themselves_are_valid():
    parse = bounded(float, 0.0, 2.0, above=True)
    assert parse("2") == 2.0
    with pytest.raises(argparse.ArgumentTypeError, match="must be above 0, not 0"):
        parse("0")
    assert bounded(int, 1, 3)("3") == 3


def test_extreme_valid_options_print_no_warning():
    legal = [
        ["translate", "The dog slept.", "--length-penalty", "10", "--max-length", "500"],
        ["translate", "The dog slept.", "--beam", "1", "--temperature", "1e-300"],
        [
            "translate",
            "The dog slept.",
            "--beam",
            "1",
            "--temperature",
            "1000",
            "--top-p",
            "1e-300",
        ],
        ["generate", "a", "--max-length", "3", "--temperature", "1000", "--top-k", "1"],
        ["fill", "<mask>", "--top", "1000"],
        ["view", "walk", "a", "--seed", str(2**63 - 1)],
        ["info", "--preset", "tiny", "--vocab", "10000000"],
    ]
    program = (
        "import sys, json, warnings; warnings.simplefilter('error')\n"
        "import command\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    out, err, code = command.regard(*words, '--json')\n"
        "    assert (code, err) == (0, ''), (words, err, code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(legal)],
        capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False,
        env={**os.environ, "REGARD_NATIVE": "off"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["info"], ["info", "box:fill"], ["view", "walk", "One dog."]])
def test_closed_output_pipe_is_not_an_error(words):
    """As in `regard info | true`: exit code 0 and no message."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "regard", *words], stdout=writer, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
