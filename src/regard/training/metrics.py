"""`metrics.jsonl` of a run: one JSON object per line, in the order of the steps.

The file is only appended to while a run trains. A run that resumes, or is finished, at an earlier
step first removes the lines of later steps, because they will be written again.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from regard.files import LARGEST_METRICS, read_bounded, write_file
from regard.training.names import METRICS


def append_metrics(run: Path, step: int, values: dict[str, Any]) -> dict[str, Any]:
    """Append a line with the values of a step. Returns the values that were written: JSON has no
    NaN or infinity, so such a value is left out."""
    values = {k: v for k, v in values.items() if not isinstance(v, float) or isfinite(v)}
    with (run / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **values}) + "\n")
    return values


def forget_metrics_after(run: Path, step: int) -> None:
    """Remove damaged lines, lines of later steps and the final result."""
    lines = _lines(run)
    valid = [line for line in lines if is_until(line, step)]
    if len(valid) < len(lines):
        write_file(run / METRICS, b"".join(valid))


def read_history(run: Path) -> list[dict[str, Any]]:
    """All metrics of a run, oldest first; lines that are not valid are left out."""
    values = [_parse(line) for line in _lines(run)]
    return [line for line in values if line is not None]


def is_until(line: bytes, step: int) -> bool:
    """Whether a line of the metrics file is valid, up to `step`, and not the final result."""
    values = _parse(line)
    return values is not None and bool(values["step"] <= step) and "final" not in values


def _lines(run: Path) -> list[bytes]:
    path = run / METRICS
    if not path.exists():
        return []
    return read_bounded(path, LARGEST_METRICS, "the metrics of a run").splitlines(keepends=True)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
        return values if isinstance(values["step"], int | float) else None
    except (ValueError, KeyError, TypeError, RecursionError):  # damaged, or not UTF-8
        return None
