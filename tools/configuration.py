"""Write docs/reference/configuration.md from the dataclasses.

Types, defaults and explanations come from the dataclasses and the comments next to their fields,
the defaults of each task from `make_config`, and the accepted values from the checks.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import re
import tokenize
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_origin, get_type_hints

from experiments.template import fill
from regard.config.checks import DERIVED
from regard.config.model import PRESETS, ModelConfig
from regard.config.model import RANGES as MODEL_RANGES
from regard.config.sections import (
    RANGES,
    Config,
    DataConfig,
    DecodingConfig,
    TrainingConfig,
)
from regard.errors import InputError
from regard.files import write_file
from regard.tasks.configuration import make_config, tasks_by_option
from regard.tasks.registry import find_task, task_names

PAGE = Path("docs/reference/configuration.md")
SECTIONS: dict[str, Any] = {
    "model": ModelConfig, "data": DataConfig, "training": TrainingConfig,
    "decoding": DecodingConfig,
}  # fmt: skip
TYPES = {
    str: "string", int: "integer", float: "number", bool: "true or false", NoneType: "null",
}  # fmt: skip
TEMPLATE = Path(__file__).parent / "templates" / "configuration.md"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools configuration", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="page to write (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    write_file(options.out, document())
    print(f"wrote {options.out}")


def document() -> str:
    """The whole page."""
    usual = {task: make_config(task, "base", {"data": {"train": ["?"]}}) for task in task_names()}
    tables = {section: table(section, usual) for section in SECTIONS}
    return fill(TEMPLATE, {"presets": presets(), "styles": styles(usual), **tables})


def presets() -> str:
    """A table of the keys that each preset sets."""
    keys = list(PRESETS["base"])
    lines = ["| preset | " + " | ".join(f"`{key}`" for key in keys) + " |"]
    lines.append("|---" * (len(keys) + 1) + "|")
    for name, values in PRESETS.items():
        lines.append(f"| `{name}` | " + " | ".join(f"{values[key]}" for key in keys) + " |")
    return "\n".join(lines)


def styles(usual: dict[str, Config]) -> str:
    """A list of the styles of each task."""
    lines = []
    for task, config in usual.items():
        known = find_task(task).styles
        others = [style for style in known if style != config.model.style]
        lines.append(f"- `{task}`: " + ", ".join([config.model.style, *others]))
    return "\n".join(lines)


def table(section: str, usual: dict[str, Config]) -> str:
    """A row for each field of a section."""
    cls = SECTIONS[section]
    lines = ["| key | type | default | values | |", "|---|---|---|---|---|"]
    notes = comments(cls)
    for field in fields(cls):
        cells = [
            f"`{section}.{field.name}`", kind(cls, field.name), default(field, section, usual),
            allowed(cls, section, field.name), explained(field.name, section, notes),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kind(cls: type, name: str) -> str:
    """The type of a field, in words."""
    hint = get_type_hints(cls)[name]
    if get_origin(hint) is list:
        return "list of strings"
    if get_origin(hint) is dict:
        return "mapping of strings"
    return " or ".join(TYPES[part] for part in getattr(hint, "__args__", (hint,)))


def default(field: Field[Any], section: str, usual: dict[str, Config]) -> str:
    """The default of `regard train`, and the tasks with a different one."""
    if field.name == "train":
        return "must be given"
    if derived(field) and field.name not in PRESETS["base"]:
        return "derived"
    tasks: dict[str, list[str]] = {}
    for task, config in usual.items():
        value = getattr(getattr(config, section), field.name)
        tasks.setdefault(written(value), []).append(task)
    first, *others = tasks
    values = [first, *(f"{', '.join(tasks[value])}: {value}" for value in others)]
    if not derived(field) and field.default is not MISSING and written(field.default) not in tasks:
        values.append(f"`ModelConfig` alone: {written(field.default)}")
    return "; ".join(values)


def derived(field: Field[Any]) -> bool:
    """Whether the default of a field depends on other fields."""
    return "None" not in str(field.type) and (
        field.default is DERIVED or (field.default is field.default_factory is MISSING)
    )


def written(value: object) -> str:
    """A value in the notation of YAML and --set."""
    words = {"True": "true", "False": "false", "None": "null"}
    return f"`{words.get(str(value), value)}`"


def allowed(cls: type, section: str, name: str) -> str:
    """The range of a number, or the names that the check lists for an unknown one."""
    ranges = MODEL_RANGES if section == "model" else RANGES[section]
    if name in ranges:
        return str(ranges[name])
    if kind(cls, name) == "string":
        needed = {"vocabulary_size": 100} if section == "model" else {}
        try:
            cls(**{**needed, name: "?"})
        except InputError as error:
            if known := re.search(r"; known: ([^(]+?)(?: \((.+) adds others\))?$", str(error)):
                names = ", ".join(f"`{word}`" for word in known[1].split(", "))
                return f"{names}; `{known[2]}` adds others" if known[2] else names
    return ""


def explained(name: str, section: str, notes: dict[str, str]) -> str:
    """The comment on a field, with the tasks it applies to if the comment does not name them."""
    tasks = tasks_by_option().get(f"{section}.{name}", ()) if section == "data" else ()
    if not tasks or notes[name].startswith(f"{tasks[0]}:"):
        return notes[name].replace("|", "\\|")
    return f"{', '.join(tasks)}: {notes[name]}".replace("|", "\\|")


def comments(cls: type) -> dict[str, str]:
    """The comment after each field, including the comment lines that follow it."""
    source = inspect.getsource(cls)
    written = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    notes = {}
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            line = statement.end_lineno or 0
            parts = []
            while line in written:
                parts.append(written[line])
                line += 1
                if not source.splitlines()[line - 1].lstrip().startswith("#"):
                    break
            notes[statement.target.id] = " ".join(parts)
    return notes
