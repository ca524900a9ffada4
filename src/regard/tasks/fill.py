"""fill: masked language modelling (BERT, Devlin et al. 2019): an encoder guesses hidden words.

Of data.mask of the tokens, 80% are replaced by <mask>, 10% by any token and 10% stay as they are;
all of them are asked for. So a vector has to know its word whether it is hidden or not, and what
is learned serves where nothing is hidden: `classify --from`, `embed --from`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.sections import Config, DecodingConfig
from regard.decoding.requests import by_size
from regard.errors import InputError
from regard.model.linear import product
from regard.model.transformer import Transformer
from regard.tasks.documents import Documents
from regard.tasks.task import EVALUATED_TOKENS, Evaluation, Ids, bounds, forward
from regard.text.batching import Packed
from regard.text.corpus import Document
from regard.text.store import Store
from regard.text.tokenizer import SPECIALS, Tokenizer
from regard.training.losses import Batch
from regard.training.progress import perplexity

HELD_OUT = 2026  # the seed of the words that are hidden when nothing is learned
MASK = SPECIALS[Tokenizer.mask]


@dataclass(frozen=True)
class Gap:
    """The best words for one <mask>, most probable first."""

    candidates: list[tuple[str, float]]  # a word as it stands in the text, and its probability


@dataclass(frozen=True)
class Filled:
    text: str  # with the best word in every gap
    gaps: list[Gap]


class Fill(Documents):
    name = "fill"
    better = "loss"
    ends, before = 0, 1  # no <eos>: an encoder sees where the text ends; but <cls>

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: str = "encoder",
        longest: int = 256,
        mask: float = 0.15,
        whole_words: bool = False,
    ) -> None:
        super().__init__(tokenizer, style, longest)
        self.mask, self.whole_words = mask, whole_words

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        rows = [
            np.concatenate(
                [[Tokenizer.cls], store.tokens(0, int(document))[start : start + length]]
            )
            for document, start, length in zip(*self.chosen(store, examples, seed), strict=True)
        ]
        return self.hide(rows, device, seed or HELD_OUT)

    def hide(self, rows: list[NDArray[Any]], device: torch.device, seed: int) -> Batch:
        """Hide words of rows that begin with <cls>; at least one in all."""
        tokens = np.concatenate(rows).astype(np.int64)
        random = np.random.default_rng([seed, 1])
        chance = random.random(len(tokens))
        if self.whole_words:  # a word's tokens share the chance of its first
            chance = chance[self.tokenizer.word_starts(tokens)]
        chance[tokens == Tokenizer.cls] = 2.0
        places = np.flatnonzero(chance < self.mask)
        if not len(places):
            places = np.array([chance.argmin()])
        labels = tokens[places]
        how = random.random(len(places))
        hidden = tokens.copy()
        hidden[places[how < 0.8]] = Tokenizer.mask
        any_token = random.integers(len(SPECIALS), self.tokenizer.size, len(places))
        other = (how >= 0.8) & (how < 0.9)
        hidden[places[other]] = any_token[other]
        row = Packed(torch.from_numpy(hidden), torch.from_numpy(bounds(rows))).to(device)
        asked, where = (torch.from_numpy(side).to(device) for side in (labels, places))
        return Batch(row, None, asked, where)

    def check_comparable(self, other: Documents) -> None:
        super().check_comparable(other)
        assert isinstance(other, Fill)
        if (self.mask, self.whole_words) != (other.mask, other.whole_words):
            raise InputError(
                "the two models hide other words: data.mask or data.whole_words differ"
            )

    def from_loss(self, loss: float, store: Store) -> dict[str, Any]:
        return {"perplexity": perplexity(loss)}

    # ---- use ----------------------------------------------------------------------------

    def fill(
        self,
        model: Transformer,
        texts: Sequence[str],
        top: int,
        longest: int,
        where: Callable[[int], str],
    ) -> list[Filled]:
        """The best words for every <mask> of each text."""
        parts = [text.split(MASK) for text in texts]
        rows = [self.encode(part, longest, where(i)) for i, part in enumerate(parts)]
        matrix = model.output_matrix()

        def read(row: Packed, hidden: Tensor) -> list[Any]:
            gaps = row.tokens == Tokenizer.mask
            logits = product(model.head.words(hidden[gaps]), matrix, model.head.bias)
            logits[:, : len(SPECIALS)] = -math.inf  # no text has them
            most = min(top, logits.shape[1] - len(SPECIALS))
            best = logits.softmax(-1, dtype=torch.float32).topk(most)
            counts = [int(part.sum()) for part in row.split(gaps)]
            sides = (best.indices.split(counts), best.values.split(counts))
            return [(i.tolist(), v.tolist()) for i, v in zip(*sides, strict=True)]

        found = []
        for part, (tokens, values) in zip(parts, forward(model, rows, read), strict=True):
            gaps = [
                Gap([(self.tokenizer.decode([t]), p) for t, p in zip(*gap, strict=True)])
                for gap in zip(tokens, values, strict=True)
            ]
            text = part[0]
            for gap, after in zip(gaps, part[1:], strict=True):
                word = gap.candidates[0][0]
                blank = self.tokenizer.kind == "bpe" and word.startswith(" ")
                text = (text.removesuffix(" ") if blank else text) + word + after
            found.append(Filled(text, gaps))
        return found

    def encode(self, parts: list[str], longest: int, where: str) -> list[int]:
        """<cls> and the tokens of a text, cut where its masks stand. A blank before a mask belongs
        to the word that is hidden: that is how words are cut into tokens."""
        if len(parts) < 2:
            raise InputError(f"{where}: there is no {MASK} to fill: write it in place of a word")
        if self.tokenizer.kind == "bpe":
            parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
        ids = [Tokenizer.cls]
        for i, part in enumerate(self.tokenizer.encode_batch(parts)):
            ids += [Tokenizer.mask] if i else []
            ids += part
        if len(ids) > longest:
            raise InputError(
                f"{where}: {len(ids)} tokens, but the model was trained on at most {longest}: "
                f"shorten the text around the {MASK}"
            )
        return ids

    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Document],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        """How well words are guessed that are hidden as in training, the same ones each time."""
        size = self.longest - 1
        rows = [
            np.array([Tokenizer.cls, *ids[start : start + size]])
            for ids in self.tokenizer.encode_batch([text for _, text in examples])
            for start in range(0, len(ids), size)
        ]
        matrix = model.output_matrix()
        likelihood, right, count = (np.zeros(len(rows)) for _ in range(3))
        for i, some in enumerate(by_size([len(row) for row in rows], EVALUATED_TOKENS)):
            batch = self.hide([rows[j] for j in some], matrix.device, HELD_OUT + i)
            assert batch.source is not None
            assert batch.where is not None
            with torch.no_grad():
                vectors = model.head.words(model.hidden(batch.source)[batch.where])
                logits = product(vectors, matrix, model.head.bias).float()
                said = logits.log_softmax(-1).gather(1, batch.labels[:, None])[:, 0]
            best = logits.argmax(-1) == batch.labels
            ends, places = batch.source.offsets.cpu().numpy(), batch.where.cpu().numpy()
            owner = np.array(some)[np.searchsorted(ends, places, "right") - 1]
            for sums, values in (
                (likelihood, -said),
                (right, best),
                (count, torch.ones_like(said)),
            ):
                np.add.at(sums, owner, values.double().cpu().numpy())

        def mean(values: NDArray[Any], chosen: Ids) -> float:
            return float(values[chosen].sum() / max(1.0, count[chosen].sum()))

        metrics = {
            "perplexity": lambda chosen: perplexity(mean(likelihood, chosen)),
            "accuracy": lambda chosen: mean(right, chosen),
        }
        whole = np.arange(len(rows))
        scores: dict[str, Any] = {n: round(metric(whole), 4) for n, metric in metrics.items()}
        return Evaluation(scores | {"hidden": int(count.sum())}, metrics, len(rows))
