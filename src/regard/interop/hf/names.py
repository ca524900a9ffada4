"""The names of the tensors of a layer in `transformers`, for the import and the export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Names:
    """The names of the tensors of one layer."""

    query: str
    key: str
    value: str
    output: str
    attention_norm: str
    inner: Sequence[str]  # two matrices for SwiGLU, the gate first
    outer: str
    norm: str
    cross: str = ""  # replaces `self_attn` in cross-attention
    cross_norm: str = ""

    def of_cross_attention(self) -> Names:
        """The names of the cross-attention tensors instead of those of self-attention."""
        parts = (self.query, self.key, self.value, self.output)
        query, key, value, output = (part.replace("self_attn", self.cross) for part in parts)
        return Names(query, key, value, output, self.cross_norm, (), "", "")


BERT = Names(
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", ("intermediate.dense",), "output.dense", "output.LayerNorm",
)  # fmt: skip
MEGATRON_BERT = replace(BERT, attention_norm="attention.ln", norm="ln")
ESM = replace(BERT, attention_norm="attention.LayerNorm", norm="LayerNorm")
DISTILBERT = Names(
    "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm",
    ("ffn.lin1",), "ffn.lin2", "output_layer_norm",
)  # fmt: skip
BART_ENCODER = Names(
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
    "self_attn_layer_norm", ("fc1",), "fc2", "final_layer_norm",
)  # fmt: skip
BART_DECODER = replace(BART_ENCODER, cross="encoder_attn", cross_norm="encoder_attn_layer_norm")
LLAMA = Names(
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "input_layernorm", ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj",
    "post_attention_layernorm",
)  # fmt: skip
STARCODER = replace(LLAMA, inner=("mlp.c_fc",), outer="mlp.c_proj")
# With the matrices of queries, keys and values split, which GPT-2 stores as one.
GPT2 = Names("q", "k", "v", "attn.c_proj", "ln_1", ("mlp.c_fc",), "mlp.c_proj", "ln_2")
