"""Keys and values of the tokens decoded so far, so that a step processes one token, not the prefix.

A search follows W hypotheses of each of B sentences. The memory of a sentence is projected to
keys and values once for any W: to cross-attention the hypotheses are just W queries. The
decoder's own keys and values are in slots that all hypotheses of a sentence share: tokens read
before the search take the first slots, and each step adds W, one for each hypothesis. Which slots
a hypothesis sees is one row of the table `visible`. When the search drops a hypothesis and splits
another in two, rows of that table move; keys and values never do.

Nothing in a step depends on a number that only the host knows, except how many slots are read, so
that a step can be a CUDA graph (decoding/engines/cuda_graph.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.config.registry import POSITIONS
from regard.errors import InputError
from regard.model.rectangles import BiasFunction, WeightFunction
from regard.ops.heads import repeat_heads
from regard.ops.padded import attend_rectangles, rectangle, starts

if TYPE_CHECKING:
    from regard.model.attention import Plan


class Cache:
    """The state of decoding B sentences together, W hypotheses each."""

    PER_SENTENCE = "visible", "positions", "slot_positions", "memory_mask", "memory_lengths"

    def __init__(
        self, config: ModelConfig, sentences: int, width: int, slots: int, dtype: torch.dtype,
        device: torch.device, masked: bool = True,
    ) -> None:  # fmt: skip
        """masked: whether attention reads all slots and a mask hides some of them, so that all must
        contain finite numbers from the beginning."""
        self.config, self.width, self.slots = config, width, slots
        recurrent = config.decoder_mixer != "attention"  # has states instead of keys and values
        own_slots = 0 if recurrent else slots
        shape = (2, sentences, config.key_value_heads, own_slots, config.head_size)
        layers = range(config.decoder_layers)
        allocate = torch.zeros if masked else torch.empty
        self.slots_of = [allocate(shape, dtype=dtype, device=device) for _ in layers]
        self.keys = [both[0] for both in self.slots_of]  # [B, G, slots, K]
        self.values = [both[1] for both in self.slots_of]
        self.states: list[Tensor] = []  # of recurrent layers (ssru.py), [B, W, D]
        if recurrent:
            state = torch.zeros(
                sentences, width, config.d_model,
                dtype=torch.promote_types(dtype, torch.float32), device=device,
            )  # fmt: skip
            self.states = [state.clone() for _ in layers]
        self.memory: list[tuple[Tensor, Tensor]] = []  # keys and values, [B, G, M, K]
        self.vectors: MemoryVectors | None = None  # instead of `memory`, see there
        self.memory_mask: Tensor | None = (
            None  # [B, 1, 1, M], added to the scores; None: all are visible
        )
        self.memory_lengths: Tensor | None = None  # the same as numbers [B], for kernels
        self.visible = torch.zeros(sentences, width, slots, dtype=torch.bool, device=device)
        self.positions = torch.zeros(
            sentences, dtype=torch.long, device=device
        )  # the positions of the next tokens
        self.slot_positions = torch.zeros(sentences, slots, dtype=torch.long, device=device)
        self.next = torch.arange(width, device=device)  # [W]: the slots of the next step
        self.own = torch.eye(width, dtype=torch.bool, device=device)  # [W, W]
        self.used = 0  # slots; the host's copy of next[0]
        self.uneven = (
            width > 1 or config.window is not None
        )  # whether `visible` hides any used slot
        # Whether `slot_positions` is read: by a window, or by the bias of registered positions.
        self.tracks_positions = config.window is not None or POSITIONS.is_custom(config.positions)
        self.position_rows: Tensor | None = None  # [slots, D]: the encoding of each position

    def restart(self) -> None:
        """Reset the cache to its state before the first step; the memory stays."""
        self.visible.zero_()
        self.positions.zero_()
        self.slot_positions.zero_()
        for state in self.states:
            state.zero_()
        torch.arange(self.width, out=self.next)
        self.used = 0

    def per_sentence(self) -> dict[str, Tensor]:
        """The tensors whose first dimension is the sentence."""
        tensors = {name: getattr(self, name) for name in self.PER_SENTENCE}
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            tensors |= {f"keys{i}": key, f"values{i}": value}
        for i, (key, value) in enumerate(self.memory):
            tensors |= {f"memory_keys{i}": key, f"memory_values{i}": value}
        tensors |= {f"states{i}": state for i, state in enumerate(self.states)}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def remember(self, source_lengths: Sequence[int], memory: list[tuple[Tensor, ...]]) -> None:
        """Keep each layer's keys and values of the memory, packed [M, G, K], as rectangles."""
        count = torch.tensor(source_lengths)
        rows, real = rectangle(starts(count), count)  # [B, longest source]
        rows = rows.to(self.visible.device)
        dtype = self.keys[0].dtype
        self.memory = [
            (k[rows].transpose(1, 2).to(dtype), v[rows].transpose(1, 2).to(dtype))
            for k, v in memory
        ]
        if not bool(real.all()):
            self.memory_mask = to_add(real[:, None, None].to(rows.device), dtype)

    def began(self, lengths: Sequence[int]) -> None:
        """`lengths[b]` tokens of sentence b have been read: all its hypotheses see them."""
        count = torch.tensor(lengths, device=self.visible.device)  # [B]
        position = torch.arange(max(lengths), device=count.device)
        self.visible[:, :, : max(lengths)] = (position < count[:, None])[:, None]
        self.slot_positions[:, : max(lengths)] = position
        self.positions += count
        self.used = max(lengths)
        self.next += self.used
        self.uneven = self.uneven or min(lengths) != max(lengths)

    def sentence(self, index: int) -> Cache:
        """A cache of one sentence that shares its keys, values and states with this one."""
        view = copy(self)
        view.keys = [keys[index : index + 1] for keys in self.keys]
        view.values = [values[index : index + 1] for values in self.values]
        view.states = [state[index : index + 1] for state in self.states]
        return view

    def keep(self, rows: Tensor) -> None:
        """Continue with these sentences only (indices in ascending order)."""
        for i, both in enumerate(self.slots_of):
            both[:, : len(rows), :, : self.used] = both[:, rows, :, : self.used]
            self.slots_of[i] = both[:, : len(rows)]
            self.keys[i], self.values[i] = self.slots_of[i].unbind()
        self.states = [state[rows] for state in self.states]
        self.memory = [(key[rows], value[rows]) for key, value in self.memory]
        if self.vectors is not None:
            self.vectors = self.vectors.keep(rows)
        for name in self.PER_SENTENCE:
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor[rows])


