"""What the endpoints of /api/... share: the format of errors, fields, tokens and weights."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from regard.serve.endpoint import Call, Interface
from regard.serve.errors import Loading, ServiceError, bad_request
from regard.serve.models import ServedModel
from regard.text.stream import TextStream
from regard.text.tokenizer import Tokenizer

MOST_WEIGHTS = 2_000_000  # attention weights of a response: 5 MB of base64


def error_body(error: ServiceError) -> dict[str, Any]:
    """The body of an error response."""
    body = {"message": error.message, "code": error.code, "field": error.field}
    return {"error": body}


API = Interface("api", error_body)

Name = Annotated[str, Meta(min_length=1, max_length=200)]
ModelField = Annotated[
    Name | None, Meta(description="name of the model (default: the first model for the task)")
]
UsedModel = Annotated[str, Meta(description="name of the model")]
Texts = Annotated[list[str], Meta(min_length=1, description="the texts")]
Start = Annotated[int, Meta(ge=0, description="first character, in Unicode code points")]
End = Annotated[int, Meta(ge=0, description="end of the last character, in Unicode code points")]
Logprob = Annotated[float, Meta(description="natural logarithm of the probability")]
TokenText = Annotated[
    str, Meta(description="the token in readable form: ▁ is a space, \\xc3 a part of a character")
]


class Span(msgspec.Struct):
    """A token, and the characters of the text that it covers. A special token such as <eos> covers
    none: start equals end. Tokens that share a character overlap."""

    text: TokenText
    start: Start
    end: End


def token_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The characters of `tokenizer.decode(ids)` that each token covers, as (start, end).

    A token can end inside a character: then this character belongs to it and to the next token.
    """
    decoder, spans = codecs.getincrementaldecoder("utf-8")("replace"), list[tuple[int, int]]()
    length, unfinished = 0, False  # characters so far, and whether one more has begun
    if not tokenizer.exact:
        stream = TextStream(tokenizer)
        ends = list(accumulate((len(stream.add(id)) for id in ids), initial=0))
        return list(pairwise(ends))
    for id in ids:
        piece = tokenizer.pieces[id]
        continues = bool(piece) and 0x80 <= piece[0] < 0xC0  # with the rest of a character
        begin = length + (unfinished and not continues)
        length += len(decoder.decode(piece))
        unfinished = bool(decoder.getstate()[0])
        spans.append((begin, max(begin, length + unfinished)))
    return spans


def any_model(call: Call, name: str | None) -> ServedModel:
    """The model with this name, or the first one.

    Raises:
        ServiceError: there is none.
    """
    models = call.pool.models
    if name is None and models:
        return next(iter(models.values()))
    if name in models:
        return models[name]
    if not call.pool.ready:
        raise Loading
    raise ServiceError(
        404, f"there is no model {name!r}; known: {', '.join(models) or 'none'}",
        code="model_not_found", field="model",
    )  # fmt: skip


def encode_weights(weights: NDArray[np.float32]) -> str:
    """Encode weights as base64 of little-endian 16-bit integers. 65535 represents 1, so the error
    is below 0.00001."""
    integers = np.round(np.clip(weights, 0, 1) * 65535.0).astype("<u2")
    return base64.b64encode(integers.tobytes()).decode()


def check_new_tokens(call: Call, max_length: int | None) -> None:
    """Refuse an output limit beyond that of the service."""
    if max_length is not None and max_length > (most := call.settings.limits.new_tokens):
        raise bad_request(f"max_length: {max_length}, but at most {most} is allowed", "max_length")
