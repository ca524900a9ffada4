"""Chromium, controlled over HTTP with the WebDriver protocol and without a library.

Tests of pages and `python -m tools screenshots` use it. It needs Debian's packages chromium and
chromium-driver.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")
AVAILABLE = bool(DRIVER and CHROMIUM)
INSTALL = "needs chromium and chromedriver: apt install chromium-driver"
SECONDS = 20.0  # limit of `wait`


class Browser:
    """A client for the few WebDriver commands that are needed; selectors are those of CSS."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"]
        expected = {
            "goog:chromeOptions": {"args": arguments, "binary": CHROMIUM},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        body = {"capabilities": {"alwaysMatch": expected}}
        self.base += f"/session/{self.call('/session', body)['sessionId']}"

    def call(self, path: str, body: object = None, method: str = "POST") -> Any:
        """Send a command and return its value."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, content, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]

    def devtools(self, command: str, **parameters: object) -> Any:
        """Send a command of the DevTools protocol."""
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, page: Path | str) -> None:
        """Open a file or a URL in an empty page, and discard earlier entries of the logs."""
        self.call("/url", {"url": "about:blank"})  # a new fragment alone would not load the page
        for kind in ("browser", "performance"):
            self.call("/se/log", {"type": kind})
        self.call("/url", {"url": page.as_uri() if isinstance(page, Path) else page})

    def close(self) -> None:
        """End the session."""
        self.call("", method="DELETE")

    # ---- elements -----------------------------------------------------------------------

    def script(self, text: str) -> Any:
        """Run a script in the page and return its value."""
        return self.call("/execute/sync", {"script": text, "args": []})

    def wait(self, condition: str, seconds: float = SECONDS) -> Any:
        """Wait until an expression in JavaScript is true, and return its value."""
        return self.wait_for(lambda: self.script(f"return {condition}"), condition, seconds)

    def wait_for(self, check: Callable[[], Any], name: str, seconds: float = SECONDS) -> Any:
        """Wait until a function returns something true, and return it."""
        deadline = time.monotonic() + seconds
        while not (value := check()):
            if time.monotonic() > deadline:
                raise AssertionError(f"still false after {seconds} s: {name}")
            time.sleep(0.02)
        return value

    def find(self, selector: str) -> dict[str, str]:
        """The reference of the first element."""
        reference: dict[str, str] = self.call(
            "/element", {"using": "css selector", "value": selector}
        )
        return reference

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        [reference] = self.find(selector).values()
        text: str = self.call(f"/element/{reference}/text", method="GET")
        return text

    def click(self, selector: str) -> None:
        """Click an element."""
        [reference] = self.find(selector).values()
        self.call(f"/element/{reference}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type a text into a field."""
        [reference] = self.find(selector).values()
        self.call(f"/element/{reference}/value", {"text": text})

    def hover(self, selector: str, x: int = 0, y: int = 0) -> None:
        """Move the mouse to a position relative to the centre of an element."""
        origin = self.find(selector)
        move = {"type": "pointerMove", "duration": 20, "origin": origin, "x": x, "y": y}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self.call("/actions", {"actions": [mouse | {"actions": [move]}]})

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        typed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": typed}]})

    # ---- the window, and what happened in it --------------------------------------------

    def emulate(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the page, and the preferred colour scheme."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, width: int, height: int, scale: float) -> bytes:
        """The top of the page as a PNG file; scale: pixels of the file for each of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        return base64.b64decode(self.devtools("Page.captureScreenshot", clip=clip)["data"])

    def complaints(self) -> list[str]:
        """The messages of the console since the last call."""
        return [entry["message"] for entry in self.call("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The URLs of the requests since the last call."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def events(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the DevTools events of one kind since the last call."""
        entries = self.call("/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [event["params"] for event in events if event["method"] == method]


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Run Chromium for the duration of a block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert DRIVER, INSTALL
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        browser = Browser(port)
        yield browser
        browser.close()
    finally:
        driver.terminate()
        driver.wait()
