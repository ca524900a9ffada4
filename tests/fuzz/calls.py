"""A call of the command line as a function of (seed, number).

It starts from a valid call (`drafts.py`) and changes a few things: options, files, standard streams
and the environment. The options come from the parser, so new ones are fuzzed without being listed
here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any

from regard.cli.main import build_parser
from regard.config.model import CHOICES, ModelConfig
from regard.config.sections import DataConfig, DecodingConfig, TrainingConfig

from . import damage, values
from .drafts import DRAFTS, SKIPPED, Draft, Verb
from .values import Word

STDIN = "A dog runs.\nTwo dogs are running across a field.\n"
VALID = {
    **{f"model.{name}": list(choices) for name, choices in CHOICES.items()},
    "data.vocabulary": ["bpe", "character", "byte"],
    "data.documents": ["blank-line", "file"],
    "data.duplicates": ["keep", "drop", "refuse"],
    "data.bleu": ["13a", "intl", "zh", "char", "none"],
    "training.optimiser": ["adam", "adamw"],
    "training.schedule": ["inverse-sqrt", "cosine", "constant"],
    "training.dtype": ["float32", "bfloat16"],
}
ENVIRONMENTS: list[dict[str, str | None]] = [
    {"REGARD_CACHE": "readonly-folder"}, {"REGARD_CACHE": "file.txt"}, {"REGARD_CACHE": "/dev/null"},
    {"REGARD_CACHE": "unreadable-folder"}, {"REGARD_CACHE": "loop"}, {"REGARD_CACHE": "/nowhere/x"},
    {"HOME": None, "REGARD_CACHE": None, "XDG_CACHE_HOME": "readonly-folder"},
    {"HOME": "/nowhere", "REGARD_CACHE": None}, {"LANG": "C", "LC_ALL": "C"}, {"LC_ALL": "POSIX"},
    {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"},
    {"COLUMNS": "1"}, {"COLUMNS": "0"}, {"COLUMNS": "-5"}, {"COLUMNS": "x"}, {"COLUMNS": "100000"},
    {"LINES": "0"}, {"REGARD_NATIVE": "off"}, {"REGARD_NATIVE": "fast"}, {"REGARD_NATIVE": ""},
    {"REGARD_NATIVE": "[/b]"}, {"TERM": "dumb"}, {"TERM": ""}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"},
    {"OMP_NUM_THREADS": "3"}, {"RANK": "1"}, {"WORLD_SIZE": "x"},
    {"LOCAL_RANK": "-1"}, {"TMPDIR": "readonly-folder"}, {"PYTHONWARNINGS": "default"},
]  # fmt: skip
# Read when Python or torch starts: a fork of a running process would not see them.
STARTUP = {"LANG", "LC_ALL", "PYTHONUTF8", "PYTHONIOENCODING", "OMP_NUM_THREADS", "PYTHONWARNINGS"}
REAL = 0.02  # fraction of calls that run in a new process
INTERRUPTED = 0.02  # fraction of calls that receive a SIGINT

# Options that keep the work of a call small. Without them, a valid call could
# take minutes or hours.
WORK = (
    "--set",
    "--config",
    "--steps",
    "--epochs",
    "--batch-tokens",
    "--seconds",
    "--limit",
    "--lengths",
    "--length",
    "--samples",
)


@dataclass
class Call:
    number: int
    verb: Verb
    words: list[bytes]  # after `regard`
    stdin: str = "file"  # file, null, closed, zero
    stdout: str = "file"  # file, full, closed, left (a pipe without a reader)
    env: dict[str, str | None] = field(default_factory=dict)
    real: bool = False
    interrupt: float | None = None  # seconds until SIGINT
    may_fail: bool = False  # whether exit code 1 is correct after the changes
    changes: list[str] = field(default_factory=list)  # descriptions of the changes, for the report


def leaves(parser: argparse.ArgumentParser, verb: Verb = ()) -> dict[Verb, argparse.ArgumentParser]:
    """The parsers of all verbs: ("view", "walk") and so on."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands: dict[Verb, argparse.ArgumentParser] = {}
            for name, child in action.choices.items():
                commands |= leaves(child, (*verb, name))
            return commands
    return {verb: parser}


