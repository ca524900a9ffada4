"""The automatic choice of a preset, and warnings about settings without effect."""

from dataclasses import replace

import pytest

from regard.config.sections import Config
from regard.tasks import planning
from regard.tasks.configuration import make_config
from regard.tasks.planning import (
    Amount,
    describe_seconds,
    plan_run,
    setting_warnings,
    suitable_preset,
    time_warning,
)
from regard.text.builtin import builtin_corpus


@pytest.fixture(autouse=True)
def fast_cpu(monkeypatch):
    """Assume the same CPU speed on every machine."""
    monkeypatch.setattr(planning, "cpu_peak", lambda dtype: 2e11)


@pytest.fixture
def files(tmp_path):
    pairs = builtin_corpus("train", 50)
    names = [str(tmp_path / f"train.{side}") for side in ("en", "de")]
    for side, name in enumerate(names):
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(pair[side] + "\n" for pair in pairs)
    return names


def plan(files, preset=None, start=None, **values):
    values = {"data": {"train": files}, "training": {"warmup": 10}, **values}
    return plan_run("translate", preset, values, start, device="cpu")


@pytest.mark.parametrize(
    ("examples", "tokens", "complete", "gpu", "cpu"),
    [
        (900, 20_000, True, "tiny", "tiny"),
        (29_000, 900_000, True, "tiny", "tiny"),
        (160_000, 8_000_000, True, "small", "tiny"),
        (400_000, 10_000_000, False, "base", "small"),
    ],
)
def test_the_preset_grows_with_the_data_and_is_smaller_on_a_cpu(
    examples, tokens, complete, gpu, cpu
):
    amount = Amount(examples, tokens, complete)
    assert (suitable_preset(amount, False), suitable_preset(amount, True)) == (gpu, cpu)


def test_chosen_preset_is_in_the_configuration_and_reported(files):
    chosen = plan(files)
    assert chosen.messages == ["preset: tiny (chosen for 50 training examples on a CPU)"]
    data = {"data": {"train": files}, "training": {"warmup": 10}}
    assert chosen.config == make_config("translate", "tiny", data)


def test_preset_or_size_of_the_user_has_priority(files):
    assert plan(files, "tiny").messages == []
    chosen = plan(files, model={"d_model": 64}, training={"steps": 10, "warmup": 5})
    assert chosen.messages == []
    assert (chosen.config.model.d_model, chosen.config.model.d_ff) == (64, 2048)  # base


def test_resumed_run_keeps_its_sizes(files, tmp_path):
    first = plan(files, "small").config
    (tmp_path / "config.yaml").write_text(first.to_yaml(), encoding="utf-8")
    values = {"data": {"train": files}, "training": {"warmup": 10}}
    again = plan_run("translate", None, values, device="cpu", run=tmp_path)
    assert again.config == first == Config.load(tmp_path / "config.yaml")
    assert again.messages == again.warnings == []


def test_counting_stops_at_a_limit(files, monkeypatch):
    config = make_config("translate", "tiny", {"data": {"train": files}})
    assert str(planning.count_data(config)) == "50 training examples"
    monkeypatch.setattr(planning, "MOST_EXAMPLES", 20)
    assert str(planning.count_data(config)) == "over 20 training examples"


# ---- warnings ---------------------------------------------------------------------------


def test_usual_settings_cause_no_warning(files):
    assert plan(files, "tiny").warnings == []
    assert plan(files).warnings == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"training": {"steps": 100}},
            "training.warmup=500 is more than training.steps=100, so the learning rate",
        ),
        ({"training": {"steps": 100}}, "set training.warmup to about 10"),
        (
            {"training": {"patience": 3}},
            "training.patience=3 has no effect without validation data",
        ),
        ({"model": {"vocabulary_size": 77}}, "model.vocabulary_size will be ignored"),
    ],
)
def test_setting_without_effect_causes_one_warning(files, values, message):
    [warning] = plan(files, "tiny", **values).warnings
    assert message in warning
    assert "--" not in warning


def test_options_that_contradict_the_start_model_cause_a_warning(files):
    start = make_config("translate", "tiny", {})
    assert plan(files, None, start).warnings == []
    assert plan(files, "base", start).warnings == [
        "the preset base has no effect: the sizes are those of the model to start from"
    ]
    assert plan(files, "base", start).config.model.d_model == 128
    [warning] = plan(files, None, start, model={"norm_first": False}).warnings
    assert warning.startswith("model.norm_first=false differs from the model to start from (true)")


def test_every_option_that_changes_no_shape_is_compared_with_the_start_model():
    start = make_config("classify", "tiny", {"model": {"style": "encoder"}})
    changed = replace(start.model, classifier_activation="relu")
    config = replace(start, model=changed)
    [warning] = setting_warnings(config, {"classifier_activation": "relu"}, start)
    assert warning.startswith("model.classifier_activation=relu differs from the model")


def test_long_training_on_a_cpu_causes_a_warning_with_suggestions(files):
    config = make_config("translate", "base", {"data": {"train": files}})
    warning = time_warning(config, Amount(1000, 25_000, True), peak=2e11)
    assert warning.startswith("training for 2,000 steps will take about 8 hours on this CPU; ")
    assert "the preset tiny would take about" in warning
    assert "for 1,000 training examples, 200 steps are probably enough" in warning
    assert time_warning(config, Amount(1000, 25_000, True), peak=1e14) == ""
    short = replace(config, training=replace(config.training, steps=20))
    assert time_warning(short, Amount(1000, 25_000, True), peak=2e11) == ""


def test_duration_has_a_suitable_unit():
    seconds = (10, 60, 1800, 7300, 40_000, 400_000)
    assert [describe_seconds(s) for s in seconds] == [
        "1 minute", "1 minute", "30 minutes", "2 hours", "11 hours", "5 days",
    ]  # fmt: skip
