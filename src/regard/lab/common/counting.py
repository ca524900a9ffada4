"""Counts of a layer while it runs: operations, the longest chain of dependent operations, and the
number of layers between the first input and the last output."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from regard.lab.common.layers import Layer
from regard.model.mixers import Recurrence

CPU = torch.device("cpu")


def sdpa_operations(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


# torch's counter knows the GPU's attention kernels, but not the CPU's.
OPERATIONS = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_operations,
}


class Counter(TorchDispatchMode):
    """Counts the floating-point operations of everything that runs (with the formulas of
    `torch.utils.flop_counter`), and the length of the longest chain in which each operation needs a
    result of the one before.

    A tensor is identified by its storage: a view does not lengthen the chain.
    """

    def __init__(self) -> None:
        super().__init__()
        self.depth: dict[int, int] = {}
        self.longest = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [storage(tensor) for tensor in tensors((*args, *kwargs.values()))]
        result = func(*args, **kwargs)
        if count := OPERATIONS.get(func._overloadpacket):
            self.operations += count(*args, **kwargs, out_val=result)
        changes = func._schema.is_mutable
        before = max((self.depth.get(item, 0) for item in inputs), default=0)
        for tensor in tensors(result if isinstance(result, tuple | list) else (result,)):
            if changes or storage(tensor) not in inputs:
                self.depth[storage(tensor)] = before + 1
                self.longest = max(self.longest, before + 1)
        return result


def tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operation, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (item for item in value if isinstance(item, Tensor))


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@torch.no_grad()
def count_operations(layer: Layer, n: int) -> tuple[int, int]:
    """Operations of a forward pass of n tokens, and the longest chain of dependent ones, with the
    attention backend that consists of PyTorch operations: those in C++ cannot be counted."""
    x, plan = torch.randn(n, layer.config.d_model), layer.plan(n, "padded")
    # This CPU library would run all steps of a recurrence as one operation.
    no_library = torch.backends.mkldnn.flags(enabled=False)
    with warnings.catch_warnings(action="ignore"), no_library, Counter() as counter:
        layer(x, plan)
    return counter.operations, counter.longest


def path_length(name: str, n: int, window: int, kernel: int, d: int = 4) -> int | None:
    """The number of layers (of a recurrence: steps) between the first input and the last output.

    The gradient of the last output is propagated back through one layer after the other until it
    reaches the first position. Between layers only its support is kept, with new random values:
    after a thousand layers the values themselves would have vanished. None: there is no path.
    """
    torch.manual_seed(0)
    layer = Layer(name, d, window, kernel, CPU)
    if isinstance(layer.module, Recurrence):
        return steps_back(layer.module, n, d)
    touched = torch.zeros(n, dtype=torch.bool)
    touched[-1] = True
    for count in range(1, n + 1):
        if name == "dilated":
            layer = Layer(name, d, window, kernel, CPU, number=count - 1)
        x = torch.randn(n, d, requires_grad=True)
        back = torch.randn(n, d) * touched[:, None]
        (gradient,) = torch.autograd.grad(layer(x, layer.plan(n)), x, back)
        reached = (gradient != 0).any(-1)
        if reached[0]:
            return count
        if torch.equal(reached, touched):
            return None  # the support no longer changes
        touched = reached
    return None


def steps_back(module: Recurrence, n: int, d: int) -> int | None:
    """The path length of a recurrence, by propagating through one step after the other."""
    cell = module.recurrence
    two = isinstance(cell, torch.nn.LSTM)  # a state of two parts: output and memory cell
    back: list[Tensor] = [torch.randn(1, 1, d)]
    for count in range(1, n + 1):
        x = torch.randn(1, 1, d, requires_grad=True)
        state = [torch.randn(1, 1, d, requires_grad=True) for _ in range(1 + two)]
        _, after = cell(x, (state[0], state[1]) if two else state[0])
        outputs = list(after) if two else [after]
        gradients = torch.autograd.grad(outputs[: len(back)], [x, *state], back, allow_unused=True)
        if count == n:  # the step that reads the first input
            return count if bool((gradients[0] != 0).any()) else None
        back = [torch.randn(1, 1, d) * (0 if g is None else (g != 0)) for g in gradients[1:]]
    return None
