"""translate: a sentence in, a sentence out (encoder-decoder).

An example is a pair of token sequences, both closed by <eos>. Teacher forcing: the decoder reads
the target shifted right behind <bos> and has to say, at each place, the token that comes next.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config import DecodingConfig
from regard.decoding.answers import STOPS, Answer, unchanged
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import NOTHING, Search, Wanted, decode
from regard.errors import InputError
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

    # ---- use ----------------------------------------------------------------------------

    def requests(
        self, texts: Sequence[str], longest: int = sys.maxsize, prefix: str = ""
    ) -> list[list[Request]]:
        """What is asked of the search for each text: one request, none for nothing, several for a
        text of more than `longest` tokens. The first translation begins with the prefix."""
        given, end = self.target.encode(prefix), self.source.eos
        found = []
        for text, ids in zip(texts, self.source.encode_batch(list(texts)), strict=True):
            pieces = [ids] if text.strip() else []
            if len(ids) >= longest:
                parts = split(text, lambda part: len(self.source.encode(part)), longest - 1)
                pieces = self.source.encode_batch(parts)
            found.append([
                Request([*piece, end], () if i else given) for i, piece in enumerate(pieces)
            ])  # fmt: skip
        return found

    def answer(
        self,
        model: Transformer,
        texts: Sequence[str],
        options: DecodingConfig,
        longest: int,
        prefix: str = "",
        wanted: Wanted = NOTHING,
    ) -> list[Answer]:
        """A translation for each text; nothing for nothing. A text of more than `longest` tokens
        is translated in pieces (`Answer.pieces`)."""
        groups = self.requests(texts, longest, prefix)
        flat = [request for group in groups for request in group]
        found = iter([self.spell(answer) for answer in decode(model, flat, options, wanted)])
        return [join([next(found) for _ in group]) for group in groups]

    def stream(
        self, model: Transformer, requests: Sequence[Request], options: DecodingConfig
    ) -> Iterator[str]:
        """The translation of a text (or of its pieces) bit by bit, each as soon as nothing can
        change it any more."""
        for i, request in enumerate(requests):
            if i:
                yield " "
            search = Search(model, [request], options)
            said = ""
            for _ in search:
                # Bytes of a character that has not come to its end show as U+FFFD.
                now = self.target.decode(search.settled()).rstrip("\ufffd")
                if len(now) > len(said):
                    yield now[len(said) :]
                    said = now
            whole = self.target.decode(search.answers()[0].tokens)
            if len(whole) > len(said):
                yield whole[len(said) :]

    def score(
        self,
        model: Transformer,
        pairs: Sequence[tuple[str, str]],
        penalty: float = 0.0,
        limit: int | None = None,
    ) -> list[Answer]:
        """How probable the model finds given translations; scores with this length penalty. No
        side may have more than `limit` tokens."""
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        requests = [Request([*i, self.source.eos]) for i in self.source.encode_batch(sources)]
        answers = [[*i, self.target.eos] for i in self.target.encode_batch(targets)]
        for i, (request, tokens) in enumerate(zip(requests, answers, strict=True)):
            longest = max(len(request.source), len(tokens))
            if limit is not None and longest > limit:
                raise InputError(
                    f"pair {i + 1} has {longest} tokens, but the learned position table has "
                    f"{limit} rows"
                )
        found = []
        for request, tokens, seen in zip(
            requests, answers, score(model, requests, answers), strict=True
        ):
            answer = unchanged(tokens, seen.logprobs, penalty, "given")
            answer.source = request.source
            found.append(self.spell(answer))
        return found

    def spell(self, answer: Answer) -> Answer:
        """Add the text to an answer and those behind it."""
        for one in (answer, *answer.others):
            one.text = self.target.decode(one.tokens)
        return answer


ENDS = (r"(?<=[.!?…。！？])\s+", r"\s+")  # where to cut: between sentences, between words


def split(
    text: str, count: Callable[[str], int], most: int, ends: tuple[str, ...] = ENDS
) -> list[str]:
    """Cut a text into pieces of at most `most` tokens: between sentences if that is enough, else
    between words, else anywhere."""
    if count(text) <= most:
        return [text]
    if not ends:  # a character has at most four bytes, and so at most four tokens
        size = max(1, most // 4)
        return [text[i : i + size] for i in range(0, len(text), size)]
    pieces: list[str] = []
    held, tokens = "", 0
    for part in re.split(ends[0], text):
        size = count(" " + part)
        if held and tokens + size <= most:
            held, tokens = f"{held} {part}", tokens + size
            continue
        if held:
            pieces.append(held)
        held, tokens = "", 0
        size = count(part)  # another one, now that no blank is before it
        if size > most:
            pieces += split(part, count, most, ends[1:])
        else:
            held, tokens = part, size
    return [*pieces, held] if held else pieces


def join(answers: list[Answer]) -> Answer:
    """One answer made of the answers to the pieces of a text."""
    if len(answers) == 1:
        return answers[0]
    whole = together(answers)
    ranks = max((len(answer.others) for answer in answers), default=0)
    for i in range(ranks):  # the next best of each piece, or its last where it has fewer
        every = [(answer, *answer.others) for answer in answers]
        whole.others.append(together([one[min(i + 1, len(one) - 1)] for one in every]))
    whole.pieces = answers
    return whole


def together(answers: list[Answer]) -> Answer:
    return Answer(
        [token for answer in answers for token in answer.tokens],
        [logprob for answer in answers for logprob in answer.logprobs],
        sum(answer.score for answer in answers),
        max((answer.stopped for answer in answers), key=STOPS.index, default="empty"),
        " ".join(answer.text for answer in answers),
    )


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
