"""A small builder for ONNX graphs: nodes in the order of computation, and their constants.

The operators are those of opset 17, which every current runtime supports. Values are referred to by
name. Comments give shapes with the letters B (batch), T (new tokens), P (tokens before them), S
(T + P, or tokens of the source), H, G, K, D, F, V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
LARGEST_FILE = 2**31 - 2**20  # bytes; larger models need a second file for their weights
LOW = 256  # positions: position = LOW * high + low
POSITIONS = LOW * LOW  # positions that `Graph.angles` supports
HIDDEN = -1e30  # added to the score of a key that is masked for a query
TYPES = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}


class Graph:
    """A graph under construction.

    Args:
        name: the name of the graph.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    # ---- values -------------------------------------------------------------------------------

    def input(self, name: str, dtype: str, *shape: int | str) -> str:
        """Add an input; a dimension given as a string is dynamic."""
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def output(self, name: str, value: str, dtype: str, *shape: int | str) -> None:
        """Make a value an output of the graph, under this name."""
        self.nodes.append(helper.make_node("Identity", [value], [name], f"{name}/output"))
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant; calls with the same name must pass the same value."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def number(self, value: float) -> str:
        """A float32 constant."""
        return self.constant(f"number {value!r}", np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        """A list of integers, for shapes and axes."""
        return self.constant(f"integers {values}", np.array(values, np.int64))

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        """Add a node with one output, and return the name of the output."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **options))
        return name

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Split the last axis."""
        name = f"Split_{len(self.nodes)}"
        outputs = [f"{name}_{i}" for i in range(len(sizes))]
        node = helper.make_node("Split", [x, self.integers(*sizes)], outputs, name, axis=-1)
        self.nodes.append(node)
        return outputs

    # ---- shapes -------------------------------------------------------------------------------

    def size(self, x: str, axis: int) -> str:
        """The size of an axis, as a list of one integer."""
        return self.add("Shape", x, start=axis, end=axis + 1)

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape x. A size of 0 keeps the size of that axis; -1 infers it."""
        return self.add("Reshape", x, self.integers(*shape))

    def heads(self, x: str, heads: int, size: int) -> str:
        """[B, T, heads * size] -> [B, heads, T, size]."""
        return self.add("Transpose", self.reshape(x, 0, 0, heads, size), perm=[0, 2, 1, 3])

    def range(self, start: str, stop: str) -> str:
        """The integers from start to stop; both are lists of one integer."""
        ends = [self.add("Squeeze", end, self.integers(0)) for end in (start, stop)]
        return self.add("Range", *ends, self.constant("one", np.array(1, np.int64)))

    # ---- functions ----------------------------------------------------------------------------

    def linear(self, x: str, name: str, weight: NDArray[Any], bias: NDArray[Any] | None) -> str:
        """x Wᵀ + b: x[..., D], weight[V, D], bias[V] -> [..., V]."""
        y = self.add("MatMul", x, self.constant(f"{name}.weight", weight.T))
        return y if bias is None else self.add("Add", y, self.constant(f"{name}.bias", bias))

    def logits(self, x: str, matrix: str, bias: str | None, width: int, size: int) -> str:
        """`linear` with the embedding table as weight, which is not copied: [..., V]."""
        rows = self.add("Reshape", x, self.integers(-1, width))
        flat = self.add("Gemm", rows, matrix, *([bias] if bias else []), transB=1)
        count = self.add("Shape", x)
        shape = self.add(
            "Concat", self.add("Slice", count, self.integers(0), self.integers(-1)),
            self.integers(size), axis=0,
        )  # fmt: skip
        return self.add("Reshape", flat, shape)

    def activation(self, x: str, kind: str) -> str:
        """relu, gelu, gelu-tanh, silu or tanh."""
        if kind in ("relu", "tanh"):
            return self.add(kind.capitalize(), x)
        if kind == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if kind == "gelu":
            share = self.add("Erf", self.add("Div", x, self.number(math.sqrt(2))))
        else:
            cube = self.add("Mul", self.add("Mul", x, x), x)
            inner = self.add("Add", x, self.add("Mul", cube, self.number(0.044715)))
            share = self.add("Tanh", self.add("Mul", inner, self.number(math.sqrt(2 / math.pi))))
        half = self.add("Mul", x, self.number(0.5))
        return self.add("Mul", half, self.add("Add", share, self.number(1.0)))

    def norm(
        self, x: str, name: str, weight: NDArray[Any], bias: NDArray[Any] | None, epsilon: float
    ) -> str:
        """LayerNorm, or RMSNorm without a bias: [..., D]."""
        scale = self.constant(f"{name}.weight", weight)
        if bias is not None:
            shift = self.constant(f"{name}.bias", bias)
            return self.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)
        mean = self.add("ReduceMean", self.add("Mul", x, x), axes=[-1], keepdims=1)
        size = self.add("Sqrt", self.add("Add", mean, self.number(epsilon)))
        return self.add("Mul", self.add("Div", x, size), scale)

    def angles(self, positions: str, size: int, base: float) -> tuple[str, str]:
        """The sines and cosines of position / base^(2i/size): positions[B, T] -> [B, T, size/2].

        float32 is not precise enough for large angles, and few runtimes compute sines in float64.
        Therefore the sine of LOW * high + low is computed from tables for both parts.
        """
        steps = np.arange(0, size, 2) / size
        parts = np.arange(LOW)[:, None] * base**-steps  # [LOW, size/2], float64
        sines, cosines = list[str](), list[str]()
        high = self.add("Div", positions, self.integers(LOW))
        low = self.add("Sub", positions, self.add("Mul", high, self.integers(LOW)))
        for name, index, angle in (("high", high, LOW * parts), ("low", low, parts)):
            for function, values in ((np.sin, sines), (np.cos, cosines)):
                table = self.constant(
                    f"{function.__name__} {name} {size} {base!r}", function(angle).astype("f4")
                )
                values.append(self.add("Gather", table, index))
        sine = self.add(
            "Add", self.add("Mul", sines[0], cosines[1]), self.add("Mul", cosines[0], sines[1])
        )
        cosine = self.add(
            "Sub", self.add("Mul", cosines[0], cosines[1]), self.add("Mul", sines[0], sines[1])
        )
        return sine, cosine

    # ---- saving -------------------------------------------------------------------------------

    def save(self, path: Path, properties: Mapping[str, str]) -> None:
        """Write the model; weights over 2 GB are stored in a second file beside it.

        Args:
            path: the file.
            properties: the metadata of the model.
        """
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, list(self.constants.values())
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
            producer_name="regard",
        )  # fmt: skip
        helper.set_model_props(model, dict(properties))
        size = sum(len(tensor.raw_data) for tensor in self.constants.values())
        if size > LARGEST_FILE:
            onnx.save(
                model, str(path), save_as_external_data=True, all_tensors_to_one_file=True,
                location=f"{path.name}.data",
            )  # fmt: skip
        else:
            onnx.save(model, str(path))
        onnx.checker.check_model(str(path))
