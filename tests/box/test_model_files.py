"""Checksums of model files: a changed file is detected, and the change can be accepted."""

import re
import shutil

import pytest
import torch
from safetensors import safe_open

import regard
from regard import Config, InputError
from regard.config.sections import DecodingConfig
from regard.tasks.configuration import make_config
from regard.training.checkpoint import not_finite, read_raw, read_tensors, read_weights, to_bytes
from regard.training.model_folder import file_checksums

TEXT = "The old man saw the small dog."


@pytest.fixture
def saved(make, tmp_path):
    """A folder whose weights contain the checksums of its files."""
    folder = shutil.copytree(make("classify", labels=["bad", "good"]), tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(to_bytes(read_raw(path), files=file_checksums(folder)))
    return folder


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert re.search(old, text)
    path.write_text(re.sub(old, new, text, count=1), encoding="utf-8")


HARMFUL = {
    "half of the merges": ("tokenizer.json", r'("entries": \[\n)(.*\n){20}', r"\1"),
    "other merges": ("tokenizer.json", '"t h"|"h e"', '"t z"'),
    "positions": ("config.yaml", "position_base: 10000.0", "position_base: 9999.0"),
    "length penalty": ("config.yaml", "length_penalty: 0.6", "length_penalty: 0.7"),
    "temperature": ("labels.json", '"temperature": 1.0', '"temperature": 2.0'),
    "order of labels": ("labels.json", r'"bad",\s*"good"', '"good", "bad"'),
}
HARMLESS = {
    "a comment": ("config.yaml", "^", "# a comment\n"),
    "formatting": ("config.yaml", r"dropout: 0\.2", "dropout: 2.0e-01"),
    "training": ("config.yaml", r"steps: \d+", "steps: 7"),
    "data files": ("config.yaml", "- train.de", "- elsewhere.de"),
    "the card": ("README.md", "# A model", "# My model"),
    "the metrics": ("metrics.jsonl", "2.5", "2.25"),
}


@pytest.mark.parametrize("change", HARMFUL)
def test_a_changed_file_is_refused_by_name_and_can_be_accepted(saved, change, tmp_path, call):
    name, old, new = HARMFUL[change]
    regard.load(saved, "cpu")
    edit(saved / name, old, new)
    verbs = [
        ["classify", TEXT, "-m", saved], ["info", saved], ["pack", saved, "--out", tmp_path / "p"],
        ["view", "positions", "-m", saved, "--out", tmp_path / "x.png"],
    ]  # fmt: skip
    for words in verbs:
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        assert err == (
            f"regard: {saved / name} is not the one that model.safetensors was saved with; restore "
            f"it, or, if the change is intended, run: regard info {saved} --accept-changes\n"
        )
    if change in ("half of the merges", "other merges"):
        return  # a vocabulary of the wrong size, or an invalid one
    before = read_raw(saved / "model.safetensors")
    code, _, err = call("info", saved, "--accept-changes")
    assert code == 0, err
    after = read_raw(saved / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert call("classify", TEXT, "-m", saved)[0] == 0


@pytest.mark.parametrize("change", HARMLESS)
def test_files_that_do_not_change_results_may_be_edited(saved, change):
    name, old, new = HARMLESS[change]
    edit(saved / name, old, new)
    regard.load(saved, "cpu")


def test_a_file_that_is_missing_or_new_is_refused(saved):
    shutil.copy(saved / "tokenizer.json", saved / "source-tokenizer.json")
    with pytest.raises(InputError, match="source-tokenizer.json is not the one"):
        regard.load(saved, "cpu")
    (saved / "source-tokenizer.json").unlink()
    (saved / "labels.json").unlink()
    with pytest.raises(InputError, match="labels.json is missing: model.safetensors was saved"):
        regard.load(saved, "cpu")


def test_folder_that_does_not_load_is_not_accepted(saved, call):
    edit(saved / "labels.json", '"bad",', '"bad", "ugly",')
    before = (saved / "model.safetensors").read_bytes()
    code, _, err = call("info", saved, "--accept-changes")
    assert code == 2
    assert "3 labels, but the model has 2 classes" in err
    assert (saved / "model.safetensors").read_bytes() == before
    code, _, err = call("info", "--accept-changes")
    assert (code, err.count("\n")) == (2, 1)


def test_a_model_of_an_earlier_version_loads_without_checksums(make, tmp_path):
    folder = shutil.copytree(make("fill"), tmp_path / "old")
    edit(folder / "config.yaml", "length_penalty: 0.6", "length_penalty: 0.7")
    regard.load(folder, "cpu")


@pytest.mark.parametrize("task", ["translate", "generate", "classify", "fill", "embed"])
def test_models_in_the_box_contain_checksums_of_their_files(task):
    folder = regard.load(f"box:{task}", "cpu").folder
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(file.metadata()) == {"sha256", "files"}


def test_packed_model_contains_checksums_and_is_reproducible(make, tmp_path):
    folder = make("translate")
    for name in ("one", "two"):
        regard.pack(folder, tmp_path / name)
    first, second = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")
    )
    assert first == second
    edit(tmp_path / "one/config.yaml", "length_penalty: 0.6", "length_penalty: 0.7")
    with pytest.raises(InputError, match=r"config\.yaml is not the one"):
        regard.load(tmp_path / "one", "cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_with_nan_or_infinity_are_refused_by_every_verb(make, tmp_path, call, value):
    folder = shutil.copytree(make("classify", labels=["bad", "good"]), tmp_path / "model")
    weights = read_tensors(folder / "model.safetensors")
    weights["encoder.final_norm.weight"][0] = value
    assert not_finite(weights) == "encoder.final_norm.weight"
    (folder / "model.safetensors").write_bytes(to_bytes(weights))
    (tmp_path / "a.tsv").write_text("good\tYes.\nbad\tNo.\n" * 9)
    message = f"{folder / 'model.safetensors'}: encoder.final_norm.weight contains NaN or infinity"
    for words in (
        ["classify", TEXT, "-m", folder], ["embed", TEXT, "-m", folder],
        ["evaluate", "-m", folder, "--data", tmp_path / "a.tsv"],
        ["pack", folder, "--out", tmp_path / "packed"],
        ["train", "--task", "classify", "--from", folder, "--train", tmp_path / "a.tsv", "--out",
         tmp_path / "run", "--quiet"],
    ):  # fmt: skip
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_finite_weights_with_nan_results_are_a_one_line_error(make, tmp_path, call):
    folder = shutil.copytree(make("classify", labels=["bad", "good"]), tmp_path / "model")
    weights = read_tensors(folder / "model.safetensors")
    weights["encoder.final_norm.weight"][:] = 3e38
    (folder / "model.safetensors").write_bytes(to_bytes(weights))
    for verb in ("classify", "embed"):
        code, out, err = call(verb, TEXT, "-m", folder)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "the model computed NaN" in err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_nan_and_infinity_are_detected_in_every_dtype(dtype):
    good = {"a": torch.ones(3, 5, dtype=dtype), "empty": torch.zeros(0, 3, dtype=dtype)}
    assert not_finite(good) == ""
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = torch.ones(3, 5, dtype=dtype)
        bad[2, 1] = value
        assert not_finite(good | {"b": bad}) == "b"


def test_a_weight_that_is_infinite_in_float32_is_refused(tmp_path):
    weights = {"a": torch.full((2, 2), 1e300, dtype=torch.float64)}
    (tmp_path / "model.safetensors").write_bytes(to_bytes(weights))
    with pytest.raises(InputError, match="a contains NaN or infinity"):
        read_weights(tmp_path / "model.safetensors")


def test_a_search_that_needs_more_memory_than_a_machine_has_is_refused(make):
    model = regard.load(make("translate", {"d_model": 512, "decoder_layers": 8}), "cpu")
    model.decoding({"beam": 1, "max_length": 10_000})
    model.decoding({"beam": 4, "max_length": 10_000})
    with pytest.raises(
        InputError, match=r"decoding.max_length=100000 with 4 hypotheses needs 13.1"
    ):
        model.decoding({"beam": 4, "max_length": 100_000})


def test_configuration_is_unchanged_after_writing_and_reading(tmp_path):
    labels = ["2001-01-01", "null", "1e5", "yes", "~", "", "1:30", "0x1f", "a: b", "# c", "é\u2028",
              "<<", "=", "*a", "&b", "!c", "'", '"', "1_000", ".inf", "-", "1.5"]  # fmt: skip
    config = make_config("classify", "tiny", {
        "data": {"train": ["2001-01-01", "no"], "labels": labels},
        "training": {"learning_rate": 1e-05, "clip": 1e22, "steps": 10**9},
    })  # fmt: skip
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    assert Config.load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(("words", "message"), [
    ("info --set model.encoder_layers=1000000", "model.encoder_layers must be at most 1,000, not 1000000"),
    (f"info --set model.window={10**30}", f"model.window must be at most 1,000,000,000, not {10**30}"),
    ("info --set model.d_model=1000000", "a model with 72,086,296,024,576 parameters is too large"),
    ("info --set model.positions=rotary --set model.mixer=dilated --set model.encoder_layers=900",
     "model.kernel=3 and model.encoder_layers=900 cannot be combined"),
    (f"info --set model.heads={'9' * 5000}", "model.heads must be an integer, not inf"),
    (f"TRAIN --set data.vocabulary_size={10**12}", "data.vocabulary_size must be at most 1,000,000"),
    (f"TRAIN --seed {2**64}", "--seed must be at most 9,223,372,036,854,775,807"),
    (f"TRAIN --set training.warmup=1{'0' * 400}", "training.warmup must be at most 1,000,000,000, not 1"),
    ("TRAIN --set training.learning_rate=1e300", "training.learning_rate must be at most 1e+40"),
    (f"TRAIN --set training.clip=1{'0' * 400}", "training.clip must be a finite number, not inf"),
    ("TRAIN --set training.steps=1000000000000000", "training.steps must be at most 1,000,000,000"),
], ids=str)  # fmt: skip
def test_every_number_has_an_upper_bound(words, message, call, tmp_path):
    train = f"train --task fill --train nowhere.txt --out {tmp_path / 'run'}"
    code, out, err = call(*words.replace("TRAIN", train).split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_numbers_that_python_cannot_write_are_refused():
    for value in (10**5000, -(10**5000)):
        with pytest.raises(InputError, match=r"decoding.seed must be at (most|least) .* digits"):
            DecodingConfig(seed=value)
        with pytest.raises(InputError, match="length_penalty must be a finite number"):
            DecodingConfig(length_penalty=value)