VERBS = leaves(build_parser())


def settings() -> list[tuple[str, Any]]:
    """All options of the configuration with their defaults."""
    sections = {"model": ModelConfig, "data": DataConfig, "training": TrainingConfig,
                "decoding": DecodingConfig}  # fmt: skip
    return [
        (f"{section}.{f.name}", None if f.default is MISSING else f.default)
        for section, kind in sections.items()
        for f in fields(kind)
    ]


SETTINGS = settings()


def make_call(seed: int, number: int, folder: Path, stock: Path) -> Call:
    """Build call `number` and the files that it uses in the empty folder `folder`."""
    random = Random(f"{seed}/{number}")
    verb = random.choices(list(DRAFTS), [weight for weight, _ in DRAFTS.values()])[0]
    values.furnish(folder)
    draft = DRAFTS[verb][1](random, folder, stock)
    call = Call(number, verb, [])
    call.real = random.random() < REAL
    interrupted = random.random() < INTERRUPTED
    (folder / "stdin").write_text(draft.stdin or STDIN, encoding="utf-8")
    for _ in range(random.choice([0, 1, 1, 1, 1, 2, 2, 3])):
        random.choice(CHANGES)(random, call, draft, folder, stock)
    call.words = render(random, draft)
    call.real |= bool(STARTUP & set(call.env))
    if interrupted and not call.real:  # a new process may still be importing
        call.interrupt = random.choice([0.0, 0.05, 0.2, 0.6])
    return call


def render(random: Random, draft: Draft) -> list[bytes]:
    words: list[Word] = [*draft.verb]
    groups = [[flag, *some] for flag, more in draft.options.items() for some in more]
    if random.random() < 0.3:
        random.shuffle(groups)
    texts = list(draft.texts)
    if random.random() < 0.1 and texts:
        return encode([*words, *(w for group in groups for w in group), "--", *texts])
    return encode([*words, *texts, *(w for group in groups for w in group)])


def encode(words: list[Word]) -> list[bytes]:
    return [os.fsencode(word).replace(b"\0", b"") for word in words]


# ---- changes ----------------------------------------------------------------------------------

Changing = Callable[[Random, Call, Draft, Path, Path], None]


