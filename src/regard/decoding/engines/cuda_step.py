"""Decoding on a GPU out of few kernels: the encoder, and a step that is the same function as
Transformer.step followed by Beams.advance. For what is asked most: beam search (greedy included)
with up to 16 hypotheses.

Rows wait with their norm: a product of few rows computes it on the way in, and keeps it for the sum
after a later one. From 33 rows on norms are kernels of their own, and most products are PyTorch's,
which are faster then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decoding.beams import Beams
from regard.model.block import EPSILON
from regard.model.cache import Cache
from regard.model.transformer import Stack, Transformer
from regard.ops.cuda import decoding_kernels as kernels
from regard.ops.cuda import search_kernels

WIDTH = 16  # hypotheses of a sentence
FEW = 32  # rows of a product with its norm
SOME, NARROW = 256, 1024  # up to so many rows and columns tiles of ours are faster than PyTorch's
WIDEST = 4096  # sizes of a layer that our products are made for
PIECE, PIECES = 128, 32  # logits, and pieces of so many that one program looks through

Look = Callable[[int, Tensor], Tensor]  # attention of a layer: [N, H*K] or [N, 3*H*K] -> [N, H*K]

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
        x, plus, self.plus = self.raw, self.plus, None
        if norm is None:
            self.raw = x if plus is None else x + plus
            return self.raw
        result = torch.empty_like(x)
        self.raw = x if plus is None else torch.empty_like(x)
        like = Rows(x, norm)
        kernels.sum_norm_kernel[(len(x),)](
            self.raw, result, x, x if plus is None else plus, *norm_of(like), x.shape[1], EPSILON,
            ADD=plus is not None, NORM=norm_kind(like), SHIFT=has_shift(like),
            BLOCK=power(x.shape[1]), **TOGETHER,
        )  # fmt: skip
        return result


def product(
    x: Rows, weight: Tensor, bias: Tensor | None, activation: int = 0, residual: Rows | None = None
) -> Tensor:
    """f(x weightᵀ + bias) + residual."""
    rows = len(x.raw)
    if rows <= FEW:
        return product_of_few(x, weight, bias, activation, residual)
    if ours(rows, len(weight)):
        return product_of_some(x.value, weight, bias, activation, residual)
    if activation == kernels.RELU and bias is not None:
        out = torch._addmm_activation(bias, x.value, weight.t())  # not one kernel more for it
    else:
        out = F.linear(x.value, weight, bias)
        out = F.gelu(out) if activation == kernels.GELU else F.relu(out) if activation else out
    return out if residual is None else out + residual.value


def ours(rows: int, size: int) -> bool:
    """Whether the product can be a kernel of ours, and have the sum after it inside."""
    return rows <= FEW or (rows <= SOME and size <= NARROW)


def product_of_few(
    x: Rows, weight: Tensor, bias: Tensor | None, activation: int, residual: Rows | None
) -> Tensor:
    """With the norm inside. Blocks and warps are those that were fastest on an H200."""
    rows, width = x.raw.shape
    size = len(weight)
    out = x.raw.new_empty(rows, size)
    bytes_each = weight.element_size()
    dot = rows > 4 or (rows > 1 and width <= 512)  # by tensor cores, which take 16 rows at least
    tall = max(16, power(rows)) if dot else power(rows)
    if rows == 1:
        block = 4 if size <= 512 else 8 if size <= 8192 else 16
        warps = 2 if width <= 512 else 4
    elif dot:
        block, warps = 32 if width * bytes_each <= 1024 else 16, 4 if rows <= 16 else 8
    else:
        block, warps = 8, 4
    wide = dot and tall * width * bytes_each > 2**15  # too much for one program to hold
    norm = x.norm if x.kept is None and not wide else None
    inner = power(width) if norm or not dot else min(1024 // bytes_each, power(width))
    source = Rows(x.raw if norm else x.value, norm)
    kept = torch.empty_like(x.raw) if norm else source.raw
    kernels.product_kernel[(-(-size // block),)](
        out, source.raw, weight, weight if bias is None else bias, *norm_of(source), kept,
        out if residual is None else residual.value, rows, width, size, EPSILON,
        BIAS=bias is not None, NORM=norm_kind(source), SHIFT=has_shift(source),
        ACTIVATION=activation, RESIDUAL=residual is not None,
        ROWS=tall, BLOCK_V=block, BLOCK_D=inner, WHOLE_D=inner >= width, DOT=dot,
        num_warps=warps, **TOGETHER,
    )  # fmt: skip
    x.kept = kept
    return out


def product_of_some(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, residual: Rows | None
) -> Tensor:
    """With the sum inside, in tiles."""
    rows, width = x.shape
    size = len(weight)
    out = x.new_empty(rows, size)
    tall, deep = (64, 256) if width <= 512 else (32, 512)
    deep //= weight.element_size()
    kernels.tile_kernel[(-(-size // 32), -(-rows // tall))](
        out, x, weight, weight if bias is None else bias,
        out if residual is None else residual.value, rows, width, size,
        BIAS=bias is not None, ACTIVATION=activation, RESIDUAL=residual is not None,
        BLOCK_R=tall, BLOCK_V=32, BLOCK_D=deep, num_stages=3, **TOGETHER,
    )  # fmt: skip
    return out


def product_of(x: Rows, layer: Any, activation: int = 0, part: slice = slice(None)) -> Tensor:
    """f of a linear layer (or some of its rows)."""
    bias = None if layer.bias is None else layer.bias[part]
    return product(x, layer.weight[part], bias, activation)


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
    if ours(len(x), len(layer.weight)):
        return Rows(product(Rows(x), layer.weight, layer.bias, residual=stream), norm)
    return Rows(product(Rows(x), layer.weight, layer.bias), norm, plus=stream.value)


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


def through(stack: Stack, x: Tensor, look: Look, look_at_memory: Look | None = None) -> Rows:
    """x[N, D] through all layers of an encoder or a decoder."""
    config = stack.config
    first, relu = config.norm_first, kernels.RELU if config.activation == "relu" else kernels.GELU
    stream = Rows(x)
    for i, block in enumerate(stack.layers):
        own: Any = block.self_attention
        before = read(stream, block.self_attention_norm, first)
        looked = look(i, product_of(before, own.query_key_value))
        stream = add(looked, own.output, stream, block.self_attention_norm, first)
        cross: Any = block.cross_attention
        if cross is not None and look_at_memory is not None:
            before = read(stream, block.cross_attention_norm, first)
            query = product_of(before, cross.query_key_value, part=slice(own.width))
            looked = look_at_memory(i, query)
            stream = add(looked, cross.output, stream, block.cross_attention_norm, first)
        feed: Any = block.feed_forward
        before = read(stream, block.feed_forward_norm, first)
        hidden = product_of(before, feed.inner, relu)
        stream = add(hidden, feed.outer, stream, block.feed_forward_norm, first)
    return stream if stack.final_norm is None else Rows(stream.value, stack.final_norm)


class FusedStep:
    """A step of the model and of the search on the same buffers, without the host."""

    def __init__(self, model: Transformer, beams: Beams, cache: Cache, done: Tensor) -> None:
        """done[B]: the host's own, which a GPU can write to."""
        self.beams, self.cache, self.told = beams, cache, done.view(torch.uint8)
        # Kernels take bytes for booleans.
        self.visible, self.done = cache.visible.view(torch.uint8), beams.done.view(torch.uint8)
        sentences, width = beams.tokens.shape
        rows, vocabulary = sentences * width, len(model.output_matrix())
        device = beams.tokens.device
        self.blocks = -(-vocabulary // (PIECE * PIECES))
        self.highest = torch.empty(rows, power(self.blocks * PIECES), device=device)
        self.mass = torch.empty_like(self.highest)
        self.best = torch.empty(rows, beams.candidates, device=device)
        self.best_tokens = torch.empty_like(self.best, dtype=torch.int32)
        self.finished = torch.zeros(1, dtype=torch.int32, device=device)

    @staticmethod
    def can(model: Transformer, beams: Beams) -> bool:
        """Is this one of the searches that it knows?"""
        config = model.config
        size = config.head_size
        return (
            not beams.samples
            and beams.said is None
            and beams.width <= WIDTH
            and size in (16, 32, 64, 128)
            and model.output_matrix().dtype != torch.float64
            and max(3 * config.heads * size, config.d_model, config.d_ff) <= WIDEST
            and config.window is None
            and config.activation != "swiglu"
            and config.positions != "rotary"
            and not config.embedding_norm
        )

    def encode(self, encoder: Stack, x: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """x[N, D] -> memory[N, D]; attend: queries, keys and values [N, H, K] -> [N, H, K]."""

        def look(layer: int, rows: Tensor) -> Tensor:
            parts = rows.unflatten(1, (3, encoder.config.heads, -1)).unbind(1)
            return attend(*parts).flatten(1)

        return through(encoder, x, look).value

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
        kernels.begin_kernel[(rows,)](
            x, beams.tokens, cache.positions, table, table if places is None else places,
            self.visible, beams.parents, cache.next, scale, d_model,
            0 if places is None else len(places), cache.slots,
            WIDTH=width, ROWS=power(width), ADD=places is not None, BLOCK=power(d_model), SLOTS=64,
            EARLY=kernels.EARLY,
        )  # fmt: skip

        def look_back(layer: int, rows: Tensor) -> Tensor:
            return self._attend(rows, cache.keys[layer], cache.values[layer], new=True)

        def look_at_memory(layer: int, rows: Tensor) -> Tensor:
            return self._attend(rows, *cache.memory[layer], new=False)

        stream = through(decoder, x, look_back, look_at_memory)
        if rows > 1:  # whatever the number of rows, PyTorch's product of so many columns is faster
            return F.linear(stream.value, model.output_matrix())
        return product(stream, model.output_matrix(), None)

    def _attend(self, rows: Tensor, keys: Tensor, values: Tensor, new: bool) -> Tensor:
        """rows: queries [N, H*K], or queries, keys and values of the new tokens [N, 3*H*K]."""
        sentences, heads, slots, size = keys.shape
        width = len(rows) // sentences
        out = rows.new_empty(len(rows), heads * size)
        inner = heads * size
        # With several hypotheses the slots are many soon: more at once, where there is room for it.
        block, warps = (64, 4) if new and width > 1 and sentences * heads <= 1024 else (32, 1)
        warps = 4 if size * rows.element_size() > 128 else warps  # or else no registers are left
        kernels.attend_kernel[(sentences * heads,)](
            out, rows, rows[:, inner:] if new else rows, rows[:, 2 * inner :] if new else rows,
            keys, values, self.visible, self.cache.next if new else self.cache.memory_lengths,
            size**-0.5, heads, slots, rows.stride(0), *keys.stride()[:3],
            NEW=new, WIDTH=width, ROWS=WIDTH, SIZE=size, BLOCK=block,
            num_warps=warps, num_stages=1, maxnreg=128, **TOGETHER,
        )  # fmt: skip
        return out

    def _advance(self, logits: Tensor) -> None:
        """Beams.advance, and the clocks."""
        beams, cache = self.beams, self.cache
        sentences, width = beams.tokens.shape
        rows, vocabulary = logits.shape
        shape: dict[str, Any] = {"V": vocabulary, "WIDTH": width, **TOGETHER}
        shape |= {"LEAST": beams.options.min_length > 0, "PIECE": PIECE, "PIECES": PIECES}
        shape["ALL"] = self.highest.shape[1]
        numbers = beams.time, beams.least, beams.eos
        search_kernels.scan_kernel[(rows, self.blocks)](
            logits, self.highest, self.mass, *numbers, **shape
        )
        search_kernels.narrow_kernel[(rows,)](
            logits, self.highest, self.mass, self.best, self.best_tokens, *numbers, **shape,
            CANDIDATES=beams.candidates, MOST=power(beams.candidates), num_warps=1,
        )  # fmt: skip
        several = power(width * beams.candidates)
        search_kernels.choose_kernel[(sentences,)](
            self.best, self.best_tokens, beams.scores, beams.tokens, beams.parents, beams.answers,
            self.done, self.told, beams.limits, beams.records, beams.time, cache.next,
            cache.positions, self.finished, beams.rows, beams.records.shape[1], beams.eos,
            WIDTH=width, CANDIDATES=beams.candidates, ALL=several,
            num_warps=1 if several <= 64 else 16, **TOGETHER,
        )  # fmt: skip


def power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()
