"""translate: a sentence in, a sentence out (encoder-decoder).

An example is a pair of token sequences, both closed by <eos>. Teacher forcing: the decoder reads
the target shifted right behind <bos> and has to say, at each place, the token that comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.greedy import greedy
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.text.store import Store
from regard.text.tokenizer import Tokenizer
from regard.training.loss import cross_entropy, divergence


@dataclass(frozen=True)
class Batch:
    source: Packed
    target: Packed  # shifted right: <bos> and all but the last token
    labels: Tensor  # [N]: the token that follows each

    @property
    def tokens(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Translate:
    """The task with the vocabularies of source and target (which may be the same)."""

    source: Tokenizer
    target: Tokenizer

    def batch(
        self,
        store: Store,
        examples: NDArray[np.int64],
        device: torch.device,
        bpe_dropout: float = 0.0,
        seed: int = 0,
    ) -> Batch:
        """The examples of one row, packed."""
        sides = []
        for side, tokenizer in enumerate((self.source, self.target)):
            rows = [store.tokens(side, int(i)) for i in examples]
            if bpe_dropout:
                rows = [
                    self._drop(tokenizer, ids, bpe_dropout, f"{seed} {side} {i}")
                    for i, ids in zip(examples, rows, strict=True)
                ]
            bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
            sides.append((np.concatenate(rows).astype(np.int64), bounds))
        (source, source_bounds), (labels, bounds) = sides
        shifted = np.concatenate([labels[:1], labels[:-1]])
        shifted[bounds[:-1]] = self.target.bos

        def packed(tokens: NDArray[np.int64], offsets: NDArray[np.int64]) -> Packed:
            return Packed(torch.from_numpy(tokens), torch.from_numpy(offsets)).to(device)

        wanted = torch.from_numpy(labels).to(device, non_blocking=True)
        return Batch(packed(source, source_bounds), packed(shifted, bounds), wanted)

    def _drop(
        self, tokenizer: Tokenizer, ids: NDArray[Any], dropout: float, seed: str
    ) -> NDArray[np.int64]:
        """The same text in other pieces; the same pieces whenever the seed is the same."""
        text = tokenizer.decode(ids.tolist())
        return np.array([*tokenizer.encode_dropout(text, dropout, Random(seed)), tokenizer.eos])

    def loss(
        self, model: Transformer, batch: Batch, smoothing: float, r_drop: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Sums over the target tokens: what is minimised, and the negative log-likelihood."""
        hidden = model.hidden(batch.source, batch.target)
        matrix = model.output_matrix()
        loss, likelihood = cross_entropy(hidden, matrix, batch.labels, smoothing)
        if r_drop:
            again = model.hidden(batch.source, batch.target)
            second, _ = cross_entropy(again, matrix, batch.labels, smoothing)
            loss = 0.5 * (loss + second) + r_drop * divergence(hidden, again, matrix)
        return loss, likelihood

    def answer(self, model: Transformer, texts: Sequence[str], more: int) -> list[str]:
        """Translations by greedy search, one for each text; nothing for nothing."""
        ids = self.source.encode_batch(list(texts))
        asked = [i for i, text in enumerate(texts) if text.strip()]
        sources = [[*ids[i], self.source.eos] for i in asked]
        answers = [""] * len(texts)
        found = greedy(model, sources, self.target.bos, self.target.eos, more)
        for i, tokens in zip(asked, found, strict=True):
            answers[i] = self.target.decode(tokens)
        return answers


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """sacreBLEU and chrF, cased and detokenised, with their signatures."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores: dict[str, Any] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        score = metric.corpus_score(list(hypotheses), [list(references)])
        scores[name] = round(score.score, 2)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
