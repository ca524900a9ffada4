"""The walk through a small model (walk.py) as JSON values, for the web page of `regard serve`."""

from __future__ import annotations

import threading
from typing import Any

from regard.view.steps import Step
from regard.view.walk import walk_config, walk_steps

_random = threading.Lock()  # the weights come from the random generator of the process


def walk_json(
    text: str, target: str | None = None, style: str = "encoder-decoder", seed: int = 0
) -> dict[str, Any]:
    """Compute the walk of a sentence.

    Args:
        text: the sentence.
        target: the sentence that the decoder reads; None: the text.
        style: the style of the model.
        seed: random seed for the weights.

    Returns:
        {"steps": [{"title", "part", "section", "text", "tables": [{"caption", "picture", "columns",
        "rows", "values", "answers"}]}]}

    Raises:
        InputError: a text is empty or too long, or the model has no place for a target.
    """
    config = walk_config(text, target, style, {})
    with _random:
        steps = walk_steps(text, target, config, seed)
    return {"steps": [step_json(step) for step in steps]}


def step_json(step: Step) -> dict[str, Any]:
    """One step with its table."""
    shape = " × ".join(map(str, step.shape))
    table = {
        "caption": f"[{step.dimensions}] {shape}" + (f": {step.shown}" if step.shown else ""),
        "picture": step.picture, "columns": step.columns, "rows": step.rows,
        "values": step.values, "answers": step.answers,
    }  # fmt: skip
    return {
        "title": step.name, "part": step.part, "section": step.section, "text": step.sentence,
        "tables": [table],
    }  # fmt: skip
