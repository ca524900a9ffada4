"""The work of a row on a GPU, recorded once (a CUDA graph) and replayed for the rows that follow.

To start a thousand small pieces of work from Python takes longer than to do them. A recording wants
the same shapes each time: rows are filled up to a fixed size with tokens that nobody sees and
nobody is asked about. All that differs between rows (tokens, positions, labels, the tables of
attention, the seed of dropout) lies in one buffer, which one copy from the host overwrites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.model.attention import Plan
from regard.model.transformer import Plans, Transformer
from regard.model.visibility import Visibility
from regard.ops import attention_backend
from regard.ops.common import cast_once
from regard.ops.cuda.attention import CudaLayout, tables
from regard.ops.cuda.training import seeded_dropout
from regard.ops.layout import positions_array
from regard.text.batching import Packed

SHARES = 8  # sizes of recordings: so many parts of the largest row that is planned
MOST = 2 * SHARES  # what BPE-dropout cuts anew has more tokens than were counted
COPIES = 2  # of a recording, so that one can be started while the other is still under way
ALIGNED = 64  # tokens: what is multiplied fastest, and 16 bytes of anything
Loss = Callable[[Any], tuple[Tensor, Tensor]]  # batch -> loss, negative log-likelihood


class Batch(Protocol):
    """What a batch must have to be recorded: a label for every token that the decoder reads."""

    @property
    def source(self) -> Packed | None: ...
    @property
    def target(self) -> Packed | None: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def where(self) -> Tensor | None: ...
    @property
    def plans(self) -> Plans | None: ...


class Held(Packed):
    """A packed row that stays where it is while its contents change."""

    def __init__(self, tokens: Tensor, positions: Tensor, longest: int) -> None:
        self.tokens, self.places, self.lengths = tokens, positions, (longest,)

    def positions(self) -> Tensor:
        return self.places

    def check(self, vocabulary_size: int, max_length: int | None, what: str) -> None:
        """The rows that it holds are checked before."""


@dataclass
class HeldBatch:
    source: Held | None
    target: Held
    labels: Tensor
    plans: Plans
    where: None = None


class Recorder:
    """All recordings of a model's work.

    loss: must ask nothing of tokens whose label is -1.
    budgets: the most tokens that a row has on each side, the target's last.
    """

    def __init__(
        self, model: Transformer, loss: Loss, budgets: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.model, self.loss, self.budgets, self.dtype = model, loss, budgets, dtype
        self.device = model.output_matrix().device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.recordings: dict[tuple[int, int], deque[Recording]] = {}
        c = model.config
        drops = c.attention_dropout + c.feed_forward_dropout  # whose masks PyTorch makes
        backend = attention_backend(model.backend, self.device, c.attention_dropout)
        unrecordable = c.embedding_norm or c.mixer != "attention" or drops > 0 or backend != "cuda"
        self.able = self.device.type == "cuda" and not unrecordable
        self.pool = torch.cuda.graph_pool_handle() if self.able else None

    def share(self, batch: Any) -> int | None:
        """How many parts of the largest row a batch takes; None: it cannot be recorded."""
        known = all(hasattr(batch, name) for name in ("source", "target", "labels", "where"))
        if not known or batch.where is not None or batch.target is None:
            self.able = False  # nor can any other of this task
            return None
        rows = [row for row in (batch.source, batch.target) if row is not None]
        needed = zip(rows, self.budgets[-len(rows) :], strict=True)
        share = max(-(-len(row.tokens) * SHARES // budget) for row, budget in needed)
        return share if share <= MOST else None

    def gradients(self, batch: Batch, seed: int, share: int) -> Tensor:
        """Add the batch's gradients to those of the parameters; its loss and likelihood, [2]."""
        rows = [row for row in (batch.source, batch.target) if row is not None]
        limit = self.model.config.max_length if self.model.config.positions == "learned" else None
        for row, side in zip(rows, ("source", "target")[-len(rows) :], strict=True):
            row.check(len(self.model.table(side).weight), limit, side)
        longest = max(ALIGNED, *(max(row.lengths) for row in rows))
        key = share, 1 << (longest - 1).bit_length()
        before = [(p, p.grad.clone()) for p in self.parameters if p.grad is not None]
        made = self.recordings.setdefault(key, deque())
        if len(made) < COPIES:
            room = [-(-b * share // SHARES // ALIGNED) * ALIGNED for b in self.budgets]
            made.append(Recording(self, batch, room[-len(rows) :], key[1]))
        made.rotate()
        sums = made[0].replay(batch, seed)
        for parameter, gradient in before:
            assert parameter.grad is not None
            parameter.grad += gradient
        return sums


class Recording:
    """The work of rows of one size."""

    def __init__(self, recorder: Recorder, batch: Batch, room: Sequence[int], longest: int) -> None:
        self.recorder, self.device = recorder, recorder.device
        self.window = recorder.model.config.window
        self.room = dict(zip(("source", "target")[-len(room) :], room, strict=True))
        arrays = self.contents(batch, 0)
        self.bounds = np.cumsum([0] + [-(-a.nbytes // ALIGNED) * ALIGNED for a in arrays])
        size = int(self.bounds[-1])
        self.buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
        views = [
            self.buffer[start : start + a.nbytes].view(torch.from_numpy(a).dtype).view(a.shape)
            for a, start in zip(arrays, self.bounds, strict=False)
        ]
        # Two, so that one can be filled while the other is still on its way.
        self.staging = cycle(
            [(torch.empty(size, dtype=torch.uint8).pin_memory(), torch.cuda.Event()) for _ in "ab"]
        )
        held = {side: Held(views.pop(0), views.pop(0), longest) for side in self.room}
        labels, self.seed = views.pop(0), views.pop(0)
        plans: list[Plan] = []
        for asking, asked, visibility in self.kinds():
            queries, keys = getattr(batch, asking), getattr(batch, asked)
            plan = Plan(queries.lengths, keys.lengths, visibility, device=self.device)
            plan.queries, plan.keys = self.room[asking], self.room[asked]
            assert isinstance(plan.layout, CudaLayout)
            plan.layout.hold(longest, views.pop(0), views.pop(0), views.pop(0))
            plans.append(plan)
        source = held.get("source")
        made = Plans(decoder=plans[0]) if source is None else Plans(*plans)
        self.batch = HeldBatch(source, held["target"], labels, made)
        self.upload(arrays)
        # The first time kernels are compiled and handles made, none of which can be recorded.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self.work()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.forget()
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=recorder.pool):
            self.sums = self.work()
        self.gradients = [p.grad for p in recorder.parameters]

    def kinds(self) -> list[tuple[str, str, Visibility]]:
        """Whose queries look at whose keys, and what they see."""
        decoder = ("target", "target", Visibility(causal=True, window=self.window))
        if "source" not in self.room:
            return [decoder]
        encoder = ("source", "source", Visibility(window=self.window))
        return [encoder, decoder, ("target", "source", Visibility())]

    def contents(self, batch: Batch, seed: int) -> list[NDArray[Any]]:
        """All that differs between rows, filled up to the size of the recording."""

        def filled(array: NDArray[Any], side: str, value: int = 0) -> NDArray[Any]:
            return np.pad(array, (0, self.room[side] - len(array)), constant_values=value)

        arrays: list[NDArray[Any]] = []
        for side in self.room:
            row = getattr(batch, side)
            arrays.append(filled(row.tokens.numpy(), side))
            arrays.append(filled(positions_array(row.lengths), side))
        arrays.append(filled(batch.labels.numpy(), "target", -1))
        arrays.append(np.array([seed]))
        for asking, asked, visibility in self.kinds():
            lengths = getattr(batch, asking).lengths, getattr(batch, asked).lengths
            room = self.room[asking], self.room[asked]
            arrays.extend(tables(*lengths, visibility.causal, visibility.window, room))
        return arrays

    def upload(self, arrays: list[NDArray[Any]]) -> None:
        staging, sent = next(self.staging)
        sent.synchronize()
        whole = staging.numpy()
        for array, start in zip(arrays, self.bounds, strict=False):
            whole[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.buffer.copy_(staging, non_blocking=True)
        sent.record()

    def work(self) -> Tensor:
        """Loss and gradients of what the buffer holds."""
        torch.default_generator.manual_seed(0)  # the seeds of masks, to which self.seed is added
        dtype = self.recorder.dtype
        parameters = [] if dtype == torch.float32 else self.recorder.parameters
        with (
            seeded_dropout(self.seed),
            cast_once(parameters, dtype),
            torch.autocast("cuda", dtype, dtype != torch.float32),
        ):
            loss, likelihood = self.recorder.loss(self.batch)
        loss.backward()
        return torch.stack([loss.detach(), likelihood.detach()])

    def forget(self) -> None:
        for parameter in self.recorder.parameters:
            parameter.grad = None

    def replay(self, batch: Batch, seed: int) -> Tensor:
        self.upload(self.contents(batch, seed))
        self.graph.replay()
        for parameter, gradient in zip(self.recorder.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.sums
