"""Rules that every call must obey for all arguments; breaking a rule is a fault."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, NoReturn

from .privileges import USER
from .process import Result

MEMORY = 1_500 * 2**20
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # folders that any user may write to
WARNINGS = re.compile(
    r"\b(\w*Warning): |Exception ignored in|Fatal Python error|libgomp:|terminate called"
)
FRAME = re.compile(r'File "[^"]*/regard/([^"]+)", line \d+, in (\S+)')
ALWAYS_PRINTS = {
    ("info",),
    ("evaluate",),
    ("view", "walk"),
    ("view", "positions"),
    ("view", "curves"),
}
NUMBERS = {("classify",), ("embed",), ("evaluate",)}  # verbs that print numbers but no user text
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u2028\u2029]")


class Fault(NamedTuple):
    signature: str  # the same for calls that fail for the same reason
    detail: str


def faults(result: Result) -> list[Fault]:
    """The rules that a call broke."""
    verb = " ".join(result.call.verb)
    return [Fault(signature.replace("VERB", verb), detail) for signature, detail in broken(result)]


def broken(result: Result) -> Iterator[tuple[str, str]]:
    call, code, stderr = result.call, result.code, result.stderr
    if result.hang:
        yield f"hang: VERB {result.hang}", ""
        return
    traced = "Traceback (most recent call last)" in stderr
    if traced:
        yield traceback_signature(stderr), last_line(stderr)
    if result.memory > MEMORY:
        yield "memory: VERB", f"{result.memory / 2**20:,.0f} MB"
    if code < 0:
        yield f"signal {-code}: VERB", last_line(stderr)
    elif code not in (0, 1, 2) and not (code == 130 and call.interrupt is not None):
        yield f"exit code {code}: VERB", last_line(stderr)
    if warned := WARNINGS.search(stderr):
        line = stderr[stderr.rfind("\n", 0, warned.start()) + 1 :].partition("\n")[0]
        yield f"warning {warned[1] or warned[0]}: VERB", line
    silent = list(message_faults(result)) if code in (1, 2) and not traced else []
    yield from silent
    if code == 1 and not traced and not call.may_fail and not silent:
        yield f"exit code 1 for a mistake: VERB: {blurred(last_line(stderr))}", last_line(stderr)
    if code == 0:
        yield from output_faults(result)
    if code >= 0:
        yield from file_faults(result)


def message_faults(result: Result) -> Iterator[tuple[str, str]]:
    """The last line of standard error must say what is wrong, in printable characters."""
    lines = result.stderr.removesuffix("\n").split("\n")
    if not lines[-1].startswith("regard: ") or lines[-1] == "regard: ":
        start = next((line for line in lines if line.startswith("regard: ")), lines[-1])
        yield f"message is not one line: VERB: {blurred(start)}", repr(result.stderr[-300:])
    elif unprintable := CONTROL.search(lines[-1]):
        yield "message has control characters: VERB", f"{unprintable[0]!r} in {lines[-1]!r:.200}"
    elif len(lines[-1]) > 2_000 + 2 * sum(map(len, result.call.words)):  # it may quote arguments
        yield f"message is too long: VERB: {blurred(lines[-1])}", f"{len(lines[-1])} characters"


def output_faults(result: Result) -> Iterator[tuple[str, str]]:
    call = result.call
    if call.stdout == "full" and call.verb in ALWAYS_PRINTS:
        yield "output lost, but exit code 0: VERB", ""
    if call.stdout != "file":
        return
    try:
        text = result.stdout.decode("utf-8")
    except UnicodeDecodeError as error:
        yield "output is not UTF-8: VERB", str(error)
        return
    options = set(call.words[: call.words.index(b"--")] if b"--" in call.words else call.words)
    if call.verb in NUMBERS and (nan := re.search(r"(?m)(^|[ \t:])-?(nan|inf)\b", text)):
        yield "output has NaN or infinity: VERB", repr(text[max(0, nan.start() - 60) :][:120])
    if b"--json" in options and not {b"-h", b"--help", b"--version"} & options:
        for line in text.splitlines():
            try:
                json.loads(line, parse_constant=refuse)
            except ValueError as error:
                yield f"output is not JSON: VERB: {blurred(str(error))}", repr(line[:200])
                return


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def file_faults(result: Result) -> Iterator[tuple[str, str]]:
    left = sorted(str(path.relative_to(result.folder)) for path in result.folder.rglob(".tmp-*"))
    if left:
        yield "temporary files left: VERB", ", ".join(left)
    outside = written_outside() - BEFORE
    if outside:
        time.sleep(0.5)  # Python's tempfile tries a folder with a file that it removes at once
        for path in sorted(outside & written_outside()):
            yield "written outside of its folder: VERB", path


def written_outside() -> set[str]:
    """Files of the calls' user in the folders that everybody may write to."""
    paths: set[str] = set()
    if os.getuid() == 0:
        for folder in filter(os.path.isdir, SHARED):
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == USER:
                        paths.add(entry.path)
    return paths


BEFORE = written_outside()  # files of earlier campaigns and other programs


def traceback_signature(stderr: str) -> str:
    """The exception and the innermost function of regard in the traceback."""
    traced = stderr[stderr.rfind("Traceback (most recent call last)") :]
    frames = FRAME.findall(traced)
    place = ":".join(frames[-1]) if frames else "outside of regard"
    kinds = re.findall(r"(?m)^([A-Za-z_][\w.]*)(?::|$)", traced.partition("\n")[2])
    return f"traceback: {kinds[-1] if kinds else 'unknown'} in {place}"


def last_line(stderr: str) -> str:
    return stderr.rstrip("\n").rpartition("\n")[2][:300]


def blurred(line: str) -> str:
    """A message without the parts that differ from call to call."""
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", line)
    line = re.sub(r"[^\s:]*[/.\x00-\x1f][^\s:]*", "…", line)
    return re.sub(r"[\d.,]+", "N", line)[:90]
