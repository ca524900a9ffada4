"""What is asked of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.config.model import ModelConfig
from regard.config.sections import DecodingConfig
from regard.errors import InputError
from regard.text.tokenizer import Tokenizer

# Of one batch, the longest sentence counted for each: what is read, and what all hypotheses may
# write. It bounds the memory of the cache.
BATCH_TOKENS = {"cpu": 16_384, "cuda": 131_072}
SCORED_TOKENS = 4_096  # of one batch that is only scored


@dataclass(frozen=True)
class Request:
    """One sentence to answer.

    source: the encoder's input; of a decoder-only model, what it reads before its answer
    prefix: how the answer begins
    limit: tokens of the whole answer, <eos> included; None: by decoding.max_length
    """

    source: Sequence[int]
    prefix: Sequence[int] = ()
    limit: int | None = None

    def check(self, model: ModelConfig) -> None:
        """Refuse what no search can answer."""
        if not self.source:
            raise InputError("a request with an empty source: it needs at least one token")
        known, size = self.known(model.has_encoder), model.vocabulary_size
        for token in known:
            if not 0 <= token < size:
                raise InputError(
                    f"token id {token} is outside the vocabulary of {size} (0 to {size - 1})"
                )
        if model.positions == "learned" and len(known) > model.max_length:
            raise InputError(
                f"{len(known)} tokens before the answer are more than the learned position table "
                f"has rows ({model.max_length}): shorten them or raise model.max_length"
            )

    def begin(self, encoder: bool) -> list[int]:
        """What the decoder reads before the answer."""
        return [Tokenizer.bos] if encoder else list(self.source)

    def known(self, encoder: bool) -> list[int]:
        """What the decoder has before it writes its first token."""
        return [*self.begin(encoder), *self.prefix]

    def most(self, model: ModelConfig, options: DecodingConfig) -> int:
        """Tokens that the answer may have, the prefix and <eos> included."""
        encoder = model.has_encoder
        more = len(self.source) if encoder else 0
        limit = more + options.max_length if self.limit is None else self.limit
        if model.positions == "learned":  # the last token written is never read
            limit = min(limit, model.max_length - len(self.begin(encoder)) + 1)
        return max(0, limit)

    @property
    def name(self) -> bytes:
        """What the random numbers of this sentence hang on: itself, and nothing around it."""
        return repr((list(self.source), list(self.prefix))).encode()


def by_size(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Batches of indices, the longest first, of about `budget` tokens each."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    while order:
        count = max(1, budget // max(1, sizes[order[0]]))
        yield order[:count]
        order = order[count:]
