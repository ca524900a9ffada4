"""The interface of regard itself, /api/...: what the interfaces of other services lack."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from regard.serve.endpoint import Call, Endpoint, Interface, check_texts
from regard.serve.errors import ServiceError


def error_body(error: ServiceError) -> dict[str, Any]:
    """The body of an error response."""
    body = {"message": error.message, "code": error.code, "field": error.field}
    return {"error": body}


API = Interface("api", error_body)


class ClassifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Classify texts."""

    texts: Annotated[list[str], msgspec.Meta(min_length=1)]
    model: str | None = None


class Classified(msgspec.Struct):
    """The label of one text."""

    label: str
    probabilities: dict[str, float]


class ClassifyResponse(msgspec.Struct):
    """The labels of the texts, in order."""

    model: str
    results: list[Classified]


async def classify(call: Call, request: ClassifyRequest) -> ClassifyResponse:
    model = call.pool.find("classify", request.model)
    labels = await model.classify(check_texts(call, request.texts, "texts"))
    return ClassifyResponse(
        model.name, [Classified(label.label, label.probabilities) for label in labels]
    )


ENDPOINTS = [
    Endpoint(
        API, "POST", "/api/classify", classify, "Classify texts.", ClassifyRequest, ClassifyResponse
    ),
]
