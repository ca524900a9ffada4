"""Endpoints for tests of the gateway: they need no model, or one that writes for a long time."""

import asyncio
from contextlib import contextmanager

import msgspec
import pytest
from starlette.responses import StreamingResponse

from regard.serve import app
from regard.serve.endpoint import Endpoint, Interface, check_texts
from serve.live import serve

STYLES = {
    "api": lambda error: {"error": {"message": error.message, "code": error.code}},
    "libretranslate": lambda error: {"error": error.message},
    "deepl": lambda error: {"message": error.message},
    "openai": lambda error: {"error": {"message": error.message, "type": error.code}},
}
INTERFACES = {name: Interface(name, style) for name, style in STYLES.items()}
PATHS = {"api": "/api/echo", "libretranslate": "/translate", "deepl": "/v2/translate",
         "openai": "/v1/completions"}  # fmt: skip


class Echo(msgspec.Struct):
    text: str = ""
    seconds: float = 0


async def echo(call, request):
    check_texts(call, [request.text], "text")
    await asyncio.sleep(request.seconds)
    return {"text": request.text}


async def fail(call, request):
    raise RuntimeError(call.http.headers.get("user-agent"))


async def write(call, request):
    """Write for a long time."""
    model = call.pool.find("generate")
    return await model.predict(["Once"], max_length=1_000_000, min_length=200, n_best=1)


async def stream(call, request):
    """Write for a long time, in a stream."""
    model = call.pool.find("generate")
    plan = await model.plan(["Once"], max_length=200, min_length=200, temperature=1.0)

    async def events():
        while True:
            async for tokens, _ in model.stream(plan):
                yield f"data: {len(tokens)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


ENDPOINTS = [
    *(Endpoint(INTERFACES[name], "POST", path, echo, "", Echo, dict) for name, path in PATHS.items()),
    Endpoint(INTERFACES["api"], "GET", "/api/fail", fail, ""),
    Endpoint(INTERFACES["api"], "POST", "/api/write", write, "", Echo),
    Endpoint(INTERFACES["api"], "POST", "/api/stream", stream, "", Echo),
    Endpoint(INTERFACES["api"], "GET", "/api/things/{name}", echo, "", Echo, dict),
    Endpoint(INTERFACES["api"], "GET", "/openapi.json", echo, "", Echo, dict),
]  # fmt: skip


@contextmanager
def stub(settings=None, models=(), **options):
    """Run a service with these endpoints; yields its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "ENDPOINTS", ENDPOINTS)
        with serve(settings, models, **options) as address:
            yield address
