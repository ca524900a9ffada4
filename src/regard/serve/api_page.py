"""GET /api: /openapi.json as a human-readable page, generated on the server without any script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files

from starlette.responses import HTMLResponse, Response

from regard.serve.api_common import API
from regard.serve.endpoint import Call, Endpoint
from regard.serve.openapi import REFERENCE, TITLES, Json, cached_document
from regard.serve.pages import HEADERS


def make_page(document: Json) -> str:
    """The page of an OpenAPI document."""
    info, paths = document["info"], document["paths"]
    operations = [
        (method, path, operation)
        for path, methods in paths.items() for method, operation in methods.items()
    ]  # fmt: skip
    sections, links = [], []
    for tag in document["tags"]:
        own = [each for each in operations if tag["name"] in each[2]["tags"]]
        title = escape(TITLES.get(tag["name"], tag["name"]))
        items = "".join(
            f'<li><a href="#{operation["operationId"]}"><code>{escape(path)}</code></a></li>'
            for _, path, operation in own
        )
        links.append(f"<p>{title}</p><ul>{items}</ul>")
        sections.append(f"<section><h2>{title}</h2>")
        sections += [show_operation(*each) for each in own]
        sections.append("</section>")
    schemas = document["components"]["schemas"]
    parts = {
        "title": escape(info["title"]), "summary": escape(info["summary"]),
        "version": escape(info["version"]), "contents": "".join(links),
        "endpoints": "\n".join(sections),
        "types": "\n".join(show_type(name, schemas[name]) for name in sorted(schemas)),
    }  # fmt: skip
    template = files("regard.serve").joinpath("page/api.html").read_text("utf-8")
    first, *rest = template.split("{{")
    pieces = (piece.split("}}", 1) for piece in rest)  # placeholders within a part are not replaced
    return first + "".join(parts[name] + after for name, after in pieces)


def show_operation(method: str, path: str, operation: Json) -> str:
    """One endpoint: what it does, an example, and the types of request and response."""
    lines = [
        f'<h3 id="{operation["operationId"]}"><code><span class="method">{method.upper()}</span> '
        f"{escape(path)}</code></h3>",
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        body = json.dumps(content["application/json"]["example"], ensure_ascii=False)
        form = " It can also be a form." if len(content) > 1 else ""
        lines += [
            f"<pre>{escape(curl(path, body))}</pre>",
            f"<p>Request: {describe(content['application/json']['schema'])}.{form}</p>",
        ]
    for parameter in operation.get("parameters", ()):
        lines.append(
            f"<p>In the {parameter['in']}: <code>{escape(parameter['name'])}</code>, "
            f"{describe(parameter['schema'])}.</p>"
        )
    content = operation["responses"]["200"].get("content", {})
    if "application/json" in content:
        lines.append(f"<p>Response: {describe(content['application/json']['schema'])}.</p>")
    if "text/event-stream" in content:
        lines.append("<p>The response can be a stream of server-sent events.</p>")
    return "\n".join(lines)


def curl(path: str, body: str) -> str:
    """A command that sends a request to a service with the default address."""
    quoted = body.replace("'", "'\\''")
    header = "-H 'Content-Type: application/json'"
    return f"curl http://127.0.0.1:8000{path} {header} \\\n  -d '{quoted}'"


def show_type(name: str, schema: Json) -> str:
    """A type with a table of its fields."""
    heading = f'<h3 id="type-{escape(name)}"><code>{escape(name)}</code></h3>'
    text = re.sub(r"`(.+?)`", r"<code>\1</code>", escape(schema.get("description", "")))
    text = f"<p>{text}</p>"
    if "properties" not in schema:
        return f"{heading}{text}<p>{describe(schema)}.</p>"
    required = schema.get("required", ())
    rows = "".join(
        show_field(field, value, field in required) for field, value in schema["properties"].items()
    )
    head = "<thead><tr><th>Field</th><th>Type</th><th>Description</th></tr></thead>"
    return f'{heading}{text}<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'


def show_field(name: str, schema: Json, required: bool) -> str:
    """A row of the table of a type."""
    notes = [escape(schema["description"])] if "description" in schema else []
    if "default" in schema and schema["default"] not in (None, "", [], False):
        notes.append(f"default: <code>{escape(json.dumps(schema['default']))}</code>")
    kind = describe(schema) + ("" if required else ", optional")
    return (
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{'; '.join(notes)}</td></tr>"
    )


def describe(schema: Json) -> str:
    """The type of a schema in words, with links to the types that it refers to."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE))
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(describe, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {describe(schema.get('items') or {})}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object with values: {describe(schema['additionalProperties'])}"
    names = " or ".join([kind] if isinstance(kind, str) else kind)
    return escape(" ".join([names, *bounds(schema)]))


def bounds(schema: Json) -> Iterator[str]:
    """The bounds of a number or of the length of a string."""
    for low, high, unit in (("minimum", "maximum", ""), ("minLength", "maxLength", " characters")):
        if low in schema and high in schema:
            yield f"from {schema[low]} to {schema[high]}{unit}"
        elif schema.get(low):
            yield f"of at least {schema[low]}{unit}"
        elif high in schema:
            yield f"of at most {schema[high]}{unit}"


@cache
def cached_page(endpoints: tuple[Endpoint, ...]) -> str:
    """The page of a service, generated once."""
    return make_page(cached_document(endpoints))


async def show_page(call: Call, request: None) -> Response:
    return HTMLResponse(cached_page(tuple(call.state["endpoints"])), headers=HEADERS)


ENDPOINTS = [
    Endpoint(API, "GET", "/api", show_page, "This document as a human-readable page."),
]
