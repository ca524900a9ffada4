"""Random requests, most of them not valid, against a service in a process of its own.

    python -m tests.serve.fuzz --requests 2000 --seed 1

Every request must get a proper response or, if it is not HTTP, a closed connection: never a status
500 and never silence. Afterwards the service must give the same answers as before, with nothing
left in its queue, and the memory must be back at what it was before: an idle service returns freed
memory to the system. Request i depends only on the seed and on i: `--only I` sends one request and
prints it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from regard.serve.server import TRIM_SECONDS

from .process import exchange, request, service, wait_for
from .samples import EXAMPLES, HOSTILE, NUMBERS, TEXTS

SECONDS = 40.0  # until a response must be complete
THREADS = 6
MEMORY = 64 * 2**20  # bytes by which the idle service may grow: caches, and gaps in the heap
OPTIONS = (
    "--max-seconds", 8, "--max-body-seconds", 1, "--max-body-bytes", 200_000, "--max-new-tokens", 100,
    "--max-queue-tokens", 50_000, "--max-streams", 4, "--quiet", "--drain", 5,
)  # fmt: skip
ALLOWED = {200, 204, 304, 400, 401, 403, 404, 405, 408, 413, 415, 416, 429, 431, 456, 503}
METHODS = (
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "X" * 300,
)
CONTENT_TYPES = (
    "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain",
    "application/json; charset=utf-16", "application/xml", "", "\xff", "/", ";" * 100, "application/json, text/html",
)  # fmt: skip
HEADERS = (
    "Content-Length: -1", "Content-Length: x", "Content-Length: 99999999999999999999", "Transfer-Encoding: gzip",
    "Transfer-Encoding: chunked\r\nContent-Length: 3", "Expect: 100-continue", "Expect: x", "Upgrade: websocket\r\nConnection: upgrade",
    "Connection: keep-alive, close", "X: " + "y" * 60_000, "Accept: " + "*/*, " * 1_000, "X-Request-Id: \x07bell",
    "Authorization: Bearer", "Authorization: " + "x" * 10_000, "X-Forwarded-For: " + "1.1.1.1, " * 1_000,
    "Origin: null", "Host: a\r\nHost: b", "Range: bytes=0-1", "If-None-Match: " + '"x",' * 500, " folded: x", "no colon",
    "Na\x00me: x", "Cookie: " + "a=b; " * 500, "Content-Encoding: gzip", *[f"A{i}: b" for i in range(3)],
)  # fmt: skip
PATHS = (
    "/" + "a" * 10_000, "/%00", "/%ff%fe", "//", "/../../etc/passwd", "/static/../app.py", "/static/%2e%2e%2fapp.py",
    "/v1/models/" + "%41" * 2_000, "/v1/models/..%2f", "/api/", "/translate/", "*", "http://a.org/health", "/health?x=" + "y" * 5_000,
    "/?" + "&" * 5_000, "/v2/languages?type=x&type=y", "/v2/languages?" + "a=b&" * 2_000, "/metrics", "/ready", "/nothing",
)  # fmt: skip
NOT_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n\r\n", b"\x00" * 1_000, b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\r\n\r\n", b"SSH-2.0-x\r\n", b"GET  / HTTP/1.1\r\n\r\n", b"\xff\xfe" * 100, b"x" * 100_000,
)  # fmt: skip


@dataclass
class Case:
    """One request."""

    kind: str
    head: bytes
    body: bytes = b""
    method: str = "POST"
    parts: list[bytes] = field(default_factory=list)  # sent one after the other, with pauses
    may_close: bool = False  # whether no response is acceptable: the request is not valid HTTP


@dataclass
class Outcome:
    case: Case
    status: int  # 0: the connection was closed without a response
    seconds: float
    error: str = ""  # what is wrong; empty: nothing


def mutate(source: random.Random, value):
    """A value that differs from a valid request somewhere."""
    if isinstance(value, dict) and value:
        changed = dict(value)
        for _ in range(source.choice((1, 1, 1, 2, 5))):
            name = source.choice(sorted(value))
            match source.randrange(8):
                case 0:
                    changed.pop(name, None)
                case 1:
                    changed[
                        source.choice(
                            ("", "x", "\x00", "q" * 5_000, "__class__", "model ", "stream")
                        )
                    ] = source.choice(HOSTILE)
                case 2 | 3 if name in changed:
                    changed[name] = mutate(source, changed[name])
                case _:
                    changed[name] = source.choice(HOSTILE)
        return changed
    if isinstance(value, list) and value and source.random() < 0.5:
        changed = list(value)
        changed[source.randrange(len(value))] = source.choice(HOSTILE)
        return changed * source.choice((1, 1, 2, 300))
    if isinstance(value, str) and source.random() < 0.5:
        return source.choice(TEXTS)
    if isinstance(value, int | float) and source.random() < 0.7:
        return source.choice(NUMBERS)
    return source.choice(HOSTILE)


def damage(source: random.Random, content: bytes) -> bytes:
    """Bytes that are probably not valid JSON any more."""
    place = source.randrange(len(content) + 1)
    return source.choice((
        content[:place], content[:place] + b"\xff\xfe\x80" + content[place:], content + content, b"\xef\xbb\xbf" + content,
        content[:place] + b"\x00" + content[place:], b"[" * 100_000, b'{"a":' * 20_000, b"", b"null", b"[]", b'"text"',
        b"1" * 50_000, b'{"q": 1e999}', content.decode().encode("utf-16"), b'{"text": "\\ud800"}', b"{" * 10 + content,
        bytes(source.randrange(256) for _ in range(200)), content.replace(b'"', b"'"), b"x" * 300_000,
    ))  # fmt: skip


def form(body) -> bytes:
    """A request as a form."""
    from urllib.parse import urlencode

    pairs = body.items() if isinstance(body, dict) else [("q", body)]
    return urlencode([(str(name), str(value)) for name, value in pairs], errors="replace").encode()


def head_of(method: str, path: str, headers: list[str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def make_case(seed: int, number: int) -> Case:
    """The request with this number."""
    source = random.Random(f"{seed}-{number}")
    path, body = source.choice(EXAMPLES)
    method = "GET" if body is None else "POST"
    kind = source.choices(
        ("valid", "mutated", "damaged", "type", "method", "path", "header", "framing", "not http", "slow", "gone", "pipelined"),
        (10, 40, 12, 6, 4, 5, 8, 4, 2, 1.5, 6, 1.5),
    )[0]  # fmt: skip
    content_type, headers = "application/json", []
    if kind in ("mutated", "type", "slow"):
        body = mutate(source, body if body is not None else {})
    content = json.dumps(body).encode() if body is not None else b""
    if kind in ("mutated", "gone") and source.random() < 0.15:
        content, content_type = form(body), "application/x-www-form-urlencoded"
    if kind == "damaged":
        content = damage(source, content)
        content_type = source.choice(CONTENT_TYPES[:2])
    if kind == "type":
        content_type = source.choice(CONTENT_TYPES)
        content = form(body) if source.random() < 0.5 else content
    if kind == "method":
        method = source.choice(METHODS)
    if kind == "path":
        path = source.choice(PATHS)
    if kind == "header":
        headers = [source.choice(HEADERS) for _ in range(source.choice((1, 1, 3)))]
    if kind == "not http":
        return Case(kind, source.choice(NOT_HTTP), may_close=True)
    headers.append(f"Content-Type: {content_type}")
    if kind == "framing":
        chunk = b"%x\r\n%s\r\n" % (len(content), content) if content else b""
        framed = source.choice((
            chunk + b"0\r\n\r\n", chunk + b"x\r\n", b"ffffffffffffffff\r\n" + content, b"-1\r\n", chunk * 5_000 + b"0\r\n\r\n",
            b"".join(b"1\r\n%c\r\n" % byte for byte in content[:2_000]) + b"0\r\n\r\n", chunk + b"0\r\nTrailer: x\r\n\r\n",
        ))  # fmt: skip
        head = head_of(method, path, [*headers, "Transfer-Encoding: chunked"])
        return Case(kind, head, framed, method, may_close=True)
    if not any(
        line.lower().startswith(("content-length", "transfer-encoding")) for line in headers
    ):
        headers.append(f"Content-Length: {len(content)}")
    head = head_of(method, path, headers)
    case = Case(kind, head, content, method, may_close=kind in ("header", "method", "path"))
    if kind == "slow":
        cut = source.randrange(len(head) + len(content))
        whole = head + content
        case.parts = [whole[:cut], source.choice((whole[cut:], b""))]
        case.may_close = True
    if kind == "pipelined":
        case.head, case.body = (head + content) * 3, b""
    return case


def send(port: int, case: Case, source: random.Random) -> Outcome:
    """Send a request and check what comes back."""
    start = time.monotonic()
    status, error = 0, ""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
            try:
                status, error = talk(connection, case, source)
            except ConnectionError:
                if not case.may_close and case.kind != "gone":
                    error = "the connection was closed without a response"
    except TimeoutError:
        error = f"no response within {SECONDS:g} s"
    except http.client.HTTPException as reason:
        error = "" if case.may_close else f"not a valid response: {reason!r}"
    return Outcome(case, status, time.monotonic() - start, error)


def talk(connection: socket.socket, case: Case, source: random.Random) -> tuple[int, str]:
    """Send a request over a connection; returns the status and what is wrong."""
    if case.parts:
        connection.sendall(case.parts[0])
        time.sleep(source.choice((0.1, 1.5)))
        connection.sendall(case.parts[1])
    else:
        connection.sendall(case.head + case.body)
    if case.kind == "gone":  # disconnect before the response, or after its first bytes
        if source.random() < 0.5:
            connection.recv(source.choice((1, 200)))
        if source.random() < 0.5:
            reset = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        return 0, ""
    if case.kind == "not http":
        connection.shutdown(socket.SHUT_WR)
        exchange(connection, b"")
        return 0, ""
    if case.kind == "slow" and not case.parts[1]:
        connection.settimeout(25)  # the service closes the connection, with or without a response
    response = http.client.HTTPResponse(connection, method=case.method)
    response.begin()
    content = response.read()
    return response.status, fault(response, content)


def fault(response: http.client.HTTPResponse, content: bytes) -> str:
    """What is wrong with a response; empty: nothing."""
    if response.status not in ALLOWED:
        return f"status {response.status}: {content[:200]!r}"
    kind = response.headers.get("content-type", "")
    if kind == "application/json" and content:
        value = json.loads(content)
        if response.status >= 400 and not (
            "error" in value or "message" in value or "status" in value
        ):
            return f"not an error: {content[:200]!r}"
    elif response.status >= 400 and content and response.status != 404:
        return f"an error as {kind!r}: {content[:200]!r}"
    if response.headers.get("x-content-type-options") != "nosniff":
        return "a response without security headers"
    return ""


def gauges(address: str) -> dict[str, float]:
    lines = request(address + "/metrics")[1].splitlines()
    pairs = [line.split(" ") for line in lines if not line.startswith("#") and "{" not in line]
    return {name: float(value) for name, value in pairs}


def answers(address: str) -> list:
    """The answers to all examples without numbers and times of requests: they must stay the same."""
    replies = []
    for path, body in EXAMPLES:
        status, reply, _ = request(address + path, body)
        if str(reply).startswith("data: "):  # several tokens can be in one event
            reply = "".join(re.findall(r'"text":"(.*?)"', reply))
        replies.append(re.sub(r"'(id|created)': [^,]*", "", f"{path}, {status}, {reply}"))
    return replies


def settle(address: str) -> dict[str, float]:
    """Wait until nothing runs, and return the gauges."""

    def idle():
        now = gauges(address)
        busy = (
            "regard_num_requests_running",
            "regard_num_requests_waiting",
            "regard_queue_tokens",
            "regard_num_streams",
        )
        return (
            now
            if not any(now[name] for name in busy) and now["regard_num_connections"] <= 2
            else None
        )

    return wait_for(idle, 60)


def idle_memory(address: str) -> float:
    """The resident memory in bytes after the service was idle for a while."""
    settle(address)
    time.sleep(TRIM_SECONDS + 1)
    return settle(address)["process_resident_memory_bytes"]


def run(requests: int, seed: int, report=lambda line: None) -> tuple[list[Outcome], list[str]]:
    """Send random requests to a new service.

    Returns:
        The outcomes, and what is wrong with the service afterwards.
    """
    outcomes: list[Outcome] = []
    memory: list[float] = []
    problems: list[str] = []
    with service(*OPTIONS) as running:
        running.wait_until_ready()
        before = answers(running.address)
        problems += [reply for reply in before if ", 500, " in reply]
        memory.append(idle_memory(running.address))
        report(f"{memory[-1] / 2**20:.0f} MiB")

        def send_one(number: int) -> Outcome:
            return send(running.port, make_case(seed, number), random.Random(f"{seed}+{number}"))

        with ThreadPoolExecutor(THREADS) as pool:
            for i in range(4):
                quarter = range(i * requests // 4, (i + 1) * requests // 4)
                outcomes += pool.map(send_one, quarter)
                memory.append(idle_memory(running.address))
                report(f"{len(outcomes)} requests, {memory[-1] / 2**20:.0f} MiB")
        for first, second in zip(before, answers(running.address), strict=True):
            if first != second:
                problems.append(f"a different answer:\n{first}\n{second}")
        if memory[-1] - memory[0] > MEMORY:
            problems.append(f"the memory grew: {memory}")
        if (code := running.end(signal.SIGTERM)) != 0:
            problems.append(f"exit code {code}")
        problems += [line for line in running.lines if "failed with" in line or "Traceback" in line]
    problems += [
        f"request {i} ({outcome.case.kind}): {outcome.error}"
        for i, outcome in enumerate(outcomes)
        if outcome.error
    ]
    return outcomes, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--only", type=int, metavar="I", help="send this request only")
    options = parser.parse_args()
    if options.only is not None:
        case = make_case(options.seed, options.only)
        print(case.kind, case.head + case.body, case.parts)
        with service(*OPTIONS) as running:
            running.wait_until_ready()
            print(send(running.port, case, random.Random(f"{options.seed}+{options.only}")))
            print("".join(running.lines))
        return 0
    start = time.monotonic()
    outcomes, problems = run(options.requests, options.seed, report=print)
    slowest = max(range(len(outcomes)), key=lambda i: outcomes[i].seconds)
    print(
        f"{time.monotonic() - start:.0f} s; the slowest request is {slowest % options.requests}: "
        f"{outcomes[slowest].seconds:.1f} s"
    )
    print(sorted(Counter(outcome.status for outcome in outcomes).items()))
    print("\n".join(problems) or "no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
