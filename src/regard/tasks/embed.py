"""embed: one vector for a sentence, near those of sentences that mean the same.

Learned from pairs that belong together, every other sentence of the batch being a wrong answer
(in-batch negatives), or from pairs with scores, where only their order counts: a pair that people
find more alike should have the higher cosine (CoSENT, Su 2022). Vectors have unit length, so a dot
product is a cosine. Of a text longer than data.max_length its beginning is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.config.sections import Config, DecodingConfig
from regard.errors import InputError
from regard.model.transformer import Transformer, pool
from regard.tasks.metrics import pearson, spearman
from regard.tasks.task import Evaluation, Ids, Say, Task, forward, packed, read_rows
from regard.text.batching import Packed
from regard.text.corpus import Report, Similar, read_similar
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.store import Chunk, Store, build, token_type
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Loss, Pairs, similarity_loss

Example = tuple[Path, Similar]


class Embed(Task):
    name = "embed"
    better = "spearman"

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: str = "encoder",
        pooling: str = "mean",
        longest: int = 256,
        scale: float = 20.0,
    ) -> None:
        super().__init__(tokenizer, style)
        self.pooling, self.longest, self.scale = pooling, longest, scale

    # ---- data ---------------------------------------------------------------------------

    @classmethod
    def read(
        cls, files: Sequence[Path], config: Config, say: Say | None = None
    ) -> Iterator[Example]:
        scored: bool | None = None
        for path, row in read_rows(files, read_similar, config, say):
            if scored is None:
                scored = row.score is not None
            if scored != (row.score is not None):
                has, others = ("no score", "have one") if scored else ("a score", "have none")
                raise InputError(f"{path}:{row.line}: {has}, but the rows before it {others}")
            yield path, row

    @classmethod
    def texts(cls, example: Example) -> Iterable[str]:
        return [example[1].a, example[1].b]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What is read of each text: <cls> first for an encoder, <eos> last for a decoder, so that
        there is a token that stands for the whole."""
        rows = (ids[: self.longest - 1] for ids in self.tokenizer.encode_batch(list(texts)))
        if self.style == "decoder":
            return [[*ids, Tokenizer.eos] for ids in rows]
        return [[Tokenizer.cls, *ids] for ids in rows]

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, Report]:
        scored = any(row.score is not None for _, row in self.read(files, config))

        def encode(report: Report, position: Position) -> Iterator[Chunk]:
            rows = self.read(files, config)
            for chunk in in_chunks(rows, lambda row: len(row[1].a) + len(row[1].b)):
                sides: list[Any] = [
                    self.ids([getattr(row, side) for _, row in chunk]) for side in ("a", "b")
                ]
                for ids in (ids for side in sides for ids in side):
                    if len(ids) == self.longest:
                        report.note(f"texts of {self.longest} tokens or cut to them")
                if scored:
                    sides.append([[row.score] for _, row in chunk])
                yield sides

        token = token_type(self.tokenizer.size)
        types = [token, token, *(["float32"] if scored else [])]
        identity = ["embed, stripped", self.tokenizer.fingerprint, self.style, self.longest,
                    config.data.duplicates]  # fmt: skip
        return build(files, identity, types, encode, folder, quiet)

    def sizes(self, store: Store) -> list[NDArray[Any]]:
        return [store.lengths[0] + store.lengths[1]]

    # ---- training -----------------------------------------------------------------------

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Pairs:
        sides = [[store.tokens(side, int(i)) for i in examples] for side in (0, 1)]
        row = packed([*sides[0], *sides[1]], device)
        a, b = (np.array([hash(ids.tobytes()) for ids in side]) for side in sides)
        same = np.any([np.equal.outer(x, y) for x in (a, b) for y in (a, b)], axis=0)
        scores = None
        if store.sides == 3:
            values = np.concatenate([store.tokens(2, int(i)) for i in examples])
            scores = torch.from_numpy(values).to(device)
        source, target = (row, None) if self.style == "encoder" else (None, row)
        return Pairs(source, target, scores, torch.from_numpy(same).to(device))

    @property
    def loss(self) -> Loss:
        return partial(similarity_loss, scale=self.scale)

    # ---- use ----------------------------------------------------------------------------

    def embed(
        self, model: Transformer, texts: Sequence[str], pooling: str = ""
    ) -> NDArray[np.float32]:
        """[texts, D], of unit length."""
        how = pooling or self.pooling

        def read(row: Packed, hidden: Tensor) -> list[Any]:
            vectors = F.normalize(pool(hidden, row, how).float(), dim=-1)
            return list(vectors.cpu().numpy())

        width = model.config.d_model
        return np.array(forward(model, self.ids(texts), read), np.float32).reshape(-1, width)

    def embed_tokens(
        self, model: Transformer, texts: Sequence[str]
    ) -> list[tuple[list[str], NDArray[np.float32]]]:
        """For each text its tokens, and the vector of each in this context: [n, D]."""

        def read(row: Packed, hidden: Tensor) -> list[Any]:
            return [part.float().cpu().numpy() for part in row.split(hidden)]

        rows = self.ids(texts)
        vectors = forward(model, rows, read)
        return [(self.tokenizer.tokens(ids), v) for ids, v in zip(rows, vectors, strict=True)]

    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Example],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        """With scores: their correlation with the cosines. Without: how often a sentence's partner
        is the nearest of all partners."""
        a, b = (self.embed(model, [getattr(row, side) for _, row in examples]) for side in "ab")
        if examples[0][1].score is None:
            cosines = (b @ one for one in a)  # all of one sum, or rounding would rank them
            better = np.array([int((row > row[i] + 1e-6).sum()) for i, row in enumerate(cosines)])
            metrics = {
                "nearest": lambda chosen: float((better[chosen] == 0).mean()),
                "reciprocal_rank": lambda chosen: float((1 / (1 + better[chosen])).mean()),
            }
        else:
            cosine = (a * b).sum(1)
            wanted = np.array([row.score for _, row in examples])
            metrics = {
                "spearman": lambda chosen: spearman(cosine[chosen], wanted[chosen]),
                "pearson": lambda chosen: pearson(cosine[chosen], wanted[chosen]),
            }
        whole = np.arange(len(examples))
        scores = {name: round(metric(whole), 4) for name, metric in metrics.items()}
        return Evaluation(scores, metrics, len(examples))
