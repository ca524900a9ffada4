"""POST /api/alternatives: other words at one place of a translation.

One pass computes the probabilities of the next token after the prefix. Each of the most probable
tokens is then appended to the prefix, and the search completes all these translations as one batch.
A token is forced as an id, so the translations have the tokens that the model itself would choose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import DecodingPlan
from regard.serve.api_common import API, Logprob, ModelField, UsedModel, token_spans
from regard.serve.api_translate import SourceField, TargetField, Translation, choose_translator
from regard.serve.endpoint import Call, Endpoint, check_texts
from regard.serve.errors import bad_request
from regard.serve.models import ServedModel
from regard.text.tokenizer import SPECIALS, Tokenizer

LONGEST = 2_000  # characters of a sentence and of a prefix
SPARE = 2  # completions for each requested word: some begin with the same word
MOST_PROBABLE = 200  # tokens among which completions are chosen
WORD = re.compile(r"\s*(\w+(?:['’-]\w+)*|[^\w\s]+)")


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

    word: Annotated[str, Meta(description="the word, without the space before it")]
    prefix: Annotated[str, Meta(description="the translation up to the end of the word")]
    translation: Translation
    logprob: Logprob


class AlternativesResponse(msgspec.Struct):
    """Different words after the prefix, the most probable one first."""

    model: UsedModel
    alternatives: Annotated[list[AlternativeWord], Meta(description="the words")]


async def find_alternatives(call: Call, request: AlternativesRequest) -> AlternativesResponse:
    text, prefix = check_texts(call, [request.text, request.prefix], "text")
    model, _ = choose_translator(call, request.source, request.target, request.model, text)
    plan = await model.plan([text], split=False)
    if len(plan.requests) != 1 or model.model.transformer.decoder is None:
        raise bad_request("text: it is empty, or too long for one sentence", "text")
    tokenizer = plan.tokenizers[1]
    new_word = tokenizer.kind == "bpe" and prefix[-1:].isspace()  # its tokens begin with the space
    kept = prefix.rstrip() if new_word else prefix
    ids = tokenizer.encode(kept)
    tokens = await next_tokens(model, plan.requests[0], ids, tokenizer, new_word and bool(kept))
    completions = await complete(
        model, plan, [[*ids, token] for token in tokens[: SPARE * request.count]]
    )
    words: dict[str, AlternativeWord] = {}
    for each in completions:
        found = WORD.match(each.text, len(kept))
        if found is None or not each.text.startswith(kept):
            continue
        word = AlternativeWord(
            found[1], each.text[: found.end()], each.text,
            word_logprob(each, tokenizer, len(ids), found.end()),
        )  # fmt: skip
        if word.word not in words or words[word.word].logprob < word.logprob:
            words[word.word] = word
    best = sorted(words.values(), key=lambda word: -word.logprob)
    return AlternativesResponse(model.name, best[: request.count])


async def next_tokens(
    model: ServedModel, request: Request, prefix: list[int], tokenizer: Tokenizer, new_word: bool
) -> list[int]:
    """The most probable tokens after a prefix, without special tokens and white space. new_word:
    only those that begin with a space."""
    outputs = [[*prefix, request.eos]]
    run = partial(score, model.model.transformer, [request], outputs, MOST_PROBABLE)
    [scored] = await model.call(run, len(request.source) + len(prefix))
    return [
        token for token, _ in scored.alternatives[-1]
        if token >= len(SPECIALS) and tokenizer.pieces[token].strip()
        and (not new_word or tokenizer.pieces[token].startswith(b" "))
    ]  # fmt: skip


async def complete(
    model: ServedModel, plan: DecodingPlan, prefixes: Sequence[Sequence[int]]
) -> list[Prediction]:
    """The best translation with each prefix, decoded as one batch."""
    requests = [replace(plan.requests[0], prefix=prefix) for prefix in prefixes]
    many = replace(plan, requests=requests, finish=list)
    return await model.scheduler.decode(model.model.transformer, many)


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
