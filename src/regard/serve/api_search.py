"""POST /api/embed and /api/search: vectors of texts, and search in uploaded documents."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from regard.predictor.reading import nearest
from regard.serve.api_common import API, ModelField, Name, Texts, UsedModel
from regard.serve.endpoint import Call, Endpoint, check_texts
from regard.serve.errors import ServiceError, bad_request
from regard.serve.models import ServedModel, in_thread

Vectors = NDArray[np.float32]
MOST_RESULT = 5_000_000  # characters of documents in a response
CACHE_BYTES = 64_000_000  # of the vectors and texts of uploaded documents


class EmbedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Compute a vector for each text."""

    texts: Annotated[Texts, Meta(examples=[["A cat sleeps.", "A dog barks."]])]
    model: ModelField = None


class EmbedResponse(msgspec.Struct):
    """The vectors of the texts."""

    model: UsedModel
    vectors: Annotated[
        list[list[float]], Meta(description="a vector of unit length for each text, in order")
    ]
    similarity: Annotated[
        list[list[float]], Meta(description="cosine similarity of every pair of texts")
    ]


async def embed(call: Call, request: EmbedRequest) -> EmbedResponse:
    model = call.pool.find("embed", request.model)
    vectors = np.stack(await model.embed(check_texts(call, request.texts, "texts")))
    precise = vectors.astype(np.float64)
    return EmbedResponse(model.name, vectors.tolist(), (precise @ precise.T).tolist())


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Find the documents that are nearest to each query: in `documents`, or in the documents of an
    earlier request (`documents_id`)."""

    queries: Annotated[
        list[str], Meta(min_length=1, description="the queries", examples=[["an animal"]])
    ]
    documents: Annotated[
        list[str] | None,
        Meta(description="the documents", examples=[["A cat sleeps.", "It rains."]]),
    ] = None
    documents_id: Annotated[
        Name | None, Meta(description="documents_id of an earlier response")
    ] = None
    top: Annotated[int, Meta(ge=1, le=100, description="documents for each query")] = 5
    model: ModelField = None


class DocumentHit(msgspec.Struct):
    """A document near a query."""

    score: Annotated[float, Meta(description="cosine similarity")]
    line: Annotated[int, Meta(ge=1, description="number of the document, counted from 1")]
    text: Annotated[str, Meta(description="the document")]


class SearchResponse(msgspec.Struct):
    """The nearest documents of each query."""

    model: UsedModel
    documents_id: Annotated[
        str, Meta(description="id to send in place of the documents while they are cached")
    ]
    results: Annotated[
        list[list[DocumentHit]], Meta(description="for each query its documents, best first")
    ]


@dataclass(frozen=True)
class Documents:
    """Uploaded documents and their vectors."""

    texts: list[str]
    vectors: Vectors  # [n, D]

    @property
    def size(self) -> int:
        """Bytes in memory, approximately."""
        return self.vectors.nbytes + sum(4 * len(text) + 100 for text in self.texts)


class DocumentCache:
    """The documents that were used last, by id, with a bounded number of bytes."""

    def __init__(self, most: int = CACHE_BYTES) -> None:
        self.most, self.size = most, 0
        self._documents: OrderedDict[str, Documents] = OrderedDict()

    def get(self, id: str) -> Documents | None:
        """The documents with this id, or None."""
        if id in self._documents:
            self._documents.move_to_end(id)
        return self._documents.get(id)

    def put(self, id: str, documents: Documents) -> None:
        """Store documents, and remove those that were not used for the longest time."""
        if id in self._documents or documents.size > self.most:
            return
        self._documents[id] = documents
        self.size += documents.size
        while self.size > self.most:
            _, removed = self._documents.popitem(last=False)
            self.size -= removed.size


async def search(call: Call, request: SearchRequest) -> SearchResponse:
    model = call.pool.find("embed", request.model)
    queries = check_texts(call, request.queries, "queries")
    id, documents = await find_documents(call, model, request)
    vectors = np.stack(await model.embed(queries))
    check_result(len(queries), request.top, documents.texts)
    find = partial(nearest, vectors, documents.vectors, documents.texts, request.top)
    hits = await in_thread(find, 10 * len(queries) * len(documents.texts))
    results = [[DocumentHit(hit.score, hit.line, hit.text) for hit in each] for each in hits]
    return SearchResponse(model.name, id, results)


def check_result(queries: int, top: int, texts: Sequence[str]) -> None:
    """Refuse a request whose response could be very large, because it repeats documents."""
    characters = queries * sum(sorted(map(len, texts))[-top:])
    if characters > MOST_RESULT:
        raise ServiceError(
            413, f"queries: the results can have {characters} characters, but at most "
            f"{MOST_RESULT}: send fewer queries or lower top", code="too_large", field="queries",
        )  # fmt: skip


async def find_documents(
    call: Call, model: ServedModel, request: SearchRequest
) -> tuple[str, Documents]:
    """The documents of a request with their vectors, and their id."""
    cache: DocumentCache = call.state["documents"]
    if (request.documents is None) == (request.documents_id is None):
        raise bad_request("send either documents or documents_id", "documents")
    if request.documents is None:
        id = request.documents_id or ""
        stored = cache.get(id)
        if stored is None or not id.startswith(f"{digest([model.name])[:8]}-"):
            raise ServiceError(
                404, "documents_id: these documents are not stored any more: send them again",
                code="documents_not_found", field="documents_id",
            )  # fmt: skip
        return id, stored
    texts, most = request.documents, call.settings.limits.documents
    if not 1 <= len(texts) <= most:
        raise bad_request(f"documents: {len(texts)} texts: send 1 to {most}", "documents")
    if (longest := max(map(len, texts))) > (limit := call.settings.limits.characters):
        raise ServiceError(
            413, f"documents: one has {longest} characters, but at most {limit}",
            code="too_large", field="documents",
        )  # fmt: skip
    characters = sum(map(len, texts))
    id = await in_thread(
        lambda: f"{digest([model.name])[:8]}-{digest(texts)[:32]}", characters // 10
    )
    if (stored := cache.get(id)) is None:
        stored = Documents(texts, np.stack(await model.embed(texts)))
        cache.put(id, stored)
    return id, stored


def digest(texts: Sequence[str]) -> str:
    """A hash of texts and of the boundaries between them."""
    return hashlib.sha256(msgspec.json.encode(texts)).hexdigest()


ENDPOINTS = [
    Endpoint(
        API, "POST", "/api/embed", embed, "Compute a vector for each text.",
        EmbedRequest, EmbedResponse,
    ),
    Endpoint(
        API, "POST", "/api/search", search, "Find the documents that are nearest to a query.",
        SearchRequest, SearchResponse,
    ),
]  # fmt: skip
