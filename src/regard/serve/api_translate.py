"""POST /api/translate: translations with their tokens, scores, attention weights and history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from regard.decoding import predictions
from regard.decoding.predictions import Prediction
from regard.serve.api_common import (
    API,
    MOST_WEIGHTS,
    End,
    Logprob,
    ModelField,
    Span,
    Start,
    TokenText,
    UsedModel,
    check_new_tokens,
    encode_weights,
    token_spans,
)
from regard.serve.endpoint import Call, Endpoint, check_texts
from regard.serve.errors import ServiceError, bad_request
from regard.serve.languages import detect, translators
from regard.serve.models import ServedModel, in_thread
from regard.text.tokenizer import Tokenizer

CERTAIN = 90.0  # percent: confidence above which a text in the target language is not translated
DETAILED = 2_000  # characters of a text whose details are in the response
Language = Annotated[str, Meta(min_length=2, max_length=20)]
SourceField = Annotated[
    Language, Meta(description="language of the text; auto: detect it", examples=["en"])
]
TargetField = Annotated[
    Language | None,
    Meta(description="language of the translation (default: that of the first suitable model)"),
]
Score = Annotated[
    float, Meta(description="log-probability, divided by the length penalty; larger is better")
]
Translation = Annotated[str, Meta(description="the translation")]


class TranslateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Translate a text, sentence by sentence."""

    text: Annotated[
        str, Meta(description="the text, of any number of sentences", examples=["The cat sleeps."])
    ]
    source: SourceField = "auto"
    target: TargetField = None
    model: ModelField = None
    prefix: Annotated[
        str, Meta(max_length=2_000, description="text with which the first translation begins")
    ] = ""
    n_best: Annotated[int, Meta(ge=1, le=10, description="translations of each sentence")] = 1
    alternatives: Annotated[
        int, Meta(ge=0, le=20, description="most probable tokens at each place")
    ] = 0
    attention: Annotated[bool, Meta(description="whether to return the attention weights")] = False
    history: Annotated[
        bool, Meta(description="whether to return the candidates of each step of the search")
    ] = False
    beam: Annotated[
        Annotated[int, Meta(ge=1, le=16)] | None,
        Meta(description="hypotheses of the search; 1 is greedy search (default: the model's)"),
    ] = None
    length_penalty: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="larger values prefer longer translations (default: the model's)"),
    ] = None
    max_length: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(description="most output tokens beyond those of the input (default: the model's)"),
    ] = None


class DetectedLanguage(msgspec.Struct):
    """The language that the service detected."""

    language: Annotated[str, Meta(description="code of the language")]
    confidence: Annotated[float, Meta(ge=0, le=100, description="in percent")]

    def is_certainly(self, language: str) -> bool:
        return self.language == language and self.confidence >= CERTAIN


class Alternative(msgspec.Struct):
    """A probable token at one place."""

    text: TokenText
    logprob: Logprob


class OutputToken(msgspec.Struct):
    """A token of a translation. <eos> ends the translation and covers no characters."""

    text: TokenText
    start: Start
    end: End
    logprob: Logprob
    alternatives: Annotated[
        list[Alternative], Meta(description="the most probable tokens at this place, best first")
    ]


class Candidate(msgspec.Struct):
    """A candidate in the history of the search."""

    token: TokenText
    parent: Annotated[
        int, Meta(ge=0, description="index among the kept candidates of the previous step")
    ]
    logprob: Logprob
    score: Annotated[float, Meta(description="sum of the log-probabilities since the start")]
    fate: Annotated[str, Meta(description="what became of it: kept, ended or pruned")]


class NBest(msgspec.Struct):
    """One translation of the n-best list."""

    translation: Translation
    score: Score


class Weights(msgspec.Struct):
    """Attention weights. Row i belongs to the step that writes token i, and sums to 1."""

    layers: Annotated[int, Meta(ge=0, description="layers L of the decoder")]
    encoder_layers: Annotated[int, Meta(ge=0, description="layers of the encoder in `parts`")]
    heads: Annotated[int, Meta(ge=1, description="heads H of a layer")]
    rows: Annotated[int, Meta(ge=0, description="number n of tokens of the decoder")]
    columns: Annotated[int, Meta(ge=0, description="number m of tokens of the encoder")]
    parts: Annotated[
        dict[str, str],
        Meta(
            description="cross [L][H][n][m], encoder [L][H][m][m], decoder [L][H][n][n]: base64 of "
            "little-endian 16-bit integers; 65535 is a weight of 1"
        ),
    ]


