"""The OpenAI interface, /v1/...: models, completions, chat completions and embeddings."""

from __future__ import annotations

import msgspec

from regard.serve.endpoint import Call, Endpoint
from regard.serve.errors import Loading, ServiceError
from regard.serve.models import ServedModel
from regard.serve.openai_chat import ChatRequest, ChatResponse, chat
from regard.serve.openai_completions import CompletionRequest, CompletionResponse, complete
from regard.serve.openai_embeddings import EmbeddingRequest, EmbeddingResponse, embed
from regard.serve.openai_format import OPENAI


class ModelEntry(msgspec.Struct):
    """A model of the service."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "regard"

    @classmethod
    def of(cls, model: ServedModel) -> ModelEntry:
        return cls(model.name, model.created)


class ModelList(msgspec.Struct):
    """The models of the service."""

    data: list[ModelEntry]
    object: str = "list"


async def list_models(call: Call, request: None) -> ModelList:
    return ModelList([ModelEntry.of(model) for model in call.pool.models.values()])


async def show_model(call: Call, request: None) -> ModelEntry:
    name = call.http.path_params["model"]
    if name in call.pool.models:
        return ModelEntry.of(call.pool.models[name])
    if not call.pool.ready:
        raise Loading
    raise ServiceError(404, f"there is no model {name!r}", code="model_not_found", field="model")


ENDPOINTS = [
    Endpoint(
        OPENAI, "GET", "/v1/models", list_models, "List the models.",
        response=ModelList,
    ),
    Endpoint(
        OPENAI, "GET", "/v1/models/{model}", show_model, "Describe a model.",
        response=ModelEntry,
    ),
    Endpoint(
        OPENAI, "POST", "/v1/completions", complete, "Continue prompts.",
        CompletionRequest, CompletionResponse, streams=True,
    ),
    Endpoint(
        OPENAI, "POST", "/v1/chat/completions", chat, "Write the next turn of a conversation.",
        ChatRequest, ChatResponse, streams=True,
    ),
    Endpoint(
        OPENAI, "POST", "/v1/embeddings", embed, "Compute the vectors of texts.",
        EmbeddingRequest, EmbeddingResponse,
    ),
]  # fmt: skip
