"""The GPU step by Triton kernels: the same function as Transformer.step followed by Beams.advance.

It supports the most frequent searches, beam search (and greedy search) with up to 16 hypotheses,
and also runs the encoder.

A norm is not computed where a layer ends but where its result is read (`Pending`): the product
of a few rows computes it while loading them. From 33 rows on, norms are separate kernels and most
products are PyTorch's, which are faster for that size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decoding.beams import Beams
from regard.model.cache import Cache
from regard.model.stack import Stack
from regard.model.transformer import Transformer
from regard.ops import reference
from regard.ops.common import ACTIVATION_CODES, LAYER, RMS
from regard.ops.cuda import decoding_kernels as kernels
from regard.ops.cuda import search_kernels

MAX_WIDTH = 16  # hypotheses of a sentence
FUSED_ROWS = 32  # up to this number of rows, a product includes the norm before it
TILED_ROWS, TILED_COLUMNS = 256, 1024  # up to these sizes, tile_kernel is faster than PyTorch
MAX_SIZE = 4096  # largest layer size that the products support
PIECE, PIECES = 128, 32  # logits of a piece, and pieces that one Triton program scans

# The elementwise activations by their codes.
ACTIVATIONS = {ACTIVATION_CODES[name]: f for name, f in reference.ACTIVATIONS.items()}

# Attention of a layer: [N, H*K] or [N, 3*H*K] -> [N, H*K]
Attend = Callable[[int, Tensor], Tensor]

# Launch options: each kernel starts while the one before it still runs (programmatic dependent
# launch), because starting kernels is about half of the time of a step.
LAUNCH: dict[str, Any] = {"EARLY": kernels.EARLY}
if kernels.EARLY:
    LAUNCH["launch_pdl"] = True


class Pending:
    """Activations x[N, D] with a sum and a norm that are computed when they are first read."""

    def __init__(
        self, raw: Tensor, norm: nn.Module | None = None, plus: Tensor | None = None
    ) -> None:
        self.raw, self.norm, self.plus = raw, norm, plus
        self.cached: Tensor | None = None

    @property
    def value(self) -> Tensor:
        if self.cached is None:
            self.cached = self.normed(self.norm)
        return self.cached

    def normed(self, norm: nn.Module | None) -> Tensor:
        """The normalised sum; afterwards `raw` contains the sum."""
        x, plus, self.plus = self.raw, self.plus, None
        if norm is None:
            self.raw = x if plus is None else x + plus
            return self.raw
        result = torch.empty_like(x)
        self.raw = x if plus is None else torch.empty_like(x)
        like = Pending(x, norm)
        kernels.sum_norm_kernel[(len(x),)](
            self.raw, result, x, x if plus is None else plus, *norm_of(like), x.shape[1],
            epsilon_of(like),
            ADD=plus is not None, NORM=norm_kind(like), SHIFT=has_shift(like),
            BLOCK=power(x.shape[1]), **LAUNCH,
        )  # fmt: skip
        return result


def product(
    x: Pending, weight: Tensor, bias: Tensor | None, activation: int = 0,
    residual: Pending | None = None,
) -> Tensor:  # fmt: skip
    """f(x weightᵀ + bias) + residual."""
    rows = len(x.raw)
    if rows <= FUSED_ROWS:
        return fused_product(x, weight, bias, activation, residual)
    if in_triton(rows, len(weight)):
        return tiled_product(x.value, weight, bias, activation, residual)
    if activation == ACTIVATION_CODES["relu"] and bias is not None:
        out = torch._addmm_activation(bias, x.value, weight.t())  # one kernel
    else:
        out = F.linear(x.value, weight, bias)
        out = ACTIVATIONS[activation](out)
    return out if residual is None else out + residual.value


def in_triton(rows: int, size: int) -> bool:
    """Whether a Triton kernel computes the product together with the sum after it."""
    return rows <= FUSED_ROWS or (rows <= TILED_ROWS and size <= TILED_COLUMNS)


def fused_product(
    x: Pending, weight: Tensor, bias: Tensor | None, activation: int, residual: Pending | None
) -> Tensor:
    """A product that includes the norm. Its blocks and warps were the fastest on an H200."""
    rows, width = x.raw.shape
    size = len(weight)
    out = x.raw.new_empty(rows, size)
    bytes_each = weight.element_size()
    dot = rows > 4 or (rows > 1 and width <= 512)  # tensor cores; they need at least 16 rows
    tall = max(16, power(rows)) if dot else power(rows)
    if rows == 1:
        block = 4 if size <= 512 else 8 if size <= 8192 else 16
        warps = 2 if width <= 512 else 4
    elif dot:
        block, warps = 32 if width * bytes_each <= 1024 else 16, 4 if rows <= 16 else 8
    else:
        block, warps = 8, 4
    wide = dot and tall * width * bytes_each > 2**15  # too large for the registers of one program
    norm = x.norm if x.cached is None and not wide else None
    inner = power(width) if norm or not dot else min(1024 // bytes_each, power(width))
    source = Pending(x.raw if norm else x.value, norm)
    normed = torch.empty_like(x.raw) if norm else source.raw
    kernels.product_kernel[(-(-size // block),)](
        out, source.raw, weight, weight if bias is None else bias, *norm_of(source), normed,
        out if residual is None else residual.value, rows, width, size,
        epsilon_of(source),
        BIAS=bias is not None, NORM=norm_kind(source), SHIFT=has_shift(source),
        ACTIVATION=activation, RESIDUAL=residual is not None,
        ROWS=tall, BLOCK_V=block, BLOCK_D=inner, WHOLE_D=inner >= width, DOT=dot,
        num_warps=warps, **LAUNCH,
    )  # fmt: skip
    x.cached = normed
    return out


def tiled_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, residual: Pending | None
) -> Tensor:
    """A product in tiles that includes the residual sum."""
    rows, width = x.shape
    size = len(weight)
    out = x.new_empty(rows, size)
    tall, deep = (64, 256) if width <= 512 else (32, 512)
    deep //= weight.element_size()
    kernels.tile_kernel[(-(-size // 32), -(-rows // tall))](
        out, x, weight, weight if bias is None else bias,
        out if residual is None else residual.value, rows, width, size,
        BIAS=bias is not None, ACTIVATION=activation, RESIDUAL=residual is not None,
        BLOCK_R=tall, BLOCK_V=32, BLOCK_D=deep, num_stages=3, **LAUNCH,
    )  # fmt: skip
    return out


def linear(x: Pending, layer: Any, activation: int = 0, part: slice = slice(None)) -> Tensor:
    """A linear layer (or some of its outputs) with an activation."""
    bias = None if layer.bias is None else layer.bias[part]
    return product(x, layer.weight[part], bias, activation)


def sublayer_input(stream: Pending, sublayer: Any, norm_first: bool) -> Pending:
    """The input of a sub-layer; with pre-norm its norm applies here."""
    if not norm_first:
        return stream
    if stream.plus is None:
        return Pending(stream.raw, sublayer.norm)
    normed = stream.normed(sublayer.norm)
    before = Pending(stream.raw, sublayer.norm)
    before.cached = normed
    return before


def add_sublayer(
    x: Tensor, layer: Any, stream: Pending, sublayer: Any, norm_first: bool
) -> Pending:
    """Add a sub-layer's last product to the stream; with post-norm its norm applies here."""
    norm = None if norm_first else sublayer.norm
    if in_triton(len(x), len(layer.weight)):
        return Pending(product(Pending(x), layer.weight, layer.bias, residual=stream), norm)
    return Pending(product(Pending(x), layer.weight, layer.bias), norm, plus=stream.value)


