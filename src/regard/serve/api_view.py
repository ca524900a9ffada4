"""GET /api/models, POST /api/attention and /api/walk: the models and what they compute."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from regard.predictor.attention import Attention
from regard.predictor.attention_inputs import gather
from regard.serve.api_common import (
    API,
    MOST_WEIGHTS,
    Name,
    TokenText,
    UsedModel,
    any_model,
    encode_weights,
)
from regard.serve.endpoint import Call, Endpoint, check_texts
from regard.serve.errors import ServiceError
from regard.serve.models import ServedModel

WALK_CHARACTERS = 100


# ---- models -------------------------------------------------------------------------------


class Layers(msgspec.Struct):
    """The number of layers of each stack; 0 if the model does not have it."""

    encoder: Annotated[int, Meta(ge=0, description="layers of the encoder")]
    decoder: Annotated[int, Meta(ge=0, description="layers of the decoder")]


class ModelDescription(msgspec.Struct):
    """A model of the service."""

    name: UsedModel
    task: Annotated[str, Meta(description="the task that it was trained for")]
    style: Annotated[str, Meta(description="encoder-decoder, encoder or decoder")]
    languages: Annotated[
        list[str] | None, Meta(description="source and target language, if it translates")
    ]
    layers: Annotated[Layers, Meta(description="layers of each stack")]
    heads: Annotated[int, Meta(ge=1, description="attention heads of a layer")]
    d_model: Annotated[int, Meta(ge=1, description="size of a vector")]
    parameters: Annotated[int, Meta(ge=1, description="number of weights")]
    vocabulary: Annotated[int, Meta(ge=1, description="number of tokens that it writes")]
    max_input_tokens: Annotated[
        int, Meta(ge=1, description="tokens of the longest text that it reads in one piece")
    ]
    labels: Annotated[list[str] | None, Meta(description="the labels, if it classifies")]
    dialogue: Annotated[bool, Meta(description="whether it continues conversations")]


class ModelsResponse(msgspec.Struct):
    """The models of the service; while they are loaded, those that are ready."""

    ready: Annotated[bool, Meta(description="whether all models are loaded")]
    models: Annotated[list[ModelDescription], Meta(description="in order of the command line")]


async def list_models(call: Call, request: None) -> ModelsResponse:
    models = list(call.pool.models.values())  # another thread may add models
    return ModelsResponse(call.pool.ready, list(map(describe_model, models)))


def describe_model(served: ServedModel) -> ModelDescription:
    model, config = served.model, served.model.config.model
    return ModelDescription(
        served.name, served.task, config.style, served.languages and list(served.languages),
        Layers(
            config.encoder_layers if config.has_encoder else 0,
            config.decoder_layers if config.has_decoder else 0,
        ),
        config.heads, config.d_model,
        sum(parameter.numel() for parameter in model.transformer.parameters()),
        model.target_tokenizer.size, model.longest,
        model.labels if served.task == "classify" else None,
        model.chat_template is not None,
    )  # fmt: skip


# ---- attention ----------------------------------------------------------------------------


class AttentionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Compute the attention weights of a model for one text."""

    text: Annotated[
        str, Meta(min_length=1, description="the text, read as one", examples=["The cat sleeps."])
    ]
    target: Annotated[
        str | None, Meta(description="what the decoder writes (default: its own output)")
    ] = None
    context: Annotated[
        str | None, Meta(description="the context of a question, for a model that answers")
    ] = None
    model: Annotated[
        Name | None, Meta(description="name of the model (default: the first model)")
    ] = None


class AttentionStack(msgspec.Struct):
    """The attention of one stack. Row i of a head has the weights of token i, and sums to 1."""

    name: Annotated[str, Meta(description="encoder, decoder or cross")]
    rows: Annotated[list[TokenText], Meta(description="the n query tokens")]
    columns: Annotated[list[TokenText], Meta(description="the m key tokens")]
    writes: Annotated[list[TokenText], Meta(description="the token that each row writes, if any")]
    layers: Annotated[int, Meta(ge=1, description="layers L")]
    heads: Annotated[int, Meta(ge=1, description="heads H of a layer")]
    weights: Annotated[
        str,
        Meta(description="[L][H][n][m]: base64 of little-endian 16-bit integers; 65535 is 1"),
    ]
    rollout: Annotated[
        str, Meta(description="[L][n][m]: share of each key token after each layer, as weights")
    ]


