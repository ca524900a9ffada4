"""The names of special tokens, and their removal from the messages of a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from regard.errors import InputError

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

PRIVATE = range(0xF0000, 0xFFFFE)  # private-use code points


class SpecialNames:
    """The special tokens of a tokenizer by name.

    Attributes:
        ids: the id of each name.
        variables: the names by the variables of a chat template, such as `bos_token`.
        watched: the ids of all special tokens but <unk>, which any text can contain.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids = special_tokens(tokenizer)
        names = {id: name for name, id in self.ids.items()}
        self.variables = {
            f"{name}_token": names.get(getattr(tokenizer, name), "")
            for name in ("bos", "eos", "unk", "sep", "cls", "mask")
        }
        ends = {tokenizer.bos, tokenizer.eos, tokenizer.cls, tokenizer.sep, tokenizer.mask}
        self.watched = {*tokenizer.special_ids, *names} - ({tokenizer.unk} - ends)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches any of the names."""
        return _pattern(self.ids)

    @cached_property
    def pattern_of_any_case(self) -> re.Pattern[str]:
        """Matches any of the names in lower and upper case: a template may change the case."""
        return _pattern(self.ids, re.IGNORECASE)


class Protected:
    """Messages in which each name of a special token is replaced by a private character.

    Attributes:
        messages: the messages with these characters.
        hidden: the name that each character represents, by its code point.

    Raises:
        InputError: the messages contain too many different names, which is an attack.
    """

    def __init__(self, names: SpecialNames, messages: list[dict[str, str]]) -> None:
        pattern = names.pattern_of_any_case
        contents = [message["content"] for message in messages]
        spellings = sorted({name for text in contents for name in pattern.findall(text)})
        self.hidden: dict[int, str] = {}
        self.messages = messages
        if spellings:
            used = set().union(*contents)
            free = [code for code in PRIVATE if chr(code) not in used]
            if len(spellings) > len(free):
                raise InputError(
                    f"the messages contain {len(spellings):,} different spellings of special "
                    f"tokens, but at most {len(free):,} are allowed"
                )
            self.hidden = dict(zip(free, spellings, strict=False))
            signs = {name: chr(code) for code, name in self.hidden.items()}
            self.messages = [
                {**message, "content": pattern.sub(lambda m: signs[m[0]], message["content"])}
                for message in messages
            ]

    def restore(self, text: str) -> str:
        """The text with the names restored."""
        return text.translate(self.hidden) if self.hidden else text


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the special tokens of a tokenizer by name."""
    from regard.text.tokenizer import SPECIALS

    first, library = getattr(tokenizer, "first", len(SPECIALS)), getattr(tokenizer, "fast", None)
    names = {name: id for id, name in enumerate(SPECIALS)} if first else {}
    if library is not None:
        added = library.get_added_tokens_decoder()
        for id, token in added.items():
            if token.special and token.content:
                names.setdefault(token.content, first + id)
        for id in tokenizer.special_ids if not first else ():
            if id not in added and (name := library.id_to_token(id)):
                names.setdefault(name, id)
    return names


def _pattern(names: Mapping[str, int], flags: int = 0) -> re.Pattern[str]:
    """Matches any of the names, the longest first."""
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)", flags)
