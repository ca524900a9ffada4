"""POST /api/alternatives: other words at one place of a translation.

One pass computes the probabilities of the next token after the prefix. Each of the most probable
tokens is then appended to the prefix, and the search completes all these translations as one batch.
A token is forced as an id, so the translations have the tokens that the model itself would choose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from regard.decoding.continuous import READ_TOKENS
from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import DecodingPlan
from regard.serve.api_common import API, Logprob, ModelField, UsedModel, token_spans
from regard.serve.api_translate import SourceField, TargetField, Translation, choose_translator
from regard.serve.endpoint import Call, Endpoint, check_texts
from regard.serve.errors import bad_request
from regard.serve.models import ServedModel
from regard.text.tokenizer import Tokenizer

LONGEST = 2_000  # characters of a sentence and of a prefix
SPARE = 2  # completions for each requested word: some begin with the same word
MOST_PROBABLE = 200  # tokens among which completions are chosen
WORD = re.compile(r"\s*(\w+(?:['’-]\w+)*|[^\w\s]+)")
LAST_WORD = re.compile(r" ?\w+$")


class AlternativesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Find other words for one place of a translation."""

    text: Annotated[
        str,
        Meta(
            min_length=1, max_length=LONGEST, description="one sentence",
            examples=["The cat sleeps."],
        ),
    ]  # fmt: skip
    prefix: Annotated[
        str,
        Meta(
            max_length=LONGEST, examples=["Die "],
            description="beginning of the translation, up to the word to replace; a space at its "
            "end means that a new word begins",
        ),
    ] = ""  # fmt: skip
    source: SourceField = "auto"
    target: TargetField = None
    model: ModelField = None
    count: Annotated[int, Meta(ge=1, le=10, description="number of words")] = 5


class AlternativeWord(msgspec.Struct):
    """A word after the prefix, and the translation with it."""

    word: Annotated[
        str, Meta(description="the whole word, even if the prefix ends inside it, without spaces")
    ]
    prefix: Annotated[str, Meta(description="the translation up to the end of the word")]
    translation: Translation
    logprob: Logprob


class AlternativesResponse(msgspec.Struct):
    """Different words after the prefix, the most probable one first."""

    model: UsedModel
    alternatives: Annotated[list[AlternativeWord], Meta(description="the words")]


async def find_alternatives(call: Call, request: AlternativesRequest) -> AlternativesResponse:
    text, prefix = check_texts(call, [request.text, request.prefix], "text")
    model, _ = await choose_translator(call, request.source, request.target, request.model, text)
    plan = await model.plan([text], split=False)
    if len(plan.requests) != 1 or model.model.transformer.decoder is None:
        raise bad_request("text: it is empty, or too long: send one sentence", "text")
    tokenizer = plan.tokenizers[1]
    place = await find_place(model, plan.requests[0], tokenizer, prefix)
    completions = await complete(model, plan, place.prefixes[: SPARE * request.count])
    words: dict[str, AlternativeWord] = {}
    for completion in completions:
        match = WORD.match(completion.text, len(place.before))
        if match is None:
            continue
        logprob = word_logprob(completion, tokenizer, place.tokens, match.end())
        translation = completion.text
        word = AlternativeWord(match[1], translation[: match.end()], translation, logprob)
        if word.word not in words or words[word.word].logprob < word.logprob:
            words[word.word] = word
    best = sorted(words.values(), key=lambda word: -word.logprob)
    return AlternativesResponse(model.name, best[: request.count])


@dataclass(frozen=True)
class Place:
    """Where the word begins, and the beginnings of translations with different words there."""

    before: str  # the translation before the word
    tokens: int  # the number of tokens before the word
    prefixes: list[list[int]]  # token ids up to the first token of the word, most probable first


async def find_place(
    model: ServedModel, request: Request, tokenizer: Tokenizer, prefix: str
) -> Place:
    """Find the most probable first tokens of the word after a prefix.

    With BPE the space before a word is part of its first token, so spaces at the end of the prefix
    are dropped, and only tokens that begin with a space are used. If the prefix ends inside a word,
    which then rarely has the tokens that the model would choose, the word begins earlier: tokens
    that begin with this part of the word come first.

    Raises:
        ServiceError: text and prefix have more tokens than the model reads between two steps.
    """
    kept = prefix.rstrip() if tokenizer.includes_space else prefix
    forced = request.prefix  # the tokens with which every output begins
    ids = [*forced, *tokenizer.encode(kept)]
    if (tokens := len(request.source) + len(ids)) > READ_TOKENS:
        raise bad_request(
            f"prefix: it has, with the text, {tokens} tokens, but at most {READ_TOKENS}", "prefix"
        )
    outputs = [[*ids, request.eos]]
    run = partial(score, model.model.transformer, [request], outputs, MOST_PROBABLE)
    [scored] = await model.call(run, tokens)
    likely = [
        [token for token, _ in tokens if tokenizer.pieces[token].strip()]
        for tokens in scored.alternatives
    ]
    if not tokenizer.includes_space:
        return Place(kept, len(ids), [[*ids, token] for token in likely[-1]])
    last = LAST_WORD.search(kept) if kept == prefix else None
    if last is None or not likely[-1] or not continues_word(tokenizer, likely[-1][0]):
        first = [token for token in likely[-1] if begins_word(tokenizer, token, kept, prefix)]
        return Place(kept, len(ids), [[*ids, token] for token in first])
    before, part = kept[: last.start()], last[0].encode()
    earlier = [*forced, *tokenizer.encode(before)]
    whole = [token for token in likely[len(earlier)] if tokenizer.pieces[token].startswith(part)]
    ends = [token for token in likely[-1] if continues_word(tokenizer, token)]
    prefixes = [*([*earlier, token] for token in whole), *([*ids, token] for token in ends)]
    return Place(before, len(earlier), prefixes)


def continues_word(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token begins with a letter or a digit, not with a space or a mark."""
    return re.match(r"\w", tokenizer.pieces[token].decode("utf-8", "replace")) is not None


def begins_word(tokenizer: Tokenizer, token: int, kept: str, prefix: str) -> bool:
    """Whether a token can begin a word after a prefix; kept: the prefix without a last space."""
    spaced = tokenizer.pieces[token].startswith(b" ")
    if not kept:  # some tokenizers add a space before a text
        return spaced == tokenizer.pieces[tokenizer.encode("a")[0]].startswith(b" ")
    if kept != prefix:
        return spaced
    return not (LAST_WORD.search(kept) and continues_word(tokenizer, token))


async def complete(
    model: ServedModel, plan: DecodingPlan, prefixes: Sequence[Sequence[int]]
) -> list[Prediction]:
    """The best translation with each prefix, decoded as one batch."""
    requests = [replace(plan.requests[0], prefix=prefix) for prefix in prefixes]
    batch = replace(plan, requests=requests, finish=list)
    return await model.scheduler.decode(model.model.transformer, batch)


def word_logprob(prediction: Prediction, tokenizer: Tokenizer, first: int, end: int) -> float:
    """The log-probability of the tokens from index `first` on that begin before character `end`."""
    spans = token_spans(tokenizer, prediction.token_ids)[first:]
    return sum(
        logprob
        for (start, stop), logprob in zip(spans, prediction.logprobs[first:], strict=True)
        if start < min(end, stop)
    )


ENDPOINTS = [
    Endpoint(
        API, "POST", "/api/alternatives", find_alternatives,
        "Find other words for one place of a translation.",
        AlternativesRequest, AlternativesResponse,
    ),
]  # fmt: skip
