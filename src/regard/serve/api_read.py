"""POST /api/classify, fill, answer and tokenize."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from regard.serve.api_common import (
    API,
    End,
    ModelField,
    Name,
    Start,
    Texts,
    TokenText,
    UsedModel,
    any_model,
    token_spans,
)
from regard.serve.endpoint import Call, Endpoint, check_texts
from regard.serve.errors import bad_request
from regard.serve.models import ServedModel, in_thread
from regard.tasks.fill import MASK, Fill

Probability = Annotated[float, Meta(ge=0, le=1, description="probability")]


# ---- classify -----------------------------------------------------------------------------


class ClassifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Classify texts."""

    texts: Annotated[Texts, Meta(examples=[["A wonderful film."]])]
    model: ModelField = None


class Classification(msgspec.Struct):
    """The label of one text."""

    label: Annotated[str, Meta(description="the most probable label")]
    probabilities: Annotated[
        dict[str, Probability], Meta(description="the probability of each label")
    ]


class ClassifyResponse(msgspec.Struct):
    """The labels of the texts."""

    model: UsedModel
    results: Annotated[list[Classification], Meta(description="one for each text, in order")]


async def classify(call: Call, request: ClassifyRequest) -> ClassifyResponse:
    model = call.pool.find("classify", request.model)
    labels = await model.classify(check_texts(call, request.texts, "texts"))
    return ClassifyResponse(
        model.name, [Classification(label.label, label.probabilities) for label in labels]
    )


# ---- fill ---------------------------------------------------------------------------------


class FillRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Find the best words for each <mask> of texts."""

    texts: Annotated[
        Texts,
        Meta(description="texts with <mask>", examples=[["The cat <mask> on the sofa."]]),
    ]
    top: Annotated[int, Meta(ge=1, le=100, description="words for each <mask>")] = 5
    model: ModelField = None


class Word(msgspec.Struct):
    """A word for a <mask>."""

    word: Annotated[str, Meta(description="the word, with the space before it if there is one")]
    probability: Probability


class Gap(msgspec.Struct):
    """The best words for one <mask>."""

    candidates: Annotated[list[Word], Meta(description="words, best first")]


class FilledText(msgspec.Struct):
    """A text with all its masks replaced by words."""

    text: Annotated[str, Meta(description="the text with the best word for each <mask>")]
    gaps: Annotated[list[Gap], Meta(description="the best words for each <mask>")]


class FillResponse(msgspec.Struct):
    """The texts with words in place of each <mask>."""

    model: UsedModel
    results: Annotated[list[FilledText], Meta(description="one for each text, in order")]


async def fill(call: Call, request: FillRequest) -> FillResponse:
    model = call.pool.find("fill", request.model)
    texts = check_texts(call, request.texts, "texts")
    await in_thread(partial(check_masks, model, texts), sum(map(len, texts)))
    results = await model.fill(texts, request.top)
    return FillResponse(model.name, [
        FilledText(each.text, [Gap([Word(*word) for word in gap.candidates]) for gap in each.gaps])
        for each in results
    ])  # fmt: skip


def check_masks(model: ServedModel, texts: Sequence[str]) -> None:
    """Refuse a text without <mask> or with too many tokens. In the model it would also fail the
    texts of other requests in the same batch."""
    task = model.model.of(Fill)
    for i, text in enumerate(texts):
        task.encode_parts(text.split(MASK), model.model.longest, f"texts[{i}]")


# ---- answer -------------------------------------------------------------------------------


class QuestionWithContext(msgspec.Struct, forbid_unknown_fields=True):
    """A question, and the text that contains its answer."""

    question: Annotated[str, Meta(min_length=1, description="the question")]
    context: Annotated[str, Meta(min_length=1, description="the text that contains the answer")]


class AnswerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Answer one question (`question` and `context`) or several (`questions`)."""

    question: Annotated[
        str | None, Meta(description="the question", examples=["Where does Anna live?"])
    ] = None
    context: Annotated[
        str | None,
        Meta(description="the text that contains the answer", examples=["Anna lives in Rome."]),
    ] = None
    questions: Annotated[
        list[QuestionWithContext] | None, Meta(description="several questions")
    ] = None
    n_best: Annotated[int, Meta(ge=1, le=10, description="answers to each question")] = 1
    model: ModelField = None


