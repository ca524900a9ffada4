"""The Transformer in its three styles (figure 1), and their heads.

encoder-decoder: source -> memory; target, memory -> logits of the next target token
encoder:         source -> logits of each token, classes, or one vector for a sentence
decoder:         target -> logits of the next token

Everything is packed: tokens[N] in, logits[N, V] out, no padding anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.model.attention import MultiHeadAttention, Plan, Visibility, choose_engine
from regard.model.block import Block, make_norm
from regard.model.cache import Cache, CachedMemory, CachedSelf, Reading, Step
from regard.model.linear import Linear, product
from regard.model.mixers import RowPlan
from regard.model.positions import LearnedPositions, Rotation, sinusoids
from regard.model.residual import normalised
from regard.ops.cpu import training as native
from regard.ops.cuda import training as fused
from regard.text.batching import Packed


@dataclass
class Capture:
    """Attention weights of a forward pass: `capture.cross[layer][sequence]` is [H, n, m].

    Row i of a head's matrix says where query i looks and sums to 1. Dropout is not in it.
    """

    encoder: list[list[Tensor]] = field(default_factory=list)
    decoder: list[list[Tensor]] = field(default_factory=list)
    cross: list[list[Tensor]] = field(default_factory=list)


class Stack(nn.Module):
    """An encoder or a decoder: where tokens become vectors, and the layers that follow."""

    def __init__(self, config: ModelConfig, layers: int, cross: bool) -> None:
        super().__init__()
        self.config = config
        learned = config.positions == "learned"
        self.positions = LearnedPositions(config.max_length, config.d_model) if learned else None
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        self.layers = nn.ModuleList(Block(config, cross, i) for i in range(layers))
        # Pre-norm leaves the sum of all layers unnormalised, so a norm closes the stack.
        self.final_norm = make_norm(config) if config.norm_first else None

    def embed(
        self, table: nn.Embedding, tokens: Tensor, positions: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Sections 3.4 and 3.5: tokens[N], positions[N] -> [N, D]; `rows` are position_rows of all
        positions there may be, for who asks often."""
        scale = math.sqrt(self.config.d_model) if self.config.scale_embeddings else 1.0
        known = rows is not None or self.config.positions in ("rotary", "none")
        if known and self.embedding_norm is None:
            dropout = self.config.dropout if self.training else 0.0
            if fused.can(table.weight):
                return fused.embed(table.weight, tokens, scale, rows, positions, dropout)
            if native.can(table.weight):
                return native.embed(table.weight, tokens, scale, rows, positions, dropout)
        x = table(tokens)
        if self.config.scale_embeddings:
            x = x * scale
        if rows is not None:
            x = x + F.embedding(positions, rows.to(x.dtype))
        elif (add := self.position_rows(positions)) is not None:
            x = x + add.to(x.dtype)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return F.dropout(x, self.config.dropout, self.training)

    def position_rows(self, positions: Tensor) -> Tensor | None:
        """What the positions add to the tokens that stand there, [N, D], if they add anything."""
        if self.positions is not None:
            return self.positions(positions)
        if self.config.positions != "sinusoidal":
            return None
        return sinusoids(positions, self.config.d_model, self.config.position_base)

    def rows_until(self, length: int, device: torch.device) -> Tensor | None:
        """position_rows of at least as many positions: each is computed once, not for each token
        that stands there."""
        if self.positions is not None:
            return self.positions.weight
        return self.position_rows(torch.arange(length, device=device))

    def rotation(self, positions: Tensor) -> Rotation | None:
        if self.config.positions != "rotary":
            return None
        return Rotation(positions, self.config.head_size, self.config.position_base)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        plans: Sequence[Plan | CachedSelf | Reading | RowPlan],
        memories: Sequence[Tensor | CachedMemory] | None = None,
        cross_plan: Plan | None = None,
        captured: list[list[Tensor]] | None = None,
        captured_cross: list[list[Tensor]] | None = None,
    ) -> Tensor:
        """x[N, D] -> [N, D]; a plan and a memory for each layer (the same, unless cached)."""
        rotation = self.rotation(positions)
        for i, block in enumerate(self.layers):
            memory = memories[i] if memories else None
            x = block(x, plans[i], memory, cross_plan, rotation, captured, captured_cross)
        return x if self.final_norm is None else normalised(x, self.final_norm)


