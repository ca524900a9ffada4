"""The rows that a model reads of a text, made by its task's own code, and where it looks in them.

What is shown is what the model does: an encoder-decoder reads the text and then, teacher forcing,
the translation that it made itself or was given; a decoder by itself reads both in one row; a
classifier reads <cls> and the text. A text that the task would cut is refused: half of it would
be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard.decoding.engines.eager import attention_engine
from regard.decoding.requests import Request
from regard.errors import InputError, unknown
from regard.files import real_path
from regard.model.transformer import Capture
from regard.tasks.answer import Asked, Questions
from regard.tasks.classify import Classify
from regard.tasks.embed import Embed
from regard.tasks.fill import MASK, Fill
from regard.tasks.generate import Generate
from regard.tasks.sequences import Sequences
from regard.tasks.translate import Translate
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer
from regard.view.attention import Attention, Stack, Weights, followed, rollout

if TYPE_CHECKING:
    from regard.predictor import Model

MOST = 200  # tokens of a side: more could not be read in a picture


@dataclass(frozen=True)
class Rows:
    """What each stack reads: token ids, none where there is no such stack."""

    source: list[int]
    target: list[int]
    answer: list[int]  # what the decoder writes, <eos> where it ends


def gather(
    model: Model, text: str, target: str | None = None, context: str | None = None
) -> Attention:
    """Where every head of every layer looks when the model reads a text.

    target: what the decoder writes, instead of what it would; context: of a question.
    """
    rows = read(model, text, target, context)
    task = model.task
    source = (task.source if isinstance(task, Sequences) else task.tokenizer).tokens(rows.source)
    row, answer = (task.tokenizer.tokens(ids) for ids in (rows.target, rows.answer))
    writes = [""] * (len(row) - len(answer)) + answer if answer else []
    found = capture(model, rows)
    stacks = {}
    if "encoder" in found:
        weights = found["encoder"]
        stacks["encoder"] = Stack("encoder", source, source, weights, rollout(weights))
    if "decoder" in found:
        weights = found["decoder"]
        stacks["decoder"] = Stack("decoder", row, row, weights, rollout(weights), writes)
    if "cross" in found:
        encoder = stacks["encoder"].rollout[-1] if "encoder" in stacks else None
        reached = followed(found["decoder"], found["cross"], encoder)
        stacks["cross"] = Stack("cross", row, source, found["cross"], reached, writes)
    name = "model" if model.folder is None else real_path(model.folder).name
    said = task.tokenizer.decode(rows.answer)
    return Attention(name, task.name, model.config.model.style, text, said, stacks)


def capture(model: Model, rows: Rows) -> dict[str, Weights]:
    """stack -> [L, H, n, m]"""
    transformer, seen = model.transformer, Capture()
    device = transformer.output_matrix().device
    source, target = (
        Packed.of([row]).to(device) if row else None for row in (rows.source, rows.target)
    )
    with torch.no_grad():
        transformer.hidden(source, target, seen, attention_engine(transformer))
    return {
        name: np.stack([layer[0].float().cpu().numpy() for layer in layers])
        for name, layers in vars(seen).items()
        if layers
    }


# ---- what is read -----------------------------------------------------------------------


def read(model: Model, text: str, target: str | None, context: str | None) -> Rows:
    """The rows of a text, each of at most MOST tokens."""
    task, style = model.task, model.config.model.style
    if not text.strip():
        raise InputError("TEXT is empty: there is nothing to look at")
    if context is not None and not isinstance(task, Questions):
        raise InputError(f"--context belongs to a model that can answer: this one can {task.name}")
    if isinstance(task, Sequences):
        request = requested(model, text, context)
    elif isinstance(task, Classify) and style != "encoder":
        check_whole(model, text)
        request = Request(task.ids([text])[0])
    else:
        if target is not None:
            raise InputError(
                f"--target belongs to a model that writes an answer: this one reads one text, to "
                f"{task.name}"
            )
        row = bounded(alone(model, text), "TEXT")
        return Rows(row, [], []) if style == "encoder" else Rows([], row, [])
    bounded(list(request.source), "TEXT")
    if style == "encoder":
        if target is not None:
            raise InputError(
                "--target: model.style=encoder fills the places of its answer at once and reads "
                "none: leave it out"
            )
        return Rows(list(request.source), [], [])
    answer = answered(model, request, text, target)
    both = style == "encoder-decoder"
    row = [*request.begin(both), *answer[:-1]]
    bounded(row, "what the decoder reads", "TEXT" if target is None else "TEXT or --target")
    return Rows(list(request.source) if both else [], row, answer)


def requested(model: Model, text: str, context: str | None) -> Request:
    """What is asked of a translator, or of a model that answers."""
    task = model.task
    if isinstance(task, Questions):
        asked = Asked.of(text, context, "TEXT")
        groups = task.requests([asked], model.longest, model.config.decoding.max_length)
    else:
        groups = model.of(Translate).requests([text], model.longest)
    if len(groups[0]) > 1:
        raise too_long(model)
    return groups[0][0]


def answered(model: Model, request: Request, text: str, target: str | None) -> list[int]:
    """The tokens of the answer: those of the target, or the model's own."""
    task = model.task
    if isinstance(task, Classify):
        label = task.classify(model.transformer, [text])[0].label if target is None else target
        if label not in task.numbers:
            raise unknown("--target: label", label, task.labels)
        return task.written(label)
    assert isinstance(task, Sequences)
    if target is not None:
        return [*task.target.encode(target), Tokenizer.eos]
    return task.decode(model.transformer, [request], model.decoding({}))[0].tokens


def alone(model: Model, text: str) -> list[int]:
    """What a model reads that writes nothing: one row."""
    task = model.task
    if isinstance(task, Fill) and MASK in text:
        return task.encode_parts(text.split(MASK), model.longest, "TEXT")
    check_whole(model, text)
    if isinstance(task, Generate):
        return list(task.request(text, model.longest).source)
    if isinstance(task, Classify | Embed):
        return task.ids([text])[0]
    return model.embedder().ids([text])[0]


def check_whole(model: Model, text: str) -> None:
    if len(model.task.tokenizer.encode(text)) >= model.longest:
        raise too_long(model)


def too_long(model: Model) -> InputError:
    return InputError(
        f"TEXT is longer than the {model.longest} tokens that the model was trained on: shorten it"
    )


def bounded(row: list[int], what: str, shorten: str = "TEXT") -> list[int]:
    if len(row) > MOST:
        raise InputError(
            f"{what} has {len(row)} tokens, a picture room for {MOST}: shorten {shorten}"
        )
    return row
