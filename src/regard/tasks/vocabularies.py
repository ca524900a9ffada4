"""The vocabularies of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.config.sections import Config
from regard.tasks.task import Say, Task, needs_one_vocabulary
from regard.text.tokenizer import Tokenizer


def learn_tokenizers(
    task: type[Task],
    files: Sequence[Path],
    config: Config,
    given: tuple[Tokenizer, Tokenizer] | None,
    say: Say,
    quiet: bool,
) -> tuple[Tokenizer, Tokenizer]:
    """The vocabularies of source and target, after every line of the files has been read.

    given: existing vocabularies, which are returned unless the task cannot use them.
    """
    data = config.data

    def lines(side: int | None, say: Say | None) -> Iterator[str]:
        for example in task.read(files, config, say):
            texts = list(task.texts(example))
            yield from texts if side is None else [texts[side]]

    def learn(side: int | None) -> Tokenizer:
        texts = lines(side, None if side else say)
        return Tokenizer.learn(texts, data.vocabulary, data.vocabulary_size, quiet)

    one = given is None or given[0].fingerprint == given[1].fingerprint
    if not one and not task.two_vocabularies:
        raise needs_one_vocabulary(task.name)
    if given is None and data.vocabulary == "byte":
        given = (learn(None),) * 2  # nothing is learned, and so no line was read
    if given is None:
        return (learn(None),) * 2 if data.shared_vocabulary else (learn(0), learn(1))
    for _ in lines(None, say):
        pass
    return given