class Transformer(nn.Module):
    """`Transformer(config)(source, target)`; `engine` overrides the choice of attention engine."""

    def __init__(self, config: ModelConfig, engine: str = "auto") -> None:
        super().__init__()
        choose_engine(engine, torch.device("cpu"), config.attention_dropout)  # refuse early
        self.config, self.engine = config, engine
        # Of a native step's weights (decoding/native.py): float32, bfloat16, int8; None: their own.
        self.precision: str | None = None
        d_model, size = config.d_model, config.vocabulary_size
        # A matrix that is tied exists once: one name, one tensor, one line in the saved file.
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

    def table(self, side: str) -> nn.Embedding:
        """The embedding of "source" or "target"."""
        table = self.embeddings["shared" if "shared" in self.embeddings else side]
        assert isinstance(table, nn.Embedding)
        return table

    def output_matrix(self) -> Tensor:
        """What the last vectors are compared with to give logits: [V, D]."""
        own = self.head.output
        return self.table("target").weight if own is None else own.weight

    # ---- the full pass ------------------------------------------------------------------

    def forward(
        self,
        source: Packed | None = None,
        target: Packed | None = None,
        capture: Capture | None = None,
    ) -> Tensor:
        """Logits: [N, V] of the target's tokens, or of the source's for an encoder; a
        classifier gives [B, classes], pooling [B, D]."""
        rows = self._check(source, target)
        hidden = self.hidden(source, target, capture)
        return self.head(hidden, rows, self.output_matrix())

    def hidden(
        self,
        source: Packed | None = None,
        target: Packed | None = None,
        capture: Capture | None = None,
        engine: str | None = None,
    ) -> Tensor:
        """The last layer's output before the head: [N, D]; `engine` as in `encode`."""
        self._check(source, target)
        memory = None if source is None else self.encode(source, capture, engine)
        if target is None:
            assert memory is not None
            return memory
        return self.decode(target, memory, source, capture, engine=engine)

    def encode(
        self, source: Packed, capture: Capture | None = None, engine: str | None = None
    ) -> Tensor:
        """source -> memory[M, D]; `engine`: the attention engine of this call, by default the
        model's."""
        assert self.encoder is not None
        plan: Plan | RowPlan
        if self.config.mixer == "attention":
            plan = self._plan(source, source, Visibility(window=self.config.window), engine)
        else:
            plan = RowPlan(source.lengths, source.tokens.device)
        positions = source.positions()
        rows = self.encoder.rows_until(max(source.lengths), positions.device)
        x = self.encoder.embed(self.table("source"), source.tokens, positions, rows)
        captured = None if capture is None else capture.encoder
        plans = [plan] * len(self.encoder.layers)
        return self.encoder(x, positions, plans, captured=captured)

    def decode(
        self,
        target: Packed,
        memory: Tensor | None = None,
        source: Packed | None = None,
        capture: Capture | None = None,
        cache: Cache | None = None,
        engine: str | None = None,
    ) -> Tensor:
        """target, and memory[M, D] with the source it came from -> [N, D]; a cache keeps what
        steps after it will need. `engine` as in `encode`."""
        assert self.decoder is not None
        layers = len(self.decoder.layers)
        causal = Visibility(causal=True, window=self.config.window)
        plan = self._plan(target, target, causal, engine)
        plans: list[Plan | CachedSelf | Reading] = [plan] * layers
        if cache is not None:
            plans = [Reading(plan, cache, layer) for layer in range(layers)]
        cross = None if source is None else self._plan(target, source, Visibility(), engine)
        memories = None if memory is None else [memory] * layers
        positions = target.positions()
        rows = self.decoder.rows_until(max(target.lengths), positions.device)
        x = self.decoder.embed(self.table("target"), target.tokens, positions, rows)
        lists = (None, None) if capture is None else (capture.decoder, capture.cross)
        return self.decoder(x, positions, plans, memories, cross, *lists)

    # ---- step by step -------------------------------------------------------------------

    @torch.no_grad()
    def start(
        self,
        source: Packed | None = None,
        read: Packed | None = None,
        *,
        sentences: int = 1,
        width: int = 1,
        steps: int,
        engine: str | None = None,
    ) -> Cache:
        """A cache for a search of at most `steps` steps, with `width` hypotheses a sentence.

        source: what is encoded, where there is an encoder.
        read: what the decoder reads before the first step: a prompt, the beginning of an answer.
        sentences: how many there are, where neither row says it.
        engine: as in `encode`.
        """
        if self.decoder is None:
            raise InputError("model.style=encoder decodes nothing: it has no decoder")
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
        memory = None
        if source is not None:
            memory = self.encode(source, engine=engine)
            cache.remember(source.lengths, self.project(memory))
        if read is not None:
            self.decode(read, memory, source, cache=cache, engine=engine)
            cache.began(read.lengths)
        return cache

    def empty_cache(self, sentences: int, width: int, before: int, steps: int) -> Cache:
        """Room for `before` tokens that are read and `steps` steps."""
        assert self.decoder is not None
        weight = self.table("target").weight
        # A CPU is slow at attention in bfloat16: several times slower than in float32.
        slow = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
        dtype = torch.float32 if slow else weight.dtype
        slots, places = before + steps * width, before + steps
        cache = Cache(self.config, sentences, width, slots, dtype, weight.device)
        if self.config.positions == "learned":
            places = min(places, self.config.max_length)
        cache.position_rows = self.decoder.position_rows(torch.arange(places, device=weight.device))
        return cache

    def project(self, memory: Tensor) -> list[tuple[Tensor, ...]]:
        """The memory's keys and values for every layer of the decoder: [M, H, K] each."""
        assert self.decoder is not None
        projected = []
        for block in self.decoder.layers:
            attention = block.cross_attention
            assert isinstance(attention, MultiHeadAttention)
            projected.append(attention.project_memory(memory))
        return projected

    @torch.no_grad()
    def step(
        self, tokens: Tensor, parents: Tensor | None, cache: Cache, seen: int | None = None
    ) -> Tensor:
        """One token more for every hypothesis: tokens[B, W] -> logits[B, W, V] of what follows.

        parents[B, W]: the hypothesis of the last step that each goes on with; None: itself.
        This is all that a search asks of an engine: tokens in, logits out, the cache between.
        """
        assert self.decoder is not None
        step = Step(cache, parents, cache.used + cache.width if seen is None else seen)
        layers = range(len(self.decoder.layers))
        positions = cache.positions[:, None].expand_as(tokens).flatten()  # [N]
        if self.config.positions == "learned":  # a sentence that is done may be past the table
            positions = positions.clamp(max=self.config.max_length - 1)
        x = self.decoder.embed(
            self.table("target"), tokens.flatten(), positions, cache.position_rows
        )
        selves = [CachedSelf(step, layer) for layer in layers]
        memories = [CachedMemory(step, layer) for layer in layers] if cache.memory else None
        x = self.decoder(x, positions, selves, memories)
        cache.positions += 1
        cache.next += cache.width
        cache.used += cache.width
        return product(x, self.output_matrix()).unflatten(0, tokens.shape)

    # ---- checks -------------------------------------------------------------------------

    def _plan(
        self, queries: Packed, keys: Packed, visibility: Visibility, engine: str | None
    ) -> Plan:
        if plan := queries.plans.get((id(keys), visibility)):
            return plan
        dropout = self.config.attention_dropout if self.training else 0.0
        return Plan(
            queries.lengths, keys.lengths, visibility,
            engine=engine or self.engine, device=queries.tokens.device, dropout=dropout,
        )  # fmt: skip

    def _check(self, source: Packed | None, target: Packed | None) -> Packed:
        """Refuse rows that do not fit the style, before any work; give back the row of the head."""
        needs = {"source": self.config.has_encoder, "target": self.config.has_decoder}
        for name, row in (("source", source), ("target", target)):
            if row is None and needs[name]:
                raise InputError(f"model.style={self.config.style} needs a {name}")
            if row is not None and not needs[name]:
                other = "target" if name == "source" else "source"
                raise InputError(
                    f"model.style={self.config.style} takes no {name}: give the tokens as {other}"
                )
            if row is not None:
                self.check_row(row, name)
        if source is not None and target is not None and len(source) != len(target):
            raise InputError(
                f"the source has {len(source)} sequences and the target {len(target)}: "
                "each needs its partner"
            )
        row = target if target is not None else source
        assert row is not None
        return row

    def check_row(self, row: Packed, side: str) -> None:
        weight = self.table(side).weight
        if row.tokens.device != weight.device:
            raise InputError(
                f"the {side} is on {row.tokens.device} but the model on {weight.device}: "
                f"use row.to({str(weight.device)!r})"
            )
        limit = self.config.max_length if self.config.positions == "learned" else None
        row.check(len(weight), limit, side)


