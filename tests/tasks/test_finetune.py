"""--from: what a new model takes from an old one; and runs of every task that stop and go on."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import InputError
from regard.config.sections import Config
from regard.tasks.train import train_config as train
from regard.training.model_folder import load_tokenizers


def weights(folder):
    return load_file(folder / "model.safetensors")


def last(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step}" / "model.safetensors")


def close(one, other):
    """The same but for a step of no length (1e-30), which shows where a weight is zero."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-25)


@pytest.fixture
def tune(call, data, tmp_path):
    """tune("classify", folder, "--set", ...): one step that changes nothing, from another model;
    (exit code, its folder, standard error)."""

    def run(name, start, *more, rate="training.learning_rate=1e-30"):
        task = "embed" if name == "scored" else name
        train_files, valid_files = data[name]
        out = tmp_path / f"tuned-{name}"
        settings = ["training.steps=1", "training.batch_tokens=700", "data.max_length=64",
                    "training.warmup=1", *([rate] if rate else [])]  # fmt: skip
        code, said, err = call(
            "train", "--task", task, "--train", *train_files, "--valid", *valid_files, "--from", start,
            "--out", out, "--quiet", *(f"--set={setting}" for setting in settings), *more,
        )  # fmt: skip
        assert said == ""
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("before", "after", "head"),
    [
        (("fill", None), "classify", "new"),
        (("fill", None), "embed", "new"),
        (("fill", None), "scored", "new"),
        (("fill", None), "fill", "kept"),
        (("generate", None), "generate", "kept"),
        (("generate", None), "translate", "kept"),
        (("generate", None), "answer", "kept"),
        (("translate", "decoder"), "generate", "kept"),
        (("classify", "encoder"), "classify", "kept"),
        (("classify", "encoder"), "fill", "new"),
        (("translate", None), "answer", "kept"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_the_body_is_taken_exactly_and_the_head_where_it_says_the_same(
    before, after, head, trained, tune
):
    start = trained(*before)
    code, out, err = tune(after, start)
    assert (code, err) == (0, "")
    old, new = weights(start), weights(out)
    body = {name for name in old if not name.startswith("head.")}
    assert len(body) > 5
    assert {name for name in new if not name.startswith("head.")} == body
    assert all(close(old[name], new[name]) for name in body)
    shared = [name for name in new if name.startswith("head.") and name in old]
    if head == "kept":
        assert new.keys() == old.keys()
        assert all(close(old[name], new[name]) for name in shared)
    else:
        assert not any(
            close(old[name], new[name])
            for name in shared
            if name.endswith("weight") and "norm" not in name
        )
    assert (out / "tokenizer.json").read_bytes() == (start / "tokenizer.json").read_bytes()
    was, now = (Config.load(folder / "config.yaml") for folder in (start, out))
    assert (now.task, now.model.style) == ("embed" if after == "scored" else after, was.model.style)
    assert now.model.d_model == was.model.d_model
    model = regard.load(out, "cpu")
    use = {"classify": "classify", "embed": "embed", "scored": "embed", "fill": "fill", "generate": "generate",
           "translate": "translate"}  # fmt: skip
    if after in use:
        assert len(getattr(model, use[after])(["The dog <mask> slept."])) == 1


def test_the_head_of_other_labels_is_not_taken(trained, tune, tmp_path):
    start = trained("classify")
    rows = "".join(
        f"{label}\tThe dog {i} slept.\n" for i in range(8) for label in ("yes", "no", "so")
    )
    (tmp_path / "rows.tsv").write_text(rows)
    files = ["--train", tmp_path / "rows.tsv", "--valid", tmp_path / "rows.tsv"]
    code, out, err = tune("classify", start, *files)
    assert (code, err) == (0, "")
    old, new = weights(start), weights(out)
    assert (
        old["head.classes.weight"].shape == new["head.classes.weight"].shape
    )  # also three classes
    assert not close(old["head.classes.weight"], new["head.classes.weight"])
    assert close(old["embeddings.shared.weight"], new["embeddings.shared.weight"])
    assert regard.load(out, "cpu").task.labels == ["no", "so", "yes"]


def test_the_learning_rate_is_a_tenth_unless_it_is_said(trained, tune, configure):
    code, out, _ = tune("classify", trained("fill"), rate=None)
    assert code == 0
    usual = 16**-0.5
    assert Config.load(out / "config.yaml").training.learning_rate == pytest.approx(0.1 * usual)
    fresh = configure("classify", training={"warmup": 1}).training.learning_rate
    assert fresh == pytest.approx(usual)
    told = configure("classify", start=configure("fill"), training={"learning_rate": 0.5})
    assert told.training.learning_rate == 0.5


def test_fine_tuning_begins_where_the_other_ended(trained, tune, data):
    """The loss of the first step is that of the old model, not that of a new one."""
    start = trained("generate")
    code, out, _ = tune("generate", start, rate=None)
    assert code == 0
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    old = [json.loads(line) for line in (start / "metrics.jsonl").read_text().splitlines()]
    ended = [line["valid_loss"] for line in old if "valid_loss" in line][-1]
    assert abs(first - ended) < 0.3 < old[0]["loss"] - ended


@pytest.mark.parametrize(
    ("before", "after", "more", "said"),
    [
        ("fill", "fill", ["--set", "model.d_model=32"], r": .* is \[.*\] but the model needs \[.*\]; the model to start from brings the sizes: leave out the preset"),
        ("fill", "classify", ["--set", "model.encoder_layers=2"], "is nothing but the model needs .*; the model to start from brings the sizes"),
        ("fill", "generate", [], "the task generate and model.style=encoder cannot be combined: the task needs decoder"),
        ("generate", "fill", [], "the task fill and model.style=decoder cannot be combined: the task needs encoder"),
        ("translate", "embed", [], "the task embed and model.style=encoder-decoder cannot be combined"),
        ("generate", "translate", ["--style", "encoder-decoder"], "model.encoder_layers must be at least 1"),
    ],
)  # fmt: skip
def test_a_model_of_another_size_or_style_is_one_line_and_nothing_is_written(
    before, after, more, said, trained, tune
):
    code, out, err = tune(after, trained(before), *more)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(said, err)
    assert not out.exists()
    assert not [path for path in out.parent.iterdir() if path.name.startswith(".tmp-")]


def test_a_model_with_two_vocabularies_is_refused_where_there_is_one(configure, tune, tmp_path):
    start = tmp_path / "two"
    sizes = {"tie_embeddings": "target-output"}
    config = configure(
        "translate", data={"shared_vocabulary": False}, model=sizes, training={"steps": 1}
    )
    train(config, start, quiet=True)
    assert (start / "source-tokenizer.json").exists()
    code, out, err = tune("answer", start)
    assert (code, err.count("\n")) == (2, 1)
    assert (
        "a model to start from with two vocabularies and the task answer cannot be combined" in err
    )
    assert not out.exists()
    code, out, _ = tune("translate", start)
    assert code == 0
    assert not Config.load(out / "config.yaml").data.shared_vocabulary
    for name in ("tokenizer.json", "source-tokenizer.json"):
        assert (out / name).read_bytes() == (start / name).read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "character", "byte"])
