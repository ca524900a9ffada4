"""Translate texts and HTML: what the interfaces of LibreTranslate, DeepL and regard share.

All sentences of all texts of a request go to a model as one plan, so that they are one batch. Those
whose placeholders or tags were not preserved go to the model a second or third time (passage.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regard.decoding.predictions import Prediction
from regard.serve.alignment import align
from regard.serve.document import Document, Format, read_document
from regard.serve.languages import DetectedLanguage, detect, targets_by_source
from regard.serve.models import ModelPool, ServedModel, in_thread
from regard.serve.passage import SEPARATE, Candidate, Output, Sentence
from regard.tasks.joining import best_combinations

AUTO = "auto"
# Characters of plain text per queue token, for a lower bound on the queue tokens of a request: a
# token has at most 8 characters on average, and counts twice, as input and as output.
CHARACTERS = 4
MOST_ALTERNATIVES = 9
PLAIN = Format()


@dataclass(frozen=True)
class Translation:
    """The translation of one text.

    Attributes:
        text: the translation.
        source: the language of the text, from the request or detected.
        detected: the detected language, if the request did not name it.
        alternatives: other translations, best first.
    """

    text: str
    source: str
    detected: DetectedLanguage | None = None
    alternatives: list[str] = field(default_factory=list)


async def translate(
    pool: ModelPool,
    texts: Sequence[str],
    source: str,
    target: str,
    *,
    form: Format = PLAIN,
    alternatives: int = 0,
) -> list[Translation]:
    """Translate texts.

    Args:
        pool: the models.
        texts: the texts; white space around their sentences is kept.
        source: the code of their language; "auto": detect it for each text.
        target: the code of the language to translate into.
        form: plain text, HTML or XML, and how it is split.
        alternatives: the number of further translations of each text, up to 9; there can be fewer.

    Returns:
        One translation for each text. A blank text, and one in the target language, is its own.

    Raises:
        ServiceError: no model translates between the languages.
        Overloaded: the queue is full.
    """
    size = sum(map(len, texts))
    if not form.markup:  # the size of a text with markup says little about its tokens
        pool.scheduler.check_room(size // CHARACTERS)
    documents = await in_thread(lambda: [read_document(text, form) for text in texts], size)
    detected: list[DetectedLanguage | None] = [None] * len(texts)
    if source == AUTO:
        detected = await asyncio.to_thread(  # the first call loads data, in half a second
            lambda: [detect(document.words, pool) for document in documents]
        )
    sources = [each.language if each else source for each in detected]
    models = [choose_model(pool, each, target, source == AUTO) for each in sources]
    count = 1 + min(alternatives, MOST_ALTERNATIVES)
    groups: dict[ServedModel, list[Sentence]] = {}
    for model, document in zip(models, documents, strict=True):
        if model is not None:
            groups.setdefault(model, []).extend(document.sentences)
    results = await asyncio.gather(*(
        translate_sentences(model, sentences, count) for model, sentences in groups.items()
    ))  # fmt: skip
    candidates = dict(item for result in results for item in result.items())
    translations = []
    for i, (text, document) in enumerate(zip(texts, documents, strict=True)):
        best = [text]
        if models[i] is not None:
            best = join_sentences(
                document, [candidates[each] for each in document.sentences], count
            )
        translations.append(Translation(best[0], sources[i], detected[i], best[1:]))
    return translations


def choose_model(pool: ModelPool, source: str, target: str, detected: bool) -> ServedModel | None:
    """The model for two languages; None if they are equal.

    If no model translates the detected language into the target, but exactly one other language can
    be translated into it, the detection is probably wrong, and the model for that language is used.

    Raises:
        ServiceError: there is no model for the languages, or the models are not loaded yet.
    """
    table = targets_by_source(pool)
    if source == target and any(target in (known, *targets) for known, targets in table.items()):
        return None
    possible = [known for known, targets in table.items() if target in targets]
    if detected and source not in possible and len(possible) == 1:
        source = possible[0]
    return pool.translator(source, target)


async def translate_sentences(
    model: ServedModel, sentences: Sequence[Sentence], count: int
) -> dict[Sentence, list[Candidate]]:
    """Translate sentences in as few batches as possible.

    Args:
        model: the model.
        sentences: the sentences.
        count: the largest number of translations of each.

    Returns:
        The translations of each sentence, best first; at least one.
    """
    results: dict[Sentence, list[Candidate]] = {}
    waiting = {sentence: sentence.next_attempt(-1) for sentence in sentences}
    while waiting:
        inputs = {sentence: sentence.inputs(attempt) for sentence, attempt in waiting.items()}
        texts = [text for each in inputs.values() for text in each]
        outputs = iter(await predict(model, texts, waiting, count))
        failed = {}
        for sentence, attempt in waiting.items():
            own_outputs = [next(outputs) for _ in inputs[sentence]]
            results[sentence] = sentence.accept(attempt, own_outputs)[:count]
            if not results[sentence]:
                failed[sentence] = sentence.next_attempt(attempt)
        waiting = failed
    return results


async def predict(
    model: ServedModel, texts: Sequence[str], waiting: Mapping[Sentence, int], count: int
) -> list[Output]:
    """Translate texts as one batch, with the details that the sentences need."""
    whole = [sentence for sentence, attempt in waiting.items() if attempt < SEPARATE]
    beam = model.model.config.decoding.beam
    # A placeholder that is missing in the best translation may be in one of the others.
    n_best = max(count, beam) if any(sentence.fixed for sentence in whole) else count
    predictions = await model.predict(
        texts, n_best=n_best, beam=max(beam, n_best), split=False,
        attention=any(sentence.tagged for sentence in whole),
    )  # fmt: skip
    return [output_of(prediction) for prediction in predictions]


def output_of(prediction: Prediction) -> Output:
    """The n-best list of a prediction and its alignment."""
    n_best = prediction.n_best
    return Output(
        [each.text for each in n_best], [each.score for each in n_best], align(prediction)
    )


def join_sentences(
    document: Document, candidates: Sequence[Sequence[Candidate]], count: int
) -> list[str]:
    """The best translations of a document from those of its sentences; each is different."""
    best = best_combinations(candidates, count)
    texts = [document.join([candidate.text for candidate in chosen]) for chosen in best]
    return list(dict.fromkeys(texts))
