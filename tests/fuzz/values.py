"""Hostile values for options: numbers, texts and paths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random

Word = str | bytes

SMALL = ["0", "-1", "1", "2", "3", "7", "0.5", "1.5", "-0.0", "1e-300", "-7", "0.999", "1e-5"]
MIDDLE = ["100", "1000", "65536", "1000000", "2147483647", "2147483648", "1e6", "1e9"]
ABSURD = [
    "18446744073709551616", "1" + "0" * 30, "-1" + "0" * 30, "1" + "0" * 400, "9" * 5000, "1e400",
    "-1e400", "1e308", "nan", "-nan", "inf", "-inf", "Infinity",
]  # fmt: skip
LARGE = ["9223372036854775807", "9223372036854775808", "4294967296", "1" + "0" * 12, *ABSURD]
NO_NUMBERS = [
    "", " ", "0x10", "１２", "٣", "1_000", "1e3", "1,5", " 5 ", "five", "--", "null", "true", "[]",
    "[1, 2]", "{}", "~", "1.", ".5", "+3", "0b1", "1e", "²", "Ⅷ", "5%", "[/b]", "\x1b[31m",
]  # fmt: skip

# Options whose value is an amount of work: accepting a million steps is not a fault. Only values that
# no machine could complete must be refused.
WORK = {
    "steps", "epochs", "accumulate", "samples", "seconds", "limit", "jobs", "length", "lengths", "widths",
    "layers", "d_model", "distances", "kernel", "window", "encoder_layers", "decoder_layers",
    "d_ff", "heads", "head_size", "batch_tokens", "alternatives", "beam", "n_best", "max_length",
    "min_length", "average", "keep", "vocab",
}  # fmt: skip


def number(random: Random, name: str, kind: type | None = None) -> str:
    """A number, or something that looks like one, for the option `name`. kind: the type that is
    expected; most values are of that type, so that they get further than the parser."""
    if random.random() < 0.15:
        return random.choice(NO_NUMBERS)
    pools = [SMALL, ABSURD] if name in WORK else [SMALL, MIDDLE, LARGE]
    chosen = random.choice(pools)
    whole = [word for word in chosen if re.fullmatch(r"-?\d+", word)]
    return random.choice(whole if kind is int and random.random() < 0.9 else chosen)


def text(random: Random) -> Word:
    """A text that programs often handle badly."""
    return random.choice(TEXTS) if random.random() < 0.8 else mixed(random)


def mixed(random: Random) -> str:
    """Random characters from everywhere in Unicode, without NUL, line ends and surrogates."""
    ranges = [(1, 9), (11, 12), (14, 127), (128, 0x2FF), (0x300, 0x36F), (0x590, 0x6FF),
              (0x2000, 0x206F), (0x4E00, 0x4E80), (0xFE00, 0xFE0F), (0x1F300, 0x1F6FF)]  # fmt: skip
    return "".join(
        chr(random.randrange(*random.choice(ranges))) for _ in range(random.randrange(1, 60))
    )


TEXTS: list[Word] = [
    "", " ", "\t", "\n", "\r", "a\nb", "a\tb", "a\tb\tc", "\x01\x02\x07\x08", "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07", "[/b]", "[b", "[red]x[/red]", "[link=file:///]x[/link]", b"\xff\xfe",
    b"caf\xe9", b"\xed\xa0\x80", b"ok \xf0\x9f", "x" * 20_000, "a b " * 3_000, "é" * 3_000,
    "\u202eabc\u202c", "שלום עולם", "مرحبا", "e" + "\u0301" * 300, "👩\u200d👩\u200d👧 🏳️\u200d🌈", "\u2028", "a\u2028b",
    "\x85", "\x0b\x0c\x1c\x1d\x1e", "\ufeff", "\ufffd\uffff", "\U0010ffff", "<eos>", "<mask>", "<pad>",
    "<bos> <unk> <mask>", "<mask>" * 300, "<|endoftext|>", "The <mask> is <mask>.", "-", "--", "-x",
    "--help", "--out", "-1", "%s %d {0} {x}", "$HOME `id`", "'\"\\", "\\n\\t\\", "../../etc/passwd",
    "null", "nan", '{"text": "x"}', '{"context": "Mary is in the garden.", "question": "Where?"}',
    "Where is Mary?", "A dog runs.", "A dog runs.\tEin Hund läuft.", "1e400", "0", "😀" * 500,
]  # fmt: skip

# Files that `furnish` creates in the working folder of a call, and names that do not exist.
PLACES: list[Word] = [
    "missing", "missing/deeper/name", "folder", "empty-folder", "file.txt", "file.txt/below",
    "empty-file", "/", ".", "", "..", "n" * 300, "d/" * 2100 + "x", b"not-utf8-\xff", "/dev/null",
    "/dev/zero", "/dev/full", "/dev/stdin", "fifo", "unreadable-file", "unreadable-folder",
    "unreadable-folder/x", "readonly-folder", "readonly-folder/new", "loop", "loop/x", "dangling",
    "/proc/self/mem", "-", "~", "[/b]", "[red]", "new\nline", "\x1b[31mred", "tab\there", "\u2028",
    "box:translate", "box:generate", "box:nothing", "box:", "picture.png", "picture.svg", "page.html",
    "vector.npy", "picture.PNG", "picture.jpg", ".png", "file.gz", "file.xz", "other-model", " ", "x.",
    "file.txt\udcff".encode("utf-8", "surrogateescape"), "/proc/self/fd/1", "/nowhere/x", "readonly-file",
]  # fmt: skip


def place(random: Random) -> Word:
    return random.choice(PLACES)


def furnish(folder: Path) -> None:
    """Create the unusual files and folders of `PLACES` in the working folder of a call."""
    for name in ("folder", "empty-folder", "unreadable-folder", "readonly-folder"):
        (folder / name).mkdir()
    (folder / "folder" / "inside").write_text("inside\n")
    (folder / "file.txt").write_text("one line\nanother line\n")
    (folder / "file.gz").write_bytes(b"not compressed\n")
    (folder / "file.xz").write_bytes(b"\xfd7zXZ\x00 cut off")
    for name in ("empty-file", "unreadable-file", "readonly-file"):
        (folder / name).touch()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "unreadable-file").chmod(0)
    (folder / "unreadable-folder").chmod(0)
    (folder / "readonly-file").chmod(0o444)
    (folder / "readonly-folder").chmod(0o555)