def test_the_configuration_says_the_vocabulary_that_from_brings(kind, trained, tune):
    start = trained("fill", vocabulary=kind)
    code, out, err = tune("classify", start)
    assert (code, err) == (0, "")
    was, now = (Config.load(folder / "config.yaml").data for folder in (start, out))
    assert (now.vocabulary, now.vocabulary_size) == (was.vocabulary, was.vocabulary_size)
    assert now.vocabulary == kind == load_tokenizers(out)[1].kind


@pytest.mark.parametrize(
    ("setting", "has"),
    [
        ("data.vocabulary=character", "data.vocabulary=bpe"),
        ("data.vocabulary_size=331", "data.vocabulary_size=330"),
        ("data.shared_vocabulary=false", "data.shared_vocabulary=true"),
    ],
)
def test_another_vocabulary_than_that_of_from_is_refused(setting, has, trained, tune):
    code, out, err = tune("translate", trained("translate"), f"--set={setting}")
    assert code == 2
    said = f"regard: {setting} and a model to start from with {has} cannot be combined: that model brings the vocabulary"
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert not out.exists()


def test_a_configuration_of_another_vocabulary_cannot_start_from_a_model(
    trained, configure, tmp_path
):
    with pytest.raises(InputError, match="that model brings the vocabulary"):
        train(
            configure("fill", data={"vocabulary_size": 400}),
            tmp_path / "new",
            start_from=trained("fill"),
            quiet=True,
        )
    assert not (tmp_path / "new").exists()


