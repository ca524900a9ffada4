"""Fine-tuning with --from, and resumed runs of every task."""

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


def close(first, second):
    """Whether two tensors are equal except for one step with a learning rate of 1e-30."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=1e-25)


@pytest.fixture
def tune(call, data, tmp_path):
    """tune("classify", folder, "--set", ...): fine-tune for one step with a
    negligible learning rate; return (exit code, run folder, standard error)."""

    def run(name, start, *more, rate="training.learning_rate=1e-30"):
        task = "embed" if name == "scored" else name
        train_files, valid_files = data[name]
        out = tmp_path / f"tuned-{name}"
        settings = ["training.steps=1", "training.batch_tokens=700", "data.max_length=64",
                    "training.warmup=1", *([rate] if rate else [])]  # fmt: skip
        code, output, err = call(
            "train", "--task", task, "--train", *train_files, "--valid", *valid_files, "--from", start,
            "--out", out, "--quiet", *(f"--set={setting}" for setting in settings), *more,
        )  # fmt: skip
        assert output == ""
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
def test_weights_are_copied_and_the_head_only_for_the_same_output(
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


def test_head_is_new_if_the_labels_differ(trained, tune, tmp_path):
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


def test_default_learning_rate_is_a_tenth(trained, tune, configure):
    code, out, _ = tune("classify", trained("fill"), rate=None)
    assert code == 0
    usual = 16**-0.5
    assert Config.load(out / "config.yaml").training.learning_rate == pytest.approx(0.1 * usual)
    fresh = configure("classify", training={"warmup": 1}).training.learning_rate
    assert fresh == pytest.approx(usual)
    explicit = configure("classify", start=configure("fill"), training={"learning_rate": 0.5})
    assert explicit.training.learning_rate == 0.5


def test_fine_tuning_starts_at_the_loss_of_the_old_model(trained, tune, data):
    """The loss of the first step is that of the old model, not that of a new one."""
    start = trained("generate")
    code, out, _ = tune("generate", start, rate=None)
    assert code == 0
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    old = [json.loads(line) for line in (start / "metrics.jsonl").read_text().splitlines()]
    ended = [line["valid_loss"] for line in old if "valid_loss" in line][-1]
    assert abs(first - ended) < 0.3 < old[0]["loss"] - ended


@pytest.mark.parametrize(
    ("before", "after", "more", "message"),
    [
        ("fill", "fill", ["--set", "model.d_model=32"], r"model.d_model=32 and a model to start from with model.d_model=\d+ cannot be combined: leave out model.d_model"),
        ("fill", "classify", ["--set", "model.encoder_layers=2"], "model.encoder_layers=2 and a model to start from with model.encoder_layers=1 cannot be combined"),
        ("fill", "generate", [], "the task generate and model.style=encoder cannot be combined: the task needs decoder"),
        ("generate", "fill", [], "the task fill and model.style=decoder cannot be combined: the task needs encoder"),
        ("translate", "embed", [], "the task embed and model.style=encoder-decoder cannot be combined"),
        ("generate", "translate", ["--style", "encoder-decoder"], "model.style=encoder-decoder and a model to start from with model.style=decoder cannot be combined"),
    ],
)  # fmt: skip
def test_start_model_with_different_size_or_style_is_refused_without_output(
    before, after, more, message, trained, tune
):
    code, out, err = tune(after, trained(before), *more)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(message, err)
    assert not out.exists()
    assert not [path for path in out.parent.iterdir() if path.name.startswith(".tmp-")]


def test_start_model_with_two_vocabularies_is_refused_for_tasks_with_one(configure, tune, tmp_path):
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
def test_configuration_has_the_vocabulary_of_the_start_model(kind, trained, tune):
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
def test_setting_that_differs_from_the_start_vocabulary_is_refused(setting, has, trained, tune):
    code, out, err = tune("translate", trained("translate"), f"--set={setting}")
    assert code == 2
    message = f"regard: {setting} and a model to start from with {has} cannot be combined: the vocabulary of that model is used"
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert not out.exists()


def test_configuration_with_different_vocabulary_is_refused(trained, configure, tmp_path):
    with pytest.raises(InputError, match="the vocabulary of that model is used"):
        train(
            configure("fill", data={"vocabulary_size": 400}),
            tmp_path / "new",
            start_from=trained("fill"),
            quiet=True,
        )
    assert not (tmp_path / "new").exists()


def test_run_with_wrong_vocabulary_in_its_configuration_resumes(trained, tune):
    start = trained("fill", vocabulary="character")
    code, out, _ = tune("classify", start)
    assert code == 0
    path = out / "config.yaml"
    path.write_text(path.read_text().replace("vocabulary: character", "vocabulary: bpe"))
    for steps, more in ((2, []), (3, ["--set=data.vocabulary=bpe"])):
        code, out, err = tune("classify", start, "--resume", f"--set=training.steps={steps}", *more)
        assert (code, err) == (0, "")
        assert (out / "checkpoints" / f"step-{steps}").is_dir()


def test_folder_without_a_model_is_refused_as_start(tune, tmp_path):
    code, out, err = tune("classify", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{tmp_path} is not a model: it has no config.yaml" in err
    assert not out.exists()


# ---- resumed runs ----------------------------------------------------------------------


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
def test_resumed_run_has_the_same_weights_as_an_uninterrupted_run(
    name, style, sections, configure, tmp_path
):
    def config(steps):
        training = {"steps": steps, "checkpoint_every": 3, "validate_every": 50}
        training |= sections.get("training", {})
        return configure(
            name, style, **{"model": {"dropout": 0.2}, **sections, "training": training}
        )

    complete, resumed = tmp_path / "complete", tmp_path / "resumed"
    train(config(7), complete, quiet=True)
    train(config(4), resumed, quiet=True)
    before = last(resumed, 4)
    train(config(7), resumed, resume=True, quiet=True)
    whole, halves = last(complete, 7), last(resumed, 7)
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    assert any(not torch.equal(whole[name], before[name]) for name in whole)
    assert regard.load(resumed, "cpu").task.name == ("embed" if name == "scored" else name)


def test_fine_tuning_resumes_from_its_own_checkpoint(configure, trained, tmp_path):
    start = trained("fill")
    first_config = Config.load(start / "config.yaml")

    def config(steps):
        training = {"steps": steps, "checkpoint_every": 2, "validate_every": 50}
        return configure("classify", start=first_config, training=training)

    complete, resumed = tmp_path / "complete", tmp_path / "resumed"
    train(config(5), complete, start_from=start, quiet=True)
    train(config(3), resumed, start_from=start, quiet=True)
    train(config(5), resumed, resume=True, start_from=start, quiet=True)
    whole, halves = last(complete, 5), last(resumed, 5)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_run_does_not_resume_with_changed_training_files(configure, tmp_path, data):
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
