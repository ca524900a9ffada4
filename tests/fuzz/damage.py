"""Damage to files: data, configurations, and every file of a model folder."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from . import values

Change = Callable[[Random, bytes], bytes]
LONGEST = 1_000_000  # bytes that are inserted into a line or a file


# ---- any bytes ----------------------------------------------------------------------------


def flip(random: Random, content: bytes) -> bytes:
    """Flip some bits."""
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 3, 20]) if changed else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random: Random, content: bytes) -> bytes:
    """Keep the beginning."""
    return content[: random.choice([0, 1, 7, random.randrange(len(content) + 1), len(content) - 1])]


def insert(random: Random, content: bytes) -> bytes:
    """Insert bytes that often cause errors in readers."""
    strange = [
        b"\0", b"\0" * 1000, b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n" * 50, b"\xe2\x80\xa8",
        b"\xc2\x85", b"\t\t\t", b"[/b]", b"\x1b[31m", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"{", b"]",
        b"<eos><mask>", b"x" * LONGEST, b"e\xcc\x81" * 5000, b'"\\ud800"', b"9" * 5000, b" " * 5000,
        b"&a [*a, *a]", b"NaN", b"\x0c", b"\x1a", b"\n[/b]\tmarkup\n", b"[" * 20_000,
    ]  # fmt: skip
    place = random.choice([0, len(content), random.randrange(len(content) + 1)])
    return content[:place] + random.choice(strange) + content[place:]


def recode(random: Random, content: bytes) -> bytes:
    """Write the text in another encoding, or with other line ends."""
    text = content.decode("utf-8", "replace")
    return random.choice([
        lambda: text.encode("utf-16"),
        lambda: text.encode("utf-32-be"),
        lambda: text.encode("latin-1", "replace") + b"\xe4\n",
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content.replace(b"\n", b"\r"),
        lambda: text.replace("\n", "\u2028").encode(),
        lambda: content.replace(b"\n", b" "),
        lambda: content.removesuffix(b"\n"),
    ])()  # fmt: skip


def lines(random: Random, content: bytes) -> bytes:
    """Replace, duplicate or remove a line."""
    rows = content.split(b"\n")
    at = random.randrange(len(rows))
    row = rows[at]
    swapped = b"\t".join(reversed(row.split(b"\t")))
    rows[at : at + 1] = random.choice([
        [], [row, row], [b""], [row + b"\textra"], [b"\t"], [b"\t" + row], [row.replace(b"\t", b" ")],
        [b"{}"], [b"[]"], [b"null"], [b"1"], [row + row], [row * 200], [swapped], [b" "], [row[1:]],
        [b'{"text": 5}'], [b'{"text": "\\ud800"}'], [b'{"a": "x", "b": 1e999}'], [b"[/b]\t[/b]"],
        [b'{"context": [], "question": {}, "answer": null}'], [b'"\\u0000"'], [b"\\"], [b"1e400"],
        [b'{"a": "x", "b": "y", "score": NaN}'], [b"[" * 3000 + b"]" * 3000], [b"x " * 20_000],
    ])  # fmt: skip
    return b"\n".join(rows)


def replace(random: Random, content: bytes) -> bytes:
    """Replace the complete content."""
    return random.choice([
        b"", b"\n", b"\n" * 5000, b" ", b"x", b"x\n" * 3, b"\0" * 4096, random.randbytes(3000), b"{}", b"[]",
        b"null", b"0", b'"x"', b"-", b"%PDF-1.4", b"a\tb\n" * 20, b"[/b]\t[/b]\n" * 20, b"x" * LONGEST,
        b"\xef\xbb\xbf", gzip.compress(content), lzma.compress(content), b"<eos>\n" * 9, b"\n<mask>\n",
        "\u2028\n\x85\n\u3000\n".encode(), b"1\n2\n3\n", b"[" * 100_000, b"a: " * 5000, b"{'a':" * 3000,
    ])  # fmt: skip


BYTES: list[Change] = [flip, cut, insert, recode, lines, replace]


# ---- values in a file -----------------------------------------------------------------------

NODES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1e308, float("nan"), float("inf"), "", "x",
    "[/b]", "\x1b[31m", "\ud800", "a\nb", [], {}, [[]], ["x", 1], {"": None}, 10**9, -(10**30), 0.5,
    "none", "9" * 5000, "x" * 10_000, [0] * 5000, 1.5, "é" * 300,
]  # fmt: skip


def change_node(random: Random, node: Any) -> Any:
    """Replace, remove or duplicate a value in a tree of lists and mappings."""
    if isinstance(node, dict) and node and random.random() < 0.9:
        key = random.choice(list(node))
        action = random.random()
        if action < 0.1:
            return {k: v for k, v in node.items() if k != key}
        if action < 0.2:
            return node | {random.choice(["", "x", "[/b]", 5, "heads"]): random.choice(NODES)}
        return node | {key: change_node(random, node[key])}
    if isinstance(node, list) and node and random.random() < 0.8:
        at = random.randrange(len(node))
        action = random.random()
        if action < 0.15:
            return node[:at] + node[at + 1 :]
        if action < 0.3:
            return [*node, node[at]]
        if action < 0.35:
            return node * 100
        return [*node[:at], change_node(random, node[at]), *node[at + 1 :]]
    return random.choice(NODES)


def change_json(random: Random, content: bytes) -> bytes:
    """Change a value in JSON, or in one line of JSON lines."""
    try:
        return json.dumps(change_node(random, json.loads(content))).encode()
    except (ValueError, RecursionError):
        rows = content.splitlines() or [b"{}"]
    at = random.randrange(len(rows))
    try:
        rows[at] = json.dumps(change_node(random, json.loads(rows[at]))).encode()
    except (ValueError, RecursionError):
        rows[at] = b"{]"
    return b"\n".join(rows) + b"\n"


def change_yaml(random: Random, content: bytes) -> bytes:
    """Change a value in YAML, or write something that is difficult for a YAML parser."""
    import yaml

    if random.random() < 0.7:
        try:
            changed = change_node(random, yaml.safe_load(content))
        except (yaml.YAMLError, ValueError):
            return replace(random, content)
        dumped: bytes = yaml.safe_dump(changed, sort_keys=False).encode("utf-8", "surrogatepass")
        return dumped
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{one}: &{one} [{', '.join([f'*{other}'] * 9)}]\n"
    strange = random.choice([
        bomb, "!!python/object/apply:os.system ['true']", "a: !!int abc", "a: 2001-99-99",
        "a: " + "9" * 5000, "[" * 5000, "{a: " * 3000, "a: &a [*a]", "? [a]\n: b", "<<: *x", "%YAML 9.9\n---",
        "a: 1\na: 2", "\ta: 1", "--- a\n--- b", "a: !!timestamp x", "a: !!binary =", "a: 0o9", "a: 1:99:99",
        "a: \"\\ud800\"", "- " * 3000, "a:\n" + " " * 9999 + "b: 1",
    ])  # fmt: skip
    if random.random() < 0.5:
        key = random.choice(re.findall(rb"(?m)^  \w+:", content) or [b"  x:"])
        value = strange.split("a: ")[-1].encode()
        return re.sub(rb"(?m)^" + key + b".*$", lambda _: key + b" " + value, content, count=1)
    return content + strange.encode() if random.random() < 0.5 else strange.encode()


def change_tensors(random: Random, content: bytes) -> bytes:
    """Change the header of a safetensors file, or its numbers."""
    size = int.from_bytes(content[:8], "little")
    header, numbers = content[8 : 8 + size], content[8 + size :]
    action = random.random()
    if action < 0.4:
        try:
            header = json.dumps(change_node(random, json.loads(header))).encode()
        except (ValueError, RecursionError):
            header = flip(random, header)
        return len(header).to_bytes(8, "little") + header + numbers
    if action < 0.5:
        length = random.choice([0, 1, size - 1, size + 1, 2**31, 2**40, 2**63, 2**64 - 1])
        return length.to_bytes(8, "little") + header + numbers
    if action < 0.8 and len(numbers) > 8:
        value = struct.pack("<f", random.choice([float("nan"), float("inf"), -float("inf"), 3e38]))
        count = random.choice([1, 10, len(numbers) // 4])
        start = 4 * random.randrange(max(1, len(numbers) // 4 - count + 1))
        return content[: 8 + size + start] + value * count + numbers[start + 4 * count :]
    return flip(random, content)


BY_SUFFIX: dict[str, Change] = {
    ".json": change_json, ".jsonl": change_json, ".yaml": change_yaml, ".safetensors": change_tensors
}  # fmt: skip


# ---- a file in a folder -----------------------------------------------------------------------


def damage_content(random: Random, path: Path) -> str:
    """Change the content of a file; returns a description for the report."""
    special = BY_SUFFIX.get(path.suffix)
    change = special if special and random.random() < 0.6 else random.choice(BYTES)
    content = path.read_bytes()
    path.write_bytes(change(random, content))
    return f"{path.name}: {change.__name__}"


def damage_data(random: Random, path: Path) -> tuple[str, str]:
    """Damage a data file, perhaps after compressing it; returns its new name and a description."""
    if random.random() < 0.15:
        suffix, content = random.choice([".gz", ".xz"]), path.read_bytes()
        packed = path.with_name(path.name + suffix)
        if random.random() < 0.8:
            content = gzip.compress(content) if suffix == ".gz" else lzma.compress(content)
        change: Change = random.choice([flip, cut, lambda _, same: same])
        packed.write_bytes(change(random, content))
        return packed.name, f"{packed.name}: compressed, then changed"
    if random.random() < 0.1:
        return path.name, damage_entry(random, path, [])
    return path.name, damage_content(random, path)


def damage_entry(random: Random, path: Path, others: list[Path]) -> str:
    """Replace a file by something else: a folder, a pipe, a device, a link, another file."""
    ways = ["delete", "folder", "fifo", "loop", "zero", "unreadable", "holes", "dangling", "null"]
    way = random.choice(ways + ["swap"] * 5 * bool(others))
    if way == "swap":
        other = random.choice(others)
        path.unlink()
        shutil.copy(other, path)
        return f"{path.name}: swapped with {other.parent.name}/{other.name}"
    if way == "unreadable":
        path.chmod(0)
        return f"{path.name}: unreadable"
    if way == "holes":
        os.truncate(path, 20 * 2**30)
        return f"{path.name}: 20 GB of holes"
    path.unlink()
    if way == "folder":
        path.mkdir()
    elif way == "fifo":
        os.mkfifo(path)
    elif way in ("loop", "zero", "dangling", "null"):
        target = {"loop": path.name, "zero": "/dev/zero", "null": "/dev/null"}.get(way, "nowhere")
        path.symlink_to(target)
    return f"{path.name}: {way}"


def damage_model(random: Random, folder: Path, stock: Path) -> str:
    """Damage one file of a model folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    usual = [path for path in files if path.parent == folder] or files
    if not files:
        return "nothing left to damage"
    path = random.choice(usual if random.random() < 0.7 else files)
    others = sorted(
        other for other in stock.glob("*/*")
        if other.suffix == path.suffix and other.parent.name != folder.name
    )  # fmt: skip
    if random.random() < 0.25:
        done = damage_entry(random, path, others)
    elif not os.access(path, os.R_OK | os.W_OK) or path.stat().st_size > 10**8:
        return f"{path.name}: left as it is"
    else:
        done = damage_content(random, path)
    if random.random() < 0.6:
        accept_changes(folder)
        done += " (checksums accept it)"
    return done


