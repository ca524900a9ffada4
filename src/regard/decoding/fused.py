"""A decoding step on a GPU out of few kernels: the same function as Transformer.step followed by
Beams.advance, for what is asked most: beam search (greedy included) with up to 16 hypotheses.

Rows wait with their norm: a product computes it on the way in, and where it is only needed for
the sum after a product, on the way out. From 17 rows on the products are PyTorch's, which are
faster then, and norms and sums are kernels of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decoding import kernels
from regard.decoding.beams import Beams
from regard.model.block import EPSILON
from regard.model.cache import Cache
from regard.model.transformer import Transformer

FEW = 16  # rows of a product, and hypotheses of a sentence
WIDEST = 4096  # sizes of a layer that our products are made for
PIECE, PIECES = 512, 8  # logits, and pieces of so many that one program looks through

# Kernels that start while the one before still runs: about half of what a step costs is starting.
TOGETHER: dict[str, Any] = {"EARLY": kernels.EARLY}
if kernels.EARLY:
    TOGETHER["launch_pdl"] = True


class Rows:
    """x[N, D] (plus something that is not added yet), and the norm that its readers want."""

    def __init__(
        self, raw: Tensor, norm: nn.Module | None = None, plus: Tensor | None = None
    ) -> None:
        self.raw, self.norm, self.plus = raw, norm, plus
        self.kept: Tensor | None = None

    @property
    def value(self) -> Tensor:
        if self.kept is None:
            self.kept = self.normed(self.norm)
        return self.kept

    def normed(self, norm: nn.Module | None) -> Tensor:
        """The sum as this norm makes it; from now on `raw` is the sum."""
        if self.plus is None:
            return self.raw if norm is None else norm(self.raw)
        x, plus, self.plus = self.raw, self.plus, None
        if norm is None:
            self.raw = x + plus
            return self.raw
        self.raw, result = torch.empty_like(x), torch.empty_like(x)
        like = Rows(x, norm)
        kernels.sum_norm_kernel[(len(x),)](
            self.raw, result, x, plus, *norm_of(like), x.shape[1], EPSILON,
            NORM=norm_kind(like), SHIFT=has_shift(like), BLOCK=power(x.shape[1]),
        )  # fmt: skip
        return result


def product(
    x: Rows, weight: Tensor, bias: Tensor | None, activation: int = 0, residual: Rows | None = None
) -> Tensor:
    """f(x weightᵀ + bias) + residual, for few rows."""
    rows, width = x.raw.shape
    size = len(weight)
    out = x.raw.new_empty(rows, size)
    # The least that tensor cores take is 16 rows: too many for up to 4. Small blocks are what
    # keeps enough of the chip busy with a small matrix.
    dot = rows > 4
    block = 16 if dot else 4 if rows == 1 else 2
    if size > 8192:
        block = 64 if dot else 8 if rows == 1 else 4
    warps = 2 if 1 < rows <= 4 else 4
    inner = power(width) if x.norm or not dot else min(512, power(width))
    beside = residual if residual is not None else Rows(x.raw)
    kernels.product_kernel[(-(-size // block),)](
        out, x.raw, weight, weight if bias is None else bias, *norm_of(x), beside.raw,
        *norm_of(beside), rows, width, size, EPSILON,
        BIAS=bias is not None, NORM=norm_kind(x), SHIFT=has_shift(x), ACTIVATION=activation,
        RESIDUAL=residual is not None, RESIDUAL_NORM=norm_kind(beside),
        RESIDUAL_SHIFT=has_shift(beside), ROWS=FEW if dot else power(rows), BLOCK_V=block,
        BLOCK_D=inner, WHOLE_D=inner >= width,
        WHOLE_V=power(size) if residual else 1, DOT=dot,
        num_warps=warps if width <= 512 else 2 * warps, **TOGETHER,
    )  # fmt: skip
    return out


def product_of(x: Rows, layer: Any, activation: int = 0, part: slice = slice(None)) -> Tensor:
    """f of a linear layer (or some of its rows)."""
    bias = None if layer.bias is None else layer.bias[part]
    weight = layer.weight[part]
    if len(x.raw) <= FEW:
        return product(x, weight, bias, activation)
    out = F.linear(x.value, weight, bias)
    if activation:
        out = F.relu(out) if activation == kernels.RELU else F.gelu(out)
    return out


def read(stream: Rows, sublayer: Any, norm_first: bool) -> Rows:
    """What a sub-layer reads: pre-norm has its norm here."""
    if not norm_first:
        return stream
    if stream.plus is None:
        return Rows(stream.raw, sublayer.norm)
    normed = stream.normed(sublayer.norm)
    rows = Rows(stream.raw, sublayer.norm)
    rows.kept = normed
    return rows


def add(x: Tensor, layer: Any, stream: Rows, sublayer: Any, norm_first: bool) -> Rows:
    """A sub-layer's last product, added to the stream: post-norm has its norm here."""
    norm = None if norm_first else sublayer.norm
    if len(x) <= FEW:
        return Rows(product(Rows(x), layer.weight, layer.bias, residual=stream), norm)
    return Rows(F.linear(x, layer.weight, layer.bias), norm, plus=stream.value)


