"""`regard serve`: listen, load the models in a thread, and shut down without losing a request.

The service listens before torch is imported. uvicorn has no time limit for the head of a request
and answers in plain text at its limits: `Connection` adds what is missing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import InputError
from regard.serve.errors import ServiceError
from regard.serve.gateway import Gateway, plain_error
from regard.serve.settings import ModelName, Settings

if TYPE_CHECKING:
    from regard.serve.app import Walk
    from regard.serve.models import ModelPool

KEEP_ALIVE = 15  # seconds that an idle connection stays open
HEAD_BYTES = 32_768  # of the first line and the headers of a request
READ_SECONDS = 30  # after which a client that does not read its response is disconnected
BEYOND = 64  # connections beyond the limit that get an error, or a response of /health
IDLE_SECONDS = 0.5  # after which a connection without a request gives way to a new one
FILES = 256  # open files in addition to the connections
BACKLOG = 2_048  # connections that wait until they are accepted
COLLECTIONS = 10  # young collections before a full collection while no request runs
MOST_COLLECTIONS = 50_000  # young collections before a full one even while requests run
TRIM_SECONDS = 3.0  # without requests, after which freed memory returns to the system
SWITCH_SECONDS = 0.001  # after which the model's thread lets the event loop run


class Connection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head_timer: asyncio.TimerHandle | None = None
        self.idle_since = self.loop.time()
        limits = self.config.loaded_app.settings.limits
        beyond = len(self.connections) - limits.connections
        if beyond > 0 and not self._close_idle() and beyond > BEYOND:
            transport.abort()
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # for clients that do not read responses
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * READ_SECONDS)
        self._watch_head(limits.body_seconds)

    def _close_idle(self) -> bool:
        """Close another connection that waits for a request, so that idle connections do not keep
        new ones out."""
        latest = self.loop.time() - IDLE_SECONDS
        for each in self.connections:
            assert isinstance(each, Connection)
            if each.is_idle() and each.idle_since < latest and not each.transport.is_closing():
                each.transport.abort()
                return True
        return False

    def is_idle(self) -> bool:
        """Whether the head of the next request has not arrived."""
        return self.conn.their_state is h11.IDLE

    def _watch_head(self, seconds: float) -> None:
        """Close the connection unless the head of the next request arrives in time."""
        if self.head_timer is not None:
            self.head_timer.cancel()
        self.idle_since = self.loop.time()
        self.head_timer = self.loop.call_later(seconds, self._check_head)

    def _check_head(self) -> None:
        if self.is_idle() or self.transport.is_closing():
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has a head that is too long."""
        error = ServiceError(400, msg.rstrip("."), code="invalid_http")
        headers = [
            (b"content-type", b"application/json"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
        ]
        with suppress(h11.LocalProtocolError):  # a response has begun
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=msgspec.json.encode(plain_error(error))),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        if self.cycle is not None:  # the body of a request is not valid: no one reads its response
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def uvicorn_config(gateway: Gateway) -> uvicorn.Config:
    """The configuration of uvicorn. Its log is off: the gateway writes one.

    Raises:
        InputError: the TLS certificate is not valid.
    """
    settings = gateway.settings
    config = uvicorn.Config(
        gateway, http=Connection, ws="none", loop="asyncio", lifespan="off", interface="asgi3",
        log_config=None, log_level="critical", access_log=False, proxy_headers=False,
        server_header=False, h11_max_incomplete_event_size=HEAD_BYTES, backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.drain,  # type: ignore[arg-type]
        ssl_certfile=settings.certificate, ssl_keyfile=settings.private_key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise InputError(f"--certificate {settings.certificate}: {error}") from None
    return config


class Server(uvicorn.Server):
    """uvicorn's server, with the signals of `regard serve`.

    Raises:
        InputError: the TLS certificate is not valid.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(uvicorn_config(gateway))
        self.gateway = gateway
        self.signal: int | None = None  # the signal that ended the service
        self.release_memory: Callable[[], None] | None = None  # set when the models are loaded
        self._trimmed = True  # whether freed memory was returned since the last request
        gateway.connections = self.connections

    def connections(self) -> int:
        """The number of open connections, without those of refused requests, which are closing."""
        connections = self.server_state.connections
        if len(connections) <= self.gateway.settings.limits.connections:
            return len(connections)
        return sum(not each.transport.is_closing() for each in connections)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the service runs. They are not raised again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the service when accepted requests are done, the second at once."""
        if self.signal is not None:
            os._exit(128 + sig)
        self.signal, self.should_exit = sig, True

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self.gateway.update_metrics()
        self._collect_garbage()
        self._trim_memory()
        if self.gateway.failed:  # exit, so that a supervisor can restart the process
            self.should_exit = True
        return await super().on_tick(counter)

    def _collect_garbage(self) -> None:
        """Run full garbage collections while no request runs. Python would run them at any time,
        and each takes 0.1 seconds if hundreds of requests wait; young ones take milliseconds."""
        count = gc.get_count()[2]
        if count > (MOST_COLLECTIONS if self.gateway.busy else COLLECTIONS):
            gc.collect()

    def _trim_memory(self) -> None:
        """Return freed memory to the system when the service is idle. Under load, the next decoding
        step needs it again."""
        if self.gateway.idle_seconds < TRIM_SECONDS:
            self._trimmed = False
        elif not self._trimmed and self.release_memory is not None:
            self._trimmed = True
            gc.collect()
            asyncio.get_running_loop().run_in_executor(None, self.release_memory)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, finish what was accepted, cancel the rest after `Settings.drain`."""
        self.gateway.stopping = True
        await super().shutdown(sockets)
        if self.server_state.tasks:  # they were cancelled and are sending their errors
            await asyncio.wait(self.server_state.tasks, timeout=1)
        await asyncio.to_thread(self.gateway.log.flush)


class Service:
    """A service in this process.

    Args:
        settings: the settings.
        names: the models.
        device, dtype: of the models; see `regard.load`.
        gateway: answers the requests.
        walk: computes the walk through a model for the page.
        report: called with messages about loading.

    Raises:
        InputError: the key file, an address of a proxy or the TLS certificate is not valid.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[ModelName],
        device: str = "auto",
        dtype: str = "auto",
        gateway: Gateway | None = None,
        walk: Walk | None = None,
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.settings, self.names = settings, names
        self.device, self.dtype = device, dtype
        self.gateway = gateway or Gateway(settings)
        self.server = Server(self.gateway)
        self._walk, self._report = walk, report
        self._pool: ModelPool | None = None
        self._error: BaseException | None = None

    def run(self, sockets: list[socket.socket], load_first: bool = False) -> int:
        """Serve until a signal arrives.

        Args:
            sockets: listening sockets, which are closed at the end.
            load_first: accept connections only when the models are loaded.

        Returns:
            The signal.

        Raises:
            InputError: a model cannot be loaded.
            RuntimeError: the model's thread has failed.
        """
        server = self.server
        self._url = url_of(sockets[0], self.settings.certificate is not None)
        sys.setswitchinterval(SWITCH_SECONDS)
        allow_files(self.settings.limits.connections + BEYOND + FILES)
        thread = threading.Thread(target=self._load, name="load", daemon=True)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            thread.start()
            if load_first:
                await asyncio.to_thread(thread.join)
            await server.serve(sockets)

        with asyncio.Runner() as runner:
            runner.run(serve())
        if thread.is_alive():  # the interpreter cannot end while torch is imported
            sys.stderr.flush()
            os._exit(0 if server.signal == signal.SIGTERM else 130)
        if self._pool is not None:
            self._pool.scheduler.stop()
        if self._error is not None:
            raise self._error
        if server.signal is None:
            raise RuntimeError("the model's thread has stopped")
        return server.signal

    def _load(self) -> None:
        """In a thread: import torch and load the models."""
        try:
            self._load_models()
        except BaseException as error:  # noqa: BLE001 - raised in `run`
            self._error = error
            self.server.should_exit = True

    def _load_models(self) -> None:
        gc.disable()  # a collection would visit the million objects that torch creates
        import torch

        from regard.device import choose_device, keep_freed_memory, release_freed_memory
        from regard.serve.app import ENDPOINTS, create_endpoints
        from regard.serve.models import ModelPool
        from regard.serve.scheduler import Scheduler

        workers = self.settings.workers
        on_cpu = choose_device(self.device).type == "cpu"
        if on_cpu:
            torch.set_num_threads(max(1, cores() // workers))
        elif workers > 1:
            raise InputError("--workers is for a CPU: add --device cpu, or use one worker")
        limits = self.settings.limits
        scheduler = Scheduler(limits.queue_tokens, limits.seconds / 2, alone=not on_cpu)
        pool = self._pool = ModelPool(scheduler, limits)
        app = create_endpoints(pool, self.gateway, self._walk)
        scheduler.start()
        self._loop.call_soon_threadsafe(self.gateway.open, app, pool, ENDPOINTS)
        pool.load(self.names, self.device, self.dtype, mapped=workers > 1)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 100 * MOST_COLLECTIONS)  # see _collect_garbage
        gc.enable()
        if on_cpu:
            release_freed_memory()  # memory of copies of the weights
            keep_freed_memory()
            self.server.release_memory = release_freed_memory
        self._report(f"ready at {self._url}: {', '.join(pool.models)}")


def allow_files(count: int) -> None:
    """Let this process open this many files, if the system allows it."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at all addresses of a host.

    Raises:
        InputError: the host is unknown, or the port is in use.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid name"
        raise InputError(f"--host {host}: {reason}") from None
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(infos):
        try:
            sockets.append(bind(family, kind, protocol, address))
        except OSError as error:
            for each in sockets:
                each.close()
            raise InputError(
                f"cannot listen at {host} port {port}: {error.strerror}; choose another --port "
                "or --host"
            ) from None
        if port == 0:  # the system has chosen a port for this address only
            break
    return sockets


def bind(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """A listening socket."""
    listening = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def url_of(listening: socket.socket, tls: bool) -> str:
    """The address of the service for a browser."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
