"""The Transformer in its three styles (figure 1).

encoder-decoder: source -> memory; target, memory -> logits of the next target token
encoder:         source -> logits of each token, classes, or one vector for a sentence
decoder:         target -> logits of the next token

Everything is packed: tokens[N] in, logits[N, V] out, no padding anywhere. `forward` accepts padded
batches as well and packs them first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard import ops
from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.model.attention import AttentionWeights, Plan, SelfPlan, is_overridden
from regard.model.cache import Cache, CachedMemory, CachedSelf, MemoryVectors, Reading, Step
from regard.model.head import Head
from regard.model.inputs import read_batch
from regard.model.mixers import RowPlan
from regard.model.ssru import MixerPlan, StateReading, StateRow, StateStep
from regard.model.stack import Plans, Stack, initialise
from regard.model.visibility import Visibility
from regard.text.batching import Packed


@dataclass
class AttentionCapture:
    """Attention weights of a forward pass: `capture.cross[layer][sequence]` is [H, n, m].

    Row i of a head's matrix has the weights of query i and sums to 1, without dropout.
    """

    encoder: AttentionWeights = field(default_factory=list)
    decoder: AttentionWeights = field(default_factory=list)
    cross: AttentionWeights = field(default_factory=list)


class Transformer(nn.Module):
    """The Transformer: `Transformer(config)(source, target)` computes logits.

    Args:
        config: the sizes and the style of the model.
        backend: the attention backend; "auto": the fastest on the device.
    """

    def __init__(self, config: ModelConfig, backend: str = "auto") -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise InputError(
                f"config must be a ModelConfig, not {type(config).__name__}: use ModelConfig(...) "
                "or ModelConfig.from_dict"
            )
        ops.attention_backend(backend, torch.device("cpu"), config.attention_dropout)  # fail early
        self.config, self.backend = config, backend
        # Weights of the CPU decoding engine: float32, bfloat16, int8; None: as they are.
        self.precision: str | None = None
        d_model, size = config.d_model, config.vocabulary_size
        # A tied matrix exists once: one name, one tensor, one entry in the saved file.
        self.embeddings = nn.ModuleDict()
        if config.style != "encoder-decoder" or config.tie_embeddings in ("all", "source-target"):
            self.embeddings["shared"] = nn.Embedding(size, d_model)
        else:
            self.embeddings["source"] = nn.Embedding(config.source_vocabulary_size, d_model)
            self.embeddings["target"] = nn.Embedding(size, d_model)
        cross = config.style == "encoder-decoder"
        self.encoder = Stack(config, config.encoder_layers, False) if config.has_encoder else None
        self.decoder = Stack(config, config.decoder_layers, cross) if config.has_decoder else None
        self.head = Head(config)
        self.apply(initialise)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the model to a device or a dtype, like `torch.nn.Module.to`.

        Args:
            *args: as those of `torch.nn.Module.to`.
            **kwargs: as those of `torch.nn.Module.to`.

        Returns:
            The model itself.

        Raises:
            InputError: there is no such device, or the dtype is float16.
        """
        ops.check_device(torch._C._nn._parse_to(*args, **kwargs)[0])
        return super().to(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply fn to all parameters: `half`, `to`, `cuda` and others end here."""
        ops.check_dtype(fn(torch.zeros(1)).dtype)
        return super()._apply(fn, recurse)

    def table(self, side: str) -> nn.Embedding:
        """The embedding of one side; both sides may share it.

        Args:
            side: "source" or "target".

        Returns:
            The embedding, with a weight [V, D].
        """
        table = self.embeddings["shared" if "shared" in self.embeddings else side]
        assert isinstance(table, nn.Embedding)
        return table

    def output_matrix(self) -> Tensor:
        """The matrix that turns the last layer's vectors into logits: [V, D]."""
        own = getattr(getattr(self.head, "output", None), "weight", None)
        return own if isinstance(own, Tensor) else self.table("target").weight

    # ---- the full pass ------------------------------------------------------------------

    def forward(
        self,
        source: Packed | Tensor | None = None,
        target: Packed | Tensor | None = None,
        capture: AttentionCapture | None = None,
        *,
        source_lengths: Sequence[int] | Tensor | None = None,
        source_mask: Tensor | None = None,
        target_lengths: Sequence[int] | Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the model on a packed or a padded batch.

        A padded batch needs its lengths or its mask. Padding has no effect on any other token.

        Args:
            source: the input of the encoder, `Packed` or a padded tensor [B, T] of token ids.
            target: the input of the decoder, of the same kinds.
            capture: where the attention weights are stored, if they are needed.
            source_lengths: [B], the number of tokens of each row of a padded source.
            source_mask: [B, T], True for the tokens of a padded source, False for its padding.
            target_lengths: as source_lengths, for the target.
            target_mask: as source_mask, for the target.

        Returns:
            The logits of each token of the target, or of the source for an encoder: [N, V] for a
            packed batch; [B, T, V] for a padded one, with zeros for the padding. A classifier
            returns [B, classes], pooling [B, D].

        Raises:
            InputError: an argument is missing or has the wrong type, shape, device or token ids.
        """
        packed_source, mask = read_batch(source, source_lengths, source_mask, "source")
        packed_target, own_mask = read_batch(target, target_lengths, target_mask, "target")
        hidden = self.hidden(packed_source, packed_target, capture)
        row, mask = (packed_source, mask) if target is None else (packed_target, own_mask)
        assert row is not None
        output = self.head(hidden, row, self.output_matrix())
        if mask is None or self.head.kind in ("classifier", "pooling"):
            return output
        padded = output.new_zeros((*mask.shape, output.shape[-1]))
        return padded.masked_scatter(mask[..., None], output)

    def hidden(
        self, source: Packed | None = None, target: Packed | None = None,
        capture: AttentionCapture | None = None, backend: str | None = None,
        plans: Plans | None = None,
    ) -> Tensor:  # fmt: skip
        """The output of the last layer, before the head.

        Args:
            source: the input of the encoder, if there is one.
            target: the input of the decoder, if there is one.
            capture: where the attention weights are stored, if they are needed.
            backend: the attention backend of this call; None: the model's.
            plans: the result of `plans`; None: it is computed here.

        Returns:
            [N, D]: a vector for each token of the target, or of the source for an encoder.

        Raises:
            InputError: a row is missing, is on another device or has tokens outside the vocabulary.
        """
        self._check(source, target)
        plans = self.plans(source, target, backend) if plans is None else plans
        memory = None if source is None else self.encode(source, capture, plans)
        if target is None:
            assert memory is not None
            return memory
        return self.decode(target, memory, source, capture, plans=plans)

    def plans(
        self, source: Packed | None, target: Packed | None, backend: str | None = None
    ) -> Plans:
        """The attention plans of a batch.

        Args:
            source: the input of the encoder, if there is one.
            target: the input of the decoder, if there is one.
            backend: the attention backend; None: the model's.

        Returns:
            The plans of self-attention and cross-attention, which all layers share.
        """
        encoder: Plan | RowPlan | None = None
        decoder: Plan | StateRow | None = None
        cross = None
        window = self.config.window
        if source is not None and self.config.mixer != "attention":
            encoder = RowPlan(source.lengths, source.tokens.device)
        elif source is not None:
            encoder = self._plan(source, source, Visibility(window=window), backend)
        if target is not None and self.config.decoder_mixer == "ssru":
            decoder = StateRow(target.lengths, target.tokens.device)
        elif target is not None:
            decoder = self._plan(target, target, Visibility(causal=True, window=window), backend)
        if target is not None and source is not None:
            cross = self._plan(target, source, Visibility(), backend)
        return Plans(encoder, decoder, cross)

    def _plan(
        self, queries: Packed, keys: Packed, visibility: Visibility, backend: str | None
    ) -> Plan:
        dropout = self.config.attention_dropout if self.training else 0.0
        return Plan(
            queries.lengths, keys.lengths, visibility,
            backend=backend or self.backend, device=queries.tokens.device, dropout=dropout,
        )  # fmt: skip

    def encode(
        self, source: Packed, capture: AttentionCapture | None = None, plans: Plans | None = None
    ) -> Tensor:
        """Run the encoder.

        Args:
            source: M packed tokens.
            capture: where the attention weights are stored, if they are needed.
            plans: the result of `plans`; None: it is computed here.

        Returns:
            The memory, [M, D].
        """
        assert self.encoder is not None
        plan = (self.plans(source, None) if plans is None else plans).encoder
        positions = source.positions()
        rows = self.encoder.rows_until(max(source.lengths), positions.device)
        x = self.encoder.embed(self.table("source"), source.tokens, positions, rows)
        weights = None if capture is None else capture.encoder
        return self.encoder(x, positions, [plan] * len(self.encoder.layers), capture=weights)

    def decode(
        self, target: Packed, memory: Tensor | None = None, source: Packed | None = None,
        capture: AttentionCapture | None = None, cache: Cache | None = None,
        plans: Plans | None = None,
    ) -> Tensor:  # fmt: skip
        """Run the decoder.

        Args:
            target: N packed tokens.
            memory: [M, D], the output of the encoder; None: no cross-attention.
            source: the row from which the memory was computed.
            capture: where the attention weights are stored, if they are needed.
            cache: where keys and values are stored for later steps, if there are any.
            plans: the result of `plans`; None: it is computed here.

        Returns:
            [N, D]: the output of the last layer.
        """
        assert self.decoder is not None
        layers = len(self.decoder.layers)
        plans = self.plans(source, target) if plans is None else plans
        assert plans.decoder is not None
        own = plans.decoder
        selves: list[SelfPlan | MixerPlan] = [own] * layers
        if cache is not None and isinstance(own, StateRow):
            selves = [StateReading(own, cache, layer) for layer in range(layers)]
        elif cache is not None and isinstance(own, Plan):
            selves = [Reading(own, cache, layer) for layer in range(layers)]
        memories = None if memory is None else [memory] * layers
        positions = target.positions()
        rows = self.decoder.rows_until(max(target.lengths), positions.device)
        x = self.decoder.embed(self.table("target"), target.tokens, positions, rows)
        lists = (None, None) if capture is None else (capture.decoder, capture.cross)
        return self.decoder(x, positions, selves, memories, plans.cross, *lists)

    # ---- step by step -------------------------------------------------------------------

    @torch.no_grad()
    def start(
        self, source: Packed | None = None, read: Packed | None = None, *,
        sentences: int = 1, width: int = 1, steps: int, backend: str | None = None,
    ) -> Cache:  # fmt: skip
        """Start decoding step by step: run the encoder, and read the prompt.

        Args:
            source: the input of the encoder, if there is one.
            read: the tokens that the decoder reads before the first step, for example a prompt.
            sentences: the number of sentences, if there is neither `source` nor `read`.
            width: the number of hypotheses per sentence.
            steps: the largest number of steps.
            backend: the attention backend; None: the model's.

        Returns:
            The cache for `step`.

        Raises:
            InputError: the model has no decoder, or a row does not fit the model.
        """
        if self.decoder is None:
            raise InputError("model.style=encoder has no decoder: it cannot decode")
        if (self.encoder is not None) != (source is not None):
            raise InputError(
                "decoding step by step needs a source if and only if there is an encoder"
            )
        for row, side in ((source, "source"), (read, "target")):
            if row is not None:
                self.check_row(row, side)
                sentences = len(row)
        before = 0 if read is None else max(read.lengths)
        cache = self.empty_cache(sentences, width, before, steps)
        plans, memory = self.plans(source, read, backend), None
        if source is not None:
            memory = self.encode(source, plans=plans)
            if any(is_overridden(block.cross_attention) for block in self.blocks):
                cache.vectors = MemoryVectors(memory, source.lengths)
            else:
                cache.remember(source.lengths, self.project(memory))
        if read is not None:
            self.decode(read, memory, source, cache=cache, plans=plans)
            cache.began(read.lengths)
        return cache

    def empty_cache(self, sentences: int, width: int, before: int, steps: int) -> Cache:
        """A cache without any keys and values.

        Args:
            sentences: the number of sentences.
            width: the number of hypotheses per sentence.
            before: the largest number of tokens that are read before the first step.
            steps: the largest number of steps.

        Returns:
            The cache, on the device of the model.
        """
        assert self.decoder is not None
        weight = self.table("target").weight
        slots = before + steps * width
        cache = Cache(self.config, sentences, width, slots, ops.cache_dtype(weight), weight.device)
        cache.position_rows = self.decoder.rows_until(before + steps, weight.device)
        return cache

    def project(self, memory: Tensor) -> list[tuple[Tensor, ...]]:
        """The keys and values of the memory for every layer of the decoder.

        Args:
            memory: [M, D], the output of the encoder.

        Returns:
            The keys and the values of each layer, [M, G, K] each.
        """
        return [block.cross_attention.project_memory(memory) for block in self.blocks]

    @property
    def blocks(self) -> Any:
        """The layers of the decoder."""
        assert self.decoder is not None
        return self.decoder.layers

    @torch.no_grad()
    def step(
        self, tokens: Tensor, parents: Tensor | None, cache: Cache, seen: int | None = None
    ) -> Tensor:
        """Read one more token of every hypothesis.

        Args:
            tokens: [B, W] token ids.
            parents: [B, W], the hypothesis of the previous step that each continues; None: itself.
            cache: the result of `start`; it is extended.
            seen: the number of slots of the cache that are read; None: all that are used.

        Returns:
            [B, W, V]: the logits of the next token.
        """
        assert self.decoder is not None
        step = Step(cache, parents, cache.used + cache.width if seen is None else seen)
        layers = range(len(self.decoder.layers))
        positions = cache.positions[:, None].expand_as(tokens).flatten()  # [N]
        if self.config.positions == "learned":  # a sentence that is done can be past the table
            positions = positions.clamp(max=self.config.max_length - 1)
        table, rows = self.table("target"), cache.position_rows
        x = self.decoder.embed(table, tokens.flatten(), positions, rows)
        kind = CachedSelf if self.config.decoder_mixer == "attention" else StateStep
        selves = [kind(step, layer) for layer in layers]
        memories: list[Tensor | CachedMemory] | None = None
        cross_plan = None
        if cache.memory:
            memories = [CachedMemory(step, layer) for layer in layers]
        elif cache.vectors is not None:
            memories = [cache.vectors.memory for _ in layers]
            lengths = [cache.width] * len(tokens), cache.vectors.lengths
            cross_plan = Plan(*lengths, Visibility(), backend="padded", device=tokens.device)
        x = self.decoder(x, positions, selves, memories, cross_plan)
        cache.positions += 1
        cache.next += cache.width
        cache.used += cache.width
        return self.head(x, None, self.output_matrix()).unflatten(0, tokens.shape)

    # ---- checks -------------------------------------------------------------------------

    def _check(self, source: Packed | None, target: Packed | None) -> None:
        """Check that the rows fit the style."""
        needs = {"source": self.config.has_encoder, "target": self.config.has_decoder}
        for name, row in (("source", source), ("target", target)):
            if row is None and needs[name]:
                raise InputError(
                    f"the {name} is missing: a model of style {self.config.style} needs it"
                )
            if row is not None and not needs[name]:
                other = "target" if name == "source" else "source"
                raise InputError(
                    f"model.style={self.config.style} takes no {name}: pass the tokens as {other}"
                )
            if row is not None:
                self.check_row(row, name)
        if source is not None and target is not None and len(source) != len(target):
            raise InputError(
                f"the source has {len(source)} sequences and the target {len(target)}: "
                "each needs its partner"
            )

    def check_row(self, row: Packed, side: str) -> None:
        """Refuse a row that the model cannot read.

        Args:
            row: a packed row.
            side: "source" or "target".

        Raises:
            InputError: the row is on another device, has tokens outside the vocabulary, or has a
                sequence that is longer than the learned position table.
        """
        weight = self.table(side).weight
        if row.tokens.device != weight.device:
            raise InputError(
                f"the {side} is on {row.tokens.device} but the model on {weight.device}: "
                f"use row.to({str(weight.device)!r})"
            )
        limit = self.config.max_length if self.config.positions == "learned" else None
        row.check(len(weight), limit, side)
