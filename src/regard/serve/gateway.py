"""The gateway in front of all endpoints: access control, limits, metrics, and the log.

It is a plain ASGI application that calls another one, so that streams and disconnections pass
through unchanged. It needs no torch: it answers /health while torch is imported and models are
loaded; other requests wait until the endpoints exist.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Router, compile_path
from starlette.types import Receive, Scope, Send

from regard.serve.access import ProxyList, RateLimit, body_key, header_key, rate_group
from regard.serve.endpoint import Endpoint, Interface, error_response, json_response
from regard.serve.errors import ServiceError, TimedOut
from regard.serve.exchange import BodyMemory, Disconnected, Exchange
from regard.serve.keys import KeyFile
from regard.serve.log import Log
from regard.serve.metrics import CONTENT_TYPE, Metrics
from regard.serve.pages import page_routes
from regard.serve.settings import Settings
from regard.serve.shared import SharedRates

if TYPE_CHECKING:
    from regard.serve.models import ModelPool

GRACE = 15.0  # seconds after Limits.seconds until a request is stopped here, if its handler is not
BODIES = 64  # times Limits.body_bytes: the bytes of the bodies of all requests together
OWN = ("/health", "/ready", "/metrics")  # paths that the gateway answers
OPEN = {"/api", "/frontend/settings", "/languages", "/openapi.json"}  # endpoints without a key
NO_KEY = {"deepl": 403, "libretranslate": 403}  # status without a valid key; others: 401
ROUTER_ERRORS = {  # status: message and code
    404: ("there is no such path: GET /api lists all paths", "not_found"),
    405: ("the method is not allowed for this path: see GET /api", "method_not_allowed"),
}
ALLOWED_HEADERS = "authorization, content-type, x-api-key, x-request-id"


def plain_error(error: ServiceError) -> Any:
    """The body of an error for a path that belongs to no interface."""
    return {"error": {"message": error.message, "code": error.code}}


PLAIN = Interface("", plain_error)


class Gateway:
    """The ASGI application of a service. Requests wait until `open` is called.

    Args:
        settings: the settings.
        metrics: the metrics of this process.
        rates: counts the requests of each client. Default: in this process.

    Raises:
        InputError: the key file or an address of a proxy is not valid.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics | None = None,
        rates: RateLimit | SharedRates | None = None,
    ) -> None:
        self.settings, self.metrics = settings, metrics or Metrics()
        self.connections: Callable[[], int] = lambda: 0  # open connections, set by the server
        self.stopping = False  # whether requests are cancelled because the service ends
        self.log = Log()
        self._keys = KeyFile(settings.keys) if settings.keys else None
        self._rates = rates or RateLimit(settings.requests_per_minute)
        self._proxies = ProxyList(settings.proxies)
        self._pages = Router(page_routes())
        self._memory = BodyMemory(BODIES * settings.limits.body_bytes)
        self._exchanges: set[Exchange] = set()  # requests that are being answered
        self._answered = time.monotonic()  # when the last request was answered, except for OWN
        self._app: Starlette | None = None
        self._pool: ModelPool | None = None
        self._opened = asyncio.Event()
        self._interfaces: dict[str, Interface] = {}  # by the first part of the path
        self._paths: dict[str, int] = {}  # index in `metrics.endpoints`
        for path in OWN:
            self._add_path("", path)
        self._patterns: list[tuple[Any, int]] = []  # of paths with parameters

    def open(self, app: Starlette, pool: ModelPool, endpoints: Sequence[Endpoint]) -> None:
        """Let requests pass to an application. Called in the event loop, or before it runs."""
        for endpoint in endpoints:
            self._interfaces.setdefault(endpoint.path.split("/")[1], endpoint.interface)
            self._add_path(endpoint.interface.name, endpoint.path)
        self._app, self._pool = app, pool
        self._opened.set()

    def _add_path(self, interface: str, path: str) -> None:
        """Add a path to the metrics, which count its requests."""
        if path in self._paths:
            return
        self._paths[path] = len(self.metrics.endpoints)
        self.metrics.endpoints.append((interface, path))
        if "{" in path:
            self._patterns.append((compile_path(path)[0], self._paths[path]))

    @property
    def ready(self) -> bool:
        """Whether all models are loaded, and can be used."""
        pool = self._pool
        return pool is not None and pool.ready and not pool.scheduler.stopping

    @property
    def busy(self) -> bool:
        """Whether any request is being processed."""
        return bool(self._exchanges)

    @property
    def idle_seconds(self) -> float:
        """The time since a request was processed, without those for the state of the service."""
        if any(exchange.path not in OWN for exchange in self._exchanges):
            return 0.0
        return time.monotonic() - self._answered

    @property
    def failed(self) -> bool:
        """Whether the model's thread has ended although the service continues."""
        return self._pool is not None and self._pool.scheduler.stopping and not self.stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._cors(scope), self._memory)
        self._exchanges.add(exchange)
        try:
            await self._answer(exchange)
        finally:
            self._exchanges.remove(exchange)
            exchange.release()
            if exchange.path not in OWN:
                self._answered = time.monotonic()
            self.metrics.count(*self._measured(exchange))
            if self.settings.access_log:
                self.log(exchange.log_line(self.settings.json_log))

    async def _answer(self, exchange: Exchange) -> None:
        """Respond to a request, also if an error occurs."""
        limit = self.settings.limits.seconds + GRACE
        try:
            async with asyncio.timeout(limit):
                await self._respond(exchange)
        except Disconnected:
            return
        except ServiceError as error:
            await self._send_error(exchange, error)
        except HTTPException as error:  # of the router
            message, code = ROUTER_ERRORS.get(error.status_code, (error.detail, "invalid_request"))
            refused = ServiceError(error.status_code, message, code=code)
            await self._send_error(exchange, refused, error.headers)
        except TimeoutError:
            await self._send_error(exchange, TimedOut(limit))
        except asyncio.CancelledError:
            if not self.stopping:
                raise
            stopped = ServiceError(
                503, "the service is shutting down: try again later", code="shutting_down"
            )
            await self._send_error(exchange, stopped)
        except Exception as error:  # noqa: BLE001 - the service must continue
            # The message could contain the text of the request.
            places = "".join(traceback.format_tb(error.__traceback__))
            self.log(f"regard: request {exchange.id} failed with {type(error).__name__}")
            self.log(places.rstrip("\n"))
            failed = ServiceError(
                500, "the service failed to answer: try again", code="internal_error"
            )
            await self._send_error(exchange, failed)

    async def _respond(self, exchange: Exchange) -> None:
        path, limits = exchange.path, self.settings.limits
        if path in OWN and exchange.method not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        if path in ("/health", "/ready"):
            await self._send(exchange, self._state(path))
            return
        if exchange.method == "OPTIONS" and self._is_preflight(exchange):
            await self._send(exchange, Response(status_code=204))
            return
        if path == "/metrics":
            await self._admit(exchange, PLAIN)
            await self._send(exchange, self._metrics())
            return
        # The routers are used without Starlette's middleware, which would send its own response for
        # an exception. With "app" they raise an exception instead of sending a response.
        if path == "/" or path.startswith("/static/"):
            exchange.scope["app"] = None
            await self._pages(exchange.scope, exchange.receive, exchange.send)
            return
        await self._opened.wait()
        if self.connections() > limits.connections:
            raise ServiceError(
                503, "the service has too many connections: try again soon",
                code="too_many_connections", retry_after=1,
            )  # fmt: skip
        interface = self._interface(path)
        if interface is not PLAIN and path not in OPEN:
            await self._admit(exchange, interface)
        await exchange.body(limits)
        assert self._app is not None
        exchange.scope["app"] = self._app
        await self._app.router(exchange.scope, exchange.receive, exchange.send)

    async def _admit(self, exchange: Exchange, interface: Interface) -> None:
        """Check the API key and the rate of requests.

        Raises:
            ServiceError: the key is missing or wrong, or there were too many requests.
        """
        if self._keys is not None:
            key = header_key(exchange.headers)
            if key is None and interface.name == "libretranslate":
                body = await exchange.body(self.settings.limits)
                key = body_key(exchange.headers, body)
            exchange.key = self._keys.name_of(key) if key else None
        client = exchange.scope.get("client") or ("",)
        address = self._proxies.client_address(
            client[0], ",".join(exchange.headers.getlist("x-forwarded-for"))
        )
        if seconds := self._rates.wait(exchange.key or rate_group(address)):
            raise ServiceError(
                429, f"more than {self._rates.per_minute} requests per minute: try again later",
                code="rate_limited", retry_after=seconds,
            )  # fmt: skip
        if self._keys is not None and exchange.key is None:
            raise ServiceError(
                NO_KEY.get(interface.name, 401), "this service needs a valid API key",
                code="invalid_api_key",
            )  # fmt: skip

    async def _send(self, exchange: Exchange, response: Response) -> None:
        await response(exchange.scope, exchange.receive, exchange.send)

    async def _send_error(
        self, exchange: Exchange, error: ServiceError, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an error in the format of the interface, also in the middle of a stream."""
        interface = self._interface(exchange.path)
        if not exchange.status:
            response = error_response(interface, error)
            response.headers.update(headers or {})
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            await self._send(exchange, response)
        elif exchange.streams and not exchange.complete:
            event = b"data: " + msgspec.json.encode(interface.error(error)) + b"\n\n"
            await exchange.send({"type": "http.response.body", "body": event})

    def _interface(self, path: str) -> Interface:
        """The interface of a path, by its first part, so that unknown paths have one too."""
        return self._interfaces.get(path.split("/")[1] if "/" in path else "", PLAIN)

    def _measured(self, exchange: Exchange) -> tuple[int, int, float]:
        """The arguments of `Metrics.count` for a response."""
        index = self._paths.get(exchange.path, 0)
        for pattern, path_index in self._patterns if not index else ():
            if pattern.match(exchange.path):
                index = path_index
        return index, exchange.final_status, exchange.seconds

    # ---- own responses ------------------------------------------------------------------

    def _state(self, path: str) -> Response:
        if path == "/health":
            return json_response({"status": "ok"})
        models = list(self._pool.models) if self._pool else []
        status = "ready" if self.ready else "loading"
        return json_response({"status": status, "models": models}, 200 if self.ready else 503)

    def _metrics(self) -> Response:
        self.update_metrics()
        models = self._pool.models.values() if self._pool else ()
        text = self.metrics.render(self.ready, {model.name: model.task for model in models})
        return Response(text, headers={"content-type": CONTENT_TYPE})

    def update_metrics(self) -> None:
        """Store the current state in the metrics, where other processes can read it."""
        streams = sum(exchange.streams for exchange in self._exchanges)
        self.metrics.update(self._pool, streams, self.connections())

    def _cors(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of an allowed origin read the response."""
        if not self.settings.cors:
            return []
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        headers = [(b"vary", b"origin")]
        allowed = self.settings.cors
        if origin is not None and ("*" in allowed or origin.decode("latin-1") in allowed):
            headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"x-request-id, retry-after"),
            ]
            if scope["method"] == "OPTIONS":
                headers += [
                    (b"access-control-allow-methods", b"GET, POST"),
                    (b"access-control-allow-headers", ALLOWED_HEADERS.encode()),
                    (b"access-control-max-age", b"600"),
                ]
        return headers

    def _is_preflight(self, exchange: Exchange) -> bool:
        return bool(self.settings.cors) and "access-control-request-method" in exchange.headers
