"""The six tasks by name: learned from files, or read from a model's folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from regard.config.sections import Config, two_vocabularies
from regard.errors import InputError
from regard.tasks.answer import Questions
from regard.tasks.classify import Classify, find_labels, load_labels
from regard.tasks.embed import Embed
from regard.tasks.fill import Fill
from regard.tasks.generate import Generate
from regard.tasks.task import Say, Task
from regard.tasks.translate import Translate
from regard.text.reading import check_file
from regard.text.tokenizer import Tokenizer
from regard.training.model_folder import load_tokenizers

KINDS: dict[str, type[Task]] = {
    kind.name: kind for kind in (Translate, Questions, Generate, Classify, Fill, Embed)
}


def learn_task(
    config: Config, given: tuple[Tokenizer, Tokenizer] | None, say: Say, quiet: bool
) -> Task:
    """A task from its training files, reading every line of every file once: what is wrong with
    them is said here, before anything is written. given: vocabularies that are known already."""
    kind, data = KINDS[config.task], config.data
    train, valid = ([Path(file) for file in files] for files in (data.train, data.valid))
    kind.check_files(train)
    if valid:
        kind.check_files(valid)
    for path in (*train, *valid):
        check_file(path)  # they are read several times

    if next(iter(kind.read(train, config)), None) is None:
        names, are = " ".join(data.train), "is" if len(train) == 1 else "are"
        raise InputError(f"{names} {are} empty: there is nothing to learn from")

    def lines(side: int | None, say: Say | None) -> Iterator[str]:
        for example in kind.read(train, config, say):
            texts = list(kind.texts(example))
            yield from texts if side is None else [texts[side]]

    def learn(side: int | None) -> Tokenizer:
        found = lines(side, None if side else say)
        return Tokenizer.learn(found, data.vocabulary, data.vocabulary_size, quiet)

    if given is not None and kind is not Translate and len({one.fingerprint for one in given}) > 1:
        raise two_vocabularies(config.task)
    if given is None and data.vocabulary == "byte":
        given = (learn(None),) * 2  # nothing is learned, and so nothing was read
    if given is not None:
        for _ in lines(None, say):
            pass
    elif data.shared_vocabulary:
        given = (learn(None),) * 2
    else:
        given = learn(0), learn(1)
    labels = []
    if kind is Classify:
        counts: Counter[str] = Counter()
        for path, (line, _, label) in Classify.read(train, config):
            if data.labels and label not in data.labels:
                raise InputError(f"{path}:{line}: the label {label!r} is not one of data.labels")
            counts[label] += 1
        labels = find_labels(counts, config, train)
    task = make_task(config, given, labels)
    for example in kind.read(valid, config) if valid else ():
        task.check(example)
    return task


def make_task(
    config: Config, tokenizers: tuple[Tokenizer, Tokenizer], labels: list[str],
    temperature: float = 1.0,
) -> Task:  # fmt: skip
    style, data, (source, target) = config.model.style, config.data, tokenizers
    if config.task == "translate":
        return Translate(source, target, style, data.bpe_dropout)
    if config.task == "answer":
        return Questions(source, target, style, data.bpe_dropout, data.max_length)
    if config.task == "generate":
        return Generate(target, style, data.max_length)
    if config.task == "fill":
        return Fill(target, style, data.max_length, data.mask, data.whole_words)
    if config.task == "embed":
        scale = config.training.similarity_scale
        return Embed(target, style, config.model.pooling, data.max_length, scale)
    return Classify(target, style, labels, data.max_length, temperature)


def load_task(folder: Path, config: Config) -> Task:
    labels, temperature = load_labels(folder) if config.task == "classify" else ([], 1.0)
    if config.model.classes not in (None, len(labels)):
        raise InputError(
            f"{folder / 'labels.json'}: {len(labels)} labels, but the model has "
            f"{config.model.classes} classes"
        )
    return make_task(config, load_tokenizers(folder, config.model), labels, temperature)
