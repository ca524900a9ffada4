"""The live progress line of training: step, loss, speed and remaining time.

On a terminal and in a notebook the line is redrawn in place; in a file or a pipe it is printed
every 30 seconds. A narrow terminal shows fewer figures, so that the line is never wrapped.
"""

from __future__ import annotations

import math
import time
from typing import Any

from regard.console import live_line, make_console

BETWEEN = 30.0  # seconds between two lines in a file or a pipe
LAYOUTS = (  # the figures of the line, from the longest line to the shortest
    ("step", "loss", "perplexity", "speed", "rate", "left"),
    ("step", "loss", "short perplexity", "short speed", "short rate", "left"),
    ("step", "loss", "short speed", "short rate", "left"),
    ("step", "loss", "short speed", "left"),
    ("step", "loss", "left"),
    ("step", "loss"),
)


class Progress:
    """The progress line of a run; a context manager while steps are shown."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self.console = make_console(stderr=True, quiet=quiet)
        self.steps, self.line, self.shown = steps, "", 0.0
        self.words = True  # whether the loss is that of tokens, so that it has a perplexity
        self.live = live_line(self.console)
        self.layout = 0  # of LAYOUTS; it never returns to a longer one
        self.rates: list[tuple[float, int, float]] = []  # time, tokens and operations of each step

    def __enter__(self) -> Progress:
        self.pause()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.close()

    def step(
        self, step: int, loss: float, rate: float, tokens: int, operations: float, peak: float
    ) -> dict[str, float]:
        """Show a step. Returns its values for the metrics file."""
        self.rates = [*self.rates[-20:], (time.perf_counter(), tokens, operations)]
        elapsed = self.rates[-1][0] - self.rates[0][0]
        speed = sum(n for _, n, _ in self.rates[1:]) / elapsed
        fraction = sum(o for *_, o in self.rates[1:]) / elapsed / peak
        left = duration((self.steps - step) * elapsed / (len(self.rates) - 1))
        metrics = {
            "loss": loss, **({"perplexity": perplexity(loss)} if self.words else {}),
            "learning_rate": rate, "tokens_per_second": round(speed),
            "fraction_of_peak": round(fraction, 4),
        }  # fmt: skip
        parts = {
            "step": f"step {step:,}/{self.steps:,}",
            "loss": f"loss {loss:.3f}",
            "perplexity": f"perplexity {perplexity(loss):.2f}" if self.words else "",
            "speed": f"{speed:,.0f} tokens/s ({fraction:.0%} of peak)",
            "rate": f"rate {rate:.2e}",
            "left": f"{left} left",
            "short perplexity": f"ppl {perplexity(loss):.4g}" if self.words else "",
            "short speed": f"{short_number(speed)} tok/s",
            "short rate": f"lr {rate:.1e}",
        }
        self.line = self._fit(parts)
        if self.live is not None:
            self.live.update(self.line)
        elif time.perf_counter() - self.shown > BETWEEN:
            self.shown = time.perf_counter()
            self.console.print(self.line, soft_wrap=True)
        return metrics

    def _fit(self, parts: dict[str, str]) -> str:
        """The longest line that the console shows without a line break."""
        width = self.console.width if self.live is not None else None
        while True:
            line = "  ".join(parts[name] for name in LAYOUTS[self.layout] if parts[name])
            if width is None or len(line) <= width or self.layout + 1 == len(LAYOUTS):
                return line
            self.layout += 1

    def say(self, text: str) -> None:
        """Print a line that stays above the progress line."""
        self.console.print(text, soft_wrap=True)

    def pause(self) -> None:
        """Restart the clock: the time since the last step (of a validation, for example) does not
        count as training time."""
        self.rates = [(time.perf_counter(), 0, 0.0)]


def describe(result: dict[str, Any]) -> str:
    """The scores of a validation in one line."""
    scores = {k: v for k, v in result.items() if isinstance(v, float) and k != "score"}
    return "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in scores.items())


def perplexity(loss: float) -> float:
    """The perplexity of a mean loss; at most e^50."""
    return math.exp(min(loss, 50.0))


def short_number(value: float) -> str:
    """A number in at most five characters: 950, 9.5k, 95k, 1.2M."""
    for unit in ("", "k", "M", "G"):
        if round(value) < 1000 or unit == "G":
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """`1:02:03` (hours, minutes, seconds), or `2:03` below an hour."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
