"""The base class of tasks that generate a target text from an input, in three styles.

encoder-decoder  the encoder reads the input; the decoder predicts the target (teacher forcing: it
                 reads <bos> and the target, and predicts the next token at each position)
decoder          one row: input <sep> target; only the tokens of the target are predicted
encoder          one row: input <sep> <mask> <mask> ...; all tokens are predicted at once, and those
                 after the first <eos> are ignored
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from regard.config.sections import Config, DecodingConfig
from regard.errors import InputError
from regard.tasks.common import in_pieces, one_line, refuse_nan
from regard.tasks.lazy import np, runtime, torch
from regard.tasks.task import Array, Context, Ids, Task, Tokenizers

if TYPE_CHECKING:
    from regard.tasks.runtime import (
        Batch,
        DecodingPlan,
        Details,
        Prediction,
        Request,
        Store,
        Tokenizer,
        Transformer,
    )

S = TypeVar("S", bound="Sequences")


def slots(source: Any) -> Any:
    """Return the number of <mask> tokens of an encoder for an input of `source` tokens. The target
    may be longer than the input."""
    return source * 3 // 2 + 8


def input_ids(style: str, source: Sequence[int]) -> list[int]:
    """Return the token ids that a model reads before it predicts the target of an input.

    Args:
        style: the style of the model.
        source: the token ids of the input, without <eos>.
    """
    if style == "encoder-decoder":
        return [*source, runtime.Tokenizer.eos]
    masks = [runtime.Tokenizer.mask] * slots(len(source)) if style == "encoder" else []
    return [*source, runtime.Tokenizer.sep, *masks]


def arrange(
    style: str, sources: Sequence[Array], targets: Sequence[Array], device: torch.device
) -> Batch:
    """Create a batch for a style from inputs and targets, each of which ends with <eos>."""
    flat = np.concatenate(targets).astype(np.int64)
    labels = torch.from_numpy(flat).to(device, non_blocking=True)
    if style == "encoder-decoder":
        shifted = np.concatenate([flat[:1], flat[:-1]])
        starts = runtime.bounds(targets)
        shifted[starts[:-1]] = runtime.Tokenizer.bos
        rows = np.split(shifted, starts[1:-1])
        return runtime.Batch(runtime.packed(sources, device), runtime.packed(rows, device), labels)
    rows = []
    for source, target in zip(sources, targets, strict=True):
        rest = target[:-1]
        if style == "encoder":
            rest = np.full(max(slots(len(source) - 1), len(target)), runtime.Tokenizer.mask)
        rows.append(np.concatenate([source[:-1], [runtime.Tokenizer.sep], rest]))
    # A decoder predicts the first token of the target at <sep>, an encoder one position later.
    first = runtime.bounds(rows)[:-1] + [len(source) - (style == "decoder") for source in sources]
    counts = np.array([len(target) for target in targets])
    places = np.repeat(first - runtime.bounds(targets)[:-1], counts) + np.arange(len(flat))
    where = torch.from_numpy(places).to(device, non_blocking=True)
    row = runtime.packed(rows, device)
    source_row, target_row = (row, None) if style == "encoder" else (None, row)
    return runtime.Batch(source_row, target_row, labels, where)


class Sequences(Task):
    """A task that predicts a text, with tokenizers for source and target."""

    decodes = True

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        style: str = "encoder-decoder",
        bpe_dropout: float = 0.0,
        longest: int = 512,
    ) -> None:
        super().__init__(target, style, longest)
        self.source, self.target, self.bpe_dropout = source, target, bpe_dropout
        self.dropouts = [runtime.Dropout(tokenizer, bpe_dropout) for tokenizer in (source, target)]

    @classmethod
    def make(cls: type[S], config: Config, tokenizers: Tokenizers) -> S:
        data = config.data
        return cls(*tokenizers, config.model.style, data.bpe_dropout, data.max_length)

    @classmethod
    def longest_target(cls, config: Config) -> int:
        """Return the largest number of target tokens; with one stack, its row contains the target
        or the <mask> tokens for it."""
        target, longest = super().longest_target(config), config.data.max_length
        if config.model.style == "encoder-decoder":
            return target
        return max(target, longest if config.model.has_decoder else slots(longest))

    def sizes(self, store: Store) -> list[Array]:
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
        return {"vocabulary_size": self.target.size, "source_vocabulary_size": self.source.size}

    def with_config(self: S, config: Config) -> S:
        return self.make(config, (self.source, self.target))

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.source is not self.target:
            self.source.save(folder / "source-tokenizer.json")

    def plan_groups(
        self,
        groups: Sequence[Sequence[Request]],
        options: DecodingConfig,
        finish: Callable[[list[list[Prediction]]], list[Prediction]],
        details: Details | None = None,
    ) -> DecodingPlan:
        """Plan to decode groups of requests; `finish` gets the predictions of each group."""

        def finish_groups(predictions: list[Prediction]) -> list[Prediction]:
            each = iter(predictions)
            return finish([[next(each) for _ in group] for group in groups])

        requests = [self.bounded(request, options) for group in groups for request in group]
        return runtime.DecodingPlan(
            requests, options, (self.source, self.target), finish_groups,
            details or runtime.NO_DETAILS, self.clean,
        )  # fmt: skip

    def decode(self, model: Transformer, request: Request, options: DecodingConfig) -> Prediction:
        """Decode one request; returns a prediction with its text."""
        plan = self.plan_groups([[request]], options, lambda groups: groups[0])
        return plan.run(model)[0]

    @staticmethod
    def clean(text: str) -> str:
        """Return the final form of the text of an output."""
        return text

    def bounded(self, request: Request, options: DecodingConfig) -> Request:
        """Set the limit of a request to a decoder. In every style, decoding.max_length counts from
        the length of the input, but the search does not treat the tokens that a decoder reads first
        as a source."""
        if self.style != "decoder" or request.limit is not None:
            return request
        return replace(request, limit=len(request.source) + options.max_length)

    def stream(
        self, model: Transformer, requests: Sequence[Request], options: DecodingConfig
    ) -> Iterator[str]:
        """Yield the output for a text or its pieces part by part, each as soon as it is final."""
        for i, request in enumerate(requests):
            if i:
                yield " "
            if self.style == "encoder":  # it predicts all tokens at once
                yield self.decode(model, request, options).text
            else:
                yield from stream(model, self.bounded(request, options), options, self.target)

    def score(
        self,
        model: Transformer,
        pairs: Sequence[tuple[str, str]],
        penalty: float = 0.0,
        limit: int | None = None,
    ) -> list[Prediction]:
        """Compute the log-probabilities of targets.

        Args:
            model: the model.
            pairs: (source, target) texts.
            penalty: length penalty of the scores.
            limit: largest number of tokens of a source or target, or None.

        Raises:
            InputError: the model is an encoder, or a text is longer than the limit.
        """
        if self.style == "encoder":
            raise InputError(
                "a model with model.style=encoder predicts all tokens at once: it cannot score "
                "texts"
            )
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        requests = [
            runtime.Request(input_ids(self.style, i)) for i in self.source.encode_batch(sources)
        ]
        outputs = [[*i, self.target.eos] for i in self.target.encode_batch(targets)]
        for i, (request, tokens) in enumerate(zip(requests, outputs, strict=True)):
            longest = max(len(request.source), len(tokens))
            if limit is not None and longest > limit:
                raise InputError(
                    f"pair {i + 1} has {longest} tokens, but the learned position table has "
                    f"{limit} rows"
                )
        scored = []
        for i, result in enumerate(runtime.score(model, requests, outputs)):
            prediction = runtime.scored_prediction(outputs[i], result.logprobs, penalty, "given")
            prediction.source_ids = requests[i].source
            scored.append(runtime.spell(prediction, (self.source, self.target), 1))
        return scored

    def checked(self, predictions: list[Prediction], context: Context) -> list[Prediction]:
        """Check predictions for NaN, and warn about each input that was decoded in pieces."""
        refuse_nan(prediction.score for prediction in predictions)
        for i, count in in_pieces(predictions).items():
            context.warn_long(i, self.split_note(count))
        return predictions

    def line(self, text: str, prediction: Prediction | None, options: Namespace) -> str:
        if prediction is None:
            return ""
        return "\t".join(one_line(output.text) for output in prediction.n_best)


def stream(
    model: Transformer, request: Request, options: DecodingConfig, tokenizer: Tokenizer
) -> Iterator[str]:
    """Yield the text of one output part by part, each as soon as it is final."""
    search = runtime.Search(model, [request], options)
    printed = ""
    for _ in search:
        # The first bytes of an incomplete character are decoded as U+FFFD.
        now = tokenizer.decode(search.settled()).rstrip("\ufffd")
        if len(now) > len(printed):
            yield now[len(printed) :]
            printed = now
    text = tokenizer.decode(search.predictions()[0].token_ids)
    if len(text) > len(printed):
        yield text[len(printed) :]
