"""The choices of a completion: each is one decoding request, whose text ends before a stop text.

All choices of a request are decoded together. A choice has the same text whether it is streamed or
not, because both use the updates of a stream.
"""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request
from regard.decoding.score import Scored, score
from regard.decoding.search import DecodingPlan
from regard.serve.endpoint import Call
from regard.serve.errors import bad_request
from regard.serve.models import ServedModel
from regard.serve.openai_format import SamplingRequest, Usage
from regard.tasks.common import refuse_nan
from regard.tasks.generate import Generate
from regard.text.stream import TextStream
from regard.text.tokenizer import Tokenizer

SEEDS = 2**63  # random seeds are below this
SHARE = 8  # a stream scores its new tokens when they are this fraction of the scored ones


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability; None: the model did not predict the token."""

    text: str
    content: bytes
    offset: int  # where it begins in the text of the choice
    logprob: float | None
    top: list[tuple[str, bytes, float]]  # the most probable tokens at its place


@dataclass(frozen=True)
class Part:
    """The next part of the text of a choice."""

    text: str
    logprobs: list[TokenLogprob] | None = None
    finish: str | None = None  # "stop" or "length" for the last part


class GrowingText:
    """The text of a prompt and an output, which grows token by token until a stop text appears.

    Attributes:
        text: the text so far; without the stop text and what follows it.
        starts: the number of characters before each token.
        stopped: whether a stop text has appeared.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], prompt: Sequence[int] = (),
        before: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """prompt: tokens that are part of the text; before: tokens that the text continues."""
        self.stream, self.stops = TextStream(tokenizer, before), stops
        self.longest = max(map(len, stops), default=1)
        parts = [self.stream.add(token) for token in prompt]
        self.text, self.stopped = "".join(parts), False
        self.starts = list(accumulate(map(len, parts), initial=0))[:-1]
        self.first = len(self.text)  # the place of the output: the prompt may have stop texts

    def add(self, token: int) -> None:
        """Add a token. The first bytes of a character wait for the others."""
        self.starts.append(len(self.text))
        self._append(self.stream.add(token))

    def end(self) -> None:
        """End the text. An incomplete character becomes U+FFFD."""
        self._append(self.stream.end())

    def _append(self, new: str) -> None:
        begin = max(self.first, len(self.text) - self.longest + 1)
        self.text += new
        places = [self.text.find(stop, begin) for stop in self.stops]
        if places := [place for place in places if place >= 0]:
            self.text, self.stopped = self.text[: min(places)], True

    def settled(self) -> int:
        """The number of characters before what may be the beginning of a stop text."""
        for start in range(max(self.first, len(self.text) - self.longest + 1), len(self.text)):
            if any(stop.startswith(self.text[start:]) for stop in self.stops):
                return start
        return len(self.text)


