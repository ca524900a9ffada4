"""The interface of LibreTranslate: /translate, /detect, /languages and /frontend/settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from regard.serve.document import Format
from regard.serve.endpoint import Call, Endpoint, Interface, check_texts
from regard.serve.errors import ServiceError, bad_request
from regard.serve.languages import detect, language_name, targets_by_source
from regard.serve.translation import translate

TIMEOUT = 500  # milliseconds that a page waits after the last key before it translates


Code = Annotated[str, msgspec.Meta(max_length=20)]  # of a language


def error_body(error: ServiceError) -> dict[str, Any]:
    """The body of an error response."""
    return {"error": error.message}


LIBRETRANSLATE = Interface("libretranslate", error_body)


class TranslateRequest(msgspec.Struct):
    """Translate one text or several. The gateway reads `api_key`."""

    q: str | list[str]
    source: Code
    target: Code
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, msgspec.Meta(ge=0)] = 0
    api_key: str | None = None


class DetectedLanguage(msgspec.Struct):
    """The language of a text; the confidence is between 0 and 100."""

    confidence: float
    language: str


class TranslateResponse(msgspec.Struct, rename="camel"):
    """The translation; for a list of texts, each field is a list."""

    translated_text: str | list[str]
    detected_language: DetectedLanguage | list[DetectedLanguage] | msgspec.UnsetType = msgspec.UNSET
    alternatives: Sequence[str | list[str]] | msgspec.UnsetType = msgspec.UNSET


class DetectRequest(msgspec.Struct):
    """Detect the language of a text."""

    q: str | list[str]
    api_key: str | None = None


class Language(msgspec.Struct):
    """A language, and the codes of those into which it can be translated."""

    code: str
    name: str
    targets: list[str]


class LanguageName(msgspec.Struct):
    """A language."""

    code: str
    name: str


class DefaultLanguages(msgspec.Struct):
    """The languages that a page selects at first."""

    source: LanguageName
    target: LanguageName


class FrontendSettings(msgspec.Struct, rename="camel"):
    """What a page needs to know about the service."""

    char_limit: int
    frontend_timeout: int
    api_keys: bool
    key_required: bool
    suggestions: bool
    files_translation: bool
    supported_files_format: list[str]
    language: DefaultLanguages


def texts_of(call: Call, q: str | list[str]) -> list[str]:
    """The texts of a request. A text that is too long is a bad request in this interface."""
    try:
        return check_texts(call, q if isinstance(q, list) else [q], "q")
    except ServiceError as error:
        raise bad_request(error.message, "q") from None


async def translate_texts(call: Call, request: TranslateRequest) -> TranslateResponse:
    """POST /translate."""
    translations = await translate(
        call.pool,
        texts_of(call, request.q),
        request.source.lower(),
        request.target.lower(),
        form=Format("html" if request.format == "html" else ""),
        alternatives=request.alternatives,
    )
    response = TranslateResponse([each.text for each in translations])
    detected = [
        DetectedLanguage(each.detected.confidence, each.detected.language)
        for each in translations
        if each.detected is not None
    ]
    if detected:
        response.detected_language = detected
    if request.alternatives:
        response.alternatives = [each.alternatives for each in translations]
    if isinstance(request.q, str):
        response.translated_text = translations[0].text
        response.detected_language = detected[0] if detected else msgspec.UNSET
        if request.alternatives:
            response.alternatives = translations[0].alternatives
    return response


async def detect_languages(call: Call, request: DetectRequest) -> list[DetectedLanguage]:
    """POST /detect."""
    texts = texts_of(call, request.q)
    results = await asyncio.to_thread(lambda: [detect(text, call.pool) for text in texts])
    return [DetectedLanguage(each.confidence, each.language) for each in results]


async def list_languages(call: Call, _: None) -> list[Language]:
    """GET /languages: the languages that can be translated, then those that are only targets."""
    table = targets_by_source(call.pool)
    codes = [*table, *(target for targets in table.values() for target in targets)]
    return [
        Language(code, language_name(code), table.get(code, [])) for code in dict.fromkeys(codes)
    ]


async def frontend_settings(call: Call, _: None) -> FrontendSettings:
    """GET /frontend/settings."""
    table = targets_by_source(call.pool)
    source, targets = next(iter(table.items()), ("en", ["en"]))
    keys = call.settings.keys is not None
    return FrontendSettings(
        char_limit=call.settings.limits.characters,
        frontend_timeout=TIMEOUT,
        api_keys=keys,
        key_required=keys,
        suggestions=False,
        files_translation=False,
        supported_files_format=[],
        language=DefaultLanguages(
            LanguageName(source, language_name(source)),
            LanguageName(targets[0], language_name(targets[0])),
        ),
    )


ENDPOINTS = [
    Endpoint(
        LIBRETRANSLATE, "POST", "/translate", translate_texts, "Translate texts or HTML.",
        TranslateRequest, TranslateResponse,
    ),
    Endpoint(
        LIBRETRANSLATE, "POST", "/detect", detect_languages, "Detect the language of a text.",
        DetectRequest, list[DetectedLanguage],
    ),
    Endpoint(
        LIBRETRANSLATE, "GET", "/languages", list_languages, "List the languages.",
        response=list[Language],
    ),
    Endpoint(
        LIBRETRANSLATE, "GET", "/frontend/settings", frontend_settings,
        "The limits and default languages of the service.", response=FrontendSettings,
    ),
]  # fmt: skip
