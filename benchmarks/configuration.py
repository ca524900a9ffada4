"""`python -m benchmarks configuration`: write docs/configuration.md from the dataclasses.

Types, defaults and explanations are read off the dataclasses and the comments beside their fields;
what each task takes is what `Config.build` gives for it; and which values are allowed is what the
checks use. Nothing is written twice.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_origin, get_type_hints

from regard.config.checks import DERIVED
from regard.config.model import PRESETS, ModelConfig
from regard.config.model import RANGES as MODEL_RANGES
from regard.config.sections import RANGES, Config, DataConfig, DecodingConfig, TrainingConfig
from regard.errors import InputError
from regard.files import write_file
from regard.tasks.configuration import tasks_by_option
from regard.tasks.registry import find_task, task_names

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
SECTIONS: dict[str, Any] = {
    "model": ModelConfig, "data": DataConfig, "training": TrainingConfig,
    "decoding": DecodingConfig,
}  # fmt: skip
TYPES = {
    str: "string", int: "integer", float: "number", bool: "true or false", NoneType: "null",
}  # fmt: skip
WHAT = {
    "model": "The architecture ([model/config.py](../src/regard/config/model.py)). Where the paper "
    "has an option, the default of the dataclass is the paper's base model.",
    "data": "Which files, and how text becomes tokens "
    "([sections.py](../src/regard/config/sections.py)).",
    "training": "The loss, the optimiser and the loop "
    "([sections.py](../src/regard/config/sections.py)).",
    "decoding": "How outputs are searched for or sampled; the rules are in "
    "[decoding.md](decoding.md). Each one is also a command-line option: "
    "`--beam 1`, `--length-penalty 1.0`.",
}
TOP = """# Configuration

This page lists every option, its default and the values that it accepts. `python -m benchmarks
configuration` generates it from the dataclasses: change a field or its comment there, then run the
command again.

The four sections have the same names on the command line, in files and in Python:

```
regard train ... --set training.steps=500 --set model.norm_first=false    # on the command line
regard train ... --config options.yaml                                    # in a file, see below
```
```yaml
task: translate                # optional, instead of --task
model: {dropout: 0.3}
training:
  steps: 500
  schedule: cosine
```
```python
from pathlib import Path
from regard import Config, train

values = {"data": {"train": ["train.en", "train.de"]}, "training": {"steps": 500}}
train(Config.build("translate", "tiny", values), Path("run"))
```

`--set` overrides the file, and the file overrides the preset. A run's own `config.yaml` contains
every default and can be passed to `--config`. Every value is checked before any work starts: the
message for an unknown key suggests the nearest known one, and the message for options that
cannot be combined names both.

*Default* is the value that `regard train` uses for `--task translate --preset base` (the default
preset), followed by the tasks with a different default. *Derived* defaults follow from other
options, as described in the last column. *Values* lists what is accepted.
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks configuration")
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    write_file(parser.parse_args(arguments).out, document())


def document() -> str:
    usual = {task: Config.build(task, "base", {"data": {"train": ["?"]}}) for task in task_names()}
    lines = [TOP, *presets(), *styles(usual)]
    for section, cls in SECTIONS.items():
        lines += [f"## {section}", "", WHAT[section], ""]
        lines += ["| key | type | default | values | |", "|---|---|---|---|---|"]
        said = comments(cls)
        for field in fields(cls):
            key = f"{section}.{field.name}"
            cells = [
                f"`{key}`", kind(cls, field.name), default(field, section, usual),
                allowed(cls, section, field.name), explained(field.name, section, said),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def presets() -> Iterator[str]:
    keys = list(PRESETS["base"])
    yield "## Presets and styles"
    yield ""
    yield "`--preset` sets these keys of `model`. All other options have the same default."
    yield ""
    yield "| preset | " + " | ".join(f"`{key}`" for key in keys) + " |"
    yield "|---" * (len(keys) + 1) + "|"
    for name, values in PRESETS.items():
        yield f"| `{name}` | " + " | ".join(f"{values[key]}" for key in keys) + " |"
    yield ""


def styles(usual: dict[str, Config]) -> Iterator[str]:
    yield "`--style` is `model.style`. The styles of each task, with the default first:"
    yield ""
    for task, config in usual.items():
        others = [style for style in find_task(task).styles if style != config.model.style]
        yield f"- `{task}`: " + ", ".join([config.model.style, *others])
    yield ""


def kind(cls: type, name: str) -> str:
    """A field's type, in words."""
    hint = get_type_hints(cls)[name]
    if get_origin(hint) is list:
        return "list of strings"
    return " or ".join(TYPES[part] for part in getattr(hint, "__args__", (hint,)))


def default(field: Field[Any], section: str, usual: dict[str, Config]) -> str:
    """What `regard train` takes, and for which tasks something else."""
    if field.name == "train":
        return "must be given"
    if unsaid(field) and field.name not in PRESETS["base"]:
        return "derived"
    tasks: dict[str, list[str]] = {}
    for task, config in usual.items():
        value = getattr(getattr(config, section), field.name)
        tasks.setdefault(written(value), []).append(task)
    first, *others = tasks
    told = [first, *(f"{', '.join(tasks[value])}: {value}" for value in others)]
    if not unsaid(field) and field.default is not MISSING and written(field.default) not in tasks:
        told.append(f"`ModelConfig` alone: {written(field.default)}")
    return "; ".join(told)


def unsaid(field: Field[Any]) -> bool:
    """Whether it has no value until other fields are known."""
    return "None" not in str(field.type) and (
        field.default is DERIVED or (field.default is field.default_factory is MISSING)
    )


def written(value: object) -> str:
    """A value as YAML and --set take it."""
    words = {"True": "true", "False": "false", "None": "null"}
    return f"`{words.get(str(value), value)}`"


def allowed(cls: type, section: str, name: str) -> str:
    """The range of a number; the names that the check lists when it is given an unknown one."""
    ranges = MODEL_RANGES if section == "model" else RANGES[section]
    if name in ranges:
        return str(ranges[name])
    if kind(cls, name) == "string":
        needed = {"vocabulary_size": 100} if section == "model" else {}
        try:
            cls(**{**needed, name: "?"})
        except InputError as error:
            if found := re.search(r"; known: (.+)", str(error)):
                return ", ".join(f"`{word}`" for word in found[1].split(", "))
    return ""


def explained(name: str, section: str, said: dict[str, str]) -> str:
    """The comment beside a field, and which tasks it is for where the comment does not say."""
    tasks = tasks_by_option().get(f"{section}.{name}", [])
    if not tasks or said[name].startswith(f"{tasks[0]}:"):
        return said[name].replace("|", "\\|")
    return f"{', '.join(tasks)}: {said[name]}".replace("|", "\\|")


def comments(cls: type) -> dict[str, str]:
    """The comment behind each field, with the lines of comment that follow it."""
    source = inspect.getsource(cls)
    written = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            line = statement.end_lineno or 0
            parts = []
            while line in written:
                parts.append(written[line])
                line += 1
                if not source.splitlines()[line - 1].lstrip().startswith("#"):
                    break
            found[statement.target.id] = " ".join(parts)
    return found