def change_option(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Give some option of the verb a hostile value, or one that is rarely used."""
    actions = [a for a in VERBS[draft.verb]._actions if a.dest not in ("help", "debug")]
    action = random.choice(actions)
    if not action.option_strings:
        change_text(random, call, draft, folder, stock)
        return
    flag = random.choice(action.option_strings)
    if action.dest == "assignments":
        change_setting(random, call, draft, folder, stock)
        return
    for other in action.option_strings:
        if random.random() < 0.9:  # otherwise the option occurs twice
            draft.options.pop(other, None)
    if action.nargs == 0:
        draft.options[flag] = [[]]
        return
    count = random.choice([1, 1, 2, 3, 0, 5]) if action.nargs in ("+", "*") else 1
    if random.random() < 0.02:
        count += 1
    draft.options[flag] = [[value_of(random, action) for _ in range(count)]]
    call.may_fail |= action.dest in ("out", "seed")


def value_of(random: Random, action: argparse.Action) -> Word:
    if action.choices and random.random() < 0.8:
        return str(random.choice(list(action.choices)))
    if action.type in (int, float):
        return values.number(random, action.dest, action.type)
    if action.type is Path or "FILE" in str(action.metavar):
        return values.place(random)
    pools: list[list[Word]] = [values.TEXTS, values.PLACES, [*values.NO_NUMBERS]]
    if "|" in (action.help or ""):  # the help lists the valid values
        pools.append([word.strip() for word in str(action.help).split("|")])
    return random.choice(random.choice(pools))


def change_setting(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Add `--set section.key=value`."""
    if not any(a.dest == "assignments" for a in VERBS[draft.verb]._actions):
        change_option(random, call, draft, folder, stock)
        return
    sections = (
        draft.sections if random.random() < 0.95 else ("model", "data", "training", "decoding")
    )
    keys = [(name, default) for name, default in SETTINGS if name.split(".")[0] in sections]
    name, default = random.choice(keys)
    if name in VALID and random.random() < 0.6:
        setting = f"{name}={random.choice(VALID[name])}"
    elif isinstance(default, bool) and random.random() < 0.7:
        setting = f"{name}={str(not default).lower()}"
    else:
        setting = damage.hostile_setting(random, [(name, default)])
    draft.options.setdefault("--set", []).append([setting])
    call.may_fail |= name.startswith(("training.", "model."))


def change_text(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Change the positional arguments."""
    if not draft.texts and not draft.reads_stdin and random.random() < 0.9:  # there are none
        change_setting(random, call, draft, folder, stock)
        return
    paths = draft.verb in (("info",), ("pack",), ("finish",), ("view", "curves"))
    pools = values.PLACES if paths else [values.text(random)]
    action = random.random()
    if action < 0.6:
        draft.texts = [random.choice(pools) for _ in range(random.choice([1, 1, 2]))]
    elif action < 0.8:
        draft.texts = [*draft.texts, values.text(random)]
    elif action < 0.9:
        draft.texts = []
    else:
        draft.texts = draft.texts * 50


def change_structure(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Remove an option, add an unknown one, or abbreviate a name."""
    flag = random.choice([flag for flag in draft.options if flag not in WORK] or ["--x"])
    action = random.random()
    if action < 0.4:
        draft.options.pop(flag, None)
    elif action < 0.6:
        draft.options[random.choice(["--nothing", "-z", "--", "-m", "--version", "-h"])] = [[]]
    elif action < 0.8 and flag.startswith("--"):
        draft.options[flag[: random.randrange(2, len(flag) + 1)]] = draft.options.pop(flag, [["x"]])
    else:
        draft.options["--json"] = [[]]


def change_data(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Damage a file that the call reads."""
    if not draft.files:
        change_model(random, call, draft, folder, stock)
        return
    name = random.choice(draft.files)
    path = folder / name
    if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
        return
    new, done = damage.damage_data(random, path)
    call.changes.append(done)
    if new != name:
        draft.rename(name, new)


def change_model(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Damage a model folder that the call reads."""
    if not draft.models:
        change_option(random, call, draft, folder, stock)
        return
    model = folder / random.choice(draft.models)
    if model.is_dir():
        call.changes.append(damage.damage_model(random, model, stock / "models"))


def change_stdin(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    """Change standard input, and make the call read it."""
    if draft.stdin or random.random() < 0.8:
        draft.texts = [] if draft.reads_stdin else draft.texts
    path = folder / "stdin"
    action = random.random()
    if action < 0.15:
        call.stdin = random.choice(["null", "closed", "zero"])
    elif action < 0.6:
        call.changes.append(damage.damage_content(random, path))
    else:
        words = [os.fsencode(values.text(random)) for _ in range(random.choice([1, 3, 20]))]
        path.write_bytes(random.choice([b"\n", b"\r\n", b"\n\n", b"\t"]).join(words))


def change_stdout(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    call.stdout = random.choice(["full", "closed", "left"])
    call.may_fail |= call.stdout == "full"


def change_environment(random: Random, call: Call, draft: Draft, folder: Path, stock: Path) -> None:
    call.env |= random.choice(ENVIRONMENTS)


CHANGES: list[Changing] = [
    change_option, change_option, change_option, change_option, change_setting, change_setting,
    change_text, change_data, change_data, change_model, change_model, change_model, change_structure,
    change_stdin, change_stdin, change_stdout, change_environment,
]  # fmt: skip


def unlisted() -> set[Verb]:
    """Verbs of the parser without a draft."""
    return set(VERBS) - set(DRAFTS) - SKIPPED