@dataclass(eq=False)
class Choice:
    """One output for a prompt.

    Attributes:
        model: the model.
        prompt: the token ids of the prompt.
        plan: decodes the request of the choice.
        stops: the texts before which the output stops.
        top: the number of most probable tokens for each token; None: no log-probabilities.
        echo: whether the text begins with the prompt.
        ends: the tokens that end a chat output; empty if this is not a chat: <eos> ends it.
        written: the number of decoded tokens so far, without <eos>.
    """

    model: ServedModel
    prompt: list[int]
    plan: DecodingPlan
    stops: Sequence[str] = ()
    top: int | None = None
    echo: bool = False
    ends: Sequence[int] = ()
    written: int = field(default=0, init=False)

    @property
    def read(self) -> int:
        """The number of tokens of the prompt that the model reads."""
        source = list(self.plan.requests[0].source)
        if self.ends:  # the special tokens of the template do not count
            tokenizer = self.model.model.tokenizer
            special = tokenizer.special_ids - {tokenizer.unk}
            return sum(token not in special for token in source)
        count = min(len(self.prompt), len(source))
        while count and source[-count:] != self.prompt[-count:]:  # special tokens
            count -= 1
        return count

    @property
    def tokens(self) -> int:
        """The number of tokens that the choice takes in the queue."""
        [request] = self.plan.requests
        config = self.model.model.transformer.config
        return len(request.source) + request.max_tokens(config, self.plan.options)

    async def parts(self, streaming: bool) -> AsyncGenerator[Part, None]:
        """The text, part by part or as one part. Closing the iterator cancels the request."""
        tokenizer = self.model.model.tokenizer
        tokens = list(self.prompt) if self.echo else []
        before = () if self.echo else self.prompt
        text = GrowingText(tokenizer, self.stops, tokens, before)
        characters = count = 0  # of the parts so far
        stepwise = streaming or self.stops or len(self.ends) > 1
        [request] = self.plan.requests
        source = self.model.stream(self.plan) if stepwise else self._output()
        async with aclosing(source) as updates:
            async for output, prediction in updates:
                for token in output[self.written :]:
                    if token in self.ends and token != request.eos:
                        text.stopped = True
                    if token == request.eos or text.stopped:
                        break
                    text.add(token)
                    tokens.append(token)
                    self.written += 1
                if prediction is not None and not text.stopped:
                    text.end()
                finish = finish_reason(text, prediction)
                known = text.settled() if finish is None else len(text.text)
                ready = bisect_left(text.starts, known)
                new = streaming and known > characters
                if new and self.top is not None:
                    new = ready - count > ready // SHARE
                if finish is None and not new:
                    continue
                logprobs = None
                if self.top is not None:
                    scored = await self._logprobs(tokens[:ready], text.starts)
                    logprobs, count = scored[count:], ready
                yield Part(text.text[characters:known], logprobs, finish)
                characters = known
                if finish is not None:
                    return

    async def _output(self) -> AsyncGenerator[tuple[list[int], Prediction | None], None]:
        """The only update of an output that is not followed step by step."""
        transformer = self.model.model.transformer
        [prediction] = await self.model.scheduler.decode(transformer, self.plan)
        yield prediction.token_ids, prediction

    async def _logprobs(self, tokens: list[int], starts: Sequence[int]) -> list[TokenLogprob]:
        """The log-probabilities of the tokens of the text."""
        tokenizer, transformer = self.model.model.tokenizer, self.model.model.transformer
        [request], unread, top = self.plan.requests, 0, self.top or 0
        if self.echo:  # of a long prompt, the model does not read the beginning
            first = len(request.source) - self.read  # the number of special tokens
            unread = min(len(tokens), len(self.prompt) - self.read + (first == 0))
            request = replace(request, source=request.source[: max(1, first)])
        output = tokens[unread:]

        def score_all(pairs: list[tuple[Request, list[int]]]) -> list[Scored]:
            requests, outputs = zip(*pairs, strict=True)
            return score(transformer, requests, outputs, top, alone=True)

        [scored] = await self.model.scheduler.compute(
            (self.model, f"score {top}"), score_all, [(request, output)],
            [len(request.source) + len(output)],
        )  # fmt: skip
        logprobs = [*[None] * unread, *scored.logprobs]
        tops = [*[[]] * unread, *(scored.alternatives or [[]] * len(output))]
        return [
            TokenLogprob(
                *spelling(tokenizer, token), start, logprob,
                [(*spelling(tokenizer, other), value) for other, value in alternatives],
            )
            for token, start, logprob, alternatives in zip(
                tokens, starts[: len(tokens)], logprobs, tops, strict=True
            )
        ]  # fmt: skip


def finish_reason(text: GrowingText, prediction: Prediction | None) -> str | None:
    """Why a text is complete; None: it is not."""
    if text.stopped:
        return "stop"
    if prediction is None:
        return None
    return "stop" if prediction.stopped == "end" else "length"


def spelling(tokenizer: Tokenizer, token: int) -> tuple[str, bytes]:
    """The text and the bytes of a token; "bytes:\\xe4" if they are not complete characters."""
    if token in tokenizer.special_ids:
        return tokenizer.tokens([token])[0], b""
    content = tokenizer.pieces[token]
    try:
        return content.decode(), content
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), content


