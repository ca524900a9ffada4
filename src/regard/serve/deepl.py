"""The interface of DeepL: /v2/translate, /v2/languages and /v2/usage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from regard.serve.document import Format
from regard.serve.endpoint import Call, Endpoint, Interface, check_texts
from regard.serve.errors import ServiceError
from regard.serve.languages import language_name, targets_by_source
from regard.serve.translation import AUTO, translate

# Targets that the client requires instead of EN and PT, with the names that it shows.
VARIANTS = {
    "en": {"EN-GB": "English (British)", "EN-US": "English (American)"},
    "pt": {"PT-PT": "Portuguese (European)", "PT-BR": "Portuguese (Brazilian)"},
}
UNLIMITED = 10**12  # DeepL's own value of a limit for accounts without one
CHARACTERS = "regard_deepl_characters_total"  # a counter in GAUGES of metrics.py


Code = Annotated[str, msgspec.Meta(max_length=20)]  # of a language


def error_body(error: ServiceError) -> dict[str, Any]:
    """The body of an error response."""
    body = {"message": error.message}
    return body | ({"detail": f"field: {error.field}"} if error.field else {})


DEEPL = Interface("deepl", error_body)


class TranslateRequest(msgspec.Struct):
    """Translate texts; other options of DeepL are ignored."""

    text: str | list[str]
    target_lang: Code
    source_lang: Code | None = None
    tag_handling: Literal["html", "xml", ""] | None = None
    split_sentences: str | int | None = None  # 0, 1 or nonewlines
    ignore_tags: (
        Annotated[str, msgspec.Meta(max_length=10_000)]
        | Annotated[list[str], msgspec.Meta(max_length=1_000)]
    ) = ""
    show_billed_characters: bool = False


class TranslatedText(msgspec.Struct):
    """The translation of one text."""

    detected_source_language: str
    text: str
    billed_characters: int | msgspec.UnsetType = msgspec.UNSET


class TranslateResponse(msgspec.Struct):
    """The translations of the texts, in order."""

    translations: list[TranslatedText]


class LanguagesRequest(msgspec.Struct):
    """List the languages of texts (source) or of translations (target)."""

    type: Literal["source", "target"] = "source"


class Language(msgspec.Struct):
    """A language."""

    language: str
    name: str
    supports_formality: bool | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct):
    """The characters that were translated since the service started, and their limit."""

    character_count: int
    character_limit: int


def language_code(text: str, known: Iterable[str]) -> str:
    """The code of a language in the form of the models: "EN-GB" is "en"."""
    code = text.strip().lower()
    return code if code in known else code.partition("-")[0]


async def translate_texts(call: Call, request: TranslateRequest) -> TranslateResponse:
    """POST /v2/translate."""
    texts = [request.text] if isinstance(request.text, str) else request.text
    table = targets_by_source(call.pool)
    ignored = request.ignore_tags
    names = ignored.split(",") if isinstance(ignored, str) else ignored
    split = "" if request.split_sentences is None else str(request.split_sentences)
    form = Format(
        markup=request.tag_handling or "",
        split=split != "0",
        newlines=split != "nonewlines",
        ignored=frozenset(name.strip().lower() for name in names if name.strip()),
    )
    translations = await translate(
        call.pool,
        check_texts(call, texts, "text"),
        language_code(request.source_lang, table) if request.source_lang else AUTO,
        language_code(request.target_lang, {t for targets in table.values() for t in targets}),
        form=form,
    )
    call.state["metrics"].add(CHARACTERS, sum(map(len, texts)))
    return TranslateResponse([
        TranslatedText(
            translation.source.upper(), translation.text,
            len(text) if request.show_billed_characters else msgspec.UNSET,
        )
        for text, translation in zip(texts, translations, strict=True)
    ])  # fmt: skip


async def list_languages(call: Call, request: LanguagesRequest) -> list[Language]:
    """GET /v2/languages."""
    table = targets_by_source(call.pool)
    if request.type == "source":
        return [Language(code.upper(), language_name(code)) for code in table]
    targets = dict.fromkeys(target for targets in table.values() for target in targets)
    return [
        Language(code, name, supports_formality=False)
        for target in targets
        for code, name in VARIANTS.get(target, {target.upper(): language_name(target)}).items()
    ]


async def usage(call: Call, _: None) -> Usage:
    """GET /v2/usage."""
    return Usage(int(call.state["metrics"].total(CHARACTERS)), UNLIMITED)


ENDPOINTS = [
    Endpoint(
        DEEPL, "POST", "/v2/translate", translate_texts, "Translate texts, HTML or XML.",
        TranslateRequest, TranslateResponse,
    ),
    Endpoint(
        DEEPL, "GET", "/v2/languages", list_languages, "List the languages.",
        LanguagesRequest, list[Language],
    ),
    Endpoint(
        DEEPL, "GET", "/v2/usage", usage, "The number of translated characters.", response=Usage
    ),
]  # fmt: skip