def norm_kind(rows: Rows) -> int:
    if rows.norm is None:
        return 0
    return kernels.LAYER_NORM if isinstance(rows.norm, nn.LayerNorm) else kernels.RMS_NORM


def norm_of(rows: Rows) -> tuple[Any, Any]:
    """Gain and shift; anything where there are none."""
    gain = getattr(rows.norm, "weight", rows.raw)
    shift = getattr(rows.norm, "bias", None)
    return gain, gain if shift is None else shift


def has_shift(rows: Rows) -> bool:
    return getattr(rows.norm, "bias", None) is not None


class FusedStep:
    """A step of the model and of the search on the same buffers, without the host."""

    def __init__(self, model: Transformer, beams: Beams, cache: Cache) -> None:
        self.beams, self.cache = beams, cache
        # Kernels take bytes for booleans.
        self.visible, self.done = cache.visible.view(torch.uint8), beams.done.view(torch.uint8)
        sentences, width = beams.tokens.shape
        rows, vocabulary = sentences * width, len(model.output_matrix())
        self.blocks = -(-vocabulary // (PIECE * PIECES))
        device = beams.tokens.device
        self.part = torch.empty(rows, self.blocks, 2, device=device)
        self.highest = torch.empty(rows, self.blocks * PIECES, device=device)
        self.best = torch.empty(rows, beams.candidates, device=device)
        self.best_tokens = torch.empty_like(self.best, dtype=torch.int32)

    @staticmethod
    def can(model: Transformer, beams: Beams) -> bool:
        """Is this one of the searches that it knows?"""
        config = model.config
        size = config.head_size
        return (
            not beams.samples
            and beams.said is None
            and beams.width <= FEW
            and size in (16, 32, 64, 128)
            and model.output_matrix().dtype != torch.float64
            and max(3 * config.heads * size, config.d_model, config.d_ff) <= WIDEST
            and config.window is None
            and config.activation != "swiglu"
            and config.positions != "rotary"
            and not config.embedding_norm
        )

    def __call__(self, model: Transformer) -> None:
        self._advance(self._logits(model))

    def _logits(self, model: Transformer) -> Tensor:
        config, cache, beams, decoder = model.config, self.cache, self.beams, model.decoder
        assert decoder is not None
        sentences, width = beams.tokens.shape
        rows, d_model = sentences * width, config.d_model
        table = model.table("target").weight
        x = table.new_empty(rows, d_model)
        places = cache.position_rows
        scale = d_model**0.5 if config.scale_embeddings else 1.0
        kernels.embed_kernel[(rows,)](
            x, beams.tokens, cache.positions, table, table if places is None else places, scale,
            d_model, 0 if places is None else len(places),
            WIDTH=width, ADD=places is not None, BLOCK=power(d_model), **TOGETHER,
        )  # fmt: skip
        kernels.move_kernel[(sentences,)](
            self.visible, beams.parents, cache.next, cache.slots,
            WIDTH=width, ROWS=power(width), BLOCK=64, **TOGETHER,
        )  # fmt: skip
        relu = kernels.RELU if config.activation == "relu" else kernels.GELU
        stream = Rows(x)
        first = config.norm_first
        for i, block in enumerate(decoder.layers):
            own: Any = block.self_attention
            before = read(stream, block.self_attention_norm, first)
            qkv = product_of(before, own.query_key_value)
            looked = self._attend(qkv, cache.keys[i], cache.values[i], new=True)
            stream = add(looked, own.output, stream, block.self_attention_norm, first)
            cross: Any = block.cross_attention
            if cross is not None:
                before = read(stream, block.cross_attention_norm, first)
                query = product_of(before, cross.query_key_value, part=slice(own.width))
                looked = self._attend(query, *cache.memory[i], new=False)
                stream = add(looked, cross.output, stream, block.cross_attention_norm, first)
            feed: Any = block.feed_forward
            before = read(stream, block.feed_forward_norm, first)
            hidden = product_of(before, feed.inner, relu)
            stream = add(hidden, feed.outer, stream, block.feed_forward_norm, first)
        if decoder.final_norm is not None:
            stream = Rows(stream.value, decoder.final_norm)
        matrix = model.output_matrix()
        if rows <= FEW:
            return product(stream, matrix, None)
        return F.linear(stream.value, matrix)

    def _attend(self, rows: Tensor, keys: Tensor, values: Tensor, new: bool) -> Tensor:
        """rows: queries [N, H*K], or queries, keys and values of the new tokens [N, 3*H*K]."""
        sentences, heads, slots, size = keys.shape
        width = len(rows) // sentences
        out = rows.new_empty(len(rows), heads * size)
        inner = heads * size
        kernels.attend_kernel[(sentences * heads,)](
            out, rows, rows[:, inner:] if new else rows, rows[:, 2 * inner :] if new else rows,
            keys, values, self.visible, self.cache.next if new else self.cache.memory_lengths,
            size**-0.5, heads, slots, rows.stride(0),
            NEW=new, WIDTH=width, ROWS=FEW, SIZE=size, BLOCK=32, **TOGETHER,
        )  # fmt: skip
        return out

    def _advance(self, logits: Tensor) -> None:
        """Beams.advance, and the clocks."""
        beams, cache = self.beams, self.cache
        sentences, width = beams.tokens.shape
        rows, vocabulary = logits.shape
        shape: dict[str, Any] = {"LEAST": beams.options.min_length > 0, "WIDTH": width}
        shape |= {"PIECE": PIECE, "PIECES": PIECES}
        numbers = beams.time, beams.least, vocabulary, self.blocks, beams.eos
        kernels.scan_kernel[(rows, self.blocks)](
            logits, self.part, self.highest, *numbers, **shape, **TOGETHER
        )
        kernels.narrow_kernel[(rows,)](
            logits, self.part, self.highest, self.best, self.best_tokens, *numbers, **shape,
            CANDIDATES=beams.candidates, MOST=power(beams.candidates),
            BLOCKS=power(self.blocks), ALL=power(self.blocks * PIECES), **TOGETHER,
        )  # fmt: skip
        kernels.choose_kernel[(sentences,)](
            self.best, self.best_tokens, beams.scores, beams.tokens, beams.parents, beams.answers,
            self.done, beams.limits, beams.records, beams.time, beams.rows,
            beams.records.shape[1], beams.eos,
            WIDTH=width, CANDIDATES=beams.candidates, ALL=power(width * beams.candidates),
            **TOGETHER,
        )  # fmt: skip
        kernels.tick_kernel[(-(-sentences // 1024),)](
            beams.time, cache.next, cache.positions, sentences, WIDTH=width, BLOCK=1024, **TOGETHER
        )


def power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()
