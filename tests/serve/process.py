"""`regard serve` in a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

SECONDS = 60  # until a service must be ready, on a busy machine without compiled code


class Service:
    """A running service: its address, its process and the lines of its standard error."""

    def __init__(self, arguments, **environment):
        command = [sys.executable, "-m", "regard", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
            env={**os.environ, **environment},
        )  # fmt: skip
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = wait_for(self._address)
        self.port = int(self.address.rsplit(":", 1)[1])

    def _read(self):
        self.lines += iter(self.process.stderr.readline, "")

    def _address(self):
        assert self.process.poll() is None or self._reader.is_alive(), self.lines
        matches = [re.search(r"listening at (\S+)", line) for line in list(self.lines)]
        return next((match[1] for match in matches if match), None)

    def wait_until_ready(self):
        wait_for(lambda: request(self.address + "/ready")[0] == 200)
        return self

    def connect(self):
        """A plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def end(self, number):
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        self._reader.join(5)
        return code


@contextmanager
def service(*arguments, **environment):
    """Run `regard serve` with these arguments until the end of the block."""
    running = Service(arguments, **environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def wait_for(condition, seconds=SECONDS):
    """The first true value of a condition."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("the condition did not become true in time")


def request(url, body=None, headers=(), method=None):
    """Send a request; return status, body and headers. A body that is not bytes is sent as JSON."""
    headers = dict(headers)
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("content-type", "application/json")
    call = urllib.request.Request(url, data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(call, timeout=60) as response:
            return response.status, parsed(response), response.headers
    except urllib.error.HTTPError as error:
        return error.code, parsed(error), error.headers


def parsed(response):
    content = response.read()
    if content and response.headers.get("content-type") == "application/json":
        return json.loads(content)
    return content.decode()


def exchange(connection, data):
    """Send bytes over a connection; return all bytes until the other side closes it."""
    connection.sendall(data)
    received = b""
    while part := connection.recv(65_536):
        received += part
    return received
