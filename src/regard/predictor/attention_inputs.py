"""The attention weights of a model when it reads a text as its task would.

The task's own code prepares the input: an encoder-decoder reads the text and then, with teacher
forcing, its own or a given translation; a decoder-only model reads both in one row; a classifier
reads <cls> and the text. A text that the task would cut is refused, because the picture would show
only a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.decoding.engines.eager import attention_backend
from regard.decoding.requests import Request
from regard.errors import InputError, unknown
from regard.files import real_path
from regard.model.transformer import AttentionCapture
from regard.predictor.attention import (
    MOST,
    Attention,
    Stack,
    Weights,
    cross_rollout,
    rollout,
    stacks_of,
)
from regard.predictor.inputs import check_evaluation_mode, check_text
from regard.tasks.answer import QuestionInput, Questions
from regard.tasks.classify import Classify
from regard.tasks.embed import Embed
from regard.tasks.fill import MASK, Fill
from regard.tasks.generate import Generate
from regard.tasks.sequences import Sequences
from regard.tasks.translate import Translate
from regard.text.batching import Packed

if TYPE_CHECKING:
    from regard.predictor.model import Model


class ModelInput(NamedTuple):
    """The token ids that each stack reads; empty if there is no such stack."""

    source: list[int]
    target: list[int]
    output: list[int]  # the output of the decoder, with <eos>


def gather(
    model: Model,
    text: str,
    target: str | None = None,
    context: str | None = None,
    most: int = MOST,
) -> Attention:
    """The attention weights of every head of every layer when the model reads a text.

    target: the output of the decoder, instead of the model's own output
    context: for a model that answers questions
    most: the largest number of tokens of a row
    """
    check_text(text, *(other for other in (target, context) if other is not None))
    check_evaluation_mode(model.transformer)
    rows = read(model, text, target, context, most)
    task = model.task
    source = (task.source if isinstance(task, Sequences) else task.tokenizer).tokens(rows.source)
    row, output = (task.tokenizer.tokens(ids) for ids in (rows.target, rows.output))
    writes = [""] * (len(row) - len(output)) + output if output else []
    weights, stacks = capture(model, rows), {}
    for name, tokens, written in (("encoder", source, []), ("decoder", row, writes)):
        if name in weights:
            mixed = rollout(weights[name])
            stacks[name] = Stack(name, tokens, tokens, weights[name], mixed, written)
    if "cross" in weights:
        encoder = stacks["encoder"].rollout[-1] if "encoder" in stacks else None
        mixed = cross_rollout(weights.get("decoder"), weights["cross"], encoder)
        stacks["cross"] = Stack("cross", row, source, weights["cross"], mixed, writes)
    title = "model" if model.folder is None else real_path(model.folder).name
    target = task.tokenizer.decode(rows.output)
    return Attention(title, task.name, model.config.model.style, text, target, stacks)


def capture(model: Model, rows: ModelInput) -> dict[str, Weights]:
    """stack -> [L, H, n, m]"""
    transformer, seen = model.transformer, AttentionCapture()
    device = transformer.output_matrix().device
    source, target = (
        Packed.of([row]).to(device) if row else None for row in (rows.source, rows.target)
    )
    with torch.no_grad():
        transformer.hidden(source, target, seen, attention_backend(transformer))
    return {
        name: np.stack([layer[0].float().cpu().numpy() for layer in layers])
        for name, layers in vars(seen).items()
        if layers
    }


def read(model: Model, text: str, target: str | None, context: str | None, most: int) -> ModelInput:
    """The input of the model for a text; each row has at most `most` tokens."""
    task, style = model.task, model.config.model.style
    if not stacks_of(model.config.model):
        name = "mixer" if style == "encoder" else "decoder_mixer"
        value = getattr(model.config.model, name)
        raise InputError(f"model.style={style} with model.{name}={value} has no attention weights")
    if not text.strip():
        raise InputError("the text is empty")
    if context is not None and not isinstance(task, Questions):
        raise InputError(
            f"only a model that answers has a context: this one was trained to {task.name}"
        )
    if isinstance(task, Sequences):
        request = make_request(model, text, context)
    elif isinstance(task, Classify) and style != "encoder":
        check_whole(model, text)
        request = task.request_of(task.tokenizer.encode(text))
    else:
        if target is not None:
            raise InputError(
                f"only a model that writes text has a target: this one was trained to {task.name}"
            )
        row = bounded(single_row(model, text), "the text", most)
        return ModelInput(row, [], []) if style == "encoder" else ModelInput([], row, [])
    bounded(list(request.source), "the text", most)
    if style == "encoder":
        if target is not None:
            raise InputError(
                "a model with model.style=encoder writes all tokens at once and reads no target: "
                "leave the target out"
            )
        return ModelInput(list(request.source), [], [])
    output = target_tokens(model, request, text, target)
    both = style == "encoder-decoder"
    row = [*request.begin(both), *output[:-1]]
    shorten = "the text" if target is None else "the text or the target"
    bounded(row, "the decoder's input", most, shorten)
    return ModelInput(list(request.source) if both else [], row, output)


def make_request(model: Model, text: str, context: str | None) -> Request:
    """The request to a model that translates or answers questions."""
    task = model.task
    if isinstance(task, Questions):
        question = QuestionInput.of(text, context, "the text")
        groups = task.requests([question], model.longest, model.config.decoding.max_length)
    else:
        groups = model.of(Translate).requests([text], model.longest)
    if len(groups[0]) > 1:
        raise too_long(model)
    return groups[0][0]


def target_tokens(model: Model, request: Request, text: str, target: str | None) -> list[int]:
    """The tokens that the decoder writes: those of the target, or the model's own output."""
    task = model.task
    if isinstance(task, Classify):
        label = task.classify(model.transformer, [text])[0].label if target is None else target
        if label not in task.numbers:
            raise unknown("label", label, task.labels)
        return task.written(label)
    assert isinstance(task, Sequences)
    if target is not None:
        return [*request.prefix, *task.target.encode(target), task.target.eos]
    return task.decode(model.transformer, request, model.decoding({})).token_ids


def single_row(model: Model, text: str) -> list[int]:
    """The input of a model that writes no text: one row."""
    task = model.task
    if isinstance(task, Fill) and MASK in text:
        return task.encode_parts(text.split(MASK), model.longest, "the text")
    check_whole(model, text)
    if isinstance(task, Generate):
        return list(task.request(text, model.longest).source)
    if isinstance(task, Classify | Embed):
        return task.ids([text])[0]
    return model.embedder().ids([text])[0]


def check_whole(model: Model, text: str) -> None:
    if len(model.task.tokenizer.encode(text)) > model.task.text_room(model.longest):
        raise too_long(model)


def too_long(model: Model) -> InputError:
    return InputError(
        f"the text is longer than the {model.longest} tokens that the model was trained on: "
        "shorten it"
    )


def bounded(row: list[int], name: str, most: int, shorten: str = "the text") -> list[int]:
    """The row; an InputError if it has too many tokens."""
    if len(row) > most:
        raise InputError(
            f"{name} has {len(row)} tokens, but a figure has room for {most}: shorten {shorten}"
        )
    return row
