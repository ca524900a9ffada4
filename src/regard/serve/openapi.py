"""GET /openapi.json: an OpenAPI 3.1 document of all endpoints, generated from their declarations.

The types that validate requests are the schemas of the document, so both always agree. Examples of
requests are composed from the examples and types of their fields, unless `EXAMPLES` has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from regard import __version__
from regard.serve.api_common import API
from regard.serve.endpoint import Call, Endpoint, Interface
from regard.serve.errors import ServiceError

Json = dict[str, Any]
REFERENCE = "#/components/schemas/"
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")  # in a path: {name} or {name:path}
FORM = "application/x-www-form-urlencoded"
TITLES = {
    "api": "regard", "libretranslate": "LibreTranslate", "deepl": "DeepL", "openai": "OpenAI",
}  # fmt: skip
SECURITY: dict[str, Json] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "deepl": {
        "type": "apiKey", "in": "header", "name": "Authorization",
        "description": "Authorization: DeepL-Auth-Key KEY",
    },
}  # fmt: skip
EXAMPLES: dict[str, Json] = {  # of requests whose types have no examples
    "/translate": {"q": "The cat sleeps.", "source": "en", "target": "de"},
    "/detect": {"q": "The cat sleeps."},
    "/v2/translate": {"text": ["The cat sleeps."], "target_lang": "DE"},
    "/v1/completions": {"model": "generate", "prompt": "Once upon a time", "max_tokens": 50},
    "/v1/chat/completions": {
        "model": "generate", "messages": [{"role": "user", "content": "How are you?"}],
    },
    "/v1/embeddings": {"model": "embed", "input": ["The cat sleeps."], "encoding_format": "float"},
}  # fmt: skip
KEY_SCHEMES = {"deepl": ("deepl",), "openai": ("bearer",)}  # of an interface; default: both others


def make_document(endpoints: Sequence[Endpoint]) -> Json:
    """The OpenAPI document of endpoints."""
    interfaces = dict.fromkeys(endpoint.interface for endpoint in endpoints)
    paths: dict[str, Json] = {}
    components: dict[str, Json] = {}
    for interface in interfaces:
        own = [endpoint for endpoint in endpoints if endpoint.interface is interface]
        schema_of, schemas = make_schemas(interface, own)
        components |= schemas
        for endpoint in own:
            path = PARAMETER.sub(r"{\1}", endpoint.path)
            operation = make_operation(endpoint, schema_of, components)
            paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "regard serve",
            "version": __version__,
            "summary": "Translation, generation, classification and search with trained models.",
        },
        "tags": [{"name": each.name, "description": title_of(each)} for each in interfaces],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY},
    }


def title_of(interface: Interface) -> str:
    """The display name of an interface."""
    return TITLES.get(interface.name, interface.name.capitalize())


def make_schemas(
    interface: Interface, endpoints: Sequence[Endpoint]
) -> tuple[dict[Any, Json], dict[str, Json]]:
    """The schema of each type of the endpoints of an interface, and the components that they refer
    to. Each interface has its own prefix, so their names differ."""
    types = list(dict.fromkeys(
        kind for each in endpoints
        for kind in (each.request if each.method != "GET" else None, each.response) if kind
    ))  # fmt: skip
    prefix = "" if interface is API else title_of(interface)
    schemas, components = msgspec.json.schema_components(
        types, ref_template=f"{REFERENCE}{prefix}{{name}}"
    )
    named = {prefix + name: schema for name, schema in components.items()}
    return dict(zip(types, schemas, strict=True)), named | {
        error_name(interface): error_schema(interface)
    }


def make_operation(
    endpoint: Endpoint, schema_of: Mapping[Any, Json], components: Mapping[str, Any]
) -> Json:
    """The description of one endpoint."""
    interface, words = endpoint.interface, re.findall(r"\w+", PARAMETER.sub(r"\1", endpoint.path))
    schemes = KEY_SCHEMES.get(interface.name, ("bearer", "header"))
    operation: Json = {
        "operationId": "_".join([endpoint.method.lower(), *words]),
        "summary": endpoint.summary,
        "tags": [interface.name],
        "security": [{}, *({name: []} for name in schemes)],
    }
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(endpoint.path)
    ]
    if endpoint.request is not None:
        if endpoint.method == "GET":
            parameters += query_parameters(endpoint.request)
        else:
            schema = schema_of[endpoint.request]
            value = EXAMPLES.get(endpoint.path) or example(schema, components)
            operation["requestBody"] = make_body(schema, components, value)
    if parameters:
        operation["parameters"] = parameters
    operation["responses"] = make_responses(endpoint, schema_of)
    return operation


def query_parameters(request: type[msgspec.Struct]) -> Iterator[Json]:
    """The fields of the request of a GET endpoint, which are strings or numbers."""
    schema = msgspec.json.schema(request)["$defs"][request.__name__]
    for name, field in schema["properties"].items():
        yield {
            "name": name, "in": "query", "schema": field,
            "required": name in schema.get("required", ()),
        }  # fmt: skip


def make_body(schema: Json, components: Mapping[str, Any], value: Any) -> Json:
    """The body of a request, with an example: JSON, and a form if each field can be one string."""
    content: Json = {"application/json": {"schema": schema, "example": value}}
    fields = resolve(schema, components)["properties"].values()
    if all(is_scalar(field, components) for field in fields):
        content[FORM] = {"schema": schema}
    return {"required": True, "content": content}


def make_responses(endpoint: Endpoint, schema_of: Mapping[Any, Json]) -> Json:
    """The responses of an endpoint, and the format of its errors."""
    content: Json = {}
    if endpoint.response is not None:
        content["application/json"] = {"schema": schema_of[endpoint.response]}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    success: Json = {"description": "The result."}
    if content:
        success["content"] = content
    reference = REFERENCE + error_name(endpoint.interface)
    body = {"application/json": {"schema": {"$ref": reference}}}
    retry = {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}}
    busy = {"description": "The service is busy.", "headers": {"Retry-After": retry}}
    return {
        "200": success,
        "400": {"description": "The request is not valid.", "content": body},
        str(endpoint.interface.overloaded): {**busy, "content": body},
        "default": {"description": "An error.", "content": body},
    }


def error_name(interface: Interface) -> str:
    return "Error" if interface is API else f"{title_of(interface)}Error"


def error_schema(interface: Interface) -> Json:
    """The schema of the errors of an interface, from an example."""
    sample = interface.error(ServiceError(400, "text: expected `str`, got `int`", field="text"))
    return {**schema_of_value(sample), "examples": [sample]}


def schema_of_value(value: Any) -> Json:
    """The schema of a JSON value. A string may be null in other values."""
    if isinstance(value, dict):
        fields = {name: schema_of_value(each) for name, each in value.items()}
        return {"type": "object", "properties": fields, "required": list(fields)}
    if isinstance(value, bool | int | float):
        return {"type": "number"}
    return {"type": ["string", "null"]}


def resolve(schema: Json, components: Mapping[str, Any]) -> Json:
    """The schema that a reference names."""
    while "$ref" in schema:
        schema = components[schema["$ref"].removeprefix(REFERENCE)]
    return schema


def is_scalar(schema: Json, components: Mapping[str, Any]) -> bool:
    """Whether a value of the schema can be a string, number or boolean."""
    schema = resolve(schema, components)
    if "anyOf" in schema:
        return any(
            is_scalar(each, components) for each in schema["anyOf"] if each != {"type": "null"}
        )
    return schema.get("type") not in ("array", "object", "null")


def example(schema: Json, components: Mapping[str, Any]) -> Any:
    """A valid value of a schema: its first example, or a value of its type. An object has its
    required fields and those with examples."""
    schema = resolve(schema, components)
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], components)
    if schema.get("type") == "array":
        return [example(schema["items"], components)] if schema.get("items") else []
    if schema.get("type") == "object":
        required = schema.get("required", ())
        return {
            name: example(field, components)
            for name, field in schema.get("properties", {}).items()
            if name in required or "examples" in field
        }
    number = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    values = {"integer": number, "number": number, "boolean": False, "null": None}
    return values.get(schema.get("type", ""), "text")


@cache
def cached_document(endpoints: tuple[Endpoint, ...]) -> Json:
    """The document of a service, generated once."""
    return make_document(endpoints)


async def show_document(call: Call, request: None) -> Json:
    return cached_document(tuple(call.state["endpoints"]))


ENDPOINTS = [
    Endpoint(
        API, "GET", "/openapi.json", show_document, "This document: OpenAPI 3.1.",
        response=dict[str, Any],
    ),
]  # fmt: skip