class SentenceTranslation(msgspec.Struct):
    """A sentence of the text, or a part of a very long one, and its translation."""

    text: Annotated[str, Meta(description="the sentence")]
    start: Annotated[int, Meta(ge=0, description="its start in the text, in code points")]
    translation: Translation
    translation_start: Annotated[
        int, Meta(ge=0, description="its start in the whole translation, in code points")
    ]
    score: Score
    source_tokens: Annotated[
        list[Span], Meta(description="tokens that the model read; offsets in the text")
    ]
    tokens: Annotated[
        list[OutputToken], Meta(description="output tokens; offsets in the whole translation")
    ]
    n_best: Annotated[list[NBest], Meta(description="the best translations, best first")]
    history: Annotated[list[list[Candidate]], Meta(description="candidates of each step")]
    attention: Annotated[Weights | None, Meta(description="attention weights, on request")]


class TranslateResponse(msgspec.Struct):
    """A translation and its parts. All offsets count Unicode code points, not the UTF-16 units of
    JavaScript. `translation` is the translations of the sentences with the separators between
    them. A text that is already in the target language is its own translation, without sentences:
    this is detected if the request names neither the source nor the model."""

    model: UsedModel
    source: Annotated[str, Meta(description="language of the text")]
    target: Annotated[str, Meta(description="language of the translation")]
    detected: Annotated[
        DetectedLanguage | None, Meta(description="the detected language, if source=auto")
    ]
    translation: Translation
    sentences: Annotated[list[SentenceTranslation], Meta(description="sentences, in order")]


async def choose_translator(
    call: Call, source: str, target: str | None, name: str | None, text: str
) -> tuple[ServedModel, DetectedLanguage | None]:
    """The model for a translation, and the detected language if the source is "auto".

    Args:
        call: the call, with the models.
        source: the language of the text, or "auto".
        target: the language of the translation; None: of any model.
        name: the name of the model; None: a model for the languages, if possible for the detected
            one, otherwise for another language: short texts are often not recognised.
        text: the text.

    Raises:
        ServiceError: there is no such model, or it does not translate between the languages.
    """
    detected = None
    if source == "auto":
        result = await asyncio.to_thread(detect, text, call.pool)
        detected = DetectedLanguage(result.language, result.confidence)
    if name is None:
        suitable = [
            model for model in translators(call.pool)
            if source in ("auto", pair_of(model)[0]) and target in (None, pair_of(model)[1])
        ]  # fmt: skip
        if detected is not None:
            suitable.sort(key=lambda model: pair_of(model)[0] != detected.language)
        if suitable:
            return suitable[0], detected
        if source != "auto" and target is not None:
            return call.pool.translator(source, target), None  # raises the error
    model = call.pool.find("translate", name)
    pair = pair_of(model)
    for field, language, expected in (("source", source, pair[0]), ("target", target, pair[1])):
        if language not in ("auto", None, expected):
            raise bad_request(
                f"{field}: the model {model.name!r} translates from {pair[0]} to {pair[1]}, "
                f"not {'from' if field == 'source' else 'to'} {language}", field,
            )  # fmt: skip
    return model, detected


def pair_of(model: ServedModel) -> tuple[str, str]:
    """The source and the target language of a model."""
    assert model.languages is not None  # `ModelPool.add` sets them for models that translate
    return model.languages


async def translate(call: Call, request: TranslateRequest) -> TranslateResponse:
    [text] = check_texts(call, [request.text], "text")
    check_texts(call, [request.prefix], "prefix")
    check_new_tokens(call, request.max_length)
    model, detected = await choose_translator(
        call, request.source, request.target, request.model, text
    )
    source, target = pair_of(model)
    if request.model is None and detected and detected.is_certainly(target):
        return TranslateResponse(model.name, target, target, detected, text, [])
    details = {
        name: value for name in ("attention", "history", "alternatives")
        if (value := getattr(request, name))
    }  # fmt: skip
    if details and len(text) > DETAILED:
        field = next(iter(details))
        raise ServiceError(
            413, f"{field}: the text has {len(text)} characters, but at most {DETAILED}: send less",
            code="too_large", field=field,
        )  # fmt: skip
    beam = request.beam or model.model.config.decoding.beam
    if request.n_best > beam:
        raise bad_request(
            f"n_best: {request.n_best}, but the beam has {beam} hypotheses: increase beam", "n_best"
        )
    options: dict[str, Any] = {
        name: value for name in ("beam", "length_penalty", "max_length")
        if (value := getattr(request, name)) is not None
    }  # fmt: skip
    options |= {"prefix": request.prefix, "split": True, "n_best": request.n_best}
    if request.attention:
        await check_weights(model, text, options)
    [prediction] = await model.predict([text], **options, **details)
    sentences = await in_thread(
        partial(describe_sentences, text, prediction), len(text) * (100 if details else 1)
    )
    return TranslateResponse(model.name, source, target, detected, prediction.text, sentences)