@dataclass(frozen=True)
class MemoryVectors:
    """The encoder's output itself, for a search with cross-attention that a user has changed
    (`model.attention.is_overridden`): each step computes its keys and values again."""

    memory: Tensor  # [M, D]
    lengths: Sequence[int]  # of the sources

    def keep(self, rows: Tensor) -> MemoryVectors:
        """Continue with these sentences only."""
        parts, chosen = self.memory.split(list(self.lengths)), rows.tolist()
        return MemoryVectors(
            torch.cat([parts[i] for i in chosen]), [self.lengths[i] for i in chosen]
        )


class Step:
    """The slots of the new token of each hypothesis and the slots that it sees, for all layers."""

    def __init__(self, cache: Cache, parents: Tensor | None, seen: int) -> None:
        """parents[B, W]: the hypothesis of the last step that each one continues; None: itself.
        seen: the number of slots to read, at least those in use and the new ones."""
        if seen > cache.slots:
            raise InputError(f"the cache has {cache.slots} slots, but this step needs {seen}")
        self.cache, self.seen, self.parents = cache, seen, parents
        self.mask: Tensor | None = None  # [B, 1, W, seen]
        if cache.states:  # recurrent layers read their state, not slots
            return
        if parents is not None:
            rows = parents[:, :, None].expand(-1, -1, cache.slots)
            cache.visible.copy_(cache.visible.gather(1, rows))
        cache.visible.index_copy_(2, cache.next, cache.own.expand(len(cache.visible), -1, -1))
        window, now = cache.config.window, cache.positions[:, None]  # [B, 1]
        if cache.tracks_positions:
            cache.slot_positions.index_copy_(1, cache.next, now.expand(-1, cache.width))
        if cache.uneven or seen > cache.used + cache.width:
            visible = cache.visible[:, :, :seen]
            if window is not None:
                visible = visible & (now - cache.slot_positions[:, :seen] <= window)[:, None]
            self.mask = to_add(visible[:, None], cache.keys[0].dtype)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """query[B*W, H, K], key and value[B, G, T, K] -> [B*W, H, K]."""
        rows = query.unflatten(0, (-1, self.cache.width)).transpose(1, 2)  # [B, H, W, K]
        output = attend_rectangles(rows.to(key.dtype), key, value, mask)
        return output.transpose(1, 2).flatten(0, 1).to(query.dtype)

    def attend_with(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        weigh: WeightFunction, bias: BiasFunction | None = None,
    ) -> Tensor:  # fmt: skip
        """`attend` with weights that `weigh` computes and a position bias of the scores."""
        rows = query.unflatten(0, (-1, self.cache.width)).transpose(1, 2).to(key.dtype)
        key, value = repeat_heads(key, rows), repeat_heads(value, rows)
        shape = (1, 1, self.cache.width, key.shape[2])
        added = key.new_zeros(shape) if mask is None else mask
        if bias is not None:
            cache = self.cache
            distance = cache.slot_positions[:, : self.seen] - cache.positions[:, None]
            added = added + bias(distance[:, None]).to(key.dtype)  # [B, H, 1, seen]
        output = weigh(rows, key, added.expand(-1, -1, self.cache.width, -1)).to(key.dtype) @ value
        return output.transpose(1, 2).flatten(0, 1).to(query.dtype)


