"""What `regard lab styles` measures of a style: quality, time of a step, time of an answer.

Times are taken in turns, one style after the other again and again, so that a machine that is
busy for a while is unfair to none of them; what counts is the median.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config.sections import Config
from regard.device import synchronise
from regard.lab.stepping import Step, time_steps
from regard.ops.cpu import build as native
from regard.predictor import Model
from regard.tasks.bootstrap import SAMPLES, intervals
from regard.tasks.evaluation import report_on
from regard.tasks.registry import find_task
from regard.tasks.task import Task
from regard.tasks.translate import Translate
from regard.text.store import Store

QUALITY = {"translate": ("bleu", "exact"), "classify": ("accuracy", "macro_f1")}
WARM, STEPS = 2, 10  # training steps that are not counted, and that are
SENTENCES, TURNS = 32, 5  # whose answers are timed, one by one and all at once; how often
GREEDY: dict[str, Any] = {"beam": 1, "n_best": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0}


@dataclass
class Style:
    """One of the three: how it is trained, and what is measured of it."""

    config: Config
    task: Task
    runs: list[Path]  # one for each seed
    read: float  # tokens that its stacks read of a test example, together
    told: float  # targets among them: what the head has to say of a test example
    qualities: list[dict[str, float]] = field(default_factory=list)  # one for each seed
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0  # of the training with the first seed
    parameters: int = 0
    steps: list[Step] = field(default_factory=list)
    answers: dict[int, list[float]] = field(default_factory=dict)  # seconds a sentence, by batch
    written: float = 0.0  # tokens of an answer; 0 where none is written (classify)
    turns: float = 0.0  # passes of an answer that wait for the one before

    @property
    def name(self) -> str:
        return self.config.model.style

    @property
    def layers(self) -> list[int]:
        model = self.config.model
        return [n for n in (model.encoder_layers, model.decoder_layers) if n]

    def quality(self, name: str) -> dict[str, Any]:
        """The mean over the seeds; how sure it is, by its interval or by its spread."""
        values = [one[name] for one in self.qualities]
        found: dict[str, Any] = {"value": statistics.mean(values), "seeds": values}
        if len(values) > 1:
            return found | {"spread": statistics.stdev(values)}
        return found | dict(zip(("low", "high"), self.ranges[name], strict=True))

    def to_dict(self) -> dict[str, Any]:
        median = statistics.median
        decoding: dict[str, Any] = {"steps": self.turns}
        if self.written:
            decoding["tokens"] = self.written
        for batch, seconds in self.answers.items():
            sentence = 1000 * median(seconds)
            decoding[f"batch_{batch}"] = {"ms_per_sentence": sentence}
            if self.written:
                decoding[f"batch_{batch}"]["ms_per_token"] = sentence / self.written
        return {
            "layers": self.layers,
            "parameters": self.parameters,
            "quality": {name: self.quality(name) for name in QUALITY[self.config.task]},
            "training": {
                "seconds": self.seconds,
                "batch_tokens": self.config.training.batch_tokens,
                "examples_per_step": statistics.mean(count for _, count, _ in self.steps),
                "ms_per_step": 1000 * median(seconds for seconds, _, _ in self.steps),
                "targets_per_second": median(told / seconds for seconds, _, told in self.steps),
            },
            "decoding": decoding,
            "tokens_read": self.read,
            "target_share": self.told / self.read,
            "runs": [str(run) for run in self.runs],
        }


def judge(style: Style, model: Model, examples: list[Any], sure: bool) -> None:
    """The task's metrics on the test data by greedy search; sure: with their 95% intervals."""
    found = model.evaluate(examples, **GREEDY)
    scores = dict(found.scores)
    if found.answers:
        right = np.array(list(map(str.__eq__, found.answers, found.references)))
        scores["exact"] = float(right.mean())
        exact = {"exact": lambda chosen: float(right[chosen].mean())}
        style.ranges |= intervals(exact, len(right)) if sure else {}
    if sure:
        style.ranges |= report_on(model.task, model.config, found, samples=SAMPLES).intervals
    style.qualities.append({name: scores[name] for name in QUALITY[style.config.task]})


def time_training(styles: list[Style], store: Store, device: str) -> None:
    models = [(style.config, style.task) for style in styles]
    for style, steps in zip(styles, time_steps(models, store, device, WARM, STEPS), strict=True):
        style.steps = steps


def time_answers(
    styles: list[Style], models: list[Model], examples: list[Any], device: torch.device
) -> None:
    """Greedy answers to the same sentences, spread over the test data: one by one, and all at
    once. Before that, to warm up, how much is written in how many steps."""
    spread = np.linspace(0, len(examples) - 1, SENTENCES).round().astype(int).tolist()
    texts = [next(iter(find_task(styles[0].config.task).texts(examples[i]))) for i in spread]
    for style, model in zip(styles, models, strict=True):
        counts = [passes(model, text) for text in texts]
        style.turns, style.written = np.array(counts).mean(0).tolist()
        answer(model, texts)
    for _ in range(TURNS):
        for style, model in zip(styles, models, strict=True):
            for size in (1, SENTENCES):
                synchronise(device)
                began = time.perf_counter()
                for start in range(0, SENTENCES, size):
                    answer(model, texts[start : start + size])
                synchronise(device)
                seconds = (time.perf_counter() - began) / SENTENCES
                style.answers.setdefault(size, []).append(seconds)


def passes(model: Model, text: str) -> tuple[int, int]:
    """Passes of an answer that each wait for the one before, counted, and the tokens it has."""
    transformer = model.transformer
    searched = isinstance(model.task, Translate) and transformer.decoder is not None
    if searched:
        found = model.answers(text, history=True, warn=silent, **GREEDY)[0]
        return sum(len(one.history) for one in found.pieces or [found]), len(found.tokens)
    calls: list[None] = []
    stack = transformer.encoder if transformer.decoder is None else transformer.decoder
    assert stack is not None
    hook = stack.register_forward_hook(lambda *_: calls.append(None))
    try:
        with native.without():
            written = answer(model, [text])
    finally:
        hook.remove()
    return len(calls), written


def answer(model: Model, texts: list[str]) -> int:
    """Answer texts; gives back how many tokens were written."""
    if not isinstance(model.task, Translate):
        model.classify(texts, warn=silent)
        return 0
    return sum(len(one.tokens) for one in model.answers(texts, warn=silent, **GREEDY))


def silent(i: int, said: str) -> None:
    """That a text had to be cut matters to its reader, not to the clock."""
