"""Declarations of endpoints, from which requests are validated and /openapi.json is generated.

A request is a `msgspec.Struct`: its fields, types and bounds are declared once. A handler gets a
valid request and returns a struct, a list or a Starlette response. Its errors become responses in
the format of the endpoint's interface. If the client disconnects, the handler is cancelled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.errors import InputError
from regard.serve.errors import Overloaded, ServiceError, TimedOut, bad_request, service_error
from regard.serve.settings import Settings

if TYPE_CHECKING:
    from regard.serve.models import ModelPool  # imports torch, which the gateway must not need

Handler = Callable[["Call", Any], Awaitable[Any]]
DISCONNECTED = 499  # status of a response that no client reads, for the log


@dataclass(frozen=True)
class Interface:
    """A family of endpoints with one format of errors."""

    name: str  # "libretranslate", "deepl", "openai", "api"
    error: Callable[[ServiceError], Any]  # the body of an error response
    overloaded: int = 429  # status if the queue is full


@dataclass(frozen=True)
class Endpoint:
    """One path of the service."""

    interface: Interface
    method: str
    path: str
    handler: Handler
    summary: str  # one sentence for the documentation
    request: type[msgspec.Struct] | None = None
    response: Any = None  # a type; None: not JSON
    streams: bool = False  # whether the response can be a stream of server-sent events


@dataclass(frozen=True)
class Call:
    """What a handler needs in addition to the request."""

    pool: ModelPool
    settings: Settings
    http: Request  # headers, and the address of the client
    state: Mapping[str, Any]  # of the application: "metrics", "walk"


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with a body in JSON."""
    return Response(
        msgspec.json.encode(body), status, headers=dict(headers or {}),
        media_type="application/json",
    )  # fmt: skip


def error_response(interface: Interface, error: ServiceError) -> Response:
    """The response for an error, in the format of an interface."""
    status = interface.overloaded if isinstance(error, Overloaded) else error.status
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    return json_response(interface.error(error), status, headers)


def make_route(endpoint: Endpoint) -> Route:
    """The Starlette route of an endpoint."""

    async def respond(http: Request) -> Response:
        state = http.app.state
        call = Call(state.pool, state.settings, http, state.shared)
        try:
            request = await read_request(endpoint, http)
            result = await answer(endpoint, call, request)
        except ServiceError as error:
            return error_response(endpoint.interface, error)
        except InputError as error:
            return error_response(endpoint.interface, service_error(error))
        except asyncio.CancelledError:
            if await http.is_disconnected():
                return Response(status_code=DISCONNECTED)
            raise
        return result if isinstance(result, Response) else json_response(result)

    return Route(endpoint.path, respond, methods=[endpoint.method])


async def answer(endpoint: Endpoint, call: Call, request: Any) -> Any:
    """Run a handler; cancel it if the client disconnects or the time limit is exceeded."""
    handler = asyncio.ensure_future(endpoint.handler(call, request))
    disconnection = asyncio.ensure_future(disconnected(call.http))
    seconds = call.settings.limits.seconds
    try:
        await asyncio.wait(
            {handler, disconnection}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if handler.done():
            return handler.result()
        if disconnection.done():
            raise asyncio.CancelledError
        raise TimedOut(seconds)
    finally:
        disconnection.cancel()
        if not handler.done():
            handler.cancel()


async def disconnected(http: Request) -> None:
    """Wait until the client disconnects."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def read_request(endpoint: Endpoint, http: Request) -> Any:
    """Parse the body of a request, JSON or a form, and the query of a GET request.

    Raises:
        ServiceError: the request is not valid.
    """
    if endpoint.request is None:
        return None
    body = await http.body()
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if endpoint.method == "GET" or kind == "application/x-www-form-urlencoded":
            if endpoint.method == "POST" and body.startswith(b"{"):  # curl -d declares it a form
                raise bad_request(
                    "the body is JSON: send the header content-type: application/json"
                )
            fields = parse_qs(
                # The client of DeepL sends a form in the body of GET requests.
                (endpoint.method == "GET" and http.url.query) or body.decode(),
                keep_blank_values=True, max_num_fields=1_000,
            )  # fmt: skip
            values = {name: texts if len(texts) > 1 else texts[0] for name, texts in fields.items()}
            return msgspec.convert(values, endpoint.request, strict=False)
        if kind not in ("application/json", ""):
            raise ServiceError(
                415, f"the content type {kind!r} is not supported: send application/json",
                code="unsupported_media_type",
            )  # fmt: skip
        return msgspec.json.decode(body, type=endpoint.request)
    except UnicodeDecodeError:
        raise bad_request("the body is not valid UTF-8: encode it as UTF-8") from None
    except RecursionError:
        raise bad_request("the JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or None
        if " field `" in message:  # it is unknown or missing
            if field is None and "unknown field" in message:
                message += f"; known: {', '.join(endpoint.request.__struct_encode_fields__)}"
            field = ".".join(filter(None, (field, message.split("`")[1])))
        where = f"{field}: " if field else ""
        raise bad_request(f"{where}{message[0].lower()}{message[1:]}", field) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None


def check_texts(call: Call, texts: list[str], field: str) -> list[str]:
    """Refuse texts beyond the limits of the service.

    Raises:
        ServiceError: there are too many texts or characters.
    """
    limits = call.settings.limits
    call.http.state.items = len(texts)  # for the log
    if len(texts) > limits.items:
        raise bad_request(
            f"{field}: {len(texts)} texts, but at most {limits.items}: send several requests", field
        )
    if (characters := sum(map(len, texts))) > limits.characters:
        raise ServiceError(
            413,
            f"{field}: {characters} characters, but at most {limits.characters}: send less text",
            code="too_large", field=field,
        )  # fmt: skip
    return texts
