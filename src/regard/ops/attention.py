"""Scaled dot-product attention over packed rows, and the choice of its backend.

`reference` is the definition. `padded` (anywhere, PyTorch's kernels), `cpu` (C++) and `cuda`
(Triton) compute the same function; tests compare them with it, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from regard.device import is_current
from regard.errors import InputError, unknown
from regard.ops import reference
from regard.ops.cpu import build
from regard.ops.cpu.attention import CpuLayout
from regard.ops.cuda.attention import CudaLayout
from regard.ops.cuda.training import has_triton
from regard.ops.layout import Layout, visible
from regard.ops.padded import PaddedLayout


class ReferenceLayout(Layout):
    """The definition, one sequence after the other."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        lengths = self.query_lengths, self.key_lengths, self.key_lengths
        parts = (x.split(n) for x, n in zip((query, key, value), lengths, strict=True))
        outputs = []
        for q, k, v in zip(*parts, strict=True):
            seen = visible(len(q), len(k), self.causal, self.window).to(q.device)
            outputs.append(reference.attention(q, k, v, seen, self.dropout))
        return torch.cat(outputs)


LAYOUTS: dict[str, type[Layout]] = {
    "reference": ReferenceLayout,
    "padded": PaddedLayout,
    "cpu": CpuLayout,
    "cuda": CudaLayout,
}
BACKENDS = ("auto", *LAYOUTS)


def attention_layout(
    query_lengths: Sequence[int], key_lengths: Sequence[int], causal: bool, window: int | None, *,
    backend: str = "auto", device: torch.device, dropout: float = 0.0,
) -> Layout:  # fmt: skip
    """The object that a backend computes once per batch; each layer calls its `attend`."""
    name = attention_backend(backend, device, dropout)
    arguments = tuple(query_lengths), tuple(key_lengths), causal, window, device, dropout
    layout = LAYOUTS[name](*arguments)
    if backend == "auto" and isinstance(layout, CudaLayout):
        layout.fallback = cache(lambda: PaddedLayout(*arguments))
    return layout


def attention_backend(backend: str, device: torch.device, dropout: float) -> str:
    """The name of a backend; `auto` is cpu where its C++ code can be built, cuda for training on a
    GPU, and padded elsewhere.

    Raises:
        InputError: the backend is unknown or cannot run here.
    """
    if backend not in BACKENDS:
        raise unknown("attention backend", backend, BACKENDS)
    if backend in ("cpu", "cuda") and dropout > 0:
        raise InputError(
            f"backend={backend} and attention_dropout={dropout} cannot be combined: this backend "
            "does not store the attention weights, to which dropout applies; use backend=padded"
        )
    if backend == "cpu" and (device.type != "cpu" or build.library("attention") is None):
        raise InputError("backend=cpu needs a CPU and a C++ compiler: use backend=padded or auto")
    if backend != "auto":
        return backend
    if dropout > 0:
        return "padded"
    if torch.compiler.is_compiling():
        return "padded"
    if device.type == "cpu" and build.library("attention") is not None:
        return "cpu"
    if device.type != "cuda" or not torch.is_grad_enabled() or not has_triton():
        return "padded"
    return "cuda" if is_current(device) else "padded"
