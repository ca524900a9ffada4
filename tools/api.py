"""Write docs/api.md from the signatures and docstrings of the public names.

Docstrings are in Google style: a summary, text, and the sections Args, Attributes, Returns and
Raises.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import regard
from experiments.template import fill
from regard.files import write_file

DOCUMENT = Path(__file__).parents[1] / "docs" / "api.md"
TEMPLATE = Path(__file__).parent / "templates" / "api.md"
GROUPS = {
    "Use a model": ("load", "Model", "Prediction", "Attention", "Tokenizer", "pack"),
    "Train a model": (
        "train", "make_config", "Config", "ModelConfig", "DataConfig", "TrainingConfig",
        "DecodingConfig", "Trainer", "losses",
    ),
    "The architecture": ("Transformer", "Packed", "AttentionCapture", "generate"),
    "Extend the package": (
        "Positions", "register_positions", "MultiHeadAttention", "register_attention",
        "register_mixer", "register_schedule", "register_metric", "Task", "register_task",
    ),
    "Errors": ("InputError", "TrainingFailed"),
}  # fmt: skip
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
ENTRY = re.compile(r"^([\w*.]+): ", re.MULTILINE)
LONGEST_LINE = 88


@dataclass
class Docstring:
    """The parts of a docstring."""

    text: str
    sections: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, item: Any) -> Docstring:
        """The parts of the docstring of an object."""
        if isinstance(item, property | cached_property):
            item = item.fget if isinstance(item, property) else item.func
        parts = SECTION.split(inspect.cleandoc(item.__doc__ or ""))
        bodies = (inspect.cleandoc("\n" + body.strip("\n")) for body in parts[2::2])
        return cls(parts[0].strip(), dict(zip(parts[1::2], bodies, strict=True)))

    def entries(self, section: str) -> dict[str, str]:
        """The names of a section with their descriptions."""
        parts = ENTRY.split("\n".join(self._unindented(section)))
        return dict(zip(parts[1::2], map(one_paragraph, parts[2::2]), strict=True))

    def _unindented(self, section: str) -> Iterator[str]:
        """The lines of a section; continued lines begin with a space, so that they are no entry."""
        for line in self.sections.get(section, "").splitlines():
            yield f" {line.strip()}" if line.startswith(" ") else line


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools api", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=DOCUMENT, help="page to write (default: docs/api.md)"
    )
    options = parser.parse_args(arguments)
    write_file(options.out, document())
    print(f"wrote {options.out}")


def document() -> str:
    """The whole page."""
    contents, reference = [], []
    for title, names in groups().items():
        links = ", ".join(f"[`{name}`](#regard{name.lower()})" for name in names)
        contents.append(f"- {title}: {links}")
        reference.append(f"## {title}")
        reference += [block for name in names for block in blocks(name, getattr(regard, name))]
    return fill(TEMPLATE, {"contents": "\n".join(contents), "reference": "\n\n".join(reference)})


def groups() -> dict[str, list[str]]:
    """The public names by group; names that are in no group come last."""
    grouped = {title: [n for n in names if n in regard.__all__] for title, names in GROUPS.items()}
    known = {name for names in GROUPS.values() for name in names}
    others = [name for name in regard.__all__ if name not in known]
    return grouped | ({"Further names": others} if others else {})


def blocks(name: str, item: Any) -> Iterator[str]:
    """The paragraphs about a public name, and about its methods or functions."""
    yield f"### `regard.{name}`"
    if isinstance(item, ModuleType):
        yield Docstring.of(item).text
        for key, function in functions(item).items():
            yield from described(f"{name}.{key}", function)
        return
    if inspect.isclass(item) and not issubclass(item, Exception):
        if not is_dataclass(item) or "Config" not in name:  # its fields are in configuration.md
            yield signature(name, item)
        yield from paragraphs(item)
        for key, member in members(item).items():
            yield from described(f"{name}.{key}", member)
        return
    if not inspect.isclass(item):
        yield signature(name, item)
    yield from paragraphs(item)


def described(name: str, member: Any) -> Iterator[str]:
    """The paragraphs about a method, a property or a function."""
    yield f"#### `{name}`"
    if not isinstance(member, property | cached_property):
        yield signature(name, member)
    yield from paragraphs(member)


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines."""
    return {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not key.startswith("_")
    }


def members(cls: type) -> dict[str, Any]:
    """The public methods and properties that a class and its bases in this package define."""
    attributes: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("regard."):
            continue
        for key, value in vars(base).items():
            value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            known = inspect.isfunction(value) or isinstance(value, property | cached_property)
            if known and not key.startswith("_"):
                attributes[key] = value
    return attributes


def paragraphs(item: Any) -> Iterator[str]:
    """The text and the sections of a docstring as Markdown."""
    docstring = Docstring.of(item)
    if docstring.text:
        yield escaped(docstring.text)
    for section in docstring.sections:
        if entries := docstring.entries(section):
            lines = [f"- `{name}`: {escaped(text)}" for name, text in entries.items()]
            yield "\n".join([f"{section}:", "", *lines])
        else:
            yield f"{section}: {escaped(one_paragraph(docstring.sections[section]))}"


def signature(name: str, item: Any) -> str:
    """The signature as a block of code."""
    inspected = inspect.signature(item)
    parts, star = [], False
    for parameter in inspected.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        parts.append(format_parameter(parameter))
    returns = "" if inspect.isclass(item) else f" -> {format_type(inspected.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) > LONGEST_LINE:
        line = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])
    return f"```python\n{line}\n```"


def format_parameter(parameter: inspect.Parameter) -> str:
    """A parameter with its type and its default."""
    text = parameter.name
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        text = f"**{text}"
    elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        text = f"*{text}"
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {format_type(parameter.annotation)}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = parameter.default
    if "HAS_DEFAULT_FACTORY" in repr(default) or repr(default) == "<factory>":
        return f"{text} = ..."
    return f"{text} = {default.__name__ if callable(default) else repr(default)}"


def format_type(annotation: Any) -> str:
    """An annotation without the names of its modules."""
    if annotation is inspect.Signature.empty:
        return "None"
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text.strip("'"))


def one_paragraph(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())


def escaped(text: str) -> str:
    """Markdown in which a special token such as <eos> outside of code is not an HTML tag."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else p.replace("<", "\\<") for p in parts)