def make_choices(
    call: Call, model: ServedModel, request: SamplingRequest, prompts: Sequence[list[int]],
    max_tokens: int, requests: Sequence[Request] = (), **options: Any,
) -> list[Choice]:  # fmt: skip
    """The choices for prompts: `request.n` for each prompt, each with its own random seed.

    Args:
        call: the call.
        model: a model of the task generate.
        request: the options of sampling.
        prompts: the token ids of each prompt, of which the model reads as many as it can.
        max_tokens: the largest number of tokens of each choice; 0: the model writes nothing.
        requests: the request for each prompt; if empty, requests are created from the prompts.
        **options: attributes of the choices.

    Raises:
        ServiceError: there are too many choices.
    """
    limits, n = call.settings.limits, request.n or 1
    if (count := len(prompts) * n) > limits.items:
        raise bad_request(f"n: {count} choices, but at most {limits.items}: lower n", "n")
    echoed = n * sum(map(len, prompts)) if options.get("echo") else 0
    if n > 1 and echoed > limits.characters:
        raise bad_request(
            f"n: the choices repeat {echoed} tokens of prompts, but at most {limits.characters}: "
            "lower n",
            "n",
        )
    temperature = 1.0 if request.temperature is None else request.temperature
    decoding = model.model.decoding({
        "beam": 1, "n_best": 1, "min_length": 0, "no_repeat": 0, "top_k": 0,
        "temperature": temperature, "top_p": (request.top_p or 1.0) if temperature else 1.0,
        "max_length": max(1, max_tokens),
    })  # fmt: skip
    seed = secrets.randbits(63) if request.seed is None else request.seed
    task, tokenizer = model.model.of(Generate), model.model.tokenizer
    choices = []
    if not requests:
        every = (task.request_of(prompt, model.model.longest) for prompt in prompts)
        requests = [replace(each, limit=max_tokens) for each in every]
    for i in range(count):
        prompt = prompts[i // n]
        plan = DecodingPlan(
            [requests[i // n]],
            replace(decoding, seed=(seed + i) % SEEDS), (tokenizer, tokenizer), check_predictions,
        )  # fmt: skip
        choices.append(Choice(model, prompt, plan, **options))
    if count > 1 and (tokens := sum(choice.tokens for choice in choices)) > limits.queue_tokens:
        raise bad_request(
            f"the choices may need {tokens} tokens together, but at most {limits.queue_tokens}: "
            "lower n or max_tokens", "n",
        )  # fmt: skip
    return choices


def check_predictions(predictions: list[Prediction]) -> list[Prediction]:
    """Return predictions, or raise a DamagedModel if the model computed NaN."""
    refuse_nan(prediction.score for prediction in predictions)
    return predictions


def usage_of(choices: Sequence[Choice], n: int) -> Usage:
    """The usage of choices, n for each prompt."""
    prompts = sum(choice.read for choice in choices[::n])
    written = sum(choice.written for choice in choices)
    return Usage(prompts, written, prompts + written)


async def collect(choices: Sequence[Choice]) -> list[Part]:
    """The complete text of each choice."""
    outputs: dict[int, Part] = {}
    async with aclosing(merge(choices, streaming=False)) as parts:
        async for i, part in parts:
            outputs[i] = part
    return [outputs[i] for i in range(len(choices))]


async def merge(
    choices: Sequence[Choice], streaming: bool
) -> AsyncGenerator[tuple[int, Part], None]:
    """The parts of all choices with the index of their choice, as they arrive. The choices are
    decoded together; closing the iterator, or an error of one of them, cancels all."""
    if len(choices) == 1:
        async with aclosing(choices[0].parts(streaming)) as parts:
            async for part in parts:
                yield 0, part
        return
    queue: asyncio.Queue[tuple[int, Part] | Exception] = asyncio.Queue()

    async def follow(i: int, choice: Choice) -> None:
        try:
            async with aclosing(choice.parts(streaming)) as parts:
                async for part in parts:
                    queue.put_nowait((i, part))
        except Exception as error:  # noqa: BLE001 - it is raised below
            queue.put_nowait(error)

    tasks = [asyncio.ensure_future(follow(*each)) for each in enumerate(choices)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            running -= item[1].finish is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
