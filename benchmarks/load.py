"""The load generator of the service benchmarks: HTTP clients in a process of their own.

Connections are kept open, and responses are parsed as far as necessary, so that the generator needs
little of the machine; each result has the processor time that it used.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

END_OF_HEADERS = b"\r\n\r\n"
AT_ONCE = 0.1  # seconds in which a connection that was idle turns out to be closed
GRACE = 120.0  # seconds after the measurement in which all answers must arrive


@dataclass
class Answer:
    """A request and its response."""

    index: int  # of the request in the list of requests
    sent: float  # time.perf_counter()
    received: float = 0.0
    status: int = 0  # 0: the connection was closed
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def seconds(self) -> float:
        return self.received - self.sent


@dataclass
class Load:
    """The result of a measurement."""

    answers: list[Answer]
    began: float
    ended: float
    processor: float  # fraction of one core that the generator used
    clients: int = 0  # of a closed loop
    unsent: int = 0  # requests of an open loop for which there was no connection

    @property
    def measured(self) -> list[Answer]:
        """The answers to the requests that were sent during the measurement."""
        return [each for each in self.answers if self.began <= each.sent < self.ended]

    @property
    def rate(self) -> float:
        """Answers per second to clients that are always waiting for one. It is computed from the
        latencies, because the answers of a service that merges requests arrive in groups."""
        return self.clients * len(self.measured) / sum(each.seconds for each in self.measured)


def message(path: str, body: bytes) -> bytes:
    """A POST request with a body in JSON."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class NoAnswer(Exception):
    """Requests had no answer long after the measurement."""