class AttentionResponse(msgspec.Struct):
    """The attention weights of all heads of all layers."""

    model: UsedModel
    text: Annotated[str, Meta(description="the text")]
    target: Annotated[str, Meta(description="the output of the decoder, or empty")]
    stacks: Annotated[list[AttentionStack], Meta(description="the weights of each stack")]


async def attention(call: Call, request: AttentionRequest) -> AttentionResponse:
    served = any_model(call, request.model)
    parts = [text for text in (request.text, request.target, request.context) if text is not None]
    check_texts(call, parts, "text")
    most = most_tokens(served)
    compute = partial(gather, served.model, request.text, request.target, request.context, most)
    weights = await served.call(compute, sum(map(len, parts)))
    return await asyncio.to_thread(describe_attention, served.name, weights)


def most_tokens(served: ServedModel) -> int:
    """Tokens of a row for which all stacks together have at most MOST_WEIGHTS weights."""
    config = served.model.config.model
    layers = config.encoder_layers + config.decoder_layers * (2 if config.has_encoder else 1)
    return math.isqrt(MOST_WEIGHTS // (config.heads * max(1, layers)))


def describe_attention(name: str, attention: Attention) -> AttentionResponse:
    return AttentionResponse(name, attention.text, attention.target, [
        AttentionStack(
            stack.name, stack.rows, stack.columns, list(stack.writes),
            len(stack.weights), stack.weights.shape[1],
            encode_weights(stack.weights), encode_weights(stack.rollout),
        )
        for stack in attention.stacks.values()
    ])  # fmt: skip


# ---- walk ---------------------------------------------------------------------------------


class WalkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Show what happens to a sentence, step by step, in a small model with random weights."""

    text: Annotated[
        str,
        Meta(
            min_length=1, max_length=WALK_CHARACTERS, description="the sentence",
            examples=["cats sleep"],
        ),
    ]  # fmt: skip
    target: Annotated[
        Annotated[str, Meta(min_length=1, max_length=WALK_CHARACTERS)] | None,
        Meta(description="the sentence of the decoder (default: the text)"),
    ] = None
    style: Annotated[
        Literal["encoder-decoder", "encoder", "decoder"], Meta(description="style of the model")
    ] = "encoder-decoder"


class WalkTable(msgspec.Struct):
    """The values of one step."""

    caption: Annotated[str, Meta(description="shape of the tensor, and which part is shown")]
    picture: Annotated[str, Meta(description="how to draw it: vectors, matrix, ids or guesses")]
    columns: Annotated[list[str], Meta(description="names of the columns")]
    rows: Annotated[list[str], Meta(description="names of the rows")]
    values: Annotated[
        list[list[float | None]], Meta(description="one list for each row; null: minus infinity")
    ]
    answers: Annotated[
        list[str | None], Meta(description="the correct token at each position, if there are any")
    ]


class WalkStep(msgspec.Struct):
    """One step of the forward pass."""

    title: Annotated[str, Meta(description="name of the step")]
    part: Annotated[str, Meta(description="Encoder, Decoder or Output")]
    section: Annotated[str, Meta(description="section of the paper, or empty")]
    text: Annotated[str, Meta(description="what happens in it")]
    tables: Annotated[list[WalkTable], Meta(description="the values")]


class WalkResponse(msgspec.Struct):
    """The steps of the forward pass."""

    steps: Annotated[list[WalkStep], Meta(description="in order")]


async def walk(call: Call, request: WalkRequest) -> WalkResponse:
    compute: Any = call.state["walk"]
    if compute is None:
        raise ServiceError(404, "the walk is not available in this service", code="not_available")
    run = partial(compute, request.text, request.target, request.style)
    return msgspec.convert(await asyncio.to_thread(run), WalkResponse)


ENDPOINTS = [
    Endpoint(
        API, "GET", "/api/models", list_models, "List the models of the service.",
        None, ModelsResponse,
    ),
    Endpoint(
        API, "POST", "/api/attention", attention,
        "Compute the attention weights of a model for one text.",
        AttentionRequest, AttentionResponse,
    ),
    Endpoint(
        API, "POST", "/api/walk", walk, "Show a sentence in the Transformer, step by step.",
        WalkRequest, WalkResponse,
    ),
]  # fmt: skip
