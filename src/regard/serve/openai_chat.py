"""Chat completions of the OpenAI interface, for models with a chat template.

The template turns the messages of a request into tokens. The output ends at the token or text that
ends a turn. If a conversation is too long, its oldest messages are left out.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec

from regard.errors import InputError
from regard.serve.endpoint import Call, check_texts
from regard.serve.errors import bad_request
from regard.serve.events import stream_events
from regard.serve.models import ServedModel
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
    Usage,
    check_max_tokens,
)
from regard.tasks.chatting import ChatPrompt, chat_prompt
from regard.tasks.generate import Generate


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A part of a message."""

    text: str


class Message(msgspec.Struct):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def texts(self) -> list[str]:
        """The texts of all parts."""
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content]

    def to_dict(self) -> dict[str, str]:
        """The message for a chat template."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "\n".join(self.texts)}


class ChatRequest(SamplingRequest):
    """Write the next turn of a conversation."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=4_096)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    metadata: dict[str, str] | None = None  # ignored, like the following fields
    service_tier: str | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class TopLogprob(msgspec.Struct):
    """A probable token."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct):
    """A token of a message, with the most probable tokens at its place."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a message, with their log-probabilities."""

    content: list[ContentLogprob]
    refusal: None = None


class ReplyMessage(msgspec.Struct):
    """The message that the model wrote."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One reply."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatResponse(msgspec.Struct):
    """The replies to a conversation."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChunkChoice(msgspec.Struct):
    """A part of a reply."""

    index: int
    delta: dict[str, str]
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct):
    """An event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


async def chat(call: Call, request: ChatRequest) -> Any:
    model = call.pool.find("generate", request.model)
    if model.model.chat_template is None:
        raise bad_request(
            f"the model {model.name!r} was not trained on conversations and has no chat template: "
            "use /v1/completions", "model",
        )  # fmt: skip
    request.refuse(
        tools=(None, []), tool_choice=(None, "none", "auto"), functions=(None, []),
        function_call=(None, "none", "auto"), modalities=(None, ["text"]),
        response_format=(None, {"type": "text"}),
    )  # fmt: skip
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs is only allowed with logprobs=true", "top_logprobs")
    prompt, most = await read_prompt(call, model, request), max_tokens(model, request)
    choices = make_choices(
        call, model, request, [list(prompt.request.source)], most, [prompt.request],
        stops=[*prompt.ends.texts, *request.stops], ends=prompt.ends.ids,
        top=(request.top_logprobs or 0) if request.logprobs else None,
    )  # fmt: skip
    name, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    if request.stream:
        events = chunks(request, choices, (name, "chat.completion.chunk", created, model.name))
        return await stream_events(call, OPENAI, events)
    parts = await collect(choices)
    return ChatResponse(
        name, "chat.completion", created, model.name,
        [
            ChatChoice(i, ReplyMessage(part.text), logprobs_of(part), part.finish)
            for i, part in enumerate(parts)
        ],
        usage_of(choices, len(choices)),
    )  # fmt: skip


def max_tokens(model: ServedModel, request: ChatRequest) -> int:
    """The largest number of tokens of a reply; the default is that of the model."""
    for field in ("max_completion_tokens", "max_tokens"):
        if (value := getattr(request, field)) is not None:
            return check_max_tokens(model, value, field)
    return min(model.model.config.decoding.max_length, model.limits.new_tokens)


async def read_prompt(call: Call, model: ServedModel, request: ChatRequest) -> ChatPrompt:
    """The prompt for the next turn of the conversation.

    Raises:
        ServiceError: the messages have too much text, or the chat template refuses them.
    """
    everything = "".join(text for message in request.messages for text in message.texts)
    check_texts(call, [everything], "messages")
    messages, most = [each.to_dict() for each in request.messages], max_tokens(model, request)
    task, longest = model.model.of(Generate), model.model.longest
    try:  # the time that a template needs does not depend on the length of the messages
        return await asyncio.to_thread(chat_prompt, task, messages, longest, most)
    except InputError as error:
        raise bad_request(f"messages: {error}", "messages") from None


async def chunks(
    request: ChatRequest, choices: Sequence[Choice], header: tuple[str, str, int, str]
) -> AsyncGenerator[ChatChunk, None]:
    """The events of a stream."""
    no_usage = None if request.include_usage else msgspec.UNSET
    started = set[int]()
    async with aclosing(merge(choices, streaming=True)) as parts:
        async for i, part in parts:
            if i not in started:
                started.add(i)
                delta = {"role": "assistant", "content": ""}
                yield ChatChunk(*header, [ChunkChoice(i, delta)], no_usage)
            for choice in deltas(i, part):
                yield ChatChunk(*header, [choice], no_usage)
    if request.include_usage:
        yield ChatChunk(*header, [], usage_of(choices, len(choices)))


def deltas(index: int, part: Part) -> Iterator[ChunkChoice]:
    """The events of a stream for a part of a reply."""
    if part.text:
        yield ChunkChoice(index, {"content": part.text}, logprobs_of(part))
    if part.finish is not None:
        yield ChunkChoice(index, {}, None, part.finish)


def logprobs_of(part: Part) -> ChatLogprobs | None:
    """The log-probabilities of a part of a reply."""
    if part.logprobs is None:
        return None
    return ChatLogprobs([content_logprob(token) for token in part.logprobs])


def content_logprob(token: TokenLogprob) -> ContentLogprob:
    top = [TopLogprob(text, logprob, list(content)) for text, content, logprob in token.top]
    return ContentLogprob(token.text, token.logprob, list(token.content), top)
