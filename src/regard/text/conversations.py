"""Conversations as training data: rows `{"messages": [{"role": ..., "content": ...}, ...]}`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import InputError
from regard.text.corpus import DOCUMENTS, Document, RowFormat, is_json_lines, read_documents
from regard.text.messages import check_messages
from regard.text.reading import Position
from regard.text.records import Columns, Field, Record, find_columns
from regard.text.tables import read_records, table_format

MESSAGES = "messages"


class Conversation(NamedTuple):
    line: int
    messages: tuple[tuple[str, str], ...]  # role, content
    where: str = ""  # the location for error messages: "chat.jsonl:3"

    @property
    def objects(self) -> list[dict[str, str]]:
        """The messages as objects with `role` and `content`."""
        return [{"role": role, "content": content} for role, content in self.messages]

    @property
    def text(self) -> str:
        """The contents of all messages."""
        return "\n".join(content for _, content in self.messages)


def _any_conversation(record: Record) -> Conversation:
    messages = check_messages(record.values[MESSAGES], f"{record.where}: ")
    turns = tuple((message["role"], message["content"]) for message in messages)
    return Conversation(record.line, turns, record.where)


def _conversation(record: Record) -> Conversation:
    conversation = _any_conversation(record)
    roles = [role for role, _ in conversation.messages]
    if "assistant" not in roles:
        raise record.error("no message has the role assistant: there is nothing to learn")
    if "user" not in roles[: roles.index("assistant")]:
        raise record.error(
            "a message with the role user must come before the first one of the assistant"
        )
    return conversation


FIELDS = (Field(MESSAGES, ("conversation",)),)
CONVERSATIONS = RowFormat(FIELDS, _conversation)
ANY_CONVERSATION = RowFormat(FIELDS, _any_conversation)  # also without an assistant turn

# A file has one of the two; `format_of` and `has_conversations` determine which.
EITHER = tuple(
    Field(field.name, field.aliases, required=False)
    for field in (*DOCUMENTS.fields, *CONVERSATIONS.fields)
)


def format_of(names: Sequence[str], columns: Columns) -> RowFormat[Any]:
    """The format of rows with these columns.

    Args:
        names: the names of the columns.
        columns: field name -> column name, for columns without a usual name.

    Returns:
        The format for conversations if there is a messages column and no text column; otherwise the
        format for documents.
    """
    try:
        chosen = find_columns(names, EITHER, columns, "", nested=True)
    except InputError:  # read_documents reports the error
        return DOCUMENTS
    return CONVERSATIONS if MESSAGES in chosen and "text" not in chosen else DOCUMENTS


def has_conversations(path: Path, columns: Columns | None = None) -> bool:
    """Whether the first row of a file is a conversation.

    Args:
        path: the file.
        columns: field name -> column name, for columns without a usual name.

    Raises:
        InputError: the messages column does not exist.
    """
    if table_format(path) is None and not is_json_lines(path):
        return False
    try:
        first = next(iter(read_records(path, EITHER, columns)), None)
    except InputError:
        if columns and MESSAGES in columns:
            raise
        return False  # read_documents reports the error
    return first is not None and MESSAGES in first.values and "text" not in first.values


def read_texts(
    path: Path,
    position: Position | None = None,
    whole: bool = False,
    columns: Columns | None = None,
) -> Iterator[Document | Conversation]:
    """Yield the documents or conversations of a file.

    Args:
        path: the file; its first row determines which of the two it contains.
        position: called from time to time with the number of bytes read.
        whole: a plain text is one document; see `read_documents`.
        columns: field name -> column name, for columns without a usual name.

    Raises:
        InputError: the file cannot be read, or a row is not valid.
    """
    if not has_conversations(path, columns):
        return read_documents(path, position, whole, columns)
    return CONVERSATIONS.read(path, position, columns)
