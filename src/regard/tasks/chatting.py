"""Chat with a model: generate the next assistant turn.

The chat template of the model turns the messages into tokens. If a conversation is too long, its
oldest messages are left out. A reply ends at <eos>, at the token or text that ends a turn in the
template, or at the length limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.config.sections import DecodingConfig
from regard.errors import InputError
from regard.tasks.lazy import runtime
from regard.text.chat import ChatTemplate, TurnEnds
from regard.text.messages import Message

if TYPE_CHECKING:
    from regard.tasks.generate import Generate
    from regard.tasks.runtime import Request, Tokenizer, Transformer

REPLY_SHARE = 4  # at least 1/4 of the tokens that a model can read is reserved for the reply


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation, ready to be continued.

    Attributes:
        request: the request for the next turn.
        ends: the tokens and texts that end the turn.
        dropped: the number of old messages that were left out.
    """

    request: Request
    ends: TurnEnds
    dropped: int


def template_of(task: Generate) -> ChatTemplate:
    """The chat template of a model.

    Raises:
        InputError: the model has none.
    """
    if task.chat_template is None:
        raise InputError(
            "this model has no chat template: train it on conversations "
            '({"messages": [...]}), or import a model that has one'
        )
    return task.chat_template


def chat_prompt(
    task: Generate, messages: Sequence[Message], longest: int, max_length: int
) -> ChatPrompt:
    """The prompt for the next turn of the assistant.

    Args:
        task: the task of the model.
        messages: the messages, each with `role` and `content`.
        longest: the largest number of tokens of the conversation including the reply.
        max_length: the largest number of tokens of the reply.

    Returns:
        The prompt; its request has room for the reply.

    Raises:
        InputError: the model has no chat template, the template refuses the conversation, or the
            last message is too long. A model that was trained on lines (data.dialogue) reads the
            end of a message that is too long.
    """
    template, tokenizer = template_of(task), task.tokenizer
    room = max(1, min(max_length, longest // REPLY_SHARE))
    ids, dropped = template.fit(tokenizer, messages, max(1, longest - room))
    if not ids:
        raise InputError("the chat template produces no text for this conversation")
    ends = template.turn_ends(tokenizer)
    eos = ends.ids[0] if ends.ids else -1
    limit = min(max_length, max(room, longest - len(ids)))
    return ChatPrompt(runtime.Request(ids, limit=limit, bos=tokenizer.bos, eos=eos), ends, dropped)


def dropped_note(count: int, longest: int) -> str:
    """The warning that the oldest messages of a conversation are left out."""
    noun = "message was" if count == 1 else f"{count} messages were"
    return f"the oldest {noun} left out: the model reads at most {longest:,} tokens"


def stream_reply(
    model: Transformer, prompt: ChatPrompt, options: DecodingConfig, tokenizer: Tokenizer
) -> Iterator[str]:
    """Yield the next assistant turn in parts, each as soon as it is final.

    Args:
        model: the model.
        prompt: the conversation.
        options: the decoding options.
        tokenizer: the tokenizer of the model.
    """
    search = runtime.Search(model, [prompt.request], options)
    text = ReplyText(tokenizer, prompt)
    for _ in search:
        yield from text.add(search.settled())
        if text.ended:
            return
    yield from text.add(search.predictions()[0].token_ids)
    yield from text.finish()


class ReplyText:
    """The text of a reply, which grows token by token until the turn ends.

    Attributes:
        ended: whether a token or a text that ends a turn has appeared.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: ChatPrompt) -> None:
        self.stream = runtime.TextStream(tokenizer, prompt.request.source)
        self.ends, self.count, self.ended = prompt.ends, 0, False
        self._waiting = ""  # text that may be the beginning of one that ends the turn

    def add(self, tokens: Sequence[int]) -> Iterator[str]:
        """Yield the new text. tokens: all tokens of the reply so far."""
        for token in tokens[self.count :]:
            self.count += 1
            if token in self.ends.ids:
                yield from self.finish()
                return
            self._waiting += self.stream.add(token)
            yield from self._flush()
            if self.ended:
                return

    def finish(self) -> Iterator[str]:
        """Yield the rest of the text, and end it."""
        if not self.ended:
            self._waiting += self.stream.end()
            yield from self._flush(final=True)
            self.ended = True

    def _flush(self, final: bool = False) -> Iterator[str]:
        text, stops = self._waiting, self.ends.texts
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        known = len(text)
        if places:
            known, self.ended = min(places), True
        elif not final:
            known = next(
                (at for at in range(len(text)) if any(s.startswith(text[at:]) for s in stops)),
                len(text),
            )
        self._waiting = "" if self.ended else text[known:]
        if known:
            yield text[:known]
