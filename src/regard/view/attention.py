"""Attention weights as text and as JSON, for `regard view attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.predictor.attention import Attention, View, panels

LISTED = 24  # tokens of the printed table


def describe(attention: Attention, view: View) -> list[str]:
    """Lines about a view: the largest weight of each token, or the mean of these per head."""
    stack = attention.stacks[view.stack]
    rows = panels(view, stack)
    lines = [f"{attention.model}: {view.title}"]
    if len(rows) == len(rows[0]) == 1:
        verb = "depends most on" if view.kind == "rollout" else "attends most to"
        for i, weights in enumerate(rows[0][0].weights[:LISTED]):
            best = int(weights.argmax())
            lines.append(f"  {stack.named(i)} {verb} {stack.columns[best]} ({weights[best]:.2f})")
        more = len(stack.rows) - LISTED
        return lines + ([f"  and {more} more"] if more > 0 else [])
    lines.append("  largest weight of each token, mean over tokens")
    for row in rows:
        means = [f"{panel.weights.max(-1).mean():.2f}" for panel in row]
        name = "layers" if view.kind == "mean" else row[0].title.partition(",")[0]
        lines.append(f"  {name:9} {'  '.join(means)}")
    return lines


def as_dict(attention: Attention, view: View, files: Sequence[str]) -> dict[str, Any]:
    """The view and all its weights for `--json`."""
    stack = attention.stacks[view.stack]
    weights: Any = [
        [np.round(panel.weights.astype(float), 6).tolist() for panel in row]
        for row in panels(view, stack)
    ]
    if view.kind != "grid":  # grid: layers and heads; mean over heads: layers; others: one matrix
        weights = weights[0] if view.kind == "mean" and view.layer is None else weights[0][0]
    about = {name: getattr(attention, name) for name in ("model", "task", "style", "text")}
    written = {"target": attention.target, "writes": stack.writes} if stack.writes else {}
    return {
        **about, **vars(view), **written, "rows": stack.rows, "columns": stack.columns,
        "weights": weights, "files": list(files),
    }  # fmt: skip
