"""What all endpoints of the OpenAI interface share: errors, usage, token ids and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from regard.serve.endpoint import Call, Interface, check_texts
from regard.serve.errors import ServiceError, bad_request
from regard.serve.models import ServedModel, in_thread
from regard.text.tokenizer import Tokenizer

LONGEST_STOP = 256  # characters of a stop text


def error_body(error: ServiceError) -> dict[str, Any]:
    """The body of an error response."""
    kind = "invalid_request_error"
    if error.status in (401, 403):
        kind = "authentication_error"
    elif error.status == 429:
        kind = "rate_limit_error"
    elif error.status >= 500:
        kind = "server_error"
    body = {"message": error.message, "type": kind, "param": error.field, "code": error.code}
    return {"error": body}


OPENAI = Interface("openai", error_body)


class Usage(msgspec.Struct):
    """Numbers of tokens, without special tokens. The prompt counts as far as the model read it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


# A text, texts, the token ids of a text, or the token ids of texts.
Texts = str | list[str | int | list[int]]


async def token_ids(call: Call, texts: Texts, tokenizer: Tokenizer, field: str) -> list[list[int]]:
    """The token ids of each text of a request.

    Raises:
        ServiceError: there is no text or too much of it, or an id is not valid.
    """
    items = [texts] if isinstance(texts, str) else texts
    if not items:
        raise bad_request(f"{field}: the list is empty: send at least one text", field)
    if len(items) > (most := call.settings.limits.characters):
        raise ServiceError(
            413, f"{field}: {len(items)} items, but at most {most}", code="too_large", field=field
        )
    if len({type(item) for item in items}) > 1:
        raise bad_request(f"{field}: texts and token ids cannot be mixed in one list", field)
    if strings := [item for item in items if isinstance(item, str)]:
        check_texts(call, strings, field)
        size = sum(map(len, strings))
        return await in_thread(lambda: tokenizer.encode_batch(strings), size)
    ids = [item for item in items if isinstance(item, int)]
    rows = [item for item in items if isinstance(item, list)]
    return check_ids(call, rows or [ids], tokenizer, field)


def check_ids(
    call: Call, rows: list[list[int]], tokenizer: Tokenizer, field: str
) -> list[list[int]]:
    """Refuse token ids beyond the limits, outside the vocabulary, or of special tokens."""
    limits = call.settings.limits
    call.http.state.items = len(rows)  # for the log
    if len(rows) > limits.items:
        raise bad_request(
            f"{field}: {len(rows)} texts, but at most {limits.items}: send several requests", field
        )
    if (count := sum(map(len, rows))) > limits.characters:
        raise ServiceError(
            413, f"{field}: {count} token ids, but at most {limits.characters}: send fewer",
            code="too_large", field=field,
        )  # fmt: skip
    least, most, special = int(tokenizer.text_ids[0]), tokenizer.size - 1, tokenizer.special_ids
    for id in (id for row in rows for id in row):
        if not least <= id <= most:
            raise bad_request(f"{field}: token id {id} is not from {least} to {most}", field)
        if id in special:
            raise bad_request(f"{field}: token id {id} is a special token: leave it out", field)
    return rows


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream contains in addition to its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # ignored: no padding is ever added


class SamplingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that requests for completions and chat completions share."""

    model: Annotated[str, msgspec.Meta(max_length=200)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None  # ignored

    def refuse(self, **supported: Sequence[Any]) -> None:
        """Refuse fields that have none of the supported values.

        Raises:
            ServiceError: the value of a field is not supported.
        """
        penalties = {"presence_penalty": (None, 0), "frequency_penalty": (None, 0)}
        for field, values in {**penalties, "logit_bias": (None, {}), **supported}.items():
            if getattr(self, field) not in values:
                raise bad_request(f"{field} is not supported: leave it out", field)
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is only allowed with stream=true", "stream_options")

    @property
    def stops(self) -> list[str]:
        """The texts before which an output stops.

        Raises:
            ServiceError: there are too many, or one is empty or too long.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > 4:
            raise bad_request(f"stop: {len(stops)} texts, but at most 4", "stop")
        if not all(0 < len(stop) <= LONGEST_STOP for stop in stops):
            raise bad_request(f"stop: a text must have 1 to {LONGEST_STOP} characters", "stop")
        return stops

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


def check_max_tokens(model: ServedModel, value: int, field: str) -> int:
    """Refuse more tokens than the limits allow."""
    if value > (most := model.limits.new_tokens):
        raise bad_request(f"{field}: {value} tokens, but at most {most}", field)
    return value
