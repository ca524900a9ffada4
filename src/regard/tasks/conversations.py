"""Conversations as training examples of the task generate.

The chat template of the model turns a conversation into tokens. The model learns to predict the
assistant turns, including the token that ends each turn; all other tokens are only context. A store
of conversations has two sides: the tokens, and the bounds of the tokens to learn (start, end,
start, end, ...). All tokens of a document in such a store are learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from regard.config.sections import Config
from regard.errors import InputError
from regard.files import read_bounded, write_file
from regard.tasks.creation import Tokenizers
from regard.tasks.documents import Documents, Windows
from regard.tasks.examples import Say
from regard.tasks.lazy import np, runtime, torch
from regard.tasks.task import Array
from regard.text.chat import ChatTemplate, EncodedConversation, default_template
from regard.text.conversations import (
    EITHER,
    Conversation,
    format_of,
    has_conversations,
    read_texts,
)
from regard.text.corpus import CorpusReport, Document, RowFormat
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.records import Columns, check_columns
from regard.text.sandbox import LARGEST_TEMPLATE
from regard.text.templates import LINES
from regard.training.names import CHAT_TEMPLATE

if TYPE_CHECKING:
    from regard.tasks.runtime import Batch, Chunk, Store

C = TypeVar("C", bound="Conversations")
DIALOGUE = ChatTemplate(LINES, plain=True)
RUNS = 1  # the side of a store that bounds the tokens to learn


@dataclass(eq=False, repr=False)
class Conversations(Documents):
    """A task whose training data is plain text or conversations.

    Attributes:
        template: the chat template of the model; None if it has none.
        dialogue: whether each line of a document is one turn (data.dialogue).
    """

    template: ChatTemplate | None = None
    dialogue: bool = False

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template with which the model reads a conversation; None if it cannot read one."""
        if self.template is None and self.dialogue:
            return DIALOGUE
        return self.template

    # ---- creation -----------------------------------------------------------------------

    @classmethod
    def make(
        cls: type[C],
        config: Config,
        tokenizers: Tokenizers,
        template: ChatTemplate | None = None,
        conversations: bool = False,
    ) -> C:
        """See `Task.make`; conversations: whether the model is trained on conversations."""
        if conversations and template is None:
            template = default_template(tokenizers[1])
        data = config.data
        return cls(
            tokenizers[1], config.model.style, data.max_length, template=template,
            dialogue=data.dialogue,
        )  # fmt: skip

    @classmethod
    def learned(cls, files: Sequence[Path], config: Config) -> dict[str, Any]:
        conversations = cls.any_conversations(files, config)
        if conversations and config.data.dialogue:
            raise InputError(
                "data.dialogue=true is for plain text with one turn per line: leave it out for "
                'files with "messages"'
            )
        return {"conversations": conversations}

    @classmethod
    def saved(cls, folder: Path, config: Config) -> dict[str, Any]:
        return {"template": read_template(folder / CHAT_TEMPLATE)}

    def started_from(self, folder: Path) -> None:
        template = read_template(folder / CHAT_TEMPLATE)
        if template is not None and not self.dialogue:
            self.template = template

    def with_config(self: C, config: Config) -> C:
        return self.make(config, (self.tokenizer, self.tokenizer), template=self.template)

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.template is not None:
            write_file(folder / CHAT_TEMPLATE, self.template.source)

    # ---- reading ------------------------------------------------------------------------

    @classmethod
    def format_of(cls, names: Sequence[str], columns: Columns) -> RowFormat[Any]:
        return format_of(names, columns)

    @classmethod
    def check_columns(cls, columns: Columns) -> None:
        check_columns(columns, EITHER)

    @classmethod
    def any_conversations(cls, files: Sequence[Path], config: Config) -> bool:
        """Whether a file contains conversations."""
        paths = cls.data_files(files, config)
        return any(has_conversations(path, config.data.columns) for path in paths)

    @classmethod
    def read_all(
        cls,
        files: Sequence[Path],
        config: Config,
        say: Say | None = None,
        position: Position | None = None,
    ) -> Iterator[Any]:
        whole, columns = config.data.documents == "file", config.data.columns
        for path in files:
            yield from read_texts(path, position, whole, columns)

    def check(self, example: Document | Conversation) -> None:
        if isinstance(example, Conversation) and self.chat_template is None:
            raise InputError(
                f"{example.where}: this row is a conversation, but the model has no chat template: "
                "use plain text, or a model that was trained on conversations"
            )

    # ---- token ids ----------------------------------------------------------------------

    def encode_examples(
        self, examples: Sequence[Document | Conversation], report: CorpusReport | None = None
    ) -> list[EncodedConversation]:
        """Encode documents and conversations. The first token of every sequence is only context.

        Args:
            examples: the examples.
            report: counts conversations that are shortened or left out.

        Returns:
            The token ids of each example, with the bounds of those to learn. Conversations of which
            not even one assistant turn fits are left out.

        Raises:
            InputError: the template rejects a conversation; the message says where it is.
        """
        first = self.tokenizer.first_read
        last = [self.tokenizer.eos] if self.tokenizer.eos >= 0 else []
        documents = [example.text for example in examples if isinstance(example, Document)]
        texts = iter(self.tokenizer.encode_batch(documents))
        rows = []
        for example in examples:
            if isinstance(example, Conversation):
                row = self.encode_conversation(example, report)
            else:
                ids = [first, *next(texts), *last]
                row = EncodedConversation(ids, [(1, len(ids))])
            if row is not None:
                rows.append(row)
        return rows

    def encode_conversation(
        self, example: Conversation, report: CorpusReport | None = None
    ) -> EncodedConversation | None:
        """Encode a conversation. If it is too long, it is cut after the last assistant turn that
        fits; None if not even one fits."""
        self.check(example)
        template = self.chat_template
        assert template is not None
        try:
            whole = template.encode_training(self.tokenizer, example.objects)
        except InputError as error:
            raise InputError(f"{example.where}: {error}") from None
        most = self.longest + 1  # the last token is not read
        if len(whole.ids) <= most:
            return whole
        spans = [span for span in whole.spans if span[1] <= most]
        if report is not None and spans:
            report.note("cut after a turn")
        elif report is not None:
            report.skip("too long")
        return EncodedConversation(whole.ids[: spans[-1][1]], spans) if spans else None

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        if not self.any_conversations(files, config):
            return super().build(files, folder, config, quiet)
        template = self.chat_template

        def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
            examples = self.read(files, config, position=position)
            for chunk in in_chunks(examples, lambda example: len(example.text)):
                rows = self.encode_examples(chunk, report)
                bounds = [[bound for span in row.spans for bound in span] for row in rows]
                yield [[row.ids for row in rows], bounds]

        source = "" if template is None else template.source
        identity = ["conversations", self.tokenizer.fingerprint, self.longest, source]
        identity += [config.data.documents == "file", *self.reading_identity(files, config)]
        types = [runtime.token_type(self.tokenizer.size), "uint32"]
        return runtime.build(self.data_files(files, config), identity, types, encode, folder, quiet)

    def _lengths(self, store: Store) -> Array:
        # The first token of a sequence in a store with two sides is only context.
        return store.lengths[0] - 1 if store.sides > 1 else super()._lengths(store)

    def masked_batch(self, store: Store, windows: Windows, device: torch.device) -> Batch:
        """Create a batch from windows of a store with two sides; only the tokens to learn have
        labels."""
        inputs, targets, places, total = [], [], [], 0
        for document, start, length in zip(*windows, strict=True):
            ids = store.tokens(0, int(document))
            learned = np.zeros(len(ids), dtype=bool)
            bounds = store.tokens(RUNS, int(document)).tolist()
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                learned[first:end] = True
            chosen = np.flatnonzero(learned[start + 1 : start + 1 + length])
            inputs.append(ids[start : start + length])
            targets.append(ids[start + 1 : start + 1 + length][chosen])
            places.append(total + chosen)
            total += int(length)
        labels, where = (
            torch.from_numpy(np.concatenate(side).astype(np.int64)).to(device)
            for side in (targets, places)
        )
        return runtime.Batch(None, runtime.packed(inputs, device), labels, where)

    def learned_tokens(self, store: Store) -> tuple[int, int]:
        """The number of tokens to learn in a store, and the number of their bytes."""
        sizes, count, total = self.tokenizer.sizes, 0, 0
        for i in range(len(store)):
            ids = store.tokens(0, i)
            bounds = [0, len(ids)] if store.sides == 1 else store.tokens(RUNS, i).tolist()
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                count += end - first
                total += int(sizes[ids[first:end]].sum())
        return count, total


def read_template(path: Path) -> ChatTemplate | None:
    """The chat template of a model folder; None if the folder has none.

    Raises:
        InputError: the file is too large or not UTF-8.
    """
    if not path.is_file():
        return None
    try:
        content = read_bounded(path, 4 * LARGEST_TEMPLATE, "a chat template")
        return ChatTemplate(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8") from None