class Head(nn.Module):
    """What is read off the last layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.pooling, self.dropout = config.head, config.pooling, config.dropout
        d_model, size = config.d_model, config.vocabulary_size
        tied = config.tie_embeddings in ("all", "target-output")
        words = config.head in ("language-model", "masked-language-model")
        self.bias: nn.Parameter | None = None
        self.output = Linear(d_model, size, bias=False) if words and not tied else None
        if config.head == "masked-language-model":  # as in BERT: a layer more, and a bias
            self.transform = Linear(d_model, d_model)
            self.norm = make_norm(config)
            self.bias = nn.Parameter(torch.zeros(size))
        elif config.head == "classifier":
            assert config.classes is not None
            self.transform = Linear(d_model, d_model)
            self.classes = Linear(d_model, config.classes)

    def forward(self, hidden: Tensor, row: Packed, matrix: Tensor) -> Tensor:
        if self.kind == "pooling":
            return pool(hidden, row, self.pooling)
        if self.kind == "classifier":
            first = self.transform(pool(hidden, row, "cls")).tanh()  # [B, D]
            return self.classes(F.dropout(first, self.dropout, self.training))
        return product(self.words(hidden), matrix, self.bias)  # [N, V]

    def words(self, hidden: Tensor) -> Tensor:
        """What is compared with the output matrix: [N, D]."""
        if self.kind != "masked-language-model":
            return hidden
        transformed: Tensor = self.norm(F.gelu(self.transform(hidden)))
        return transformed


def pool(hidden: Tensor, row: Packed, how: str) -> Tensor:
    """One vector for each sequence: hidden[N, D] -> [B, D]."""
    if how == "mean":
        return torch.segment_reduce(hidden, "mean", lengths=row.offsets.diff(), axis=0)
    return hidden[row.offsets[:-1] if how == "cls" else row.offsets[1:] - 1]


def initialise(module: nn.Module) -> None:
    """Glorot for matrices, zero for biases; embeddings have unit size once they are scaled."""
    if isinstance(module, MultiHeadAttention):  # W^Q, W^K and W^V each as a matrix of its own
        for part in module.query_key_value.weight.data.chunk(3):
            nn.init.xavier_uniform_(part)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
