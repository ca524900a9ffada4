"""Embeddings of the OpenAI interface: a vector of unit length for each text."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError
from regard.serve.endpoint import Call
from regard.serve.errors import bad_request
from regard.serve.openai_format import Texts, token_ids
from regard.tasks.common import refuse_nan


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Compute the vectors of texts. The model reads the beginning of a text that is too long."""

    model: Annotated[str, msgspec.Meta(max_length=200)]
    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None  # ignored


class Embedding(msgspec.Struct):
    """The vector of one text, as numbers or as little-endian float32 in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """Numbers of tokens that the model read, without special tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct):
    """The vectors of texts, in order."""

    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: str = "list"


async def embed(call: Call, request: EmbeddingRequest) -> EmbeddingResponse:
    model = call.pool.models.get(request.model) or call.pool.find("embed", request.model)
    try:
        task, transformer = model.model.embedder(), model.model.transformer
    except InputError as error:
        raise bad_request(str(error), "model") from None
    size = transformer.config.d_model
    if request.dimensions not in (None, size):
        raise bad_request(f"dimensions: the vectors have {size} dimensions", "dimensions")
    texts = await token_ids(call, request.input, task.tokenizer, "input")
    rows = [task.row_of(ids) for ids in texts]

    def compute(rows: list[list[int]]) -> list[NDArray[np.float32]]:
        return list(task.embed_rows(transformer, rows))

    vectors: list[NDArray[np.float32]] = await model.scheduler.compute(
        (model, "embed rows"), compute, rows, list(map(len, rows))
    )
    refuse_nan(float(vector.sum()) for vector in vectors)
    count = sum(min(len(ids), task.text_room()) for ids in texts)  # without special tokens
    as_text = request.encoding_format == "base64"
    data = [
        Embedding(i, to_base64(vector) if as_text else vector.tolist())
        for i, vector in enumerate(vectors)
    ]
    return EmbeddingResponse(model.name, data, EmbeddingUsage(count, count))


def to_base64(vector: NDArray[np.float32]) -> str:
    """The numbers of a vector as little-endian float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
