"""One request and its response, as the gateway sees them: headers, body, status and log line."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from regard.console import as_json, visible_line
from regard.serve.endpoint import DISCONNECTED
from regard.serve.errors import ServiceError
from regard.serve.settings import Limits

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
REQUEST_ID = re.compile(r"[!-~]{1,64}")
EVENT_STREAM = b"text/event-stream"
DISCARDED = 16  # times Limits.body_bytes are read and discarded of a body that is too large
COUNTED = ("items", "tokens")  # numbers in the log, if the handler stored them
LOGGED_PATH = 200  # characters of a path in the log


class Disconnected(Exception):
    """The client closed the connection before its request was complete."""


class BodyMemory:
    """The bytes of the bodies of all requests that are being answered.

    Args:
        most: beyond which further bodies are refused.
    """

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0


class Exchange:
    """A request and its response.

    Args:
        scope, receive, send: the arguments of an ASGI application.
        headers: the headers of the response, in addition to the security headers.
        memory: counts the bytes of the body, until `release`.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        memory: BodyMemory,
    ) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self._memory, self._counted = memory, 0  # bytes that are counted in `memory`
        self.headers = Headers(scope=scope)
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.start = time.perf_counter()
        client_id = self.headers.get("x-request-id", "")
        self.id = client_id if REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        self.key: str | None = None  # the name of the API key
        self.status = 0  # 0: no response yet
        self.streams = False  # whether the response is a stream of events
        self.complete = False  # whether the whole response was sent
        self._body: bytes | None = None
        # A request without these headers has no body.
        self._more_body = any(
            self.headers.get(name, "0") != "0" for name in ("content-length", "transfer-encoding")
        )
        self._response_headers = [*SECURITY_HEADERS, (b"x-request-id", self.id.encode()), *headers]
        scope.setdefault("state", {})

    # ---- request ------------------------------------------------------------------------

    async def body(self, limits: Limits) -> bytes:
        """Read the body of the request.

        Raises:
            ServiceError: the body is too large, alone or with those of other requests, or takes too
                long to arrive.
            Disconnected: the client closed the connection.
        """
        if self._body is None:
            try:
                async with asyncio.timeout(limits.body_seconds):
                    self._body = await self._read_body(limits.body_bytes)
            except TimeoutError:
                raise ServiceError(
                    408, f"the body did not arrive within {limits.body_seconds:g} s: try again",
                    code="body_timeout",
                ) from None  # fmt: skip
        return self._body

    async def _read_body(self, most: int) -> bytes:
        """Read a body of at most this many bytes. Beyond them it is discarded: a client that is
        still sending would not read the error."""
        body, size = bytearray(), 0
        while self._more_body:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            self._more_body = message.get("more_body", False)
            part = message.get("body", b"")
            size += len(part)
            if size <= most:
                self._count(len(part))
                body += part
            elif size > DISCARDED * most:
                break
        if size > most:
            raise ServiceError(
                413,
                f"the body of the request is larger than {most} bytes: send less text",
                code="too_large",
            )
        return bytes(body)

    def _count(self, size: int) -> None:
        """Count bytes of the body, or refuse it."""
        if self._memory.used + size > self._memory.most:
            raise ServiceError(
                503, "the service has too many large requests: try again soon",
                code="overloaded", retry_after=1,
            )  # fmt: skip
        self._memory.used += size
        self._counted += size

    def release(self) -> None:
        """Stop counting the body, when the request is done."""
        self._memory.used -= self._counted
        self._counted = 0

    async def receive(self) -> Message:
        """`receive` for the application: the body that was read, then what follows."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()

    # ---- response -----------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """`send` for the application."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            kind = next((value for name, value in headers if name == b"content-type"), b"")
            self.streams = kind.startswith(EVENT_STREAM)
            headers += [each for each in self._response_headers if each[0] not in names]
            if self._more_body:  # the rest of the body would be read as the next request
                headers.append((b"connection", b"close"))
            self.status = message["status"]
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True
        await self._send(message)

    @property
    def final_status(self) -> int:
        """The status of the response; DISCONNECTED if there was none."""
        return self.status or DISCONNECTED

    @property
    def seconds(self) -> float:
        """The time since the request arrived."""
        return time.perf_counter() - self.start

    def log_line(self, as_object: bool) -> str:
        """The line of the access log, as words or as a JSON object. It has no text of the request,
        no query and no key."""
        state = self.scope["state"]
        record: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": self.id,
            "key": self.key,
            "method": self.method,
            "path": self.scope["raw_path"].decode("ascii")[:LOGGED_PATH],
            "status": self.final_status,
            "ms": round(1_000 * self.seconds, 1),
            **{name: state[name] for name in COUNTED if name in state},
        }
        if as_object:
            return as_json(record)
        record["key"] = self.key or "-"
        words = [str(value) for name, value in record.items() if name not in COUNTED]
        words[-1] += "ms"
        words += [f"{name}={record[name]}" for name in COUNTED if name in record]
        return visible_line(" ".join(words))
