"""A short campaign of the fuzzer, and tests of its oracles; CONTRIBUTING.md has the long campaign."""

import subprocess
import sys
from pathlib import Path

import pytest

from regard.config.settings import SECTIONS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer needs fork and /proc")

from tests.fuzz import stock, values  # noqa: E402
from tests.fuzz.calls import Call, make_call, unlisted  # noqa: E402
from tests.fuzz.oracles import faults  # noqa: E402
from tests.fuzz.process import Result  # noqa: E402

ROOT = Path(__file__).parents[2]
TRACEBACK = """regard: a warning
Traceback (most recent call last):
  File "/x/regard/cli.py", line 3, in main
  File "/x/regard/settings.py", line 7, in read_yaml
  File "/x/yaml/loader.py", line 9, in load
ValueError: year is out of range
"""


def test_a_short_campaign_finds_no_fault():
    completed = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seed", "17", "--calls", "120"], cwd=ROOT,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    lines = completed.stdout.splitlines()
    assert lines[0].split()[:2] == ["verb", "0"]
    assert lines[-1].startswith("120 calls")
    worked = sum(int(line[18:26]) for line in lines[1:] if line[18:26].strip().isdigit())
    assert worked >= 30, (
        "too many calls are refused by the parser and do not reach the code behind it"
    )


def test_every_verb_has_a_draft():
    assert not unlisted()


@pytest.fixture
def small_stock(tmp_path):
    """A stock whose models have files of the right names, but were never trained."""
    folder = tmp_path / "stock"
    stock.write_data(folder / "data")
    for model in stock.MODELS:
        (folder / "models" / model / "checkpoints").mkdir(parents=True)
        for name in ("config.yaml", "tokenizer.json", "model.safetensors", "checkpoints/1"):
            content = "".join(f"{section}:\n  key: 1\n" for section in SECTIONS) + "\n" * 99
            (folder / "models" / model / name).write_text(content)
    return folder


def test_a_call_is_a_function_of_seed_and_number(small_stock, tmp_path):
    def call_number(name, seed, number):
        folder = tmp_path / name / str(number)
        folder.mkdir(parents=True)
        call = make_call(seed, number, folder, small_stock)
        regular = [
            path
            for path in sorted(folder.rglob("*"))
            if path.lstat().st_mode & 0o100400 == 0o100400
        ]
        files = {
            str(path.relative_to(folder)): path.stat().st_size for path in regular if path.is_file()
        }
        return call, files

    some = range(60)
    first = [call_number("first", 5, number) for number in some]
    assert first == [call_number("again", 5, number) for number in some]
    assert sum(a[0].words == call_number("other", 6, a[0].number)[0].words for a in first) < 10


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "more", "signature"),
    [
        (0, b"fine\n", "", {}, None),
        (2, b"", "regard: --top must be at least 1, not 0\n", {}, None),
        (1, b"", TRACEBACK, {}, "traceback: ValueError in settings.py:read_yaml"),
        (2, b"", "regard: a\nb\n", {}, "message is not one line: info"),
        (1, b"", "", {}, "message is not one line: info"),
        (2, b"", "regard: \x1b[31m: no such file\n", {}, "message has control characters"),
        (1, b"", "regard: [Errno 13] Permission denied\n", {}, "exit code 1 for a mistake: info"),
        (1, b"", "regard: the disk is full\n", {"may_fail": True}, None),
        (-11, b"", "", {}, "signal 11: info"),
        (130, b"", "", {}, "exit code 130: info"),
        (130, b"", "", {"interrupt": 0.1}, None),
        (0, b'{"a": 1}\n', "", {"words": [b"info", b"--json"]}, None),
        (0, b'{"a": NaN}\n', "", {"words": [b"info", b"--json"]}, "output is not JSON: info"),
        (0, '{"a": "\u2028"}\n'.encode(), "", {"words": [b"info", b"--json"]}, "output is not JSON"),
        (0, b"text\n", "", {"words": [b"info", b"--", b"--json"]}, None),
        (0, b"good\tnan\n", "", {"verb": ("classify",)}, "output has NaN or infinity: classify"),
        (0, b"\xff", "", {}, "output is not UTF-8: info"),
        (0, b"", "x.py:3: RuntimeWarning: overflow\n", {}, "warning RuntimeWarning: info"),
        (0, b"", "", {"stdout": "full"}, "output lost, but exit code 0: info"),
    ],
)  # fmt: skip
def test_oracles(code, stdout, stderr, more, signature, tmp_path):
    call = Call(**{"number": 1, "verb": ("info",), "words": [b"info"], **more})
    problems = faults(Result(call, code, "", 0.1, 0.1, 10**8, stdout, stderr, tmp_path))
    assert len(problems) == (signature is not None)
    assert signature is None or problems[0].signature.startswith(signature)


def test_hangs_memory_and_leftovers_are_faults(tmp_path):
    call = Call(1, ("info",), [b"info"])
    hung = Result(call, -9, "waits forever", 9.0, 0.1, 10**8, b"", "", tmp_path)
    assert faults(hung)[0].signature == "hang: info waits forever"
    (tmp_path / ".tmp-5-run").touch()
    large = Result(call, 0, "", 0.1, 0.1, 2 * 2**30, b"", "", tmp_path)
    problems = [fault.signature for fault in faults(large)]
    assert problems == ["memory: info", "temporary files left: info"]


def test_amounts_of_work_are_small_or_absurd():
    from random import Random

    numbers = {values.number(Random(i), "steps") for i in range(500)}
    assert "18446744073709551616" in numbers
    assert not numbers & set(values.MIDDLE)
