"""Chat templates: turn a conversation into token ids.

A chat template is a Jinja template that writes a conversation as text, following the conventions of
Hugging Face. Special tokens in the template's own text become special tokens; the same characters
in a message are ordinary text, so a message cannot end its turn or begin another one.

Models that regard trains use the same mechanism with a built-in template (`default_template`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from regard.errors import InputError
from regard.text.messages import INSTRUCTIONS, Message, check_messages
from regard.text.sandbox import Sandbox, check_template
from regard.text.special_names import Protected, SpecialNames, special_tokens
from regard.text.template_limits import TemplateError
from regard.text.templates import CHATML, TEXT_ROLES, TURNS

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

PROBE = "Zq7x"  # the text of a reply; no template contains it
# The date for templates that write the current date, in training: the same tokens on each day.
TRAINING_DATE = datetime(2025, 1, 1, 12)


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
        plain: whether the template only joins the messages, so that a text that is too long can be
            truncated at its beginning.

    The template is compiled when it is first used; see `check`. What depends on a tokenizer is
    computed once for each tokenizer.
    """

    def __init__(self, source: str, plain: bool = False) -> None:
        self.source, self.plain = source, plain
        self._libraries: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
        self._names: WeakKeyDictionary[Tokenizer, SpecialNames] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[Tokenizer, TurnEnds] = WeakKeyDictionary()

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
        writer = _Writer(Sandbox(self.source), variables)
        return writer.write(check_messages(messages), add_generation_prompt)

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
        return self._encode(
            tokenizer, check_messages(messages), self._writer(tokenizer), add_generation_prompt
        )

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
            InputError: a message is not valid, the template rejects the conversation, the text of
                earlier turns depends on later ones, or a turn has no tokens.
        """
        protected = Protected(self._special_names(tokenizer), check_messages(messages))
        every, date = protected.messages, {"strftime_now": TRAINING_DATE.strftime}
        writer = self._writer(tokenizer, renewed=True, **date)
        text = writer.write(every, False)
        places = []  # characters of each turn of the assistant
        for i, message in enumerate(every):
            if message["role"] == "assistant":
                before, until = writer.write(every[:i], True), writer.write(every[: i + 1], False)
                if (end := self._end_of_turn(tokenizer, text, before, until)) < 0:
                    raise InputError(
                        f"the chat template writes message {i + 1} differently when other "
                        "messages follow, so it cannot be used for training"
                    )
                places.append((i + 1, len(before), end))
        cuts = {at for _, *place in places for at in place}
        tokens = list(self._tokens(tokenizer, text, protected, cuts))
        starts, ids = [start for _, start in tokens], [id for id, _ in tokens]
        ends, spans = set(self.turn_ends(tokenizer).ids), []
        for number, start, end in places:
            first, last = bisect_left(starts, start), bisect_left(starts, end)
            if first == last:
                raise InputError(
                    f"message {number} produces no tokens: the chat template omits its text"
                )
            ending = next((n for n in range(first, last) if ids[n] in ends), last - 1)
            spans.append((first, ending + 1))
        return EncodedConversation(ids, spans)

    def _end_of_turn(self, tokenizer: Tokenizer, text: str, before: str, until: str) -> int:
        """The position in a conversation at which a turn ends; -1 if the template writes the turn
        differently when others follow. At the end of a conversation, a template may write further
        white space and special tokens.

        Args:
            tokenizer: the tokenizer.
            text: the conversation.
            before: the conversation before the turn.
            until: the conversation up to the end of the turn.
        """
        if not text.startswith(before) or not until.startswith(before):
            return -1
        pairs = enumerate(zip(text, until, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(text), len(until)))
        rest = self._special_names(tokenizer).pattern.sub("", until[same:])
        return -1 if rest.strip() else same

    def turn_ends(self, tokenizer: Tokenizer) -> TurnEnds:
        """What ends an assistant turn: <eos>, and what the template writes after a turn.

        Args:
            tokenizer: the tokenizer of the model.

        Returns:
            The tokens and the texts at which a reply ends.
        """
        if tokenizer not in self._ends:
            self._ends[tokenizer] = self._find_ends(tokenizer)
        return self._ends[tokenizer]

    def _find_ends(self, tokenizer: Tokenizer) -> TurnEnds:
        ids = [tokenizer.eos] if tokenizer.eos >= 0 else []
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": PROBE}]
        try:
            text = self._writer(tokenizer).write(turns, False)
        except TemplateError:
            return TurnEnds(tuple(ids))
        after = text[text.rfind(PROBE) + len(PROBE) :] if PROBE in text else ""
        names = self._special_names(tokenizer)
        match = names.pattern.search(after)
        if match is None:
            return TurnEnds(tuple(ids), (after,) if after else ())
        id = names.ids[match[0]]
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
            InputError: a message is not valid, all messages are empty, the template refuses the
                conversation, or the instructions and the last message alone have too many tokens
                and the template is not `plain`.
        """
        every, writer = check_messages(messages), self._writer(tokenizer)
        if not any(message["content"].strip() for message in every):
            raise InputError("all messages are empty: at least one must contain text")
        ids = self._encode(tokenizer, every, writer)
        if len(ids) <= longest:
            return ids, 0
        kept = next((i for i, m in enumerate(every) if m["role"] not in INSTRUCTIONS), len(every))
        starts = [i for i in range(kept + 1, len(every)) if every[i]["role"] == "user"]

        def shortened(start: int) -> list[int]:
            return self._encode(tokenizer, [*every[:kept], *every[start:]], writer)

        # Find the fewest messages to leave out; a later start means fewer tokens.
        place = bisect_left(starts, True, key=lambda start: len(shortened(start)) <= longest)
        if place < len(starts):
            return shortened(starts[place]), starts[place] - kept
        if self.plain:
            return ids[-longest:], starts[-1] - kept if starts else 0
        count = len(shortened(starts[-1])) if starts else len(ids)
        what, short = "the last message has", "it"
        if kept:
            what, short = "the instructions and the last message have", "them"
        raise InputError(
            f"{what} {count:,} tokens, but only {longest:,} fit beside the reply: shorten {short}"
        )

    def _special_names(self, tokenizer: Tokenizer) -> SpecialNames:
        if tokenizer not in self._names:
            self._names[tokenizer] = SpecialNames(tokenizer)
        return self._names[tokenizer]

    def _writer(self, tokenizer: Tokenizer, renewed: bool = False, **variables: Any) -> _Writer:
        return _Writer(
            Sandbox(self.source, renewed), self._special_names(tokenizer).variables | variables
        )

    def _encode(
        self, tokenizer: Tokenizer, messages: list[dict[str, str]], writer: _Writer,
        add_generation_prompt: bool = True,
    ) -> list[int]:  # fmt: skip
        """`encode` for messages that were checked."""
        protected = Protected(self._special_names(tokenizer), messages)
        text = writer.write(protected.messages, add_generation_prompt)
        return [id for id, _ in self._tokens(tokenizer, text, protected)]

    def _tokens(
        self, tokenizer: Tokenizer, text: str, protected: Protected, cuts: set[int] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Each token of a text with the position of its first character. No token crosses a cut,
        unless the library tokenises the whole text."""
        library = None if protected.hidden else self._library(tokenizer)
        names, at = self._special_names(tokenizer), 0
        matches = list(names.pattern.finditer(text))
        if library is not None:
            encoding = library.encode(text, add_special_tokens=False)
            # A normalizer can turn other characters into the name of a special token.
            expected = [id for match in matches if (id := names.ids[match[0]]) in names.watched]
            if [id for id in encoding.ids if id in names.watched] == expected:
                yield from zip(encoding.ids, (start for start, _ in encoding.offsets), strict=True)
                return
        for match in [*matches, None]:
            end = len(text) if match is None else match.start()
            bounds = sorted({at, end, *(cut for cut in cuts or () if at < cut < end)})
            for i, start in enumerate(bounds[:-1]):
                for id in tokenizer.encode(protected.restore(text[start : bounds[i + 1]])):
                    yield id, start
            if match is not None:
                yield names.ids[match[0]], match.start()
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
                copy = copy if known >= self._special_names(tokenizer).ids.keys() else None
            self._libraries[tokenizer] = copy
        return self._libraries[tokenizer]


@dataclass(frozen=True)
class _Writer:
    """Writes conversations with a template and its variables."""

    sandbox: Sandbox
    variables: Mapping[str, Any]

    def write(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return self.sandbox.render({
            "tools": None, "documents": None, **self.variables, "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        })  # fmt: skip


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
