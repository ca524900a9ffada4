"""Chat templates: turn a conversation into token ids.

A chat template is a Jinja template that writes a conversation as text, following the conventions of
Hugging Face. Special tokens in the template's own text become special tokens; the same characters
in a message are ordinary text, so a message cannot end its turn or begin another one.

Models that regard trains use the same mechanism with a built-in template (`default_template`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from regard.errors import InputError
from regard.text.messages import INSTRUCTIONS, Message, check_messages
from regard.text.sandbox import TemplateError, check_template, render
from regard.text.templates import CHATML, TEXT_ROLES, TURNS

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

PRIVATE = range(0xF0000, 0xFFFFE)  # private-use code points
PROBE = "Zq7x"  # an answer text that no template contains


@dataclass(frozen=True)
class TurnEnds:
    """The tokens and texts that end an assistant turn.

    Attributes:
        ids: tokens, the usual one first.
        texts: texts, for a template that ends turns without a special token.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncodedConversation:
    """A conversation for training.

    Attributes:
        ids: all token ids.
        spans: (start, end) of the tokens that the assistant wrote, with the token that ends the
            turn; one for each turn of the assistant.
    """

    ids: list[int]
    spans: list[tuple[int, int]]

    @property
    def mask(self) -> list[bool]:
        """For each token, whether it is in a span."""
        mask = [False] * len(self.ids)
        for start, end in self.spans:
            mask[start:end] = [True] * (end - start)
        return mask


