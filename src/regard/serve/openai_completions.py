"""Completions of the OpenAI interface: a model continues prompts."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import msgspec

from regard.serve.endpoint import Call
from regard.serve.events import stream_events
from regard.serve.openai_choices import (
    Choice,
    Part,
    TokenLogprob,
    collect,
    make_choices,
    merge,
    usage_of,
)
from regard.serve.openai_format import (
    OPENAI,
    SamplingRequest,
    Texts,
    Usage,
    check_max_tokens,
    token_ids,
)

MAX_TOKENS = 16  # OpenAI's default


class CompletionRequest(SamplingRequest):
    """Continue prompts."""

    prompt: Texts | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    suffix: str | None = None
    best_of: int | None = None


class Logprobs(msgspec.Struct):
    """The tokens of a text, with their log-probabilities."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class CompletionChoice(msgspec.Struct):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None


class CompletionResponse(msgspec.Struct):
    """The continuations of prompts, or a part of one of them."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


async def complete(call: Call, request: CompletionRequest) -> Any:
    model = call.pool.find("generate", request.model)
    n = request.n or 1
    request.refuse(suffix=(None,), best_of=(None, n))
    max_tokens = MAX_TOKENS if request.max_tokens is None else request.max_tokens
    choices = make_choices(
        call, model, request,
        await token_ids(
            call, "" if request.prompt is None else request.prompt, model.model.tokenizer, "prompt"
        ),
        check_max_tokens(model, max_tokens, "max_tokens"),
        stops=request.stops, top=request.logprobs, echo=bool(request.echo),
    )  # fmt: skip
    header = (f"cmpl-{secrets.token_hex(12)}", "text_completion", int(time.time()), model.name)
    if request.stream:
        return await stream_events(call, OPENAI, chunks(request, choices, header))
    parts = await collect(choices)
    completions = [completion(request, i, part) for i, part in enumerate(parts)]
    return CompletionResponse(*header, completions, usage_of(choices, n))


async def chunks(
    request: CompletionRequest, choices: Sequence[Choice], header: tuple[str, str, int, str]
) -> AsyncGenerator[CompletionResponse, None]:
    """The events of a stream."""
    no_usage = None if request.include_usage else msgspec.UNSET
    async with aclosing(merge(choices, streaming=True)) as parts:
        async for i, part in parts:
            yield CompletionResponse(*header, [completion(request, i, part)], no_usage)
    if request.include_usage:
        yield CompletionResponse(*header, [], usage_of(choices, request.n or 1))


def completion(request: CompletionRequest, index: int, part: Part) -> CompletionChoice:
    """A choice of the response, or a part of it."""
    logprobs = None
    if part.logprobs is not None:
        tokens = part.logprobs
        logprobs = Logprobs(
            [token.offset for token in tokens],
            [token.logprob for token in tokens],
            [token.text for token in tokens],
            [top_logprobs(token) for token in tokens] if request.logprobs else None,
        )
    return CompletionChoice(index, part.text, logprobs, part.finish)


def top_logprobs(token: TokenLogprob) -> dict[str, float] | None:
    """The most probable tokens at the place of a token, and the token itself."""
    if token.logprob is None:
        return None
    top = {text: logprob for text, _, logprob in token.top}
    return {**top, token.text: token.logprob}