def test_a_run_that_was_begun_with_a_false_vocabulary_in_its_configuration_goes_on(trained, tune):
    start = trained("fill", vocabulary="character")
    code, out, _ = tune("classify", start)
    assert code == 0
    path = out / "config.yaml"
    path.write_text(path.read_text().replace("vocabulary: character", "vocabulary: bpe"))
    for steps, more in ((2, []), (3, ["--set=data.vocabulary=bpe"])):
        code, out, err = tune("classify", start, "--resume", f"--set=training.steps={steps}", *more)
        assert (code, err) == (0, "")
        assert (out / "checkpoints" / f"step-{steps}").is_dir()


def test_what_is_no_model_cannot_be_started_from(tune, tmp_path):
    code, out, err = tune("classify", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{tmp_path} is not a model: it has no config.yaml" in err
    assert not out.exists()


# ---- stop and go on ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "style", "sections"),
    [
        ("classify", "encoder", {"training": {"balance": True}}),
        ("classify", "decoder", {}),
        ("fill", None, {"data": {"whole_words": True, "max_length": 20}}),
        ("generate", None, {"data": {"max_length": 20}}),
        ("answer", "encoder", {}),
        ("scored", None, {"data": {"share": 0.5}}),
    ],
    ids=str,
)
def test_a_run_in_two_parts_has_the_same_bits_as_one_at_once(
    name, style, sections, configure, tmp_path
):
    def config(steps):
        training = {"steps": steps, "checkpoint_every": 3, "validate_every": 50}
        training |= sections.get("training", {})
        return configure(
            name, style, **{"model": {"dropout": 0.2}, **sections, "training": training}
        )

    one, two = tmp_path / "at once", tmp_path / "in two"
    train(config(7), one, quiet=True)
    train(config(4), two, quiet=True)
    before = last(two, 4)
    train(config(7), two, resume=True, quiet=True)
    whole, halves = last(one, 7), last(two, 7)
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    assert any(not torch.equal(whole[name], before[name]) for name in whole)
    assert regard.load(two, "cpu").task.name == ("embed" if name == "scored" else name)


def test_fine_tuning_goes_on_from_its_own_checkpoint_not_from_the_other_model(
    configure, trained, tmp_path
):
    start = trained("fill")
    begun = Config.load(start / "config.yaml")

    def config(steps):
        training = {"steps": steps, "checkpoint_every": 2, "validate_every": 50}
        return configure("classify", start=begun, training=training)

    one, two = tmp_path / "at once", tmp_path / "in two"
    train(config(5), one, start_from=start, quiet=True)
    train(config(3), two, start_from=start, quiet=True)
    train(config(5), two, resume=True, start_from=start, quiet=True)
    whole, halves = last(one, 5), last(two, 5)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_other_files_are_not_the_run_that_was_begun(configure, tmp_path, data):
    file = tmp_path / "rows.tsv"
    shutil.copy(data["classify"][0][0], file)
    files = {"train": [str(file)]}
    train(configure("classify", data=files, training={"steps": 2}), tmp_path / "run", quiet=True)
    file.write_text(file.read_text() + "en\tOne more row.\n")
    with pytest.raises(InputError, match="the training files are not the ones .* was started with"):
        train(
            configure("classify", data=files, training={"steps": 4}),
            tmp_path / "run",
            resume=True,
            quiet=True,
        )