def norm_kind(rows: Pending) -> int:
    if rows.norm is None:
        return 0
    return LAYER if isinstance(rows.norm, nn.LayerNorm) else RMS


def norm_of(rows: Pending) -> tuple[Any, Any]:
    """Gain and shift; where there is none, any tensor that the kernel does not read."""
    gain = getattr(rows.norm, "weight", rows.raw)
    shift = getattr(rows.norm, "bias", None)
    return gain, gain if shift is None else shift


def epsilon_of(rows: Pending) -> float:
    """The number that the norm adds to the variance."""
    return float(getattr(rows.norm, "eps", 0.0))


def has_shift(rows: Pending) -> bool:
    return getattr(rows.norm, "bias", None) is not None


def run_stack(
    stack: Stack, x: Tensor, attend: Attend, attend_memory: Attend | None = None
) -> Pending:
    """Run x[N, D] through all layers of an encoder or a decoder."""
    config = stack.config
    first, activation = config.norm_first, ACTIVATION_CODES[config.activation]
    stream = Pending(x)
    for i, block in enumerate(stack.layers):
        own: Any = block.self_attention
        before = sublayer_input(stream, block.self_attention_norm, first)
        attended = attend(i, linear(before, own.query_key_value))
        stream = add_sublayer(attended, own.output, stream, block.self_attention_norm, first)
        cross: Any = block.cross_attention
        if cross is not None and attend_memory is not None:
            before = sublayer_input(stream, block.cross_attention_norm, first)
            query = linear(before, cross.query_key_value, part=slice(own.width))
            attended = attend_memory(i, query)
            stream = add_sublayer(attended, cross.output, stream, block.cross_attention_norm, first)
        feed: Any = block.feed_forward
        before = sublayer_input(stream, block.feed_forward_norm, first)
        hidden = linear(before, feed.inner, activation)
        stream = add_sublayer(hidden, feed.outer, stream, block.feed_forward_norm, first)
    return stream if stack.final_norm is None else Pending(stream.value, stack.final_norm)


