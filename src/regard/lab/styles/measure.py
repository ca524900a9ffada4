"""`regard lab styles`: the three styles on one task, measured side by side.

Each style can learn input -> target (tasks/sequences.py describes how), so all of them can have the
same files, vocabulary and examples. Two things are matched, because otherwise they would decide the
comparison:

layers  An encoder-decoder of N + N layers has two stacks, and cross-attention between them. A
        style of one stack gets the number of layers that comes nearest to its parameters.
batch   `training.batch_tokens` counts target tokens, texts or whole rows, depending on the style.
        It is read as the task's usual style counts (translate: the encoder-decoder's target
        tokens; classify: the encoder's text), and scaled for the others by the number of tokens
        that they count in the same files. A step has about the same examples for all styles.

Trained models are kept in --out and reused. Times are measured again at every call, in turns, so
that a temporarily busy machine slows all styles; the median counts.
"""

from __future__ import annotations

import time
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
from regard.device import choose_device, keep_freed_memory, synchronise
from regard.files import cache_folder
from regard.lab.common import training
from regard.lab.common.timing import machine_name, time_training_steps
from regard.lab.common.training import GREEDY, RESERVED, TrainingOptions, Values
from regard.lab.styles.report import QUALITY, SENTENCES, StyleResult, StylesReport
from regard.ops.cpu import build as native
from regard.predictor.loading import load
from regard.predictor.model import Model
from regard.tasks.bootstrap import intervals
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.tasks.train import train_config
from regard.tasks.translate import Translate
from regard.text.store import Store
from regard.training.model_folder import final_scores

NAME = StylesReport.command
WARM_UP, STEPS = 2, 10  # training steps that are not timed, and that are
TURNS = 5  # repetitions of the timed predictions
QUIET: dict[str, Any] = {"warn": lambda *_: None}  # a truncated text does not matter for the time


def measure_styles(options: TrainingOptions) -> StylesReport:
    """Train each style with each seed, unless that is done already, and measure all of them. The
    layers in the options are the encoder-decoder's."""
    keep_freed_memory()
    device = choose_device(options.device)
    console = make_console(stderr=True, quiet=options.quiet)
    reserved = {"model.style": "the styles are what is compared", **RESERVED}
    options = options.check(NAME, QUALITY, reserved)
    values = options.sections()
    files = options.add_corpus(values, NAME)
    test, preset = files.get("test", files["valid"]), options.preset or "tiny"
    styles, store, examples = plan(options.task, preset, values, test, options.quiet)
    training.create_out(options.out, NAME)
    for seed in options.seeds:
        for style in styles:
            run = options.out / f"{style.name}-{seed}"
            config = training.with_seed(style.config, seed)
            if not training.is_finished(run, config, store):
                console.print(f"training the {style.name}, seed {seed}: {run}", soft_wrap=True)
                train_config(config, run, resume=True, device=options.device, quiet=options.quiet)
            style.runs.append(run)
    timed = []  # the models of the first seed
    for style in styles:
        console.print(f"evaluating the {style.name}")
        models = [load(run, options.device) for run in style.runs]
        for model in models:
            evaluate(style, model, examples, with_intervals=len(models) == 1)
        style.seconds = float(final_scores(style.runs[0])["seconds"])
        style.parameters = sum(p.numel() for p in models[0].transformer.parameters())
        timed.append(models[0])
    console.print("timing all of them in turns")
    configs = [(style.config, style.task) for style in styles]
    steps = time_training_steps(configs, store, options.device, WARM_UP, STEPS)
    for style, own in zip(styles, steps, strict=True):
        style.steps = own
    time_predictions(styles, timed, examples, device)
    seeds, machine = list(options.seeds), machine_name(device)
    return StylesReport(options.task, len(examples), seeds, machine, styles)


