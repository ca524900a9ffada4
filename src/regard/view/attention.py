"""Attention weights as text and as JSON, for `regard view attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.predictor.attention import Attention, View, panels

LISTED = 24  # lines of the table that goes with a picture


def describe(attention: Attention, view: View) -> list[str]:
    """Lines about a view: the largest weight of each token, or the mean of these per head."""
    stack = attention.stacks[view.stack]
    shown = panels(view, stack)
    lines = [f"{attention.model}: {view.title}"]
    if len(shown) == len(shown[0]) == 1:
        looks = "is made most of" if view.kind == "rollout" else "looks most at"
        for i, row in enumerate(shown[0][0].weights[:LISTED]):
            best = int(row.argmax())
            lines.append(f"  {stack.named(i)} {looks} {stack.columns[best]} ({row[best]:.2f})")
        more = len(stack.rows) - LISTED
        return lines + ([f"  and {more} more"] if more > 0 else [])
    lines.append("  how sharply they look: the largest weight of a token, mean over tokens")
    for row in shown:
        sharp = [f"{panel.weights.max(-1).mean():.2f}" for panel in row]
        name = "layers" if view.kind == "mean" else row[0].title.partition(",")[0]
        lines.append(f"  {name:9} {'  '.join(sharp)}")
    return lines


def as_dict(attention: Attention, view: View, files: Sequence[str]) -> dict[str, Any]:
    """The same for `--json`, with every weight that is shown."""
    stack = attention.stacks[view.stack]
    shown: Any = [
        [np.round(panel.weights.astype(float), 6).tolist() for panel in row]
        for row in panels(view, stack)
    ]
    if view.kind != "grid":  # grid: a row for each layer; mean of all layers: one for each
        shown = shown[0] if view.kind == "mean" and view.layer is None else shown[0][0]
    about = {name: getattr(attention, name) for name in ("model", "task", "style", "text")}
    written = {"target": attention.target, "writes": stack.writes} if stack.writes else {}
    return {
        **about, **vars(view), **written, "rows": stack.rows, "columns": stack.columns,
        "weights": shown, "files": list(files),
    }  # fmt: skip
