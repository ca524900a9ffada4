"""The keyword arguments of the methods of `Model` that set options of decoding.

`DecodingOptions` declares them once, for type checkers and editors. `decoding_keywords` writes them
into the signature and the docstring of a method, so that `help(Model.translate)` and
`inspect.signature` show each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
ENTRY = "            **options: options of decoding, see `DecodingOptions`.\n"


class DecodingOptions(TypedDict, total=False):
    """Options of decoding; None means the default of the model.

    They are the fields of `DecodingConfig`, except for n_best, which changes what a method returns.
    """

    beam: Annotated[int | None, "number of hypotheses per text; 1 is greedy search."]
    length_penalty: Annotated[
        float | None, "exponent of the length penalty; larger values prefer longer outputs."
    ]
    length_offset: Annotated[
        float | None, "added to the length in the length penalty; 0: a power of the length."
    ]
    max_length: Annotated[
        int | None, "largest number of output tokens beyond the length of the input."
    ]
    min_length: Annotated[int | None, "smallest number of output tokens."]
    no_repeat: Annotated[
        int | None, "no sequence of this many tokens occurs twice in an output; 0: no limit."
    ]
    temperature: Annotated[
        float | None, "0: search; above 0: sample; 1: with the probabilities of the model."
    ]
    top_k: Annotated[
        int | None, "sample only from this many most probable tokens; 0: from all tokens."
    ]
    top_p: Annotated[
        float | None, "sample only from the most probable tokens with this total probability."
    ]
    seed: Annotated[int | None, "random seed for sampling."]


def decoding_keywords(method: F) -> F:
    """A decorator that replaces `**options` in the signature and in the docstring of a method by
    the options of decoding.

    A method whose `**options` have the type Any keeps them: it accepts further options.
    """
    hints = get_type_hints(DecodingOptions, include_extras=True)
    signature = inspect.signature(method)
    *before, last = signature.parameters.values()
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__args__[0]
        )
        for name, hint in hints.items()
    ]
    rest = [last] if last.annotation == "Any" else []
    method.__signature__ = signature.replace(parameters=[*before, *keywords, *rest])  # type: ignore[attr-defined]
    lines = (f"            {name}: {hint.__metadata__[0]}\n" for name, hint in hints.items())
    assert ENTRY in (method.__doc__ or "")
    method.__doc__ = (method.__doc__ or "").replace(ENTRY, "".join(lines))
    return method


def chosen_options(options: Mapping[str, Any], n_best: int | None = None) -> dict[str, Any]:
    """The options that have a value; None means the default of the model."""
    values = {**options, "n_best": n_best} if n_best is not None else options
    return {name: value for name, value in values.items() if value is not None}
