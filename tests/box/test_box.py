"""Without -m each verb uses the model in the box; `box:NAME` names it everywhere else."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard import InputError
from regard.tasks.registry import task_names
from regard.training.shipped import contents, folder_of

SENTENCE = "The old man saw the small dog."
VERBS = {
    "translate": [SENTENCE],
    "classify": [SENTENCE],
    "fill": ["The old <mask> saw the dog."],
    "generate": [SENTENCE, "--seed", "1"],
    "embed": [SENTENCE],
    "search": [SENTENCE, "--documents", "documents.txt"],
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Run each test in its own folder, which has a file to search."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "documents.txt").write_text("The dog slept.\nThe queen wrote a letter.\n")


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_model_a_verb_uses_the_one_in_the_box(stand_in, call, verb):
    code, out, err = call(verb, *VERBS[verb], "--device", "cpu")
    assert (code, err) == (0, "")
    assert out.strip()
    folder = stand_in / ("embed" if verb == "search" else verb)
    assert call(verb, *VERBS[verb], "--device", "cpu", "-m", folder) == (0, out, "")


def test_no_verb_writes_into_the_box(stand_in, call):
    def state():
        return {p: p.read_bytes() for p in stand_in.rglob("*") if p.is_file()}

    before = state()
    code, _, err = call("view", "attention", SENTENCE, "--device", "cpu")
    assert code == 0, err
    assert Path("attention.png").is_file()
    assert call("view", "curves", "box:translate") == (0, "curves.png\ncurves.svg\n", "")
    for verb in VERBS:
        assert call(verb, *VERBS[verb])[0] == 0
    assert state() == before


def test_answer_without_a_model_asks_the_user_to_train_one(stand_in, call):
    code, out, err = call("answer", "Who slept?", "--context", "The dog slept.")
    assert (code, out) == (2, "")
    assert "-m is required: no model for the task answer comes with the package" in err
    assert err.count("\n") == 1


def test_missing_model_in_the_box_gives_the_same_message(tmp_path, monkeypatch, call):
    monkeypatch.setattr("regard.training.shipped.FOLDER", tmp_path)
    code, _, err = call("fill", "A <mask>.")
    assert code == 2
    assert "-m is required: no model for the task fill" in err
    code, out, _ = call("info")
    assert (code, out) == (0, "there is no model in the box\n")


@pytest.mark.parametrize("lost", ["config.yaml", "model.safetensors"])
def test_incomplete_model_is_not_in_the_box(filled, tmp_path, monkeypatch, call, lost):
    shutil.copytree(filled, tmp_path / "box")
    (tmp_path / "box/fill" / lost).unlink()
    monkeypatch.setattr("regard.training.shipped.FOLDER", tmp_path / "box")
    code, out, _ = call("info")
    assert code == 0
    assert "box:fill" not in out
    assert "box:embed" in out
    code, _, err = call("fill", "A <mask>.")
    assert code == 2
    assert "-m is required: no model for the task fill" in err


def test_unknown_name_in_the_box_is_refused_with_a_suggestion(stand_in, call):
    for words in (["translate", "a", "-m"], ["info"], ["evaluate", "--data", "x", "-m"]):
        code, _, err = call(*words, "box:translat")
        assert code == 2
        assert "unknown model in the box 'translat'; did you mean 'translate'?" in err
    with pytest.raises(InputError, match=r"unknown model in the box '\.\./secret'"):
        folder_of("box:../secret")


def test_folder_with_the_name_of_a_task_is_not_the_box(stand_in, tmp_path, call):
    """Only the prefix `box:` is special: a folder may have the name of a task."""
    (tmp_path / "translate").mkdir()
    assert folder_of("translate") == Path("translate")
    assert regard.load("box:translate", "cpu").folder == stand_in / "translate"
    with pytest.raises(InputError, match="translate is not a model"):
        regard.load("translate")
    assert call("translate", SENTENCE)[0] == 0


def test_info_lists_the_box_with_sizes_and_scores(stand_in, call):
    code, out, _ = call("info", "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["model"] for row in rows] == [
        f"box:{task}" for task in task_names() if task in contents()
    ]
    for row in rows:
        info = json.loads(call("info", row["model"], "--json")[1])
        assert row["parameters"] == info["parameters"]
        assert row["bytes"] == sum(p.stat().st_size for p in Path(row["folder"]).iterdir())
        assert row["scores"]["loss"] == 2.5
    code, out, _ = call("info")
    assert all(f"box:{task} " in out for task in contents())


def test_evaluate_uses_the_translator_or_the_named_model(stand_in, tmp_path, call):
    (tmp_path / "a.en").write_text("The dog slept.\n" * 3)
    (tmp_path / "a.tsv").write_text("good\tThe dog slept.\nbad\tNo.\n")
    code, out, err = call("evaluate", "--data", "a.en", "a.en", "--samples", 100, "--json")
    assert code == 0, err
    assert json.loads(out)["task"] == "translate"
    code, out, err = call("evaluate", "-m", "box:classify", "--data", "a.tsv", "--against",
                          "box:classify", "--samples", 100, "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["task"] == "classify"


def test_training_can_start_from_a_model_in_the_box(stand_in, tmp_path, call):
    (tmp_path / "a.tsv").write_text("good\tThe dog slept.\nbad\tThe dog slept not.\n" * 20)
    code, _, err = call(
        "train", "--task", "classify", "--from", "box:fill", "--train", "a.tsv", "--out", "run",
        "--set", "training.steps=2", "--set", "training.learning_rate=1e-12", "--device", "cpu", "--quiet",
    )  # fmt: skip
    assert code == 0, err
    start, tuned = (
        regard.load(path, "cpu").transformer.state_dict() for path in ("box:fill", "run")
    )
    body = [name for name in start if not name.startswith("head.")]
    assert len(body) > 20
    for name in body:
        torch.testing.assert_close(tuned[name], start[name], atol=1e-9, rtol=0, msg=name)
    assert call("classify", "-m", "run", SENTENCE, "--device", "cpu")[0] == 0