async def check_weights(model: ServedModel, text: str, options: dict[str, Any]) -> None:
    """Refuse a text with too many attention weights, assuming a translation of the same length."""
    plan, config = await model.plan([text], **options), model.model.config.model
    layers = config.heads * (config.encoder_layers + 2 * config.decoder_layers)
    if layers * sum(len(request.source) ** 2 for request in plan.requests) > MOST_WEIGHTS:
        raise ServiceError(
            413, f"attention: the text has more than {MOST_WEIGHTS:,} weights: shorten it",
            code="too_large", field="attention",
        )  # fmt: skip


def describe_sentences(text: str, prediction: Prediction) -> list[SentenceTranslation]:
    """The sentences of a text with their translations, and where both are."""
    described, start, translated = [], 0, 0
    for part in leaves(prediction):
        sentence = describe_sentence(part, text, start, prediction.text, translated)
        start = sentence.start + len(sentence.text)
        translated = sentence.translation_start + len(sentence.translation)
        described.append(sentence)
    return described


def leaves(prediction: Prediction) -> Iterator[Prediction]:
    """The predictions for the sentences of a text, or for the pieces of long ones."""
    parts = prediction.sentences or prediction.pieces
    for part in parts:
        yield from leaves(part)
    if not parts and prediction.tokenizers is not None:
        yield prediction


def describe_sentence(
    part: Prediction, text: str, start: int, translation: str, translated: int
) -> SentenceTranslation:
    """Describe one sentence; it is in `text` after `start`, its translation after `translated`."""
    assert part.tokenizers is not None
    source, target = part.tokenizers
    places = locate(source.decode(part.source_ids), text, start)
    start, end = places[0], places[-1]
    translated = max(translated, translation.find(part.text, translated))
    spans = token_spans(source, part.source_ids)
    source_tokens = [
        Span(name, places[a], places[b])
        for name, (a, b) in zip(part.source_tokens, spans, strict=True)
    ]
    spans, others = (
        token_spans(target, part.token_ids),
        part.alternatives or [[]] * len(part.tokens),
    )
    tokens = [
        OutputToken(
            name, translated + a, translated + b, logprob, describe_alternatives(target, top)
        )
        for name, (a, b), logprob, top in zip(
            part.tokens, spans, part.logprobs, others, strict=True
        )
    ]
    history = [[describe_candidate(target, each) for each in step] for step in part.history]
    return SentenceTranslation(
        text[start:end], start, part.text, translated, part.score, source_tokens, tokens,
        [NBest(each.text, each.score) for each in part.n_best], history, describe_attention(part),
    )  # fmt: skip


def locate(sentence: str, text: str, start: int) -> list[int]:
    """Find a sentence in a text from `start` on. White space may differ, because pieces of a very
    long sentence have single spaces.

    Returns:
        The place in the text of each character of the sentence, and the end of the last one.
    """
    begin = text.find(sentence, start)
    if begin >= 0 and not text[start:begin].strip():
        return list(range(begin, begin + len(sentence) + 1))
    places, at = [], start
    for character in sentence:
        while not character.isspace() and at < len(text) - 1 and text[at].isspace():
            at += 1
        places.append(at)
        at = min(at + 1, len(text))
    return [*places, at]


def describe_candidate(tokenizer: Tokenizer, candidate: predictions.Candidate) -> Candidate:
    [name] = tokenizer.tokens([candidate.token])
    return Candidate(name, candidate.parent, candidate.logprob, candidate.score, candidate.fate)


def describe_alternatives(tokenizer: Tokenizer, top: list[tuple[int, float]]) -> list[Alternative]:
    names = tokenizer.tokens([token for token, _ in top])
    return [Alternative(name, logprob) for name, (_, logprob) in zip(names, top, strict=True)]


def describe_attention(part: Prediction) -> Weights | None:
    """The attention weights of a prediction, or None if they were not computed."""
    if not part.attention:
        return None
    stacks = {
        name: np.stack([layer.float().cpu().numpy() for layer in layers])
        for name, layers in part.attention.items()
    }  # [L, H, n, m]
    if not stacks.keys() & {"decoder", "cross"}:  # a recurrent decoder without an encoder
        return None
    decoder = stacks.get("decoder", stacks.get("cross"))
    assert decoder is not None
    return Weights(
        len(decoder), len(stacks.get("encoder", ())), decoder.shape[1], decoder.shape[2],
        stacks["cross"].shape[3] if "cross" in stacks else decoder.shape[3],
        {name: encode_weights(weights) for name, weights in stacks.items()},
    )  # fmt: skip


ENDPOINTS = [
    Endpoint(
        API, "POST", "/api/translate", translate,
        "Translate a text, with tokens, alternatives, attention weights and search history.",
        TranslateRequest, TranslateResponse,
    ),
]  # fmt: skip
