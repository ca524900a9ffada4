"""`regard view curves`: the picture shows the metrics of finished, running and damaged runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from regard.errors import InputError
from regard.view.curves import draw_curves, read_curves

pytest.importorskip("matplotlib")
STEPS = (1, 50, 100, 150, 200)
BLEU = {100: 12.5, 150: 31.25, 200: 30.75}


def records(shift: float = 0.0) -> list[dict[str, Any]]:
    """A finished run whose best validation is not its last; line 7 has the best BLEU."""
    lines: list[dict[str, Any]] = []
    for step in STEPS:
        lines.append(
            {"step": step, "loss": 9.0 - step / 40 + shift, "learning_rate": step * 1e-5,
             "tokens_per_second": 1000 + step, "gradient": 1.0, "epoch": 0}
        )  # fmt: skip
        if step in BLEU:
            scores = {"valid_bleu": BLEU[step] + shift, "valid_bleu_signature": "nrefs:1"}
            loss = {100: 6.5, 150: 5.125, 200: 5.375}[step] + shift
            lines.append({"step": step, "valid_loss": loss, **scores, "valid_chrf": 60.0})
    scores = {"loss": 5.0 + shift, "bleu": 33.5 + shift, "chrf": 61.0}
    return [*lines, {"step": 200, "final": "mean of 3 checkpoints", "seconds": 9.5, **scores}]


def write(run: Path, lines: list[dict[str, Any]], torn: str = "") -> Path:
    run.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text + torn, encoding="utf-8")
    return run


def words(svg: Path) -> list[str]:
    """The texts of a picture; the file must be well-formed."""
    tree = ElementTree.fromstring(svg.read_bytes())
    return ["".join(node.itertext()).strip() for node in tree.iter() if node.tag.endswith("}text")]


def size(png: Path) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A run and the two files of its picture, drawn by a program with its own matplotlib settings."""
    import matplotlib

    run = write(tmp_path_factory.mktemp("drawn") / "first", records())
    with matplotlib.rc_context({"font.size": 21.0, "svg.hashsalt": "mine"}):
        png, svg = draw_curves([run], None)
        assert matplotlib.rcParams["font.size"] == 21.0, "drawing changed the program's settings"
        assert matplotlib.rcParams["svg.hashsalt"] == "mine"
    return run, png, svg


def test_a_run_is_drawn_into_its_own_folder_as_png_and_svg(
    drawn: tuple[Path, Path, Path],
) -> None:
    run, png, svg = drawn
    assert (png, svg) == (run / "curves.png", run / "curves.svg")
    assert size(png) == (1600, 1000)
    texts = words(svg)
    assert "first: 200 steps, final BLEU 33.50 (weights: mean of 3 checkpoints)" in texts
    assert {"step", "loss", "BLEU", "learning rate", "tokens per second", "training"} <= set(texts)
    assert sorted(p.name for p in run.iterdir()) == ["curves.png", "curves.svg", "metrics.jsonl"]


def test_the_best_validation_is_the_lowest_loss_and_the_highest_score(
    drawn: tuple[Path, Path, Path],
) -> None:
    run, _, svg = drawn
    curves = read_curves(run, "run")
    assert curves.best("valid_loss") == (150, 5.125)
    assert curves.best("valid_bleu") == (150, 31.25)
    assert {"best 5.125", "best 31.25", "at step 150"} <= set(words(svg))


def test_final_record_is_not_a_point_of_the_training_loss(tmp_path: Path) -> None:
    curves = read_curves(write(tmp_path / "run", records()), "run")
    assert [point.step for point in curves.series["loss"]] == list(STEPS)
    assert curves.series["loss"][-1].value == 4.0


def test_several_runs_share_a_picture_and_each_is_named_beside_its_lines(tmp_path: Path) -> None:
    names = [
        "_hidden",
        "$d_{model}$",
        "翻译",
    ]  # special characters of matplotlib; the last name is not in its font
    runs = [write(tmp_path / name, records(shift)) for shift, name in enumerate(names)]
    png, svg = draw_curves(runs, tmp_path / "new" / "all.png")
    assert (png, svg) == (tmp_path / "new" / "all.png", tmp_path / "new" / "all.svg")
    assert size(png)[0] == 1600
    texts = words(svg)
    assert "Training of 3 runs" in texts
    for shift, name in enumerate(names):
        assert texts.count(name) == 4, "once in each panel"
        assert f"best {31.25 + shift:.2f} at step 150" in texts
        legend = (
            f"{name}: 200 steps, final BLEU {33.5 + shift:.2f} (weights: mean of 3 checkpoints)"
        )
        assert legend in texts


