"""Decode tokens that arrive one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from regard.text.tokenizer import UNKNOWN, Tokenizer

# Number of earlier tokens that are decoded again with each new one, because the text of a token can
# depend on them: a space at the beginning of a text is removed, and a character can span tokens.
CONTEXT = 8


class TextStream:
    """Decodes tokens one at a time. The parts add up to the text of `Tokenizer.decode_after`.

    Args:
        tokenizer: the tokenizer.
        before: the tokens before the first one; their text is not returned.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer, self._before = tokenizer, before
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._known = ""  # the text of `_ids` that was returned

    def add(self, token: int) -> str:
        """Add a token.

        Args:
            token: the token id.

        Returns:
            The next part of the text; "" if its last character may be incomplete.
        """
        tokenizer = self._tokenizer
        if tokenizer.exact:
            return self._bytes.decode(tokenizer.pieces[token])
        if token in tokenizer.special_ids or tokenizer.is_unused(token):
            return ""
        if not self._ids:
            self._ids = context(tokenizer, self._before, token)
            self._known = tokenizer.decode(self._ids)
        self._ids.append(token)
        if token in tokenizer.byte_ids:  # a later byte can change the text of all bytes before it
            return ""
        text = tokenizer.decode(self._ids)
        if text.endswith(UNKNOWN):
            return ""
        # Some decoders change the last characters that were returned, such as " '" before "s".
        new, self._known = text[len(self._known) :], text
        if len(self._ids) > 2 * CONTEXT and new:
            self._ids = self._ids[-CONTEXT:]
            self._known = tokenizer.decode(self._ids)
        return new

    def end(self) -> str:
        """The rest of the text, in which an incomplete character becomes U+FFFD."""
        if self._tokenizer.exact:
            return self._bytes.decode(b"", final=True)
        text = self._tokenizer.decode(self._ids)
        new, self._known = text[len(self._known) :], text
        return new


def context(tokenizer: Tokenizer, before: Sequence[int], token: int) -> list[int]:
    """The last tokens of a text, on which the text of the next token can depend.

    Args:
        tokenizer: the tokenizer.
        before: the token ids of a text, with or without special tokens.
        token: the next token.

    Returns:
        The tokens after the last special token, at most CONTEXT of them.
    """
    tail: list[int] = []
    for last in reversed(before[-CONTEXT:]):
        if last in tokenizer.special_ids:
            break
        tail.insert(0, last)
    while tail and token in tokenizer.byte_ids and tail[-1] in tokenizer.byte_ids:
        del tail[-1]
    return tail
