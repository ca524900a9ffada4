"""Responses that are streamed as server-sent events.

`stream_events` waits for the first event before the response starts, so that an earlier error is an
ordinary error response. A later error is sent as an event. When the client disconnects, the
generator of the events is closed at once, which cancels the computation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.errors import InputError
from regard.serve.endpoint import Call, Interface, disconnected
from regard.serve.errors import Overloaded, ServiceError, TimedOut, service_error

PING_SECONDS = 15.0  # without an event until a comment is sent to keep the connection open
SEND_SECONDS = 10.0  # after the time limit of a request, for a client that reads slowly
PING = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy delays the events


class StreamCount:
    """The number of responses that are being streamed."""

    def __init__(self) -> None:
        self.value = 0


def event(data: Any) -> bytes:
    """A server-sent event with a value as JSON."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def stream_events(
    call: Call, interface: Interface, events: AsyncGenerator[Any, None]
) -> Response:
    """Wait for the first event, and return a response that streams all events.

    Args:
        call: the call, with the number of streams of the application.
        interface: formats errors.
        events: generates the values, which become JSON; closing it cancels the computation.

    Returns:
        A response, which ends with the event [DONE].

    Raises:
        Overloaded: there are as many streams as the limits allow.
        ServiceError, InputError: an error before the first event.
    """
    limits, streams = call.settings.limits, call.state["streams"]
    if streams.value >= limits.streams:
        scheduler = call.pool.scheduler
        raise Overloaded(scheduler.outstanding / scheduler.speed())
    deadline = asyncio.get_running_loop().time() + limits.seconds
    streams.value += 1
    try:
        first = await anext(events)
    except BaseException:
        streams.value -= 1
        await events.aclose()
        raise
    return EventStream(call, interface, first, events, deadline)


class EventStream(Response):
    """A response that sends values as server-sent events until a deadline."""

    media_type = "text/event-stream"

    def __init__(
        self,
        call: Call,
        interface: Interface,
        first: Any,
        events: AsyncGenerator[Any, None],
        deadline: float,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]  # it is not known
        self.call, self.interface = call, interface
        self.first, self.events, self.deadline = first, events, deadline
        self.last = 0.0  # the time of the last event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        disconnection = asyncio.ensure_future(disconnected(self.call.http))
        try:
            left = self.deadline - asyncio.get_running_loop().time() + SEND_SECONDS
            await asyncio.wait(
                {sending, disconnection}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (sending, disconnection):
                task.cancel()
            await asyncio.gather(sending, disconnection, return_exceptions=True)
            await self.events.aclose()
            self.call.state["streams"].value -= 1
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        async def send_bytes(content: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": more})

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        pings = asyncio.ensure_future(self._ping(send_bytes))
        try:
            await send_bytes(event(self.first))
            async with asyncio.timeout_at(self.deadline):
                async for value in self.events:
                    self.last = asyncio.get_running_loop().time()
                    await send_bytes(event(value))
            end = DONE
        except (ServiceError, InputError, TimeoutError) as error:
            end = event(self.interface.error(self._service_error(error)))
        except Exception:
            failed = ServiceError(
                500, "the service failed to answer: try again", code="internal_error"
            )
            await send_bytes(event(self.interface.error(failed)), more=False)
            raise
        finally:
            pings.cancel()
        await send_bytes(end, more=False)

    def _service_error(self, error: ServiceError | InputError | TimeoutError) -> ServiceError:
        """The error as an error of the service."""
        if isinstance(error, TimeoutError):
            return TimedOut(self.call.settings.limits.seconds)
        return error if isinstance(error, ServiceError) else service_error(error)

    async def _ping(self, send_bytes: Callable[[bytes], Any]) -> None:
        """Send a comment when there was no event for PING_SECONDS."""
        loop = asyncio.get_running_loop()
        self.last = loop.time()
        while True:
            await asyncio.sleep(self.last + PING_SECONDS - loop.time())
            if loop.time() >= self.last + PING_SECONDS:
                self.last = loop.time()
                await send_bytes(PING)
