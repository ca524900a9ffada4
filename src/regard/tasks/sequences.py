"""The base class of tasks that generate a target text from an input, in three styles.

encoder-decoder  the encoder reads the input; the decoder predicts the target (teacher forcing: it
                 reads <bos> and the target, and predicts the next token at each position)
decoder          one row: input <sep> target; only the tokens of the target are predicted
encoder          one row: input <sep> <mask> <mask> ...; all tokens are predicted at once, and those
                 after the first <eos> are ignored

A model from another toolkit reads different special tokens in these places, and an encoder-decoder
may begin every target with certain tokens (`Tokenizer.target_prefix`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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


def check_specials(task: str, style: str, source: Tokenizer, target: Tokenizer) -> None:
    """Raise an InputError if a tokenizer lacks a token that a style needs to generate a target."""
    target.require(task, *("bos", "eos") if style == "encoder-decoder" else ("eos", "sep"))
    source.require(task, *("mask",) if style == "encoder" else ())


def input_ids(tokenizer: Tokenizer, style: str, source: Sequence[int]) -> list[int]:
    """Return the token ids that a model reads before it predicts the target of an input.

    Args:
        tokenizer: the tokenizer of the input.
        style: the style of the model.
        source: the token ids of the input, without <eos>.
    """
    if style == "encoder-decoder":
        return tokenizer.frame(source, style)
    masks = [tokenizer.mask] * slots(len(source)) if style == "encoder" else []
    return [*tokenizer.begin, *source, tokenizer.sep, *masks]


def request(tokenizers: Tokenizers, style: str, source: Sequence[int], **options: Any) -> Request:
    """Create the decoding request for an input.

    Args:
        tokenizers: the tokenizers of source and target.
        style: the style of the model.
        source: the token ids of the input, without <eos>.
        options: additional fields of the request; `prefix` and `limit` do not include the tokens
            with which every output begins.
    """
    target = tokenizers[1]
    if style == "encoder-decoder" and (forced := target.target_prefix):
        options["prefix"] = [*forced, *options.get("prefix", ())]
        if options.get("limit") is not None:
            options["limit"] += len(forced)
    ids = input_ids(tokenizers[0], style, source)
    return runtime.Request(ids, bos=target.bos, eos=target.eos, mask=target.mask, **options)


def arrange(
    tokenizers: Tokenizers,
    style: str,
    sources: Sequence[Array],
    targets: Sequence[Array],
    device: torch.device,
) -> Batch:
    """Create a batch for a style from inputs and targets, each of which ends with <eos>."""
    tokenizer = tokenizers[1]
    if style == "encoder-decoder" and (forced := tokenizer.target_prefix):
        targets = [np.concatenate([forced, target]) for target in targets]
    flat = np.concatenate(targets).astype(np.int64)
    labels = torch.from_numpy(flat).to(device, non_blocking=True)
    if style == "encoder-decoder":
        reader = tokenizers[0]
        if reader.frame([0], style) != [0, reader.end]:  # differs from the row in the stored corpus
            sources = [reader.frame_array(ids[:-1], style) for ids in sources]
        shifted = np.concatenate([flat[:1], flat[:-1]])
        starts = runtime.bounds(targets)
        shifted[starts[:-1]] = tokenizer.bos
        rows = np.split(shifted, starts[1:-1])
        return runtime.Batch(runtime.packed(sources, device), runtime.packed(rows, device), labels)
    rows, begin = [], np.array(tokenizer.begin, np.int64)
    for source, target in zip(sources, targets, strict=True):
        rest = target[:-1]
        if style == "encoder":
            rest = np.full(max(slots(len(source) - 1), len(target)), tokenizer.mask)
        rows.append(np.concatenate([begin, source[:-1], [tokenizer.sep], rest]))
    # A decoder predicts the first token of the target at <sep>, an encoder one position later.
    before = len(begin) - (style == "decoder")
    first = runtime.bounds(rows)[:-1] + [before + len(source) for source in sources]
    counts = np.array([len(target) for target in targets])
    places = np.repeat(first - runtime.bounds(targets)[:-1], counts) + np.arange(len(flat))
    where = torch.from_numpy(places).to(device, non_blocking=True)
    row = runtime.packed(rows, device)
    source_row, target_row = (row, None) if style == "encoder" else (None, row)
    return runtime.Batch(source_row, target_row, labels, where)


class Sequences(Task):
    """A task that predicts a text, with tokenizers for source and target."""

    decodes = True
    special_tokens: ClassVar[tuple[str, ...]] = ()  # those that the task needs in every style

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        style: str = "encoder-decoder",
        bpe_dropout: float = 0.0,
        longest: int = 512,
    ) -> None:
        super().__init__(target, style, longest)
        check_specials(self.name, style, source, target)
        target.require(self.name, *self.special_tokens)
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
            more = self.source.frame_size(self.style) - 1, len(self.target.target_prefix)
            sides = zip(store.lengths, more, strict=True)
            return [side + count if count else side for side, count in sides]
        source, target = (side.astype(np.int64) for side in store.lengths)
        begin = len(self.target.begin)
        if self.style == "decoder":
            return [begin + source + target - 1]
        return [begin + source + np.maximum(slots(source - 1), target)]

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        sides = []
        for side in range(2):
            rows = [store.tokens(side, int(i)) for i in examples]
            if self.bpe_dropout and seed:
                rows = self.dropouts[side](rows, examples, 2 * seed + side)
            sides.append(rows)
        return arrange((self.source, self.target), self.style, sides[0], sides[1], device)

    def model_options(self) -> dict[str, Any]:
        return {"vocabulary_size": self.target.size, "source_vocabulary_size": self.source.size}

    def with_config(self: S, config: Config) -> S:
        return self.make(config, (self.source, self.target))

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.source is not self.target:
            self.source.save(folder / "source-tokenizer.json")

    @property
    def added(self) -> int:
        """The number of special tokens that the model reads around an input."""
        if self.style == "encoder-decoder":
            return self.source.frame_size(self.style)
        return len(self.target.begin) + 1  # <sep>

    def request_of(self, ids: Sequence[int], **options: Any) -> Request:
        """Return the decoding request for the token ids of an input; see `request`."""
        return request((self.source, self.target), self.style, ids, **options)

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
        decoding: DecodingConfig | None = None,
        limit: int | None = None,
    ) -> list[Prediction]:
        """Compute the log-probabilities of targets.

        Args:
            model: the model.
            pairs: (source, target) texts.
            decoding: options that determine the length penalty; None: there is none.
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
        requests = [self.request_of(ids) for ids in self.source.encode_batch(sources)]
        forced = self.target.target_prefix if self.style == "encoder-decoder" else ()
        outputs = [[*forced, *i, self.target.eos] for i in self.target.encode_batch(targets)]
        for i, (request, tokens) in enumerate(zip(requests, outputs, strict=True)):
            longest = max(len(request.source), len(tokens))
            if limit is not None and longest > limit:
                raise InputError(
                    f"pair {i + 1} has {longest} tokens, but the learned position table has "
                    f"{limit} rows"
                )
        scored, decoding = [], decoding or DecodingConfig(length_penalty=0.0)
        for i, result in enumerate(runtime.score(model, requests, outputs)):
            prediction = runtime.scored_prediction(outputs[i], result.logprobs, decoding, "given")
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
    model: Transformer,
    request: Request,
    options: DecodingConfig,
    tokenizer: Tokenizer,
    continues: bool = False,
) -> Iterator[str]:
    """Yield the text of one output in parts, each as soon as it is final.

    Args:
        model: the model.
        request: the request to decode.
        options: beam search or sampling, and their settings.
        tokenizer: the tokenizer of the output.
        continues: whether the output continues the text of the source.
    """
    search, count = runtime.Search(model, [request], options), 0
    text = runtime.TextStream(tokenizer, request.source if continues else ())
    for _ in search:
        settled = search.settled()
        if part := "".join([text.add(token) for token in settled[count:]]):
            yield part
        count = max(count, len(settled))
    rest = [text.add(token) for token in search.predictions()[0].token_ids[count:]]
    if part := "".join(rest) + text.end():
        yield part