def plan(
    task: str, preset: str, values: Values, test: Sequence[str], quiet: bool
) -> tuple[list[StyleResult], Store, list[Any]]:
    """The three configurations, the training data and the test examples. Everything that is wrong
    with them is reported here, before the first training."""

    def build(style: str, **layers: int) -> Config:
        model = {**values["model"], "style": style}
        if layers:
            model = {k: v for k, v in model.items() if not k.endswith("_layers")} | layers
        return make_config(task, preset, values | {"model": model})

    both = build(STYLES[0])
    learned, store, examples = training.read_data(both, test, quiet)
    held_out, _ = learned.build([Path(file) for file in test], cache_folder(), both, quiet)
    goal, limit = 0, 4 * (both.model.encoder_layers + both.model.decoder_layers)
    styles: list[StyleResult] = []
    for name in STYLES:
        config = both if name == STYLES[0] else build(name, **{f"{name}_layers": 1})
        own = learned.with_config(config)
        model = replace(config.model, **own.model_options())
        if name != STYLES[0]:
            sizes = [
                replace(model, **dict[str, Any]({f"{name}_layers": n})) for n in range(1, limit)
            ]
            model = min(sizes, key=lambda candidate: abs(parameters(candidate) - goal))
        goal = goal or parameters(model)
        everything = own.batch(held_out, np.arange(len(held_out)), torch.device("cpu"))
        read = float(sum(side.mean() for side in own.sizes(held_out)))
        targets = everything.tokens / len(held_out)
        styles.append(StyleResult(replace(config, model=model), own, [], read, targets))
    usual = find_task(task).defaults.get("model", {}).get("style", STYLES[0])
    counted = {
        candidate.name: candidate.task.sizes(store)[candidate.task.counted].mean()
        for candidate in styles
    }
    for style in styles:
        settings = style.config.training
        tokens = round(settings.batch_tokens * counted[style.name] / counted[usual])
        style.config = replace(style.config, training=replace(settings, batch_tokens=tokens))
        training.check_batch_tokens(style.config, style.task, store)
    return styles, store, examples


def parameters(model: ModelConfig) -> int:
    return sum(part.parameters for part in closed_form(model).values())


def evaluate(style: StyleResult, model: Model, examples: list[Any], with_intervals: bool) -> None:
    """Add the metrics on the test data with greedy search, and their 95% intervals."""
    evaluation = model.evaluate_examples(examples, **GREEDY)
    scores = dict(evaluation.scores)
    if evaluation.answers:
        exact = np.array(list(map(str.__eq__, evaluation.answers, evaluation.references)))
        scores["exact"] = float(exact.mean())
        if with_intervals:
            metric = {"exact": lambda chosen: float(exact[chosen].mean())}
            style.ranges |= intervals(metric, len(exact))
    if with_intervals:
        style.ranges |= training.bootstrap(model, evaluation)[0]
    style.qualities.append({name: scores[name] for name in QUALITY[style.config.task]})


def time_predictions(
    styles: list[StyleResult], models: list[Model], examples: list[Any], device: torch.device
) -> None:
    """Time greedy predictions for sentences spread over the test data, one by one and all at once.
    A first pass counts their tokens and steps and warms up."""
    spread = np.linspace(0, len(examples) - 1, SENTENCES).round().astype(int).tolist()
    texts = [next(iter(find_task(styles[0].config.task).texts(examples[i]))) for i in spread]
    for style, model in zip(styles, models, strict=True):
        counts = [count_passes(model, text) for text in texts]
        style.passes, style.written = np.array(counts).mean(0).tolist()
        predict(model, texts)
    for _ in range(TURNS):
        for style, model in zip(styles, models, strict=True):
            for size in (1, SENTENCES):
                synchronise(device)
                began = time.perf_counter()
                for start in range(0, SENTENCES, size):
                    predict(model, texts[start : start + size])
                synchronise(device)
                seconds = (time.perf_counter() - began) / SENTENCES
                style.predictions.setdefault(size, []).append(seconds)


def count_passes(model: Model, text: str) -> tuple[int, int]:
    """The number of passes in sequence that a prediction needs, and the tokens that it has."""
    transformer = model.transformer
    if isinstance(model.task, Translate) and transformer.decoder is not None:
        result = model.predict(text, history=True, **QUIET, **GREEDY)
        return sum(len(piece.history) for piece in result.pieces or [result]), len(result.token_ids)
    calls: list[None] = []
    stack = transformer.encoder if transformer.decoder is None else transformer.decoder
    assert stack is not None
    hook = stack.register_forward_hook(lambda *_: calls.append(None))
    try:
        with native.without():
            written = predict(model, [text])
    finally:
        hook.remove()
    return len(calls), written


def predict(model: Model, texts: list[str]) -> int:
    """Translate or classify the texts; returns the number of tokens written."""
    if not isinstance(model.task, Translate):
        model.classify(texts, **QUIET)
        return 0
    return sum(len(result.token_ids) for result in model.predict(texts, **QUIET, **GREEDY))
