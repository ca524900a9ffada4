"""The messages of a conversation: objects with `role` and `content`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import InputError

ROLES = ("system", "developer", "user", "assistant", "tool")
INSTRUCTIONS = ("system", "developer")  # roles that are kept if a conversation is shortened
Message = Mapping[str, Any]  # {"role": ..., "content": ...}


def check_messages(messages: Sequence[Message], where: str = "") -> list[dict[str, str]]:
    """The messages of a conversation with their roles and contents.

    Args:
        messages: objects with `role` and `content`; the content may be a list of {"type": "text",
            "text": ...}, which are joined with line breaks.
        where: the beginning of an error message, for example "chat.jsonl:3: ".

    Returns:
        New objects whose contents are strings.

    Raises:
        InputError: a message is not valid.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(f"{where}messages must be a list, not {type(messages).__name__}")
    if not messages:
        raise InputError(f"{where}there are no messages")
    checked = []
    for i, message in enumerate(messages):
        place = f"{where}message {i + 1}"
        if not isinstance(message, Mapping):
            raise InputError(f'{place} must be an object with "role" and "content"')
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise InputError(f"{place}: role must be one of {', '.join(ROLES)}, not {role!r:.40}")
        if isinstance(content, list):
            parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
            if None in parts:
                raise InputError(
                    f"{place}: content has a part without text; only "
                    '{"type": "text", "text": ...} is supported'
                )
            content = "\n".join(map(str, parts))
        if not isinstance(content, str):
            kind = type(content).__name__
            raise InputError(
                f"{place}: content must be a string or a list of text parts, not {kind}"
            )
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise InputError(
                f"{place}: content contains a lone surrogate (U+D800 to U+DFFF), which is not "
                "valid text: remove it"
            )
        checked.append({"role": role, "content": content})
    return checked
