"""CUDA graphs for training: the forward and backward pass of a row as a graph that is replayed.

Launching a thousand small kernels from Python takes longer than running them. A CUDA graph launches
them all at once, but needs the same shapes each time. Rows are therefore padded to a fixed size
with tokens that no other token sees and that have the label -1. Everything that differs between
rows (tokens, positions, labels, the tables of attention, the seed of dropout) is in one buffer,
which a single copy from the host overwrites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.device import no_collection
from regard.model.attention import Plan
from regard.model.overrides import find_override
from regard.model.stack import Plans
from regard.model.transformer import Transformer
from regard.model.visibility import Visibility
from regard.ops import attention_backend
from regard.ops.common import cast_once
from regard.ops.cuda.attention import CudaLayout, tables
from regard.ops.cuda.training import seeded_dropout
from regard.ops.layout import positions_array
from regard.text.batching import Packed
from regard.training.losses import Batch

SIZES = 8  # graphs have sizes 1, 2, ...; size 8 is the budget of a row
MAX_SIZE = 2 * SIZES  # BPE dropout gives some rows more tokens than the budget
COPIES = 2  # graphs per size, so that one can be launched while the other still runs
ALIGNED = 64  # tokens, for fast matrix products; bytes, for the arrays in the buffer


class StaticPacked(Packed):
    """A packed row at a fixed address, whose contents change."""

    def __init__(self, tokens: Tensor, positions: Tensor, longest: int) -> None:
        self.tokens, self.places, self.lengths = tokens, positions, (longest,)

    def positions(self) -> Tensor:
        return self.places

    def check(self, vocabulary_size: int, max_length: int | None, name: str) -> None:
        """Does nothing: `StepGraphs.gradients` checks each row before it is copied here."""


class StepGraphs:
    """The CUDA graphs of a model's training steps, one for each size of rows.

    loss: computes the loss and the negative log-likelihood of a batch; must ignore tokens whose
    label is -1. budgets: the largest number of tokens of a row on each side, the target's last.
    dtype: the autocast dtype.
    """

    def __init__(
        self, model: Transformer, loss: Callable[[Batch], tuple[Tensor, Tensor]],
        budgets: Sequence[int], dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.model, self.loss, self.budgets, self.dtype = model, loss, budgets, dtype
        self.device = model.output_matrix().device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.graphs: dict[tuple[int, int], deque[StepGraph]] = {}
        c = model.config
        drops = c.attention_dropout + c.feed_forward_dropout  # PyTorch draws the masks of these
        backend = attention_backend(model.backend, self.device, c.attention_dropout)
        unsupported = c.embedding_norm or c.mixer != "attention" or drops > 0 or backend != "cuda"
        unsupported = unsupported or bool(c.custom_parts) or c.decoder_mixer != "attention"
        self.usable = self.device.type == "cuda" and not unsupported
        self.pool = torch.cuda.graph_pool_handle() if self.usable else None

    def size(self, batch: object) -> int | None:
        """The size of the graph that a batch needs; None if no graph can process it."""
        if not isinstance(batch, Batch) or batch.where is not None or batch.target is None:
            self.usable = False  # nor can a graph process the other batches of this task
            return None
        if find_override(self.model, training=True) is not None:  # a graph calls no hooks
            return None
        rows = [row for row in (batch.source, batch.target) if row is not None]
        needed = zip(rows, self.budgets[-len(rows) :], strict=True)
        size = max(-(-len(row.tokens) * SIZES // budget) for row, budget in needed)
        return size if size <= MAX_SIZE else None

    def gradients(self, batch: Batch, seed: int, size: int) -> Tensor:
        """Add the gradients of a batch on the CPU to those of the parameters. Returns the loss and
        the negative log-likelihood, [2], which the next replay overwrites.

        seed: the seed of dropout. size: the result of `size` for the batch.
        """
        rows = [row for row in (batch.source, batch.target) if row is not None]
        limit = self.model.config.max_length if self.model.config.positions == "learned" else None
        for row, side in zip(rows, ("source", "target")[-len(rows) :], strict=True):
            row.check(len(self.model.table(side).weight), limit, side)
        longest = max(ALIGNED, *(max(row.lengths) for row in rows))
        key = size, 1 << (longest - 1).bit_length()
        before = [(p, p.grad.clone()) for p in self.parameters if p.grad is not None]
        graphs = self.graphs.setdefault(key, deque())
        if len(graphs) < COPIES:
            room = [-(-b * size // SIZES // ALIGNED) * ALIGNED for b in self.budgets]
            graphs.append(StepGraph(self, batch, room[-len(rows) :], key[1]))
        graphs.rotate()
        sums = graphs[0].replay(batch, seed)
        for parameter, gradient in before:
            assert parameter.grad is not None
            parameter.grad += gradient
        return sums


class StepGraph:
    """The forward and backward pass of rows of one size.

    batch: an example of the batches to come. room: the number of tokens of a padded row on each
    side. longest: the largest number of tokens of a sequence.
    """

    def __init__(self, owner: StepGraphs, batch: Batch, room: Sequence[int], longest: int) -> None:
        self.owner, self.device = owner, owner.device
        self.window = owner.model.config.window
        self.room = dict(zip(("source", "target")[-len(room) :], room, strict=True))
        arrays = self.contents(batch, 0)
        self.bounds = np.cumsum([0] + [-(-a.nbytes // ALIGNED) * ALIGNED for a in arrays])
        size = int(self.bounds[-1])
        self.buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
        views = [
            self.buffer[start : start + a.nbytes].view(torch.from_numpy(a).dtype).view(a.shape)
            for a, start in zip(arrays, self.bounds, strict=False)
        ]
        # Two, so that one can be filled while the other is still being copied.
        self.staging = cycle(
            [(torch.empty(size, dtype=torch.uint8).pin_memory(), torch.cuda.Event()) for _ in "ab"]
        )
        rows = {side: StaticPacked(views.pop(0), views.pop(0), longest) for side in self.room}
        labels, self.seed = views.pop(0), views.pop(0)
        plans: list[Plan] = []
        for query_side, key_side, visibility in self.attentions():
            queries, keys = getattr(batch, query_side), getattr(batch, key_side)
            plan = Plan(queries.lengths, keys.lengths, visibility, device=self.device)
            plan.queries, plan.keys = self.room[query_side], self.room[key_side]
            assert isinstance(plan.layout, CudaLayout)
            plan.layout.hold(longest, views.pop(0), views.pop(0), views.pop(0))
            plans.append(plan)
        source = rows.get("source")
        made = Plans(decoder=plans[0]) if source is None else Plans(*plans)
        self.batch = Batch(source, rows["target"], labels, plans=made)
        self.upload(arrays)
        # The first pass compiles kernels and creates library handles, which a capture cannot do.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self.compute()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for parameter in owner.parameters:
            parameter.grad = None
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(self.graph, pool=owner.pool):
            self.sums = self.compute()
        self.gradients = [p.grad for p in owner.parameters]

    def attentions(self) -> list[tuple[str, str, Visibility]]:
        """The attentions of the model: the sides of queries and keys, and the visibility."""
        decoder = ("target", "target", Visibility(causal=True, window=self.window))
        if "source" not in self.room:
            return [decoder]
        encoder = ("source", "source", Visibility(window=self.window))
        return [encoder, decoder, ("target", "source", Visibility())]

    def contents(self, batch: Batch, seed: int) -> list[NDArray[Any]]:
        """Everything that differs between rows, padded to the size of the graph."""

        def padded(array: NDArray[Any], side: str, value: int = 0) -> NDArray[Any]:
            return np.pad(array, (0, self.room[side] - len(array)), constant_values=value)

        arrays: list[NDArray[Any]] = []
        for side in self.room:
            row = getattr(batch, side)
            arrays.append(padded(row.tokens.numpy(), side))
            arrays.append(padded(positions_array(row.lengths), side))
        arrays.append(padded(batch.labels.numpy(), "target", -1))
        arrays.append(np.array([seed]))
        for query_side, key_side, visibility in self.attentions():
            lengths = getattr(batch, query_side).lengths, getattr(batch, key_side).lengths
            room = self.room[query_side], self.room[key_side]
            arrays.extend(tables(*lengths, visibility.causal, visibility.window, room))
        return arrays

    def upload(self, arrays: list[NDArray[Any]]) -> None:
        """Copy the arrays into the buffer, without waiting for the copy."""
        staging, sent = next(self.staging)
        sent.synchronize()
        whole = staging.numpy()
        for array, start in zip(arrays, self.bounds, strict=False):
            whole[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.buffer.copy_(staging, non_blocking=True)
        sent.record()

    def compute(self) -> Tensor:
        """Loss, likelihood and gradients of the row in the buffer."""
        torch.default_generator.manual_seed(0)  # the seeds of masks, to which self.seed is added
        dtype = self.owner.dtype
        parameters = [] if dtype == torch.float32 else self.owner.parameters
        with (
            seeded_dropout(self.seed),
            cast_once(parameters, dtype),
            torch.autocast("cuda", dtype, dtype != torch.float32),
        ):
            loss, likelihood = self.owner.loss(self.batch)
        loss.backward()
        return torch.stack([loss.detach(), likelihood.detach()])

    def replay(self, batch: Batch, seed: int) -> Tensor:
        """Set the gradients of the parameters to those of a batch; its loss and likelihood, [2]."""
        self.upload(self.contents(batch, seed))
        self.graph.replay()
        for parameter, gradient in zip(self.owner.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.sums