class CachedSelf:
    """Self-attention of one layer in one step: store the new keys and values, then attend."""

    def __init__(self, step: Step, layer: int) -> None:
        self.step, self.layer = step, layer

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.step.attend(query, *self._add(key, value), self.step.mask)

    def attend_with(
        self, query: Tensor, key: Tensor, value: Tensor, weigh: WeightFunction,
        bias: BiasFunction | None,
    ) -> Tensor:  # fmt: skip
        """See `Plan.attend_with`."""
        return self.step.attend_with(query, *self._add(key, value), self.step.mask, weigh, bias)

    def _add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values; return those of the `seen` slots, [B, G, seen, K] each."""
        cache, seen = self.step.cache, slice(0, self.step.seen)
        keys, values = cache.keys[self.layer], cache.values[self.layer]
        for slots, new in ((keys, key), (values, value)):
            new = new.unflatten(0, (-1, cache.width)).transpose(1, 2).to(slots.dtype)
            slots.index_copy_(2, cache.next, new)
        return keys[:, :, seen], values[:, :, seen]


class CachedMemory:
    """Cross-attention of one layer in one step, with keys and values that do not change."""

    def __init__(self, step: Step, layer: int) -> None:
        self.step, self.layer = step, layer

    def attend(self, query: Tensor) -> Tensor:
        cache = self.step.cache
        return self.step.attend(query, *cache.memory[self.layer], cache.memory_mask)

    def attend_with(self, query: Tensor, weigh: WeightFunction) -> Tensor:
        """See `Plan.attend_with`."""
        cache = self.step.cache
        return self.step.attend_with(query, *cache.memory[self.layer], cache.memory_mask, weigh)


class Reading:
    """Self-attention of one layer over the tokens before the search: the full pass, whose keys and
    values are stored. Each sentence is read once for all its hypotheses."""

    def __init__(self, plan: Plan, cache: Cache, layer: int) -> None:
        self.plan, self.cache, self.layer = plan, cache, layer
        lengths = torch.tensor(plan.query_lengths)
        sentence = torch.arange(len(lengths)).repeat_interleave(lengths)
        position = torch.arange(len(sentence)) - starts(lengths)[sentence]
        self.place = sentence.to(plan.device), position.to(plan.device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._keep(key, value)
        return self.plan.attend(query, key, value)

    def attend_with(
        self, query: Tensor, key: Tensor, value: Tensor, weigh: WeightFunction,
        bias: BiasFunction | None,
    ) -> Tensor:  # fmt: skip
        """See `Plan.attend_with`."""
        self._keep(key, value)
        return self.plan.attend_with(query, key, value, weigh, bias)

    def _keep(self, key: Tensor, value: Tensor) -> None:
        sentence, position = self.place
        keys, values = self.cache.keys[self.layer], self.cache.values[self.layer]
        keys[sentence, :, position] = key.to(keys.dtype)
        values[sentence, :, position] = value.to(values.dtype)


def to_add(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query sees a key and minus infinity where not, to add to the scores."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, -math.inf)
