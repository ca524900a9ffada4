"""`regard lab styles`: the three styles on one task, measured side by side.

Input -> target is a task for each of them (tasks/sequences.py says how each reads it), so they can
have the same files, the same vocabulary and the same examples. Two things are evened out, since
they would decide the comparison before it begins:

layers  An encoder-decoder of N + N layers has two stacks, and cross-attention between them. A
        style of one stack gets as many layers as come nearest to its number of parameters.
batch   `training.batch_tokens` counts target tokens, or texts, or whole rows, as the style has
        it. It is taken as the task's usual style counts (translate: the encoder-decoder's target
        tokens; classify: the encoder's text), and scaled for the others by how many tokens they
        count in the same files: a step holds about the same examples for all, in the same order.

What a model learned is kept in --out and found again; times are measured anew at every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config.model import STYLES, ModelConfig
from regard.config.parameters import closed_form
from regard.config.sections import Config
from regard.console import make_console
from regard.device import keep_freed_memory
from regard.errors import unknown
from regard.files import cache_folder
from regard.lab.styles_measured import QUALITY, Style, judge, time_answers, time_training
from regard.lab.styles_report import Report, draw_styles
from regard.lab.trainings import (
    OURS,
    begin,
    check_files,
    check_out,
    check_seeds,
    check_settings,
    finished,
    with_defaults,
    write_builtin,
)
from regard.predictor import load
from regard.tasks.registry import find_task
from regard.text.rows import Rows
from regard.text.store import Store
from regard.training.distributed import choose_device
from regard.training.run import train
from regard.view.info import final_scores

NAME = "styles"


def compare(
    out: Path,
    task: str = "translate",
    files: dict[str, list[str]] | None = None,
    preset: str | None = None,
    values: dict[str, dict[str, Any]] | None = None,
    seeds: Sequence[int] = (1,),
    device: str = "auto",
    quiet: bool = False,
) -> Report:
    """Train each style that is not trained yet, measure all, draw.

    files: those of "train", "valid" and "test"; none: the built-in corpus.
    values: settings by section, as in a configuration; layers are the encoder-decoder's.
    """
    keep_freed_memory()
    where = choose_device(device)
    console = make_console(stderr=True, quiet=quiet)
    values = values or {}
    files = check(out, task, files or {}, values, seeds)
    chosen = with_defaults(bool(files), preset, values)
    files = {"test": files["valid"], **files} if files else write_builtin(out, NAME)
    chosen["data"] |= {"train": files["train"], "valid": files["valid"]}
    chosen["training"]["seed"] = seeds[0]
    paths = [Path(file) for file in files["test"]]
    styles, store, examples = plan(task, preset or "tiny", chosen, paths, quiet)
    begin(out, NAME)
    for seed in seeds:
        for style in styles:
            run = out / f"{style.name}-{seed}"
            training = replace(style.config.training, seed=seed)
            config = replace(style.config, training=training)
            if not finished(run, config, store):
                console.print(f"training the {style.name}, seed {seed}: {run}", soft_wrap=True)
                train(config, run, resume=True, device=device, quiet=quiet)
            style.runs.append(run)
    models = []
    for style in styles:
        console.print(f"evaluating the {style.name}")
        found = [load(run, device) for run in style.runs]
        for model in found:
            judge(style, model, examples, sure=len(seeds) == 1)
        style.seconds = float(final_scores(style.runs[0])["seconds"])
        style.parameters = sum(p.numel() for p in found[0].transformer.parameters())
        models.append(found[0])
    console.print("timing all of them in turns")
    time_training(styles, store, device)
    time_answers(styles, models, examples, where)
    machine, threads = where.type, torch.get_num_threads()
    if machine == "cpu":
        machine += f", {threads} thread{'' if threads == 1 else 's'}"
    drawn = draw_styles(out, task, styles)
    return Report(task, len(examples), list(seeds), machine, styles, drawn)


def check(
    out: Path,
    task: str,
    files: dict[str, list[str]],
    values: dict[str, dict[str, Any]],
    seeds: Sequence[int],
) -> dict[str, list[str]]:
    """Refuse what cannot be compared, before anything is read; gives back the files there are."""
    if task not in QUALITY:
        raise unknown("task", task, QUALITY)
    check_settings(values, {"model.style": "the styles are what is compared", **OURS})
    check_seeds(seeds)
    check_out(out, NAME)
    return check_files(task, files)


def plan(
    task: str, preset: str, values: dict[str, dict[str, Any]], test: list[Path], quiet: bool
) -> tuple[list[Style], Store, list[Any]]:
    """The three configurations, the training data and the test examples. Everything that can be
    wrong with them is found here, before the first style is trained."""

    def build(style: str, **layers: int) -> Config:
        model = {**values["model"], "style": style}
        if layers:
            model = {k: v for k, v in model.items() if not k.endswith("_layers")} | layers
        return Config.build(task, preset, values | {"model": model})

    both = build(STYLES[0])
    learned = find_task(task).learn(both, None, lambda _: None, quiet)
    store, _ = learned.build([Path(f) for f in both.data.train], cache_folder(), both, quiet)
    find_task(task).check_files(test)
    examples = list(learned.read(test, both))
    for example in examples:
        learned.check(example)
    held_out, _ = learned.build(test, cache_folder(), both, quiet)
    wanted, most = 0, 4 * (both.model.encoder_layers + both.model.decoder_layers)
    styles: list[Style] = []
    for name in STYLES:
        config = both if name == STYLES[0] else build(name, **{f"{name}_layers": 1})
        own = learned.with_config(config)
        model = replace(config.model, **own.model_options())
        if name != STYLES[0]:
            sizes = [with_layers(model, n) for n in range(1, most)]
            model = min(sizes, key=lambda one: abs(parameters(one) - wanted))
        wanted = wanted or parameters(model)
        everything = own.batch(held_out, np.arange(len(held_out)), torch.device("cpu"))
        read = float(sum(side.mean() for side in own.sizes(held_out)))
        told = everything.tokens / len(held_out)
        styles.append(Style(replace(config, model=model), own, [], read, told))
    usual = find_task(task).defaults.get("model", {}).get("style", STYLES[0])
    counted = {one.name: one.task.sizes(store)[one.task.counted].mean() for one in styles}
    for style in styles:
        training = style.config.training
        tokens = round(training.batch_tokens * counted[style.name] / counted[usual])
        style.config = replace(style.config, training=replace(training, batch_tokens=tokens))
        # Refuses what is too small for the longest example.
        Rows(style.task.sizes(store), tokens, store.fingerprint, 0, counted=style.task.counted)
    return styles, store, examples


def with_layers(model: ModelConfig, n: int) -> ModelConfig:
    """The same model of one stack, with n layers."""
    if model.style == "encoder":
        return replace(model, encoder_layers=n)
    return replace(model, decoder_layers=n)


def parameters(model: ModelConfig) -> int:
    return sum(part.parameters for part in closed_form(model).values())
