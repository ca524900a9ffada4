"""/openapi.json follows the rules of OpenAPI 3.1 and describes what the endpoints accept."""

from __future__ import annotations

import json
import re
import urllib.request
from html.parser import HTMLParser

import msgspec
import pytest

from regard.serve.api_page import make_page
from regard.serve.app import ENDPOINTS
from regard.serve.endpoint import Endpoint, Interface
from regard.serve.openapi import FORM, make_document
from regard.view.walk_json import walk_json
from serve.api_calls import error_of, get, post
from serve.live import serve

DOCUMENT = make_document(ENDPOINTS)
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
KEYS = {
    "document": {"openapi", "info", "tags", "paths", "components"},
    "operation": {
        "operationId", "summary", "tags", "security", "parameters", "requestBody", "responses",
    },
    "parameter": {"name", "in", "required", "schema", "description"},
    "media": {"schema", "example"},
}  # fmt: skip
TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}


def operations(document=DOCUMENT):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def walk(value):
    """All dictionaries in a JSON value."""
    if isinstance(value, dict):
        yield value
    for each in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from walk(each)


def check_schema(schema):
    """The rules of JSON Schema 2020-12 for the keywords in use."""
    assert isinstance(schema, dict)
    if "$ref" in schema:
        assert (
            schema["$ref"].removeprefix("#/components/schemas/")
            in DOCUMENT["components"]["schemas"]
        )
    kinds = schema.get("type", [])
    assert set([kinds] if isinstance(kinds, str) else kinds) <= TYPES
    for each in schema.get("anyOf", []):
        check_schema(each)
    assert schema.get("anyOf") != []
    if isinstance(schema.get("items"), dict):
        check_schema(schema["items"])
    fields = schema.get("properties", {})
    assert set(schema.get("required", ())) <= fields.keys()
    for field in fields.values():
        check_schema(field)
    for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
        if low in schema and high in schema:
            assert schema[low] <= schema[high]


def test_document_has_the_parts_of_openapi():
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT.keys() <= KEYS["document"]
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    names = {tag["name"] for tag in DOCUMENT["tags"]}
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids) == len(ENDPOINTS)
    for path, method, operation in operations():
        assert path.startswith("/")
        assert method in METHODS
        assert operation.keys() <= KEYS["operation"]
        assert operation["summary"].endswith(".")
        assert set(operation["tags"]) <= names


def test_parameters_are_those_of_the_path_and_the_query():
    for path, _, operation in operations():
        parameters = operation.get("parameters", [])
        places = [(parameter["name"], parameter["in"]) for parameter in parameters]
        assert len(set(places)) == len(places)
        assert {name for name, place in places if place == "path"} == set(
            re.findall(r"{(\w+)}", path)
        )
        for parameter in parameters:
            assert parameter.keys() <= KEYS["parameter"]
            assert parameter["in"] in ("path", "query")
            assert parameter["required"] or parameter["in"] == "query"
            check_schema(parameter["schema"])


def test_bodies_and_responses():
    for _, method, operation in operations():
        body = operation.get("requestBody")
        assert not (method == "get" and body)
        parts = [body] if body else []
        assert all(part["required"] is True and part["content"] for part in parts)
        assert "200" in operation["responses"]
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d|default", status)
            assert response["description"]
            parts.append(response)
        for part in parts:
            for kind, media in part.get("content", {}).items():
                assert "/" in kind
                assert media.keys() <= KEYS["media"]
                check_schema(media["schema"])


def test_schemas_and_references():
    schemas = DOCUMENT["components"]["schemas"]
    for name, schema in schemas.items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        check_schema(schema)
    references = {each["$ref"] for each in walk(DOCUMENT) if isinstance(each.get("$ref"), str)}
    assert references == {f"#/components/schemas/{name}" for name in schemas}


def test_security_schemes_exist():
    schemes = DOCUMENT["components"]["securitySchemes"]
    for scheme in schemes.values():
        assert scheme["type"] in ("http", "apiKey")
        assert {"scheme"} <= scheme.keys() or {"in", "name"} <= scheme.keys()
    used = {
        name for _, _, operation in operations() for each in operation["security"] for name in each
    }
    assert used <= schemes.keys()


def test_every_field_of_this_interface_is_described():
    schemas = DOCUMENT["components"]["schemas"]
    own = [e for e in ENDPOINTS if e.interface.name == "api" and e.request is not None]
    assert len(own) > 8
    for endpoint in own:
        schema = schemas[endpoint.request.__name__]
        assert schema["description"]
        assert schema["additionalProperties"] is False
        for name, field in schema["properties"].items():
            assert field.get("description"), (endpoint.path, name)