def test_runs_with_equal_names_are_labelled_by_their_paths(
    tmp_path: Path,
) -> None:
    runs = [write(tmp_path / folder / "run", []) for folder in "ab"]
    texts = words(draw_curves(runs, tmp_path / "both.svg")[1])
    assert texts.count("no values") == 4
    for run in runs:
        assert any(text.endswith(f"{run.parent.name}/run: 0 steps, not finished") for text in texts)


def test_the_same_metrics_give_the_same_bytes_in_another_process_with_other_settings(
    tmp_path: Path, drawn: tuple[Path, Path, Path]
) -> None:
    run, png, svg = drawn
    code = (
        "import sys; from pathlib import Path; from regard.view.curves import draw_curves;"
        "draw_curves([Path(sys.argv[1])], Path(sys.argv[2]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    (tmp_path / "matplotlibrc").write_text("axes.facecolor: red\nsavefig.dpi: 30\n")
    settings = {"MATPLOTLIBRC": str(tmp_path), "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    command = [sys.executable, "-c", code, str(run), str(tmp_path / "again.png")]
    subprocess.run(command, env=os.environ | settings, check=True)
    assert (tmp_path / "again.png").read_bytes() == png.read_bytes()
    assert (tmp_path / "again.svg").read_bytes() == svg.read_bytes()


@pytest.mark.parametrize("torn", ['{"step": 250, "lo', '{"step": 250, "loss": 1', "{", "\x00\x00"])
def test_incomplete_last_line_is_ignored(tmp_path: Path, torn: str) -> None:
    whole = read_curves(write(tmp_path / "whole", records()[:-1]), "run")
    assert read_curves(write(tmp_path / "torn", records()[:-1], torn), "run") == whole


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"step": 250, "lo', "this line is not JSON"),
        ("", "this line is not JSON"),
        ("[1]", 'this line is not an object with an integer "step"'),
        ('{"loss": 1.0}', 'this line is not an object with an integer "step"'),
        ('{"step": "2"}', 'this line is not an object with an integer "step"'),
        ('{"step": 2, "loss": "low"}', '"loss" is not a number'),
        ('{"step": 2, "valid_loss": null}', '"valid_loss" is not a number'),
    ],
)
def test_any_other_broken_line_is_named_by_file_and_number(
    tmp_path: Path, line: str, wrong: str
) -> None:
    run = write(tmp_path / "run", records()[:2], f'{line}\n{{"step": 60}}\n')
    with pytest.raises(InputError) as caught:
        draw_curves([run], None)
    assert str(caught.value) == f"{run / 'metrics.jsonl'}:3: {wrong}"
    assert not (run / "curves.png").exists()


def test_folder_without_a_run_is_refused_with_a_hint(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError) as caught:
        draw_curves([write(tmp_path / "run", []), tmp_path], tmp_path / "x.png")
    assert str(caught.value) == (
        f"{tmp_path / 'metrics.jsonl'}: cannot be read (No such file or directory): "
        "give the folder of a run, as regard train --out RUN writes it"
    )
    assert not (tmp_path / "x.png").exists()


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.pdf: write NAME\.png or NAME\.svg"):
        draw_curves([write(tmp_path / "run", records())], tmp_path / "x.pdf")


def test_unwritable_destination_is_an_input_error(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [])
    with pytest.raises(InputError, match=r"x\.png cannot be written: "):
        draw_curves([run], run / "metrics.jsonl" / "x.png")


def test_run_that_has_just_started_is_drawn(tmp_path: Path) -> None:
    png, svg = draw_curves([write(tmp_path / "run", records()[:1])], None)
    assert size(png) == (1600, 1000)
    texts = words(svg)
    assert "run: 1 step, not finished" in texts
    assert texts.count("no values") == 1, "only the validation has no point yet"


def test_nan_and_infinite_losses_leave_a_gap_and_are_never_the_best(tmp_path: Path) -> None:
    lines = records()[:-1]
    lines[4]["loss"] = float("nan")
    lines[3]["valid_loss"], lines[7]["valid_loss"] = float("inf"), -float("inf")
    run = write(tmp_path / "run", lines)
    assert read_curves(run, "run").best("valid_loss") == (150, 5.125)
    texts = words(draw_curves([run], None)[1])
    assert {"run: 200 steps, best BLEU 31.25, not finished", "best 5.125"} <= set(texts)


def test_a_run_that_was_resumed_after_its_end_is_not_finished(tmp_path: Path) -> None:
    more = {"step": 250, "loss": 3.0, "learning_rate": 1e-4, "tokens_per_second": 900}
    curves = read_curves(write(tmp_path / "run", [*records(), more]), "run")
    assert curves.summary() == "run: 250 steps, best BLEU 31.25, not finished"


def test_run_that_is_a_link_loop_is_a_one_line_error(tmp_path, call):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, _, err = call("view", "curves", tmp_path / "loop" / "x", "--out", tmp_path / "a.png")
    assert (code, err.count("\n")) == (2, 1)