class FusedStep:
    """A step of the model and of the search on the tensors of Beams and Cache."""

    def __init__(self, model: Transformer, beams: Beams, cache: Cache, done: Tensor) -> None:
        """done[B]: flags in pinned memory, which the step also writes."""
        self.beams, self.cache, self.host_done = beams, cache, done.view(torch.uint8)
        # Triton needs bytes instead of booleans.
        self.visible, self.done = cache.visible.view(torch.uint8), beams.done.view(torch.uint8)
        sentences, width = beams.tokens.shape
        rows, vocabulary = sentences * width, len(model.output_matrix())
        device = beams.tokens.device
        self.blocks = -(-vocabulary // (PIECE * PIECES))
        self.highest = torch.empty(rows, power(self.blocks * PIECES), device=device)
        self.mass = torch.empty_like(self.highest)
        self.best = torch.empty(rows, beams.candidates, device=device)
        self.best_tokens = torch.empty_like(self.best, dtype=torch.int32)
        self.arrived = torch.zeros(1, dtype=torch.int32, device=device)  # programs that have ended

    @staticmethod
    def supports(model: Transformer, beams: Beams) -> bool:
        """Whether the kernels implement this search for this model."""
        config = model.config
        size = config.head_size
        return (
            not beams.sampling
            and beams.sequences is None
            and beams.width <= MAX_WIDTH
            and size in (16, 32, 64, 128)
            and model.output_matrix().dtype != torch.float64
            and max(3 * config.heads * size, config.d_model, config.d_ff) <= MAX_SIZE
            and config.window is None
            and config.activation in reference.ACTIVATIONS
            and config.key_value_heads == config.heads
            and config.positions in ("sinusoidal", "learned", "none")
            and not config.custom_parts
            and not config.embedding_norm
        )

    def encode(self, encoder: Stack, x: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """x[N, D] -> memory[N, D]; attend: queries, keys and values [N, H, K] -> [N, H, K]."""

        def attend_rows(layer: int, rows: Tensor) -> Tensor:
            parts = rows.unflatten(1, (3, encoder.config.heads, -1)).unbind(1)
            return attend(*parts).flatten(1)

        return run_stack(encoder, x, attend_rows).value

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

        def attend_self(layer: int, rows: Tensor) -> Tensor:
            return self._attend(rows, cache.keys[layer], cache.values[layer], new=True)

        def attend_memory(layer: int, rows: Tensor) -> Tensor:
            return self._attend(rows, *cache.memory[layer], new=False)

        stream = run_stack(decoder, x, attend_self, attend_memory)
        if rows > 1:  # for as many columns as the vocabulary has, PyTorch's product is faster
            return F.linear(stream.value, model.output_matrix(), model.head.bias)
        return product(stream, model.output_matrix(), model.head.bias)

    def _attend(self, rows: Tensor, keys: Tensor, values: Tensor, new: bool) -> Tensor:
        """rows: queries [N, H*K], or with `new` the queries, keys and values [N, 3*H*K]."""
        sentences, heads, slots, size = keys.shape
        width = len(rows) // sentences
        out = rows.new_empty(len(rows), heads * size)
        inner = heads * size
        # Several hypotheses use many slots: larger blocks, where the GPU has room for them.
        block, warps = (64, 4) if new and width > 1 and sentences * heads <= 1024 else (32, 1)
        warps = 4 if size * rows.element_size() > 128 else warps  # fewer would run out of registers
        kernels.attend_kernel[(sentences * heads,)](
            out, rows, rows[:, inner:] if new else rows, rows[:, 2 * inner :] if new else rows,
            keys, values, self.visible, self.cache.next if new else self.cache.memory_lengths,
            size**-0.5, heads, slots, rows.stride(0), *keys.stride()[:3],
            NEW=new, WIDTH=width, ROWS=MAX_WIDTH, SIZE=size, BLOCK=block,
            num_warps=warps, num_stages=1, maxnreg=128, **LAUNCH,
        )  # fmt: skip
        return out

    def _advance(self, logits: Tensor) -> None:
        """Beams.advance, and the counters of the cache."""
        beams, cache = self.beams, self.cache
        sentences, width = beams.tokens.shape
        rows, vocabulary = logits.shape
        shape: dict[str, Any] = {"V": vocabulary, "WIDTH": width, **LAUNCH}
        shape |= {"HAS_MIN_STEPS": beams.options.min_length > 0, "PIECE": PIECE, "PIECES": PIECES}
        shape["ALL"] = self.highest.shape[1]
        ending = beams.time, beams.min_steps, beams.eos
        search_kernels.scan_kernel[(rows, self.blocks)](
            logits, self.highest, self.mass, *ending, **shape
        )
        search_kernels.narrow_kernel[(rows,)](
            logits, self.highest, self.mass, self.best, self.best_tokens, *ending, **shape,
            CANDIDATES=beams.candidates, MAX_CANDIDATES=power(beams.candidates), num_warps=1,
        )  # fmt: skip
        several = power(width * beams.candidates)
        search_kernels.choose_kernel[(sentences,)](
            self.best, self.best_tokens, beams.scores, beams.tokens, beams.parents, beams.finished,
            self.done, self.host_done, beams.limits, beams.records, beams.time, cache.next,
            cache.positions, self.arrived, beams.rows, beams.records.shape[1], beams.eos,
            WIDTH=width, CANDIDATES=beams.candidates, ALL=several,
            num_warps=1 if several <= 64 else 16, **LAUNCH,
        )  # fmt: skip


def power(size: int) -> int:
    """The smallest power of two that is not less than size."""
    return 1 << (size - 1).bit_length()
