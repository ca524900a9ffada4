"""`regard lab styles` from end to end with very small models: the tests check the reported figures,
not speed or quality."""

import csv
import json
import os
from xml.etree import ElementTree

import pytest

from command import regard
from regard.lab.common import training
from regard.lab.styles import measure
from regard.text.builtin import builtin_corpus

STYLES = ("encoder-decoder", "encoder", "decoder")
SMALL = [
    "--steps", "6", "--quiet", "--device", "cpu",
    *(f"--set={setting}" for setting in (
        "model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=16", "model.heads=2",
        "model.d_ff=16", "data.vocabulary_size=400", "training.batch_tokens=300",
        "training.validate_every=3", "decoding.max_length=1",
    )),
]  # fmt: skip


def lab(*arguments):
    out, err, code = regard("lab", "styles", *arguments)
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with files of both tasks and its own cache; the measurements are shortened."""
    folder = tmp_path_factory.mktemp("styles")
    for split, size in (("train", 150), ("valid", 20)):
        pairs = [pair for pair in builtin_corpus(split, 4 * size) if len(pair[0]) < 50][:size]
        for side, name in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{name}").write_text(lines, encoding="utf-8")
        rows = "".join(f"{'long' if len(en) > 35 else 'short'}\t{en}\n" for en, _ in pairs)
        (folder / f"{split}.tsv").write_text(rows, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for module, name, value in (
            (measure, "STEPS", 3), (measure, "TURNS", 1), (training, "SAMPLES", 100),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        yield folder


@pytest.fixture(scope="module")
def translate(folder):
    names = [f"--{split}={folder / split}" for split in ("train", "valid")]
    files = [word for name in names for word in (name.split("=")[0], *both(name.split("=")[1]))]
    return [*files, "--out", folder / "lab", *SMALL]


def both(stem):
    return f"{stem}.en", f"{stem}.de"


@pytest.fixture(scope="module")
def first(translate):
    """The output of the first call."""
    return lab(*translate)


@pytest.fixture(scope="module")
def second(first, translate, folder):
    """The JSON object of a second call, and the changes that it made to the runs."""
    before = weights(folder / "lab")
    results = json.loads(lab(*translate, "--json"))
    assert weights(folder / "lab") == before, "a second call must not train again"
    return results


def weights(out):
    return {path: os.stat(path).st_mtime_ns for path in out.rglob("*.safetensors")}


def test_the_table_compares_three_styles_and_fits_a_terminal(first):
    lines = first.splitlines()
    assert next(line for line in lines if "encoder-decoder" in line).split() == list(STYLES)
    assert max(map(len, lines)) <= 80 or all("written:" in line for line in lines if len(line) > 80)
    for row in ("parameters", "BLEU", "exact match", "95% interval", "ms a step", "batch 32"):
        assert row in first, row
    for style in STYLES:
        assert any(line.startswith(f"{style}: BLEU ") for line in lines), style


def test_second_call_reports_the_same_qualities(first, second):
    rows = {line[:25].strip(): line[25:].split() for line in first.splitlines()}
    results = [second["styles"][style]["quality"] for style in STYLES]
    assert rows["BLEU"] == [f"{result['bleu']['value']:.1f}" for result in results]
    assert rows["exact match"] == [f"{result['exact']['value']:.1%}" for result in results]


def test_all_styles_have_similar_numbers_of_parameters_and_examples_per_step(second):
    styles = second["styles"].values()
    for figures in (
        [result["parameters"] for result in styles],
        [result["training"]["examples_per_step"] for result in styles],
    ):
        assert max(figures) < 1.15 * min(figures)
    assert second["styles"]["encoder-decoder"]["layers"] == [1, 1]
    assert all(len(second["styles"][style]["layers"]) == 1 for style in ("encoder", "decoder"))


def test_json_figures_are_consistent(second):
    assert second["examples"] == 20
    for style, result in second["styles"].items():
        decoding = result["decoding"]
        assert decoding["steps"] == (1 if style == "encoder" else decoding["tokens"])
        for batch in ("batch_1", "batch_32"):
            each = decoding[batch]["ms_per_token"] * decoding["tokens"]
            assert each == pytest.approx(decoding[batch]["ms_per_sentence"])
        for quality in result["quality"].values():
            assert quality["seeds"] == [quality["value"]]
            assert quality["low"] <= quality["high"]
        assert 0 < result["target_share"] < 1
    # The row of a decoder has <sep> where the two of an encoder-decoder have <eos> and <bos>.
    read = {style: result["tokens_read"] for style, result in second["styles"].items()}
    assert read["decoder"] == pytest.approx(read["encoder-decoder"] - 1)
    assert read["encoder"] > read["decoder"]


def test_the_picture_names_the_styles(second, folder):
    assert second["files"] == [
        str(folder / "lab" / f"styles.{end}") for end in ("json", "csv", "png", "svg")
    ]
    assert json.loads((folder / "lab" / "styles.json").read_text()) == second
    rows = list(csv.DictReader((folder / "lab" / "styles.csv").open(encoding="utf-8")))
    assert [row["style"] for row in rows] == list(STYLES)
    assert float(rows[0]["bleu"]) == second["styles"][STYLES[0]]["quality"]["bleu"]["value"]
    tree = ElementTree.parse(folder / "lab" / "styles.svg")
    text = " ".join("".join(node.itertext()) for node in tree.iter() if node.tag.endswith("}text"))
    for style in STYLES:
        assert f"{style}: " in text
    assert "validation BLEU" in text


def test_labels_are_compared_over_several_seeds(folder):
    out = lab(
        "--task", "classify", "--train", folder / "train.tsv", "--valid", folder / "valid.tsv",
        "--out", folder / "labels", "--seed", "1", "2", "--json", *SMALL,
    )  # fmt: skip
    results = json.loads(out)
    assert results["seeds"] == [1, 2]
    for style in STYLES:
        result = results["styles"][style]
        accuracy = result["quality"]["accuracy"]
        assert len(accuracy["seeds"]) == len(result["runs"]) == 2
        assert accuracy["value"] == pytest.approx(sum(accuracy["seeds"]) / 2)
        assert "spread" in accuracy
        assert "macro_f1" in result["quality"]
        assert result["decoding"]["steps"] == 1  # no style generates text: each label is scored
        assert "tokens" not in result["decoding"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "classfy"], "unknown task 'classfy'; did you mean 'classify'?"),
        (["--task", "classify"], "the built-in corpus is for translate: classify needs --train"),
        (["--train", "a", "b"], "--valid is missing"),
        (["--valid", "a", "b"], "--train is missing"),
        (["--train", "a", "b", "--valid", "c", "d"], "a: no such file"),
        (["--seed", "1", "1"], "--seed 1 1: a value is duplicated"),
        (["--set", "model.style=encoder"], "--set model.style cannot be used here"),
        (["--set", "training.seed=2"], "use --seed"),
    ],
)
def test_invalid_comparison_is_refused_in_one_line(arguments, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    out, err, code = regard("lab", "styles", *arguments, "--out", "none")
    assert (out, code) == ("", 2)
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (folder / "none").exists()


def test_missing_test_file_is_reported_before_training(translate, folder):
    options = [*translate, "--out", folder / "late", "--test", folder / "no.en", folder / "no.de"]
    _, err, code = regard("lab", "styles", *options)
    assert code == 2
    assert "no.en: no such file" in err
    assert not (folder / "late").exists()


def test_settings_that_differ_from_the_folder_are_refused(second, translate):
    for change, message in (
        (["--set", "training.learning_rate=0.5"], "training.learning_rate is "),
        (["--steps", "5"], "has training.steps=6 already"),
    ):
        _, err, code = regard("lab", "styles", *translate, *change)
        assert code == 2
        assert message in err


def test_folder_of_another_program_is_never_changed(folder, translate):
    thesis = folder / "thesis"
    thesis.mkdir()
    (thesis / "thesis.txt").write_text("years of work")
    _, err, code = regard("lab", "styles", *translate, "--out", thesis)
    assert code == 2
    assert "exists and was not created by regard lab styles: choose a different --out" in err
    assert [path.name for path in thesis.iterdir()] == ["thesis.txt"]
