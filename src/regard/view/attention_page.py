"""Attention as one HTML file that works offline: it contains everything and fetches nothing.

The weights are 16-bit integers. Tokens are untrusted text: they are in a block of JSON without any
`<`, the script inserts them as text, and the content security policy allows only this script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError
from regard.files import write_result
from regard.predictor.attention import Attention, View

MOST_WEIGHTS = 8_000_000  # weights of a page, which is then 21 MB large


def write_page(attention: Attention, view: View, out: Path) -> list[Path]:
    """Write NAME.html; returns the file."""
    if attention.size > MOST_WEIGHTS:
        raise InputError(
            f"{out}: the page would have {attention.size:,} weights, but at most "
            f"{MOST_WEIGHTS:,} fit: shorten the text"
        )
    write_result(out, page(attention, view))
    return [out]


def page(attention: Attention, view: View) -> str:
    folder = files("regard.view")
    template, style, script = (
        folder.joinpath(f"attention.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    parts = {
        "policy": "; ".join([
            "default-src 'none'", f"style-src '{digest(style)}'", f"script-src '{digest(script)}'",
            "base-uri 'none'", "form-action 'none'",
        ]),
        "title": html.escape(f"Attention of {attention.model}"),
        "style": style, "script": script, "data": safe(content(attention, view)),
    }  # fmt: skip
    first, *rest = template.split("{{")
    pieces = (piece.split("}}", 1) for piece in rest)  # does not replace placeholders in a part
    return first + "".join(parts[name] + after for name, after in pieces)


def content(attention: Attention, view: View) -> dict[str, object]:
    """The data for the script, and the initial view."""
    layers = len(attention.stacks[view.stack].weights)
    return {
        "text": attention.text, "target": attention.target,
        "view": {
            "stack": view.stack, "layer": view.layer or layers, "head": view.head or 1,
            "what": view.kind if view.kind in ("mean", "rollout") else "head",
            "how": "lines" if view.kind == "lines" else "map",
        },
        "stacks": [
            {
                "name": stack.name, "rows": stack.rows, "columns": stack.columns,
                "writes": stack.writes, "layers": len(stack.weights),
                "heads": stack.weights.shape[1],
                "weights": encode(stack.weights), "rollout": encode(stack.rollout),
            }
            for stack in attention.stacks.values()
        ],
    }  # fmt: skip


def encode(weights: NDArray[np.float32]) -> str:
    """base64 of little-endian 16-bit integers; 65535 is 1, so the error is below 0.00001."""
    whole = np.round(np.clip(weights, 0, 1) * 65535.0).astype("<u2")
    return base64.b64encode(whole.tobytes()).decode()


def safe(value: object) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c")


def digest(inline: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