class ScoredAnswer(msgspec.Struct):
    """One answer of the n-best list."""

    answer: Annotated[str, Meta(description="the answer")]
    score: Annotated[float, Meta(description="log-probability, divided by the length penalty")]


class QuestionAnswers(msgspec.Struct):
    """The answers to one question."""

    question: Annotated[str, Meta(description="the question")]
    answer: Annotated[str, Meta(description="the best answer")]
    score: Annotated[float, Meta(description="its score")]
    n_best: Annotated[list[ScoredAnswer], Meta(description="the best answers, best first")]


class AnswerResponse(msgspec.Struct):
    """The answers to the questions."""

    model: UsedModel
    results: Annotated[list[QuestionAnswers], Meta(description="one for each question, in order")]


async def answer(call: Call, request: AnswerRequest) -> AnswerResponse:
    pairs = question_list(request)
    model = call.pool.find("answer", request.model)
    questions, contexts = [each.question for each in pairs], [each.context for each in pairs]
    field = "context" if request.questions is None else "questions"
    check_texts(call, [each.question + each.context for each in pairs], field)
    predictions = await model.predict(questions, context=contexts, n_best=request.n_best)
    return AnswerResponse(model.name, [
        QuestionAnswers(
            question, each.text, each.score,
            [ScoredAnswer(other.text, other.score) for other in each.n_best],
        )
        for question, each in zip(questions, predictions, strict=True)
    ])  # fmt: skip


def question_list(request: AnswerRequest) -> list[QuestionWithContext]:
    """The questions of a request in either form."""
    single = request.question is not None or request.context is not None
    if single == (request.questions is not None):
        raise bad_request("send question and context, or questions", "questions")
    if request.questions is not None:
        if not request.questions:
            raise bad_request(
                "questions: the list is empty: send at least one question", "questions"
            )
        return request.questions
    for field in ("question", "context"):
        if not getattr(request, field):
            raise bad_request(f"{field}: the text is missing or empty", field)
    return [QuestionWithContext(request.question or "", request.context or "")]


# ---- tokenize -----------------------------------------------------------------------------


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Split a text into the tokens of a model."""

    text: Annotated[str, Meta(description="the text", examples=["The cat sleeps."])]
    model: Annotated[
        Name | None, Meta(description="name of the model (default: the first model)")
    ] = None
    side: Annotated[
        Literal["source", "target"],
        Meta(description="the vocabulary of what the model reads (source) or writes (target)"),
    ] = "source"


class NumberedToken(msgspec.Struct):
    """A token with its id. Tokens that share a character overlap."""

    text: TokenText
    id: Annotated[int, Meta(ge=0, description="its number in the vocabulary")]
    start: Start
    end: End


class TokenizeResponse(msgspec.Struct):
    """The tokens of the text."""

    model: UsedModel
    tokens: Annotated[list[NumberedToken], Meta(description="the tokens, in order")]


async def tokenize(call: Call, request: TokenizeRequest) -> TokenizeResponse:
    model = any_model(call, request.model)
    [text] = check_texts(call, [request.text], "text")

    def split() -> list[NumberedToken]:
        loaded, source = model.model, request.side == "source"
        tokenizer = loaded.source_tokenizer if source else loaded.target_tokenizer
        ids = tokenizer.encode(text)
        rows = zip(tokenizer.tokens(ids), ids, token_spans(tokenizer, ids), strict=True)
        return [NumberedToken(name, id, start, end) for name, id, (start, end) in rows]

    return TokenizeResponse(model.name, await in_thread(split, len(text)))


ENDPOINTS = [
    Endpoint(
        API, "POST", "/api/classify", classify, "Classify texts.",
        ClassifyRequest, ClassifyResponse,
    ),
    Endpoint(
        API, "POST", "/api/fill", fill, "Find the best words for each <mask> of texts.",
        FillRequest, FillResponse,
    ),
    Endpoint(
        API, "POST", "/api/answer", answer, "Answer questions from a context.",
        AnswerRequest, AnswerResponse,
    ),
    Endpoint(
        API, "POST", "/api/tokenize", tokenize, "Split a text into the tokens of a model.",
        TokenizeRequest, TokenizeResponse,
    ),
]  # fmt: skip