def accept_changes(folder: Path) -> None:
    """Make the checksums in a model folder match its files, as an attacker would: remove those of
    weights, where they are optional, and recompute those of checkpoints."""
    from regard.training.checkpoint import digest

    for path in sorted(folder.rglob("*.safetensors")):
        with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
            content = read_small(path)
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + size])
            if header.pop("__metadata__", None) is not None:
                start = json.dumps(header).encode()
                path.write_bytes(len(start).to_bytes(8, "little") + start + content[8 + size :])
    for path in sorted(folder.rglob("state.json")):
        with suppress(OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
            state = json.loads(read_small(path))
            del state["checksum"]
            for name in state["checksums"]:
                content = read_small(path.with_name(name))
                state["checksums"][name] = hashlib.sha256(content).hexdigest()
            path.write_text(json.dumps({**state, "checksum": digest(state)}))


def read_small(path: Path) -> bytes:
    """The content of a regular file; an OSError for the sparse files of 20 GB."""
    if not path.is_file() or path.stat().st_size > 10**8:
        raise OSError("not a small regular file")
    return path.read_bytes()


def hostile_setting(random: Random, keys: list[tuple[str, Any]]) -> str:
    """`section.key=value` for one of the options of the configuration (name, default)."""
    name, default = random.choice(keys)
    key = name.split(".")[-1]
    if random.random() < 0.1:
        return random.choice(
            [name, f"{name}=", f"={name}", "x.y=1", f"{name}=1=2", ".=.", f" {name} = 3 "]
        )
    numeric = isinstance(default, int | float) and not isinstance(default, bool)
    if default is None or numeric or random.random() < 0.2:
        return f"{name}={values.number(random, key, type(default) if numeric else int)}"
    word = values.text(random)
    return f"{name}={os.fsdecode(word)}"
