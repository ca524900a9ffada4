"""Names a file that is not text: an archive, a workbook, a picture or another encoding.

Without this check such a file would be reported as text that is not UTF-8, which does not say what
to do.
"""

from __future__ import annotations

from pathlib import Path

from regard.errors import InputError

UNPACK = "unpack it first"
EXPORT = "export it as CSV first"
EXTRACT = "extract its text first"
OFFICE = {
    ".xlsx": ("an Excel workbook", EXPORT),
    ".ods": ("a spreadsheet", EXPORT),
    ".docx": ("a Word document", EXTRACT),
    ".odt": ("a text document of an office program", EXTRACT),
    ".npz": ("a NumPy archive", "write its content as text first"),
}
# First bytes, what the file is, what to do.
MAGIC = (
    (b"PK\x03\x04", "a ZIP archive", UNPACK),
    (b"PK\x05\x06", "a ZIP archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (b"BZh", "a bzip2 file", UNPACK),
    (b"\x1f\x8b", "a gzip file", "add .gz to its name"),
    (b"\xfd7zXZ\x00", "an xz file", "add .xz to its name"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "add .zst to its name"),
    (b"PAR1", "a Parquet file", "its name must end in .parquet"),
    (b"ARROW1", "an Arrow file", "save it as Parquet, CSV or JSON lines"),
    (b"%PDF-", "a PDF document", EXTRACT),
    (b"{\\rtf", "an RTF document", EXTRACT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", EXPORT),
    (b"SQLite format 3\x00", "an SQLite database", EXPORT),
    (b"\x89PNG", "a picture", "it has no text"),
    (b"\xff\xd8\xff", "a picture", "it has no text"),
    (b"\x93NUMPY", "a NumPy array", "write its content as text first"),
    (b"\xff\xfe\x00\x00", "text in UTF-32", "convert it to UTF-8"),
    (b"\xff\xfe", "text in UTF-16", "convert it to UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "convert it to UTF-8"),
)
TAR = slice(257, 262), b"ustar"


def check_content(path: Path, start: bytes) -> None:
    """Refuse a file whose first bytes show that it is not UTF-8 text.

    Args:
        path: the file, for the message.
        start: the first bytes of its content, after decompression.

    Raises:
        InputError: the content is an archive, a document, a picture or text in another encoding.
    """
    for magic, what, remedy in MAGIC:
        if start.startswith(magic):
            if magic.startswith(b"PK"):
                what, remedy = OFFICE.get(path.suffix.lower(), (what, remedy))
            # The bytes of BZh and ARROW1 are also letters with which a text can begin.
            if magic in (b"BZh", b"ARROW1") and _is_text(start):
                continue
            kind = "UTF-8" if what.startswith("text in") else "text"
            raise InputError(f"{path} is {what}, not {kind}: {remedy}")
    place, magic = TAR
    if start[place] == magic:
        raise InputError(f"{path} is a tar archive, not text: {UNPACK}")


def _is_text(start: bytes) -> bool:
    """Whether the first bytes of a file look like text: no control characters but white space."""
    return all(byte >= 32 or byte in b"\t\n\r\x0b\x0c" for byte in start[:64])