class ChatTemplate:
    """A chat template.

    Args:
        source: the Jinja template.

    The template is compiled when it is first used; see `check`.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._libraries: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"ChatTemplate({len(self.source):,} characters)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and other.source == self.source

    def __hash__(self) -> int:
        return hash(self.source)

    def check(self) -> None:
        """Check that the template is valid.

        Raises:
            InputError: the syntax of the template is wrong, or it is too large.
        """
        check_template(self.source)

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of a conversation.

        Args:
            messages: the messages, each with `role` and `content`.
            add_generation_prompt: whether to add the beginning of an assistant's turn.
            **variables: additional variables of the template, such as bos_token.

        Returns:
            The text, with the names of special tokens.

        Raises:
            InputError: a message is not valid, or the template refuses the conversation.
        """
        return render(self.source, {
            "tools": None, "documents": None, **variables,
            "messages": check_messages(messages), "add_generation_prompt": add_generation_prompt,
        })  # fmt: skip

    def encode(
        self, tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> list[int]:
        """The token ids of a conversation.

        If no message contains the name of a special token, the ids are those of the whole text, as
        in `transformers`. Otherwise the text is split at the special tokens of the template.

        Args:
            tokenizer: the tokenizer of the model.
            messages: the messages, each with `role` and `content`.
            add_generation_prompt: whether to add the beginning of an assistant's turn.

        Returns:
            The token ids that the model reads.

        Raises:
            InputError: a message is not valid, or the template refuses the conversation.
        """
        protected = _Protected(tokenizer, check_messages(messages))
        text = self._render(tokenizer, protected.messages, add_generation_prompt)
        return [id for id, _ in self._tokens(tokenizer, text, protected)]

    def encode_training(
        self, tokenizer: Tokenizer, messages: Sequence[Message]
    ) -> EncodedConversation:
        """The token ids of a conversation, with the positions of the assistant's turns.

        Args:
            tokenizer: the tokenizer of the model.
            messages: the messages, each with `role` and `content`.

        Returns:
            The token ids and the spans.

        Raises:
            InputError: a message is not valid, the template rejects the conversation, or the text
                of earlier turns depends on later ones.
        """
        protected = _Protected(tokenizer, check_messages(messages))
        every = protected.messages
        text = self._render(tokenizer, every, False)
        places = []  # characters of each turn of the assistant
        for i, message in enumerate(every):
            if message["role"] != "assistant":
                continue
            before = self._render(tokenizer, every[:i], True)
            until = self._render(tokenizer, every[: i + 1], False)
            if not text.startswith(before) or not until.startswith(before):
                raise InputError(
                    f"the chat template changes earlier turns (message {i + 1}), so it cannot be "
                    "used for training"
                )
            same = next((n for n, (a, b) in enumerate(zip(text, until, strict=False)) if a != b),
                        min(len(text), len(until)))  # fmt: skip
            places.append((len(before), same))
        tokens = list(self._tokens(tokenizer, text, protected, {at for p in places for at in p}))
        starts, ids = [start for _, start in tokens], [id for id, _ in tokens]
        ends, spans = set(self.turn_ends(tokenizer).ids), []
        for start, end in places:
            first, last = bisect_left(starts, start), bisect_left(starts, end)
            ending = next((n for n in range(first, last) if ids[n] in ends), last - 1)
            spans.append((first, ending + 1))
        return EncodedConversation(ids, spans)

    def turn_ends(self, tokenizer: Tokenizer) -> TurnEnds:
        """What ends an assistant turn: <eos>, and what the template writes after a turn.

        Args:
            tokenizer: the tokenizer of the model.

        Returns:
            The tokens and the texts at which an answer ends.
        """
        ids = [tokenizer.eos] if tokenizer.eos >= 0 else []
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": PROBE}]
        try:
            text = self._render(tokenizer, turns, False)
        except TemplateError:
            return TurnEnds(tuple(ids))
        after = text[text.rfind(PROBE) + len(PROBE) :] if PROBE in text else ""
        specials = special_tokens(tokenizer)
        match = _pattern(specials).search(after)
        if match is None:
            return TurnEnds(tuple(ids), (after,) if after else ())
        id = specials[match[0]]
        if not after[: match.start()].strip():
            ids = [id, *(other for other in ids if other != id)]
        return TurnEnds(tuple(ids))

    def fit(
        self, tokenizer: Tokenizer, messages: Sequence[Message], longest: int
    ) -> tuple[list[int], int]:
        """The token ids of the most recent part of a conversation that fits into a model.

        Instructions at the beginning are kept. Of the other messages, the oldest ones are left out
        so that the rest begins with a user message.

        Args:
            tokenizer: the tokenizer of the model.
            messages: the messages.
            longest: the largest number of tokens.

        Returns:
            The token ids, and the number of messages that were left out.

        Raises:
            InputError: the instructions and the last message alone have too many tokens.
        """
        every = check_messages(messages)
        ids = self.encode(tokenizer, every)
        if len(ids) <= longest:
            return ids, 0
        kept = next((i for i, m in enumerate(every) if m["role"] not in INSTRUCTIONS), len(every))
        starts = [i for i in range(kept + 1, len(every)) if every[i]["role"] == "user"]

        def shortened(start: int) -> list[int]:
            return self.encode(tokenizer, [*every[:kept], *every[start:]])

        # Find the fewest messages to leave out; a later start means fewer tokens.
        place = bisect_left(starts, True, key=lambda start: len(shortened(start)) <= longest)
        if place == len(starts):
            count = len(shortened(starts[-1])) if starts else len(ids)
            raise InputError(
                f"the last message has {count:,} tokens including the instructions, but the model "
                f"reads at most {longest:,}: shorten it"
            )
        return shortened(starts[place]), starts[place] - kept

    def _render(
        self, tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool
    ) -> str:
        names = {id: name for name, id in special_tokens(tokenizer).items()}
        variables = {
            f"{name}_token": names.get(getattr(tokenizer, name), "")
            for name in ("bos", "eos", "unk", "sep", "cls", "mask")
        }
        return render(self.source, {
            "tools": None, "documents": None, **variables, "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        })  # fmt: skip

    def _tokens(
        self, tokenizer: Tokenizer, text: str, protected: _Protected, cuts: set[int] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Each token of a text with the position of its first character. No token crosses a cut,
        unless the library tokenises the whole text."""
        library = None if protected.hidden else self._library(tokenizer)
        specials, at = special_tokens(tokenizer), 0
        matches = list(_pattern(specials).finditer(text))
        if library is not None:
            encoding = library.encode(text, add_special_tokens=False)
            # A normalizer can turn other characters into the name of a special token.
            ends = {tokenizer.bos, tokenizer.eos, tokenizer.cls, tokenizer.sep, tokenizer.mask}
            reserved = tokenizer.special_ids - ({tokenizer.unk} - ends)
            if sum(id in reserved for id in encoding.ids) <= len(matches):
                yield from zip(encoding.ids, (start for start, _ in encoding.offsets), strict=True)
                return
        for match in [*matches, None]:
            end = len(text) if match is None else match.start()
            bounds = sorted({at, end, *(cut for cut in cuts or () if at < cut < end)})
            for i, start in enumerate(bounds[:-1]):
                for id in tokenizer.encode(protected.restore(text[start : bounds[i + 1]])):
                    yield id, start
            if match is not None:
                yield specials[match[0]], match.start()
                at = match.end()

    def _library(self, tokenizer: Tokenizer) -> Any:
        """A copy of the library tokenizer that recognises special tokens; None if there is none, or
        if its special tokens are not those of the model."""
        if tokenizer not in self._libraries:
            library = getattr(tokenizer, "fast", None)
            if library is None or getattr(tokenizer, "first", None) != 0:
                copy = None
            else:
                import tokenizers

                copy = tokenizers.Tokenizer.from_str(library.to_str())
                copy.no_truncation()
                copy.no_padding()
                known = {t.content for t in copy.get_added_tokens_decoder().values() if t.special}
                copy = copy if known >= special_tokens(tokenizer).keys() else None
            self._libraries[tokenizer] = copy
        return self._libraries[tokenizer]


class _Protected:
    """Messages in which each name of a special token is replaced by a private character.

    Attributes:
        messages: the messages with these characters.
        hidden: the name that each character represents.
    """

    def __init__(self, tokenizer: Tokenizer, messages: list[dict[str, str]]) -> None:
        # A template may change the case of a text, so the search ignores case.
        pattern = _pattern(special_tokens(tokenizer), re.IGNORECASE)
        contents = [message["content"] for message in messages]
        names = sorted({name for text in contents for name in pattern.findall(text)})
        self.hidden: dict[str, str] = {}
        self.messages = messages
        if names:
            used = set().union(*contents)
            free = (chr(code) for code in PRIVATE if chr(code) not in used)
            self.hidden = {next(free): name for name in names}
            signs = {name: sign for sign, name in self.hidden.items()}
            self.messages = [
                {**message, "content": pattern.sub(lambda m: signs[m[0]], message["content"])}
                for message in messages
            ]

    def restore(self, text: str) -> str:
        """The text with the names restored."""
        for sign, name in self.hidden.items():
            text = text.replace(sign, name)
        return text


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


def _pattern(specials: Mapping[str, int], flags: int = 0) -> re.Pattern[str]:
    """Matches the name of any special token, the longest first."""
    names = sorted(specials, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or "(?!)", flags)


def default_template(tokenizer: Tokenizer) -> ChatTemplate:
    """The template for a model that is trained on conversations and has no template of its own.

    Args:
        tokenizer: the tokenizer of the model.

    Returns:
        The template, whose turns end with a special token.

    Raises:
        InputError: the vocabulary has no token that could end a turn.
    """
    if getattr(tokenizer, "first", None) != 0:
        return ChatTemplate(TURNS)
    if special_tokens(tokenizer).keys() >= {"<|im_start|>", "<|im_end|>"}:
        return ChatTemplate(CHATML)
    if tokenizer.eos < 0:
        raise InputError("the vocabulary has no <eos>, which must end the turns of a conversation")
    return ChatTemplate(TEXT_ROLES)
