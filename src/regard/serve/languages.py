"""Languages: their names, those of the models of a service, and the language of a text.

The language of a text is detected by py3langid, a naive Bayes classifier of byte n-grams. Short
texts are difficult: with all of its 140 languages it recognises 19% of single English words and 67%
of pairs. Therefore only the languages of the table below are considered, and those of the models of
the service are `PRIOR` times as probable as others. For a service with English and German, this
recognises 87%, 94%, 98% and 99% of English texts of one, two, three and five words, 76%, 98%, 98%
and 100% of German ones, and 30%, 69%, 90% and 98% of French ones, which is not a language of that
service (600 texts each from Tatoeba, newstest and documentation).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from regard.serve.models import ModelPool, ServedModel

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
PRIOR = 5.0  # factor by which a language of the service is more probable than others
MOST_CHARACTERS = 4_000  # characters of a text that the detection reads
LOCK = threading.Lock()


@dataclass(frozen=True)
class DetectedLanguage:
    """The most probable language of a text; the confidence is between 0 and 100."""

    language: str
    confidence: float


def language_name(code: str) -> str:
    """The English name of a language; the code itself if it is unknown."""
    return NAMES.get(code, code)


def translators(pool: ModelPool) -> list[ServedModel]:
    """The models that translate, in the order of the command line."""
    return [model for model in pool.of_task("translate") if model.languages is not None]


def targets_by_source(pool: ModelPool) -> dict[str, list[str]]:
    """For each language that a model reads, the languages into which it can be translated."""
    table: dict[str, list[str]] = {}
    for model in translators(pool):
        if model.languages is not None:
            source, target = model.languages
            targets = table.setdefault(source, [])
            if target not in targets:
                targets.append(target)
    return table


def detect(text: str, pool: ModelPool) -> DetectedLanguage:
    """Detect the language of a text.

    Args:
        text: the text, without markup; any length.
        pool: the models, whose languages are more probable than others.

    Returns:
        The language. For a text without letters or without any known n-gram, it is the first
        language that a model reads, with confidence 0.
    """
    table = targets_by_source(pool)
    known = [*table, *(target for targets in table.values() for target in targets)]
    first = known[0] if known else "en"
    if not any(map(str.isalpha, text)):
        return DetectedLanguage(first, 0.0)
    scores = dict(rank(text[:MOST_CHARACTERS]))
    if max(scores.values()) - min(scores.values()) < 1e-6:
        return DetectedLanguage(first, 0.0)
    weighted = {code: p * (PRIOR if code in known else 1.0) for code, p in scores.items()}
    best = max(weighted, key=lambda code: weighted[code])
    confidence = 100 * weighted[best] / sum(weighted.values())
    return DetectedLanguage(best, round(confidence, 1))


def rank(text: str) -> Sequence[tuple[str, float]]:
    """The languages with their probabilities, the most probable first."""
    with LOCK:  # the first call loads the data, which takes half a second
        identify = identifier()
    ranked: Sequence[tuple[str, float]] = identify.rank(text)
    return ranked


@cache
def identifier() -> Any:
    """The classifier for the languages of `NAMES`. It loads an array file, without pickle."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identify = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identify.set_languages([code for code in NAMES if code in identify.labels])
    return identify