class Client(asyncio.Protocol):
    """A connection with at most one request at a time."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.done: asyncio.Future[Answer] | None = None
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def request(self, index: int, content: bytes) -> Answer:
        """Send a request and wait for the response."""
        assert self.transport is not None
        self.buffer, self.done = b"", asyncio.get_running_loop().create_future()
        self.answer = Answer(index, time.perf_counter())
        if self.closed:
            self.finish()
        else:
            self.transport.write(content)
        return await self.done

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, body = self.buffer.partition(END_OF_HEADERS)
        if not separator or self.answer is None:
            return
        if not self.answer.headers:
            status, *lines = head.decode("latin-1").split("\r\n")
            pairs = (line.partition(": ") for line in lines)
            self.answer.headers = {name.lower(): value for name, _, value in pairs}
            self.answer.status = int(status.split()[1])
        if len(body) >= int(self.answer.headers.get("content-length", 0)):
            self.answer.body = body
            self.finish()

    def connection_lost(self, error: Exception | None) -> None:
        self.finish()

    def finish(self) -> None:
        if self.answer is not None and self.done is not None and not self.done.done():
            self.answer.received = time.perf_counter()
            self.done.set_result(self.answer)

    @property
    def closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def close(self) -> None:
        assert self.transport is not None
        self.transport.close()


def closed_loop(
    port: int, contents: Sequence[bytes], clients: int, seconds: float, warm_up: float
) -> Load:
    """Send requests from a number of clients, each of which waits for its answer.

    The load continues until all requests that were sent during the measurement are answered.

    Args:
        port: the port of the service on 127.0.0.1.
        contents: the requests; the clients share the list and start it again at its end.
        clients: the number of connections.
        seconds: the time of the measurement.
        warm_up: seconds before it; longer until there are as many answers as clients.
    """
    return asyncio.run(run_closed_loop(port, contents, clients, seconds, warm_up))


async def run_closed_loop(
    port: int, contents: Sequence[bytes], clients: int, seconds: float, warm_up: float
) -> Load:
    connections = [await Client.connect(port) for _ in range(clients)]
    answers: list[Answer] = []
    cpu = time.process_time()
    start = time.perf_counter()
    began = ended = math.inf
    turn, open_requests = 0, 0  # open_requests: measured requests without an answer

    async def work(client: Client) -> None:
        nonlocal turn, open_requests, began, ended
        while (now := time.perf_counter()) < ended or open_requests:
            if began == math.inf and now > start + warm_up and len(answers) >= clients:
                began, ended = now, now + seconds
            if now > min(began, start + warm_up) + seconds + GRACE:
                raise NoAnswer(f"only {len(answers)} requests were answered in {now - start:.0f} s")
            index, turn = turn % len(contents), turn + 1
            measured = began <= now < ended
            open_requests += measured
            answers.append(await client.request(index, contents[index]))
            open_requests -= measured

    tasks = [asyncio.ensure_future(work(client)) for client in connections]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    # The first client has stopped, so there is nothing more to measure.
    processor = (time.process_time() - cpu) / (time.perf_counter() - start)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in connections:
        client.close()
    for task in done:
        task.result()
    return Load(answers, began, ended, processor, clients)


def open_loop(
    port: int, contents: Sequence[bytes], rate: float, seconds: float, connections: int
) -> Load:
    """Send requests at a constant rate, without waiting for answers.

    Args:
        port: the port of the service on 127.0.0.1.
        contents: the requests; the list starts again at its end.
        rate: requests per second.
        seconds: the time of the measurement.
        connections: the largest number of open connections; further requests are not sent.

    Returns:
        The load.
    """
    return asyncio.run(run_open_loop(port, contents, rate, seconds, connections))


async def run_open_loop(
    port: int, contents: Sequence[bytes], rate: float, seconds: float, connections: int
) -> Load:
    idle: list[Client] = []
    answers: list[Answer] = []
    running: set[asyncio.Task[None]] = set()
    opened = turn = unsent = 0
    cpu, began = time.process_time(), time.perf_counter()
    ended = began + seconds

    async def send(index: int, client: Client | None) -> None:
        nonlocal opened
        answer = None if client is None else await client.request(index, contents[index])
        if client is None or (answer and not answer.status and answer.seconds < AT_ONCE):
            # A service may close an idle connection at the moment of the next request.
            client = await Client.connect(port)
            answer = await client.request(index, contents[index])
        assert answer is not None
        answers.append(answer)
        if client.closed:
            opened -= 1
        else:
            idle.append(client)

    while (now := time.perf_counter()) < ended:
        while turn < (now - began) * rate:
            turn += 1
            while idle and idle[-1].closed:
                idle.pop()
                opened -= 1
            if not idle and opened >= connections:
                unsent += 1
                continue
            client = idle.pop() if idle else None
            opened += client is None
            task = asyncio.ensure_future(send((turn - 1) % len(contents), client))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(1 / rate if rate > 100 else 0.01)
    processor = (time.process_time() - cpu) / seconds
    if running:
        _, late = await asyncio.wait(running, timeout=GRACE)
        if late:
            raise NoAnswer(f"{len(late)} requests had no answer after {GRACE:.0f} s")
    for client in idle:
        client.close()
    return Load(answers, began, ended, processor, unsent=unsent)


def watch_health(port: int, seconds: float) -> list[Answer]:
    """Request /health ten times a second. This belongs in a process of its own: in the process of
    the load generator it would also measure how long that process is busy."""

    async def watch() -> list[Answer]:
        answers = []
        ended = time.perf_counter() + seconds
        while time.perf_counter() < ended:
            client = await Client.connect(port)
            answers.append(await client.request(-1, GET_HEALTH))
            client.close()
            await asyncio.sleep(0.1)
        return answers

    return asyncio.run(watch())


def take_turns(port: int, texts: Sequence[str]) -> list[tuple[float, float]]:
    """Translate each text by a request, and by a call of the model in the process of the service.

    Returns:
        The seconds of both, for each text.
    """

    async def work() -> list[tuple[float, float]]:
        client = await Client.connect(port)
        turns = []
        for i, text in enumerate(texts):
            body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
            translated = await client.request(i, message("/translate", body))
            bare = await client.request(i, message("/bare", json.dumps({"texts": [text]}).encode()))
            turns.append((translated.seconds, json.loads(bare.body)[0]))
        client.close()
        return turns

    return asyncio.run(work())


def in_order(port: int, contents: Sequence[bytes]) -> list[Answer]:
    """The answers to requests that are sent one after the other."""

    async def work() -> list[Answer]:
        client = await Client.connect(port)
        return [await client.request(i, content) for i, content in enumerate(contents)]

    return asyncio.run(work())