REQUESTS = [endpoint for endpoint in ENDPOINTS if endpoint.request and endpoint.method == "POST"]


@pytest.mark.parametrize("endpoint", REQUESTS, ids=lambda endpoint: endpoint.path)
def test_examples_are_valid_and_wrong_requests_are_not(endpoint):
    operation = DOCUMENT["paths"][re.sub(r":\w+}", "}", endpoint.path)]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    msgspec.convert(example, endpoint.request)
    assert example, "an empty request says nothing"
    for field in example:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**example, field: {"wrong": ["type"]}}, endpoint.request)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([example], endpoint.request)


def test_examples_of_every_interface_work():
    """The commands of the page can be copied: a service with the models in the box answers them."""
    with serve(walk=walk_json) as address:
        for endpoint in REQUESTS:
            body = DOCUMENT["paths"][endpoint.path]["post"]["requestBody"]["content"]
            example = body["application/json"]["example"]
            if endpoint.path in ("/api/answer", "/v1/chat/completions"):  # not in the box
                assert error_of(f"{address}{endpoint.path}", **example)[0] in (400, 404)
            else:
                assert post(f"{address}{endpoint.path}", **example)


class Nested(msgspec.Struct):
    words: list[str]


class Everything(msgspec.Struct):
    """A request with every kind of field."""

    count: int
    ratio: float
    kind: bool
    nested: Nested
    many: dict[str, int]
    text: str | list[str] = ""


class Query(msgspec.Struct):
    """A query."""

    name: str
    top: int = 3


def test_other_interfaces_parameters_and_forms():
    async def handle(call, request):
        return None

    other = Interface("other", lambda error: {"message": error.message}, overloaded=503)
    document = make_document([
        Endpoint(other, "POST", "/x/{name:path}", handle, "Do.", Everything, list[Nested], True),
        Endpoint(other, "POST", "/form", handle, "Do.", Query),
        Endpoint(other, "GET", "/form", handle, "Do.", Query, dict[str, int]),
    ])  # fmt: skip
    streams = document["paths"]["/x/{name}"]["post"]
    assert streams["parameters"][0]["in"] == "path"
    content = streams["requestBody"]["content"]
    assert FORM not in content  # a form has no nested objects
    msgspec.convert(content["application/json"]["example"], Everything)
    assert streams["responses"]["200"]["content"].keys() == {
        "application/json",
        "text/event-stream",
    }
    assert "Retry-After" in streams["responses"]["503"]["headers"]
    form = document["paths"]["/form"]
    assert FORM in form["post"]["requestBody"]["content"]
    assert [(p["name"], p["required"]) for p in form["get"]["parameters"]] == [
        ("name", True),
        ("top", False),
    ]
    error = document["components"]["schemas"]["OtherError"]
    assert error["properties"].keys() == {"message"}
    assert "/x/{name}" in make_page(document)


class Reader(HTMLParser):
    """Collects tags, links and ids of a page."""

    def __init__(self, page):
        super().__init__()
        self.open, self.links, self.ids, self.tags = [], [], [], set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.add(tag)
        assert not any(name == "style" or name.startswith("on") for name in values)
        self.links += [values["href"]] if tag == "a" else []
        self.ids += [values["id"]] if "id" in values else []
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_live_document_page_and_examples():
    with serve(models=("classify",)) as address:
        document = json.loads(get(f"{address}/openapi.json"))
        with urllib.request.urlopen(f"{address}/api", timeout=30) as response:
            page, policy = response.read().decode(), response.headers["Content-Security-Policy"]
        assert ".method" in get(f"{address}/static/api.css")
        body = document["paths"]["/api/classify"]["post"]["requestBody"]["content"]
        example = body["application/json"]["example"]
        assert post(f"{address}/api/classify", **example)["results"][0]["label"] == "positive"
        code, error = error_of(f"{address}/api/classify", texts=3)
    assert document == DOCUMENT
    assert code == 400
    fields = document["components"]["schemas"]["Error"]["properties"]["error"]["properties"]
    assert error.keys() == fields.keys()
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
    reader = Reader(page)
    assert not reader.open
    assert not reader.tags & {"script", "style"}
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    for path, _, operation in operations():
        assert operation["operationId"] in reader.ids
        assert path in page
