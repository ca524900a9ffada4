"""The live progress line of training: step, loss, speed and remaining time.

On a terminal the line is redrawn in place; in a file or a pipe it is printed every 30 seconds.
"""

from __future__ import annotations

import math
import time
from typing import Any

from rich.live import Live
from rich.text import Text

from regard.console import make_console

BETWEEN = 30.0  # seconds between two lines where there is no terminal


class Progress:
    """The progress line of a run; a context manager while steps are shown."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self.console = make_console(stderr=True, quiet=quiet)
        self.steps, self.line, self.shown = steps, "", 0.0
        self.words = True  # whether the loss is that of tokens, so that it has a perplexity
        self.live: Live | None = None
        if self.console.is_terminal and not quiet:
            self.live = Live(Text(""), console=self.console, refresh_per_second=4, transient=True)
        self.rates: list[tuple[float, int, float]] = []  # time, tokens and operations of each step

    def __enter__(self) -> Progress:
        if self.live is not None:
            self.live.start()
        self.pause()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def step(
        self, step: int, loss: float, rate: float, tokens: int, operations: float, peak: float
    ) -> dict[str, float]:
        """Show a step. Returns its values for the metrics file."""
        self.rates = [*self.rates[-20:], (time.perf_counter(), tokens, operations)]
        elapsed = self.rates[-1][0] - self.rates[0][0]
        speed = sum(n for _, n, _ in self.rates[1:]) / elapsed
        fraction = sum(o for *_, o in self.rates[1:]) / elapsed / peak
        left = duration((self.steps - step) * elapsed / (len(self.rates) - 1))
        words = f"  perplexity {perplexity(loss):.2f}" if self.words else ""
        metrics = {
            "loss": loss, **({"perplexity": perplexity(loss)} if words else {}),
            "learning_rate": rate, "tokens_per_second": round(speed),
            "fraction_of_peak": round(fraction, 4),
        }  # fmt: skip
        self.line = (
            f"step {step:,}/{self.steps:,}  loss {loss:.3f}{words}  "
            f"{speed:,.0f} tokens/s ({fraction:.0%} of peak)  rate {rate:.2e}  {left} left"
        )
        if self.live is not None:
            self.live.update(Text(self.line))
        elif time.perf_counter() - self.shown > BETWEEN:
            self.shown = time.perf_counter()
            self.console.print(self.line, soft_wrap=True)
        return metrics

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


def duration(seconds: float) -> str:
    """`1:02:03` (hours, minutes, seconds), or `2:03` below an hour."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
