"""`python -m tests.fuzz --seed 1 --calls 10000 --jobs 2 --out FOLDER`: a campaign and its report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from .calls import unlisted
from .oracles import faults
from .process import Result, remove
from .server import Server

Record = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--calls", type=int, default=1000, help="number of calls (default: 1000)")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first call (default: 0)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="parallel calls (default: 2)")
    parser.add_argument("--out", type=Path, help="folder for the stock and results.jsonl")
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="repeat one call; keep its files"
    )
    options = parser.parse_args()
    if not hasattr(os, "fork") or sys.platform != "linux":
        print("the fuzzer needs fork and /proc: it runs on Linux only", file=sys.stderr)
        return 2
    if missing := unlisted():
        print(f"tests/fuzz/drafts.py has no draft for: {sorted(missing)}", file=sys.stderr)
        return 2
    out = (options.out or Path(tempfile.mkdtemp(prefix="regard-fuzz-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o755)  # calls run as another user if this is root
    try:
        if options.only is not None:
            return repeat(options.seed, options.only, out)
        return campaign(
            options.seed, range(options.first, options.first + options.calls), options.jobs, out
        )
    finally:
        if options.out is None and options.only is None:
            remove(out)


def repeat(seed: int, number: int, out: Path) -> int:
    """Repeat one call and print its complete output."""
    (result,) = Server(seed, out, 1, keep=True).run([number])
    print(f"in {result.folder / 'work'}:\n{command_line(result)}")
    print(f"changes: {result.call.changes}; exit code {result.code}")
    print(f"{result.cpu:.1f} s of processor time, {result.memory / 2**20:,.0f} MB")
    print(f"--- standard output\n{result.stdout[:3000].decode('utf-8', 'replace')}")
    print(f"--- standard error\n{result.stderr[-5000:]}---")
    problems = faults(result)
    for fault in problems:
        print(f"FAULT {fault.signature} {fault.detail}")
    return bool(problems)


def campaign(seed: int, numbers: range, jobs: int, out: Path) -> int:
    """Run all calls. Ctrl-C ends the campaign early, with a report of the calls so far."""
    server = Server(seed, out, jobs)
    begin = time.monotonic()
    records: list[Record] = []
    with (out / "results.jsonl").open("w", encoding="utf-8") as log, suppress(KeyboardInterrupt):
        for result in server.run(numbers):
            records.append(record(result))
            print(json.dumps(records[-1]), file=log, flush=True)
            if len(records) % 100 == 0:
                rate = len(records) / (time.monotonic() - begin)
                faulty = sum(bool(entry["faults"]) for entry in records)
                print(
                    f"{len(records)} calls, {rate:.1f} per second, {faulty} with faults",
                    file=sys.stderr,
                )
    remove(out / "calls")
    known = show(records)
    seconds = time.monotonic() - begin
    total = sum(map(len, known.values()))
    print(f"\n{len(records)} calls in {seconds:.0f} s: {total} faults, {len(known)} signatures")
    return bool(known)


def record(result: Result) -> Record:
    """A line of results.jsonl."""
    problems = faults(result)
    return {
        "number": result.call.number, "verb": " ".join(result.call.verb), "code": result.code,
        "hang": result.hang, "seconds": round(result.seconds, 2), "cpu": round(result.cpu, 2),
        "memory": result.memory, "real": result.call.real, "command": command_line(result),
        "changes": result.call.changes, "faults": [list(fault) for fault in problems],
        "stderr": result.stderr[-2000:] if problems or result.code else "",
    }  # fmt: skip


def command_line(result: Result) -> str:
    """The call as a bash command, to be run in its folder."""
    call = result.call
    words = [f"{k}={quoted((v or '').encode())}" for k, v in call.env.items()]
    words += ["regard", *map(quoted, call.words)]
    source = {"file": "< stdin", "null": "< /dev/null", "closed": "<&-", "zero": "< /dev/zero"}
    output = {"file": "", "full": "> /dev/full", "closed": ">&-", "left": "| true"}
    return " ".join(filter(None, [*words, source[call.stdin], output[call.stdout]]))


def quoted(word: bytes) -> str:
    if word and all((chr(byte).isalnum() and byte < 128) or byte in b"-_./:=,+" for byte in word):
        return word.decode()
    try:
        text = word.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable():
        return "'" + text.replace("'", "'\\''") + "'"
    return "$'" + "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in word
    ) + "'"  # fmt: skip


def show(records: list[Record]) -> dict[str, list[Record]]:
    """Print exit codes by verb and faults by signature; returns the calls of each signature."""
    codes = Counter(
        (entry["verb"], "hang" if entry["hang"] else str(entry["code"])) for entry in records
    )
    columns = sorted({code for _, code in codes}, key=lambda code: (len(code), code))
    print(f"{'verb':18}" + "".join(f"{code:>8}" for code in columns))
    for verb in sorted({verb for verb, _ in codes}):
        print(f"{verb:18}" + "".join(f"{codes[verb, code] or '':>8}" for code in columns))
    known: dict[str, list[Record]] = {}
    for entry in records:
        for signature, _ in entry["faults"]:
            known.setdefault(signature, []).append(entry)
    for signature, cases in sorted(known.items(), key=lambda item: -len(item[1])):
        short = min(cases, key=lambda entry: len(entry["command"]) + 200 * len(entry["changes"]))
        command, detail = short["command"], dict(short["faults"])[signature]
        print(f"\n{len(cases)} x {signature}\n    --only {short['number']}: {detail[:300]}")
        print(f"    {command if len(command) < 400 else command[:400] + ' …'}")
        if short["changes"]:
            print(f"    changed: {'; '.join(short['changes'])}")
    return known


if __name__ == "__main__":
    sys.exit(main())
