"""The input of a search: requests, their limits, how they are grouped into batches, and the `Job`
that a decoding engine gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.config.model import ModelConfig
from regard.config.sections import DecodingConfig
from regard.errors import InputError
from regard.text.tokenizer import Tokenizer

# Tokens of one batch: the source and all hypotheses of a sentence at their largest length, where
# every sentence counts as much as the largest. This bounds the memory of the cache.
BATCH_TOKENS = {"cpu": 16_384, "cuda": 131_072}
SCORED_TOKENS = 4_096  # tokens of one batch that is only scored


@dataclass(frozen=True)
class Request:
    """One sentence to decode.

    limit: the largest number of tokens of the output, including the prefix and <eos>; None:
    decoding.max_length decides.
    bos, eos, mask: the ids of the tokens that begin and end an output, and of the mask that an
    encoder fills, for models whose special tokens are not those of `Tokenizer`; eos=-1: no token
    ends an output.
    """

    source: Sequence[int]  # the encoder's input; without an encoder, the prompt before the output
    prefix: Sequence[int] = ()  # the tokens that the output starts with
    limit: int | None = None
    bos: int = Tokenizer.bos
    eos: int = Tokenizer.eos
    mask: int = Tokenizer.mask

    def check(self, model: ModelConfig) -> None:
        """Raise InputError if the model cannot decode this request."""
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
                f"{len(known)} tokens before the prediction are more than the learned position "
                f"table has rows ({model.max_length}): shorten them or raise model.max_length"
            )

    def begin(self, encoder: bool) -> list[int]:
        """The tokens that the decoder reads before the output."""
        return [self.bos] if encoder else list(self.source)

    def known(self, encoder: bool) -> list[int]:
        """The tokens that the decoder reads before the first token that it writes."""
        return [*self.begin(encoder), *self.prefix]

    def max_tokens(self, model: ModelConfig, options: DecodingConfig) -> int:
        """The largest number of tokens of the output, including the prefix and <eos>."""
        encoder = model.has_encoder
        more = len(self.source) if encoder else 0
        limit = more + options.max_length if self.limit is None else self.limit
        if model.positions == "learned":  # the decoder never reads the last token of an output
            limit = min(limit, model.max_length - len(self.begin(encoder)) + 1)
        return max(0, limit)

    @property
    def noise_key(self) -> bytes:
        """What the random numbers of this request depend on besides the seed: its own tokens, and
        nothing else in the batch."""
        return repr((list(self.source), list(self.prefix))).encode()


@dataclass(frozen=True)
class Job:
    """The batch of sentences that one search decodes; each sequence has one entry per sentence."""

    options: DecodingConfig
    limits: Sequence[int]  # the largest number of steps
    prefixes: Sequence[Sequence[int]]  # the tokens that the outputs start with
    noise_keys: Sequence[bytes]  # for sampling; empty otherwise
    sources: Sequence[Sequence[int]] | None  # the encoder's input, where there is an encoder
    read: Sequence[Sequence[int]]  # what the decoder reads before the first step: all or none
    newest: Sequence[int]  # the token that the first step reads
    eos: int = Tokenizer.eos  # the token that ends an output

    @property
    def longest_prefix(self) -> int:
        return max(len(tokens) for tokens in self.prefixes)


def until_eos(tokens: Sequence[int], eos: int = Tokenizer.eos) -> list[int]:
    """The tokens up to and including the first <eos>, or all of them if there is none."""
    tokens = list(tokens)
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def by_size(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group indices into batches of about `budget` tokens, the largest sizes first."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    while order:
        count = max(1, budget // max(1, sizes[order[0]]))
        yield order[:count]
        order = order[count:]
