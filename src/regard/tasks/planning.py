"""plan_run: the configuration of a new run, with a preset that suits its data, and warnings.

`make_config` is a pure function of its arguments. This module also looks at the training data and
at the device: it chooses a preset if the user did not, and warns of settings that are valid but
probably not intended. The choice becomes part of the configuration of the run. Messages are printed
when training starts, so that the message of an error is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.model import PRESETS, ModelConfig
from regard.config.parameters import closed_form
from regard.config.sections import Config
from regard.errors import warn_user
from regard.tasks.configuration import Values, make_config
from regard.tasks.registry import find_task
from regard.text.reading import check_file
from regard.training.names import CONFIG

if TYPE_CHECKING:
    from regard.training.callbacks import RunInfo

SIZES = ("encoder_layers", "decoder_layers", "d_model", "heads", "d_ff")
MOST_EXAMPLES, MOST_TOKENS = 400_000, 10_000_000  # limits of the count of training data
FEW_TOKENS = 2_500_000  # of training data: up to here a larger model than tiny only overfits
CHARACTERS = 4  # per token of a byte-pair vocabulary
LONG_TRAINING = 2 * 3600.0  # seconds
SLOWEST_PEAK = 1e10  # operations per second of the slowest CPU; a shorter run is never long
EFFICIENCY = 0.4  # fraction of the peak of a CPU that training reaches
MANY_EPOCHS, ENOUGH_EPOCHS = 100, 40
# Options that do not change the shapes of tensors: weights load without an error for any value.
SILENT = (
    "norm_first", "norm", "norm_epsilon", "activation", "classifier_activation", "positions",
    "position_base", "window", "heads", "scale_embeddings", "pooling",
)  # fmt: skip


@dataclass(frozen=True)
class Amount:
    """The amount of training data, counted up to a limit."""

    examples: int
    tokens: int  # estimated from the number of characters
    complete: bool  # whether the count reached the end of the data

    def __str__(self) -> str:
        return f"{'' if self.complete else 'over '}{self.examples:,} training examples"


@dataclass
class RunPlan:
    """The configuration of a run, and messages about it. It is a callback of the run, which prints
    the messages when training starts (regard/training/callbacks.py)."""

    config: Config
    say: Callable[[str], None]  # prints a message that is not a warning
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def on_start(self, run: RunInfo) -> None:
        for message in self.messages:
            self.say(message)
        training = self.config.training  # of the run, epochs are already steps
        if training.epochs and training.warmup > run.steps and not run.step:
            # The number of steps of an epoch is known only when the data has been prepared.
            source = f"the steps of training.epochs={training.epochs:g}: "
            self.warnings.append(warmup_warning(training.warmup, run.steps, source))
        for warning in self.warnings:
            warn_user(warning)


def plan_run(
    name: str,
    preset: str | None,
    values: dict[str, Values],
    start: Config | None = None,
    *,
    device: str = "auto",
    run: Path | None = None,
    say: Callable[[str], None] = print,
) -> RunPlan:
    """The complete configuration of a run, and messages about it.

    Args:
        name: the task.
        preset: the sizes of the model. None: those of `start`; or "base" if `values` sets a size;
            or a preset that suits the amount of training data and the device.
        values: the user's options by section; data.train is required.
        start: the configuration of the model to start from.
        device: auto, cpu, cuda, ...
        run: the folder of the run that is resumed, if it exists: it keeps its sizes.
        say: called when training starts with the preset that was chosen, and the reason.

    Raises:
        InputError: an option or the training data cannot be used.
    """
    stored = None
    if run is not None and (run / CONFIG).is_file():
        stored = Config.load(run / CONFIG)
    warnings = []
    if preset is not None and start is not None:
        warnings = [
            f"the preset {preset} has no effect: the sizes are those of the model to start from"
        ]
        preset = None
    changes = values.get("model", {})
    if preset is None and start is None and stored is not None:
        stored_sizes = {key: vars(stored.model)[key] for key in (*SIZES, "dropout")}
        # The number of layers of an absent stack is 0 and is not an option.
        stored_sizes = {key: value for key, value in stored_sizes.items() if value}
        values = {**values, "model": {**stored_sizes, **changes}}
    plan = RunPlan(config := make_config(name, preset, values, start), say)
    if stored is not None:
        return plan
    plan.warnings = [*warnings, *setting_warnings(config, changes, start)]
    chosen = preset is None and start is None and not set(SIZES) & set(changes)
    if not chosen and estimated_operations(config) < LONG_TRAINING * SLOWEST_PEAK:
        return plan
    amount, cpu = count_data(config), on_cpu(device)
    if chosen:
        preset = suitable_preset(amount, cpu)
        plan.config = make_config(name, preset, values)
        plan.messages = [f"preset: {preset} (chosen for {amount}{' on a CPU' if cpu else ''})"]
    if cpu and (warning := time_warning(plan.config, amount)):
        plan.warnings.append(warning)
    return plan


def setting_warnings(config: Config, changes: Values, start: Config | None) -> list[str]:
    """One line for each setting that has no effect or is probably not intended.

    Args:
        config: the configuration of the run.
        changes: the user's options of the section `model`.
        start: the configuration of the model to start from.
    """
    warnings, training = [], config.training
    if training.warmup > training.steps and not training.epochs:
        warnings.append(warmup_warning(training.warmup, training.steps, "training.steps="))
    if training.patience and not config.data.valid:
        warnings.append(
            f"training.patience={training.patience} has no effect without validation data"
        )
    ignored = [
        f"model.{key}" for key in ("vocabulary_size", "source_vocabulary_size", "classes")
        if changes.get(key, DERIVED_SIZES[key](config)) != DERIVED_SIZES[key](config)
    ]  # fmt: skip
    if ignored:
        warnings.append(f"{' and '.join(ignored)} will be ignored: the training data defines it")
    if start is not None:
        before = vars(start.model)
        for key in SILENT:
            value = vars(config.model)[key]
            if key in changes and value != before[key] and key != "pooling":
                warnings.append(
                    f"model.{key}={str(value).lower()} differs from the model to start from "
                    f"({str(before[key]).lower()}), whose weights were trained with that value"
                )
    return warnings


def warmup_warning(warmup: int, steps: int, before: str) -> str:
    """The warning about a warm-up of more steps than the run has.

    before: what the message shows before the number of steps
    """
    return (
        f"training.warmup={warmup} is more than {before}{steps}, so the learning rate never reaches"
        f" its peak: set training.warmup to about {max(1, steps // 10)}"
    )


def _vocabulary_size(config: Config) -> int:
    return config.data.vocabulary_size


DERIVED_SIZES: dict[str, Callable[[Config], Any]] = {
    "vocabulary_size": _vocabulary_size,
    "source_vocabulary_size": _vocabulary_size,
    "classes": lambda config: config.model.classes,
}


def count_data(config: Config) -> Amount:
    """The amount of training data; at most 400,000 examples or 10 million tokens are read."""
    task = find_task(config.task)
    files = list(map(Path, config.data.train))
    task.check_files(files)
    for path in files:
        check_file(path)
    per_token = CHARACTERS if config.data.vocabulary == "bpe" else 1
    examples = characters = 0
    complete = True
    for example in task.read(files, config):
        examples += 1
        characters += sum(map(len, task.texts(example)))
        if examples >= MOST_EXAMPLES or characters >= MOST_TOKENS * per_token:
            complete = False
            break
    share = config.data.share
    return Amount(round(examples * share), round(characters / per_token * share), complete)


def suitable_preset(amount: Amount, cpu: bool) -> str:
    """The preset for an amount of training data: a larger model needs more data, and on a CPU it
    takes hours."""
    if amount.complete and (cpu or amount.tokens <= FEW_TOKENS):
        return "tiny"
    return "small" if amount.complete or cpu else "base"


def on_cpu(device: str) -> bool:
    """Whether a run on this device computes on a CPU."""
    from regard.device import choose_device

    return choose_device(device).type == "cpu"


def estimated_operations(config: Config) -> float:
    """The operations of a whole training: 6 for each parameter and token (Kaplan et al. 2020),
    including the product with the output matrix."""
    model, training = config.model, config.training
    parts = closed_form(model)
    weights = sum(part.parameters for name, part in parts.items() if name != "embeddings")
    if model.head in ("language-model", "masked-language-model"):
        weights += model.vocabulary_size * model.d_model
    return 6.0 * weights * training.batch_tokens * training.accumulate * training.steps


def time_warning(config: Config, amount: Amount, peak: float | None = None) -> str:
    """A warning if the training will take hours on this CPU; otherwise empty.

    peak: operations per second of the CPU; None: measure it
    """
    if config.training.epochs:  # the number of steps is not known yet
        return ""
    operations = estimated_operations(config)
    if operations < LONG_TRAINING * SLOWEST_PEAK:
        return ""
    if peak is None:
        peak = cpu_peak(config.training.dtype)
    speed = EFFICIENCY * peak
    if operations / speed < LONG_TRAINING:
        return ""
    advice = []
    tiny = replace_sizes(config, "tiny")
    if tiny is not None and estimated_operations(tiny) < operations / 2:
        shorter = describe_seconds(estimated_operations(tiny) / speed)
        advice.append(f"the preset tiny would take about {shorter}")
    per_epoch = amount.tokens / (config.training.batch_tokens * config.training.accumulate)
    if amount.complete and config.training.steps > MANY_EPOCHS * per_epoch:
        enough = max(100, round(ENOUGH_EPOCHS * per_epoch / 100) * 100)
        advice.append(f"for {amount}, {enough:,} steps are probably enough")
    hint = "".join(f"; {sentence}" for sentence in advice)
    time, steps = describe_seconds(operations / speed), config.training.steps
    return f"training for {steps:,} steps will take about {time} on this CPU{hint}"


def cpu_peak(dtype: str) -> float:
    """Operations per second of large matrix products on this CPU, measured."""
    import torch

    from regard.device import choose_dtype, peak
    from regard.training.trainer import fast_bfloat16

    cpu = torch.device("cpu")
    return peak(cpu, choose_dtype(dtype, cpu, fast_bfloat16))


def replace_sizes(config: Config, preset: str) -> Config | None:
    """The configuration with the sizes of a preset; None if it has these sizes already."""
    sizes = {k: v for k, v in PRESETS[preset].items() if k in SIZES and vars(config.model)[k]}
    if all(vars(config.model)[key] == value for key, value in sizes.items()):
        return None
    derived = {"head_size": None, "key_value_heads": None}
    values = {**config.model.to_dict(), **sizes, **derived}
    parts = {key: value for key, value in vars(config).items() if key != "model"}
    return Config(model=ModelConfig.from_dict(values), **parts)


def describe_seconds(seconds: float) -> str:
    """`12 minutes`, `5 hours`, `3 days`"""
    units: Sequence[tuple[str, float]] = (("day", 86_400), ("hour", 3600), ("minute", 60))
    for name, size in units:
        if seconds >= 2 * size or name == "minute":
            count = max(1, round(seconds / size))
            return f"{count:,} {name}{'s' if count > 1 else ''}"
    raise AssertionError
