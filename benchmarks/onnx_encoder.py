"""An encoder of BERT shape for ONNX Runtime, with the operators into which it fuses a BERT.

The graph is written here, because an exported one would need more packages and a separate fusion.
It computes the same as BertModel of Hugging Face without the pooler, from the same random weights.
int8 is the dynamic quantisation of the runtime, applied to matrix products and attention.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.encoder_programs import ONNX_FILES, bert
from regard import ModelConfig

EPSILON = 1e-12
FUSED = "com.microsoft"  # domain of the operators of the runtime


class Graph:
    """Operators in the order of computation, and their weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, name: str, value: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def add(self, kind: str, *inputs: str, domain: str = "", **options: Any) -> str:
        from onnx import helper

        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, domain=domain, **options))
        return name


def export(config: ModelConfig, folder: Path, model: Any = None) -> None:
    """Write float32.onnx and int8.onnx.

    Args:
        model: a BertModel of Hugging Face; None: one with random weights.
    """
    import onnx
    from onnx import TensorProto, helper
    from onnxruntime.quantization import QuantType, quantize_dynamic

    torch.manual_seed(0)
    model = bert(config) if model is None else model
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    graph = Graph()
    x = encoder(graph, config, weights)
    graph_proto = helper.make_graph(
        [*graph.nodes, helper.make_node("Identity", [x], ["memory"])],
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["B", "T"])
         for name in ("tokens", "mask")],
        [helper.make_tensor_value_info("memory", TensorProto.FLOAT, ["B", "T", config.d_model])],
        graph.weights,
    )  # fmt: skip
    versions = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    path = folder / ONNX_FILES["float32"]
    onnx.save(helper.make_model(graph_proto, opset_imports=versions, ir_version=8), path)
    logging.disable(logging.WARNING)  # it advises to fuse what is fused already
    quantize_dynamic(
        path, folder / ONNX_FILES["int8"], op_types_to_quantize=["MatMul", "Attention"],
        weight_type=QuantType.QInt8, per_channel=True,
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )  # fmt: skip


def encoder(graph: Graph, config: ModelConfig, weights: dict[str, NDArray[np.float32]]) -> str:
    """tokens[B, T], mask[B, T] -> [B, T, D]; the name of the last value."""

    def of(name: str) -> str:
        return graph.weight(name, weights[name])

    def product(x: str, layer: str) -> str:
        """Without its bias, which the operator after it adds."""
        return graph.add("MatMul", x, graph.weight(layer, weights[f"{layer}.weight"].T.copy()))

    def add_norm(x: str, y: str, norm: str, bias: str) -> str:
        return graph.add(
            "SkipLayerNormalization", y, x, of(f"{norm}.weight"), of(f"{norm}.bias"), of(bias),
            domain=FUSED, epsilon=EPSILON,
        )  # fmt: skip

    # The segment is always the first one; its embedding is added to the table of positions.
    kind = weights["embeddings.token_type_embeddings.weight"][0]
    places = graph.weight("places", weights["embeddings.position_embeddings.weight"] + kind)
    length = graph.add("Gather", graph.add("Shape", "tokens"), graph.weight("1", np.array(1)))
    zero, one = graph.weight("from", np.array(0)), graph.weight("step", np.array(1))
    rows = graph.add("Gather", places, graph.add("Range", zero, length, one))
    x = graph.add(
        "Add", graph.add("Gather", of("embeddings.word_embeddings.weight"), "tokens"), rows
    )
    norm = "embeddings.LayerNorm"
    x = graph.add(
        "LayerNormalization", x, of(f"{norm}.weight"), of(f"{norm}.bias"), epsilon=EPSILON
    )
    for number in range(config.encoder_layers):
        layer = f"encoder.layer.{number}"
        parts = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        projection = np.concatenate([weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([weights[f"{part}.bias"] for part in parts])
        y = graph.add(
            "Attention", x, graph.weight(f"{layer}.projection", projection),
            graph.weight(f"{layer}.bias", bias), "mask", domain=FUSED, num_heads=config.heads,
        )  # fmt: skip
        output = f"{layer}.attention.output"
        y = product(y, f"{output}.dense")
        x = add_norm(x, y, f"{output}.LayerNorm", f"{output}.dense.bias")
        y = product(x, f"{layer}.intermediate.dense")
        y = graph.add("BiasGelu", y, of(f"{layer}.intermediate.dense.bias"), domain=FUSED)
        y = product(y, f"{layer}.output.dense")
        x = add_norm(x, y, f"{layer}.output.LayerNorm", f"{layer}.output.dense.bias")
    return x
