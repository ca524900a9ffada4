"""Input -> target: one example for three styles, so that they can be compared on the same data.

encoder-decoder  the encoder reads the input; the decoder writes the target (teacher forcing: it
                 reads the target shifted right behind <bos> and says at each place what follows)
decoder          one row: input <sep> target; only the target's tokens are asked for
encoder          one row: input <sep> <mask> <mask> ...; every slot is filled at once, and what
                 stands behind the first <eos> does not count
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.sections import DecodingConfig
from regard.decoding.answers import Answer, unchanged
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import NOTHING, Search, Wanted, decode
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.tasks.task import Ids, Task, bounds, packed
from regard.text.dropout import Dropout
from regard.text.store import Store
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Batch

SEP, MASK, EOS, BOS = Tokenizer.sep, Tokenizer.mask, Tokenizer.eos, Tokenizer.bos


def slots(source: Any) -> Any:
    """How many <mask> an encoder gets for an input of so many tokens: room for a longer target."""
    return source * 3 // 2 + 8


def asked(style: str, source: Sequence[int]) -> list[int]:
    """What a model reads before it answers an input (ids without <eos>)."""
    if style == "encoder-decoder":
        return [*source, EOS]
    return [*source, SEP] if style == "decoder" else [*source, SEP, *[MASK] * slots(len(source))]


def arrange(
    style: str,
    sources: Sequence[NDArray[Any]],
    targets: Sequence[NDArray[Any]],
    device: torch.device,
) -> Batch:
    """Inputs and targets, each closed by <eos>, as the batch of a style."""
    labels = np.concatenate(targets).astype(np.int64)
    wanted = torch.from_numpy(labels).to(device, non_blocking=True)
    if style == "encoder-decoder":
        shifted = np.concatenate([labels[:1], labels[:-1]])
        starts = bounds(targets)
        shifted[starts[:-1]] = BOS
        rows = np.split(shifted, starts[1:-1])
        return Batch(packed(sources, device), packed(rows, device), wanted)
    rows = []
    for source, target in zip(sources, targets, strict=True):
        behind = target[:-1]
        if style == "encoder":
            behind = np.full(max(slots(len(source) - 1), len(target)), MASK)
        rows.append(np.concatenate([source[:-1], [SEP], behind]))
    # A decoder says the first token of the target when it reads <sep>, an encoder one later.
    first = bounds(rows)[:-1] + [len(source) - (style == "decoder") for source in sources]
    counts = np.array([len(target) for target in targets])
    places = np.repeat(first - bounds(targets)[:-1], counts) + np.arange(len(labels))
    where = torch.from_numpy(places).to(device, non_blocking=True)
    row = packed(rows, device)
    source_row, target_row = (row, None) if style == "encoder" else (None, row)
    return Batch(source_row, target_row, wanted, where)


class Sequences(Task):
    """A task whose answer is a text, with the vocabularies of source and target."""

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        style: str = "encoder-decoder",
        bpe_dropout: float = 0.0,
    ) -> None:
        super().__init__(target, style)
        self.source, self.target, self.bpe_dropout = source, target, bpe_dropout
        self.dropouts = [Dropout(tokenizer, bpe_dropout) for tokenizer in (source, target)]

    def sizes(self, store: Store) -> list[NDArray[Any]]:
        if self.style == "encoder-decoder":
            return [*store.lengths]
        source, target = (side.astype(np.int64) for side in store.lengths)
        if self.style == "decoder":
            return [source + target - 1]
        return [source + np.maximum(slots(source - 1), target)]

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        sides = []
        for side in range(2):
            rows = [store.tokens(side, int(i)) for i in examples]
            if self.bpe_dropout and seed:
                rows = self.dropouts[side](rows, examples, 2 * seed + side)
            sides.append(rows)
        return arrange(self.style, sides[0], sides[1], device)

    def model_options(self) -> dict[str, Any]:
        return {
            "vocabulary_size": self.target.size,
            "source_vocabulary_size": self.source.size,
        }

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.source is not self.target:
            self.source.save(folder / "source-tokenizer.json")

    # ---- use ----------------------------------------------------------------------------

    def found(
        self,
        model: Transformer,
        requests: Sequence[Request],
        options: DecodingConfig,
        wanted: Wanted = NOTHING,
    ) -> list[Answer]:
        """The answers to requests, with their texts."""
        requests = [self.bounded(request, options) for request in requests]
        return [self.spell(answer) for answer in decode(model, requests, options, wanted)]

    def bounded(self, request: Request, options: DecodingConfig) -> Request:
        """decoding.max_length counts from the input's length, as it does where an encoder has it:
        to a search, what a decoder reads before its answer is no source."""
        if self.style != "decoder" or request.limit is not None:
            return request
        return replace(request, limit=len(request.source) + options.max_length)

    def stream(
        self, model: Transformer, requests: Sequence[Request], options: DecodingConfig
    ) -> Iterator[str]:
        """The answer to a text (or to its pieces) bit by bit, each as soon as nothing can change
        it any more."""
        for i, request in enumerate(requests):
            if i:
                yield " "
            if self.style == "encoder":  # it has no steps: all of it comes at once
                yield self.found(model, [request], options)[0].text
            else:
                yield from stream(model, self.bounded(request, options), options, self.target)

    def score(
        self,
        model: Transformer,
        pairs: Sequence[tuple[str, str]],
        penalty: float = 0.0,
        limit: int | None = None,
    ) -> list[Answer]:
        """How probable the model finds given answers; scores with this length penalty. No
        side may have more than `limit` tokens."""
        if self.style == "encoder":
            raise InputError("model.style=encoder fills all places at once: it cannot score a text")
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        requests = [Request(asked(self.style, i)) for i in self.source.encode_batch(sources)]
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


def stream(
    model: Transformer, request: Request, options: DecodingConfig, tokenizer: Tokenizer
) -> Iterator[str]:
    """One answer bit by bit."""
    search = Search(model, [request], options)
    said = ""
    for _ in search:
        # Bytes of a character that has not come to its end show as U+FFFD.
        now = tokenizer.decode(search.settled()).rstrip("\ufffd")
        if len(now) > len(said):
            yield now[len(said) :]
            said = now
    whole = tokenizer.decode(search.answers()[0].tokens)
    if len(whole) > len(said):
        yield whole[len(said) :]
