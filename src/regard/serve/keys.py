"""API keys: a file with one line `NAME SHA256` for each key.

The file has only hashes: a key is shown once, when it is created. Keys are random and long, so a
plain hash is enough. The file is read again when it changes; a file that cannot be read or parsed
leaves the previous keys in use.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from regard.console import warn
from regard.errors import InputError

LINE = re.compile(r"([A-Za-z0-9._@-]{1,64})\s+([0-9a-f]{64})")
MOST_BYTES = 2**20  # of a key file
MOST_LENGTH = 512  # characters of a key that is compared


class KeyFile:
    """The keys of a service.

    Args:
        path: the file.
        report: called with a message if the file changed and cannot be used.

    Raises:
        InputError: the file cannot be used.
    """

    def __init__(self, path: Path, report: Callable[[str], None] = warn) -> None:
        self.path, self._report = path, report
        self._version = self._file_version()
        self._hashes = read_keys(path)

    def name_of(self, key: str) -> str | None:
        """The name of a key, or None if it is unknown. Takes the same time for every key of the
        same length."""
        self._reload()
        digest = sha256(key[:MOST_LENGTH].encode("utf-8", "surrogatepass")).hexdigest()
        name = None
        for known_name, known_digest in self._hashes:
            if hmac.compare_digest(digest, known_digest):
                name = known_name
        return name

    def _reload(self) -> None:
        """Read the file again if it changed."""
        version = self._file_version()
        if version == self._version:
            return
        self._version = version
        try:
            self._hashes = read_keys(self.path)
        except InputError as error:
            self._report(f"{error}; the previous keys stay in use")

    def _file_version(self) -> tuple[int, ...]:
        """A value that changes when the file changes."""
        try:
            status = os.stat(self.path)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_keys(path: Path) -> list[tuple[str, str]]:
    """Read the names and hashes of a key file. Empty lines and lines with `#` are comments.

    Raises:
        InputError: the file cannot be read, or a line is not valid.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a key file: it is not UTF-8") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path} is not a key file: it is larger than {MOST_BYTES:,} bytes")
    hashes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path}:{number}: not a line with a name and a SHA-256 hash: use --new-key"
            )
        if match[1] in hashes:
            raise InputError(
                f"{path}:{number}: the name {match[1]} is duplicated: remove one of the lines"
            )
        hashes[match[1]] = match[2]
    return list(hashes.items())


def new_key(path: Path, name: str) -> str:
    """Create a key and append its hash to a key file, which is created if it does not exist.

    Returns:
        The key. It cannot be read from the file.

    Raises:
        InputError: the name is not valid or exists, or the file cannot be written.
    """
    key = f"regard-{secrets.token_urlsafe(32)}"
    line = f"{name} {sha256(key.encode()).hexdigest()}"
    if not LINE.fullmatch(line):
        raise InputError(f"--new-key {name!r}: use 1 to 64 letters, digits and . _ @ -")
    known = path.read_bytes() if path.exists() else b""
    if name in dict(read_keys(path) if known else []):
        raise InputError(f"{path} already has a key with the name {name}")
    try:
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(
                (b"" if not known or known.endswith(b"\n") else b"\n") + f"{line}\n".encode()
            )
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return key
