"""The weights of a model with the names and the layout of `transformers`.

Three rearrangements are exact. If the sinusoids of the target are all sines, then all cosines, the
features of the model are permuted, which changes no result. Rotary positions rotate adjacent
features in regard and the two halves of a head in `transformers`, so the rows of queries and keys
are permuted. If the target does not scale embeddings, the table is multiplied by the factor; the
output matrix is then stored separately. Float32 cannot undo a multiplication, so the export also
writes the original tensor where the file has no copy of it (`inexact`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.interop.hf import names as layer_names
from regard.interop.hf.names import Names
from regard.interop.hf.write_options import Architecture
from regard.model.positions import sinusoids

Tensors = dict[str, Tensor]
CLASSES = ("head.classes.weight", "head.classes.bias")
WORDS = ("language-model", "masked-language-model")  # heads with an output matrix of words


LAYERS = {
    "bert": layer_names.BERT, "megatron-bert": layer_names.MEGATRON_BERT, "esm": layer_names.ESM,
    "distilbert": layer_names.DISTILBERT, "opt": layer_names.BART_ENCODER,
    "llama": layer_names.LLAMA, "qwen2": layer_names.LLAMA, "mistral": layer_names.LLAMA,
    "starcoder2": layer_names.STARCODER,
}  # fmt: skip


class Weights:
    """The tensors of a model, rearranged for an architecture of `transformers`.

    Args:
        state: the tensors with the names of regard.
        config: the configuration of the model.
        architecture: the target.
        positions: the number of rows of the position table, if regard computes the positions.
    """

    def __init__(
        self, state: Mapping[str, Tensor], config: ModelConfig, architecture: Architecture,
        positions: int,
    ) -> None:  # fmt: skip
        self.config, self.architecture, self.state = config, architecture, dict(state)
        self.rows = config.max_length if config.positions == "learned" else positions
        self.result: Tensors = {}
        order = torch.arange(config.d_model)
        if architecture.permuted:  # regard: sine, cosine, sine, cosine, ...
            order = torch.cat((order[0::2], order[1::2]))
        self.order = order
        pairs = torch.arange(config.head_size)
        if config.positions == "rotary":
            pairs = torch.cat((pairs[0::2], pairs[1::2]))
        self.pairs = pairs

    def copy(self, own: str, name: str, rows: Tensor | None = None) -> None:
        """Copy a regard tensor, with its rows reordered."""
        value = self.state[own]
        self.result[name] = value if rows is None else value[rows]

    def norm(self, own: str, name: str) -> None:
        """A norm: its weight, and its bias if there is one."""
        for part in ("weight", "bias"):
            if f"{own}.{part}" in self.state:
                self.copy(f"{own}.{part}", f"{name}.{part}", self.order)

    def bias(self, own: str, size: int) -> Tensor | None:
        """A bias; zeros where only the target has one; None where neither has one."""
        c = self.config
        needed = self.architecture.bias
        if needed is None:  # the target has all four biases or none
            needed = c.bias or c.query_key_value_bias
            if self.architecture.name in ("llama", "qwen2") and "feed_forward" in own:
                needed = c.bias
            if self.architecture.name == "qwen2" and own.endswith("output.bias"):
                needed = False
        if own in self.state:
            return self.state[own]
        return self.state["zero"].expand(size) if needed else None

    def attention(self, own: str, names: Names, prefix: str) -> None:
        """The matrices of one attention."""
        c, order = self.config, self.order
        queries, keys = c.heads * c.head_size, c.key_value_heads * c.head_size
        weight = self.state[f"{own}.query_key_value.weight"][:, order]
        bias = self.bias(f"{own}.query_key_value.bias", queries + 2 * keys)
        parts = zip(
            (names.query, names.key, names.value), weight.split((queries, keys, keys)),
            (None,) * 3 if bias is None else bias.split((queries, keys, keys)), strict=True,
        )  # fmt: skip
        for name, matrix, vector in parts:
            for part, x in (("weight", matrix), ("bias", vector)):
                if x is not None:
                    self.result[f"{prefix}{name}.{part}"] = self._heads(x, name == names.value)
        self.copy(f"{own}.output.weight", f"{prefix}{names.output}.weight", order)
        bias = self.bias(f"{own}.output.bias", c.d_model)
        if bias is not None:
            self.result[f"{prefix}{names.output}.bias"] = bias[order]

    def _heads(self, x: Tensor, value: bool) -> Tensor:
        """Rows of queries, keys or values in the order of the target."""
        c = self.config
        heads = x.unflatten(0, (-1, c.head_size))  # [H or G, K, ...]
        if not value:
            heads = heads[:, self.pairs]
        if len(heads) != c.heads and not self.architecture.grouped:
            heads = heads.repeat_interleave(c.heads // c.key_value_heads, dim=0)
        return heads.flatten(0, 1)

    def layer(self, own: str, names: Names, prefix: str) -> None:
        """A layer: self-attention, cross-attention if there is one, feed-forward."""
        c, order = self.config, self.order
        self.attention(f"{own}.self_attention", names, prefix)
        self.norm(f"{own}.self_attention_norm.norm", f"{prefix}{names.attention_norm}")
        if f"{own}.cross_attention.output.weight" in self.state:
            cross = names.of_cross_attention()
            self.attention(f"{own}.cross_attention", cross, prefix)
            self.norm(f"{own}.cross_attention_norm.norm", f"{prefix}{cross.attention_norm}")
        inner = self.state[f"{own}.feed_forward.inner.weight"][:, order]
        bias = self.bias(f"{own}.feed_forward.inner.bias", len(inner))
        gates = len(names.inner)
        for i, name in enumerate(names.inner):
            self.result[f"{prefix}{name}.weight"] = inner.chunk(gates)[i]
            if bias is not None:
                self.result[f"{prefix}{name}.bias"] = bias.chunk(gates)[i]
        self.copy(f"{own}.feed_forward.outer.weight", f"{prefix}{names.outer}.weight", order)
        bias = self.bias(f"{own}.feed_forward.outer.bias", c.d_model)
        if bias is not None:
            self.result[f"{prefix}{names.outer}.bias"] = bias[order]
        self.norm(f"{own}.feed_forward_norm.norm", f"{prefix}{names.norm}")

    # ---- tables -------------------------------------------------------------------------

    def table(self, side: str) -> Tensor:
        """The embedding of one side, [V, D], multiplied by its factor if the target has none."""
        own = f"embeddings.{side}.weight"
        table = self.state["embeddings.shared.weight" if own not in self.state else own]
        scale = scale_of(self.config, self.architecture)
        if scale != 1 and table.is_floating_point():  # not if the numbers are indices (restore)
            table = table * scale
        return table[:, self.order]

    def output(self) -> Tensor:
        """The matrix of the logits, [V, D]."""
        shared = "embeddings.shared.weight"
        target = shared if shared in self.state else "embeddings.target.weight"
        own = "head.output.weight"
        return self.state[own if own in self.state else target][:, self.order]

    def position_table(self, stack: str, unused: int = 0) -> Tensor:
        """The vectors that are added to embeddings, [rows, D], after `unused` rows of zeros."""
        c, like = self.config, self.state["zero"]
        if c.positions == "learned":
            rows = self.state[f"{stack}.positions.weight"]
        elif c.positions == "sinusoidal":
            numbers = torch.arange(self.rows, device=like.device)
            rows = sinusoids(numbers, c.d_model, c.position_base).to(like.dtype)
        else:
            rows = like.expand(self.rows, c.d_model)
        return torch.cat((like.expand(unused, c.d_model), rows[:, self.order]))

    def zeros(self, name: str, *shape: int) -> None:
        """A tensor that the class has and the model does not use."""
        self.result[name] = self.state["zero"].expand(*shape)


def tied(config: ModelConfig, architecture: Architecture) -> bool:
    """Whether the target uses the embedding of the decoder (or of the only stack) as the output
    matrix, so that both must be equal."""
    return scale_of(config, architecture) == 1 and config.tie_embeddings in ("all", "target-output")


def scale_of(config: ModelConfig, architecture: Architecture) -> float:
    """The factor of the embeddings that the table of the target includes."""
    return math.sqrt(config.d_model) if config.scale_embeddings and not architecture.scaled else 1.0


def calibrated(state: Mapping[str, Tensor], temperature: float) -> Tensors:
    """The tensors of a model whose class logits are divided by the temperature: `transformers`
    applies softmax to the logits as they are."""
    return {name: x / temperature if name in CLASSES else x for name, x in state.items()}


def inexact(
    names: Iterable[str], config: ModelConfig, architecture: Architecture, temperature: float
) -> list[str]:
    """The tensors that cannot be computed from the exported file, because it contains only a
    multiple of them that float32 has rounded.

    Args:
        names: the tensors of the model.
        config: the configuration of the model.
        architecture: the target.
        temperature: the temperature of a classifier; 1 for other models.

    Returns:
        Their names.
    """
    rounded = math.frexp(scale_of(config, architecture))[0] != 0.5  # not a power of two
    copied = config.head in WORDS and config.tie_embeddings in ("all", "target-output")
    return [
        name for name in names
        if (name in CLASSES and temperature != 1)
        or (name.startswith("embeddings.") and rounded and not copied)
    ]  # fmt: skip


def convert(
    state: Mapping[str, Tensor], config: ModelConfig, architecture: Architecture, positions: int
) -> Tensors:
    """The tensors of a model with the names and the layout of the target, in the dtype of `state`.

    Args:
        state: `Transformer.state_dict()`.
        config: the configuration of the model.
        architecture: the target.
        positions: the number of positions in the target, for encodings that regard does not limit.

    Returns:
        The tensors by name.
    """
    some = next(iter(state.values()))
    weights = Weights({**state, "zero": some.new_zeros(1)}, config, architecture, positions)
    write = {"encoder-decoder": _seq2seq, "encoder": _encoder, "decoder": _decoder}[config.style]
    write(weights)
    return {name: x.contiguous() for name, x in weights.result.items()}


def _seq2seq(w: Weights) -> None:
    name, c, r = w.architecture.name, w.config, w.result
    source, target, output = w.table("source"), w.table("target"), w.output()
    if c.tie_embeddings == "all":
        r["model.shared.weight"] = target
    else:
        if name != "marian" or c.tie_embeddings == "source-target":
            r["model.shared.weight"] = target
        r["model.encoder.embed_tokens.weight"] = source
        r["model.decoder.embed_tokens.weight"] = target
        r["lm_head.weight"] = output
    bias = w.state.get("head.bias")
    r["final_logits_bias"] = (w.state["zero"].expand(c.vocabulary_size) if bias is None else bias)[
        None
    ]
    for stack, layers in (("encoder", c.encoder_layers), ("decoder", c.decoder_layers)):
        place = f"model.{stack}"
        unused = 2 if name in ("bart", "mbart") else 0
        r[f"{place}.embed_positions.weight"] = w.position_table(stack, unused)
        if c.embedding_norm:
            w.norm(f"{stack}.embedding_norm", f"{place}.layernorm_embedding")
        if c.norm_first:
            w.norm(f"{stack}.final_norm", f"{place}.layer_norm")
        for i in range(layers):
            w.layer(f"{stack}.layers.{i}", layer_names.BART_DECODER, f"{place}.layers.{i}.")


def _encoder(w: Weights) -> None:
    name, c, r = w.architecture.name, w.config, w.result
    base = {"megatron-bert": "bert."}.get(name, f"{name}.")
    base = "" if c.head == "pooling" else base
    r[f"{base}embeddings.word_embeddings.weight"] = w.table("source")
    if name == "esm":
        steps = torch.arange(0, c.head_size, 2, dtype=torch.float64) / c.head_size
        r[f"{base}rotary_embeddings.inv_freq"] = 1 / c.position_base**steps
        w.zeros(f"{base}contact_head.regression.weight", 1, c.encoder_layers * c.heads)
        w.zeros(f"{base}contact_head.regression.bias", 1)
    else:
        r[f"{base}embeddings.position_embeddings.weight"] = w.position_table("encoder")
    if name in ("bert", "megatron-bert"):
        w.zeros(f"{base}embeddings.token_type_embeddings.weight", 2, c.d_model)
    norm = "layer_norm" if name == "esm" else "LayerNorm"
    if c.embedding_norm:
        w.norm("encoder.embedding_norm", f"{base}embeddings.{norm}")
    stack = "transformer" if name == "distilbert" else "encoder"
    for i in range(c.encoder_layers):
        w.layer(f"encoder.layers.{i}", LAYERS[name], f"{base}{stack}.layer.{i}.")
    if c.norm_first:
        final = "emb_layer_norm_after" if name == "esm" else "ln"
        w.norm("encoder.final_norm", f"{base}encoder.{final}")
    _encoder_head(w, base)


def _encoder_head(w: Weights, base: str) -> None:
    name, c = w.architecture.name, w.config
    if c.head == "masked-language-model":
        dense, norm, head = "transform.dense", "transform.LayerNorm", "cls.predictions."
        if name == "esm":
            dense, norm, head = "dense", "layer_norm", "lm_head."
        for part in ("weight", "bias"):
            w.copy(f"head.transform.{part}", f"{head}{dense}.{part}")
        w.norm("head.norm", f"{head}{norm}")
        w.copy("head.bias", f"{head}bias")
        if name != "esm":
            w.copy("head.bias", f"{head}decoder.bias")
        if not tied(c, w.architecture):
            w.result[f"{head}decoder.weight"] = w.output()
    elif c.head == "classifier":
        names = {
            "esm": ("classifier.dense", "classifier.out_proj"),
            "distilbert": ("pre_classifier", "classifier"),
        }.get(name, (f"{base}pooler.dense", "classifier"))
        for own, target in zip(("transform", "classes"), names, strict=True):
            for part in ("weight", "bias"):
                w.copy(f"head.{own}.{part}", f"{target}.{part}")
    else:  # AutoModel has a layer that sentence vectors do not use
        w.zeros("pooler.dense.weight", c.d_model, c.d_model)
        w.zeros("pooler.dense.bias", c.d_model)


def _decoder(w: Weights) -> None:
    name, c, r = w.architecture.name, w.config, w.result
    base = {"gpt2": "transformer."}.get(name, "model.")
    base = "" if c.head == "pooling" else base
    base += "decoder." if name == "opt" else ""
    r[f"{base}{'wte' if name == 'gpt2' else 'embed_tokens'}.weight"] = w.table("target")
    if name == "gpt2":
        r[f"{base}wpe.weight"] = w.position_table("decoder")
    elif name == "opt":
        r[f"{base}embed_positions.weight"] = w.position_table("decoder", 2)
    for i in range(c.decoder_layers):
        if name == "gpt2":
            _gpt2_layer(w, f"decoder.layers.{i}", f"{base}h.{i}.")
        else:
            w.layer(f"decoder.layers.{i}", LAYERS[name], f"{base}layers.{i}.")
    if c.norm_first:
        w.norm("decoder.final_norm", f"{base}{'ln_f' if name == 'gpt2' else 'norm'}")
    if c.head == "language-model" and not tied(c, w.architecture):
        r["lm_head.weight"] = w.output()


def _gpt2_layer(w: Weights, own: str, prefix: str) -> None:
    """A layer of GPT-2: queries, keys and values in one matrix, and all matrices transposed."""
    before = set(w.result)
    w.layer(own, layer_names.GPT2, prefix)
    for part in ("weight", "bias"):
        parts = [w.result.pop(f"{prefix}{x}.{part}") for x in "qkv"]
        w.result[f"{prefix}attn.c_attn.{part}"] = torch.cat(parts)
    for name in set(w.result) - before:
        if name.endswith("weight") and w.result[name].ndim == 2:
            w.result[name] = w.result[name].t()
