"""Start `regard serve` and write the screenshots of its page for the documentation.

It needs Chromium (Debian's package chromium-driver). With Debian's package fonts-inter the text has
the same typeface as in the committed screenshots.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image

from regard.errors import InputError
from regard.files import write_file
from tools.browser import AVAILABLE, INSTALL, Browser, start_browser

FOLDER = Path("docs/assets")
DESKTOP, PHONE = (1100, 620), (360, 700)
SCALE = 1.5  # pixels of the picture for each pixel of the page
COLOURS = 256  # of a picture: makes the files small
TEXT = "My sister bought a new car yesterday. She drives it to work every day."


@dataclass(frozen=True)
class Shot:
    """One screenshot: the size of the page, its state, and what happens before the picture."""

    size: tuple[int, int]
    state: dict[str, str]
    dark: bool = False
    hover: str = ""  # selector of the element under the mouse
    click: str = ""  # selector of an element to click
    wait: str = "true"  # JavaScript: true when the results are complete
    name: str = field(kw_only=True)


def nth_word(n: int) -> str:
    """The selector of a word of the translation."""
    return f"#translation .word:nth-of-type({n})"


SHOTS = (
    Shot(DESKTOP, {"tab": "translate", "text": TEXT}, hover=nth_word(8), name="translate"),
    Shot(
        DESKTOP, {"tab": "translate", "text": TEXT}, dark=True, click=nth_word(4),
        wait="document.querySelector('#alternatives button')", name="alternatives-dark",
    ),
    Shot(
        (1100, 900), {"tab": "attention", "text": "The bank of the river was steep."},
        hover="#map", wait="document.querySelector('#maps canvas')", name="attention",
    ),
    Shot(
        (1100, 660), {"tab": "generate", "prompt": "ROMEO:", "max_tokens": "150"}, dark=True,
        click="#panel-generate .primary", wait="document.querySelector('#speed').textContent",
        name="generate-dark",
    ),
    Shot(PHONE, {"tab": "translate", "text": TEXT}, hover=nth_word(4), name="phone"),
    Shot(
        PHONE, {"tab": "fill", "text": "The acting was <mask> and the <mask> is great."},
        dark=True, name="phone-dark",
    ),
)  # fmt: skip


@contextmanager
def start_service() -> Iterator[str]:
    """Run `regard serve` with the models in the box; yields its address."""
    command = [sys.executable, "-m", "regard", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"listening at (\S+)", line):
                yield match[1]
                return
        raise InputError("regard serve has ended: run it in a terminal to see the error")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def take_screenshot(browser: Browser, address: str, shot: Shot) -> bytes:
    """Take one screenshot."""
    browser.emulate(*shot.size, dark=shot.dark)
    browser.devtools("Emulation.setScrollbarsHidden", hidden=True)
    browser.open(f"{address}/#{urlencode(shot.state)}")
    browser.wait("'ready' in document.body.dataset", 60)
    browser.wait("!document.querySelector('[aria-busy]')")
    if shot.click:
        browser.click(shot.click)
    browser.wait(shot.wait)
    browser.wait("!document.querySelector('[aria-busy]')")
    if shot.hover:
        browser.hover(shot.hover)
    animations = "document.getAnimations().every((each) => each.playState === 'finished')"
    browser.wait(animations)
    return browser.screenshot(*shot.size, SCALE)


def compress(picture: bytes) -> bytes:
    """The same picture with fewer colours."""
    with Image.open(io.BytesIO(picture)) as image:
        small = image.convert("RGB").quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    output = io.BytesIO()
    small.save(output, "PNG", optimize=True)
    return output.getvalue()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools screenshots", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help="folder to write to (default: docs/assets)"
    )
    out: Path = parser.parse_args(arguments).out
    if not AVAILABLE:
        raise InputError(f"python -m tools screenshots {INSTALL}")
    out.mkdir(parents=True, exist_ok=True)
    with start_service() as address, start_browser() as browser:
        for shot in SHOTS:
            write_file(
                out / f"serve-{shot.name}.png", compress(take_screenshot(browser, address, shot))
            )
    return 0
