"""The inputs of the methods of `Model`: checks, and the Python warning about an input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np

from regard.errors import InputError, warn_user
from regard.model.transformer import Transformer
from regard.tasks.answer import QuestionInput


def python_warning(i: int, message: str) -> None:
    """Issue a Python warning about text i; it names the line of the user's program."""
    warn_user(f"text {i + 1} is {message}")


def check_text(*texts: object) -> None:
    """Refuse a text that is not a string."""
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a text is a string, not {text!r:.60}")


def check_no_table(texts: object) -> None:
    """Refuse a DataFrame, whose iterator yields the names of its columns."""
    names = getattr(texts, "columns", None)
    if names is None or isinstance(texts, Mapping):
        return
    columns = ", ".join(map(repr, list(names)[:8]))
    raise InputError(f"the texts are a table with the columns {columns}: choose one column of it")


def check_evaluation_mode(transformer: Transformer) -> None:
    """Refuse a network in training mode, whose dropout makes results random."""
    if transformer.training:
        raise InputError(
            "the model is in training mode, where dropout is random: call model.transformer.eval() "
            "first"
        )


def text_list(texts: str | Iterable[str]) -> list[str]:
    """The texts as a list; one string is a list of one text."""
    check_no_table(texts)
    if isinstance(texts, bytes | bytearray | dict) or not isinstance(texts, Iterable):
        raise InputError(f"texts are a string or several strings, not {texts!r:.60}")
    texts = [texts] if isinstance(texts, str) else list(texts)
    check_text(*texts)
    return texts


def is_pair(pairs: object) -> bool:
    """Whether this is one (source, translation) pair, and not several of them."""
    return isinstance(pairs, tuple) and len(pairs) == 2 and isinstance(pairs[0], str)


def check_pair(pair: object) -> None:
    """Refuse anything but a (source, translation) pair."""
    if isinstance(pair, str) or not isinstance(pair, Sized) or len(pair) != 2:
        raise InputError(f"a pair is (source, translation), not {pair!r:.60}")
    check_text(*pair)  # type: ignore[misc]


def check_count(name: str, value: Any) -> None:
    """Refuse a number of results that is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1, not {value!r:.60}")


def question_inputs(
    questions: str | Iterable[str], context: str | Iterable[str]
) -> list[QuestionInput]:
    """Each question with its context, or with the one context for all."""
    texts, contexts = text_list(questions), text_list(context)
    if len(contexts) == 1:
        contexts *= len(texts)
    if len(contexts) != len(texts):
        raise InputError(f"{len(texts)} questions but {len(contexts)} contexts")
    return [QuestionInput(c, q) for c, q in zip(contexts, texts, strict=True)]
