"""Configuration values by section, from a YAML file or from `--set section.key=value`.

Only the part of YAML 1.1 that a configuration needs is supported: sections, lists and plain values
(null, booleans, numbers, strings). There are no aliases, tags or dates, so a file of a few
kilobytes cannot expand to gigabytes or create other objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.config.names import equivalents, suggestion, unknown_section
from regard.console import warn
from regard.errors import InputError
from regard.files import MOST_DIGITS, read_bounded

SECTIONS = ("model", "data", "training", "decoding")
LARGEST_FILE = 1_000_000  # bytes
MOST_EVENTS, DEEPEST = 50_000, 10  # YAML events (values, brackets) of a file; levels of nesting
RENAMED = {("training", "compile"): "cuda_graphs"}  # old names, accepted for one release


def current_names(values: dict[str, Any], warns: bool = True) -> dict[str, Any]:
    """A copy of options by section, with current names instead of old ones."""
    values = dict(values)
    for (section, old), new in RENAMED.items():
        if old in values.get(section, {}):
            if warns:
                warn(f"{section}.{old} is now called {section}.{new}")
            options = dict(values[section])
            values[section] = {new: options.pop(old), **options}
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """The sections of a configuration file, and its `task`; the values are not checked."""
    values = parse_yaml(read_bounded(path, LARGEST_FILE, "a configuration"), path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: must contain sections ({', '.join(SECTIONS)})")
    for name, keys in values.items():
        if name not in (*SECTIONS, "task"):
            raise unknown_section(f"section in {path}", name, SECTIONS)
        if name != "task" and not isinstance(keys, dict):
            raise InputError(f"{path}: {name} must be a section of options, not {keys!r:.40}")
    return values


def parse_yaml(content: bytes, path: Path) -> Any:
    """The value of a YAML text; see the module docstring for the supported part of YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times as fast
    try:
        return _Values(yaml.parse(content.decode(), loader), path).document()
    except UnicodeError as error:  # in the file, or in an escape: "\\ud800"
        raise InputError(f"{path}: not UTF-8 ({error.reason})") from None  # type: ignore[attr-defined]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        problem = " ".join(ascii(str(error))[1:-1].replace("\\n", " ").split())
        raise InputError(f"{path}: not valid YAML: {problem:.200}") from None


class _Values:
    """Builds the values of one document from the events of the YAML parser."""

    def __init__(self, events: Iterator[Any], path: Path) -> None:
        from yaml.constructor import SafeConstructor
        from yaml.resolver import Resolver

        self.events, self.path, self.count, self.line = events, path, 0, 1
        self.resolver, self.constructor = Resolver(), SafeConstructor()

    def document(self) -> Any:
        self.next()  # the start of the stream
        self.next()
        if self.kind == "StreamEnd":
            return None
        value = self.value(self.next(), 0)
        self.next()  # the end of the document
        self.next()
        if self.kind != "StreamEnd":
            raise self.error("the file contains more than one document")
        return value

    def next(self) -> Any:
        event = next(self.events)
        self.count, self.line = self.count + 1, event.start_mark.line + 1
        self.kind = type(event).__name__.removesuffix("Event")
        if self.count > MOST_EVENTS:
            raise self.error(f"more than {MOST_EVENTS:,} values")
        if self.kind == "Alias" or getattr(event, "anchor", None) is not None:
            raise self.error("anchors and aliases (&, *) are not supported")
        return event

    def value(self, event: Any, depth: int) -> Any:
        if self.kind == "Scalar":
            return self.scalar(event)
        if event.tag is not None:
            raise self.error("tags (!) are not supported")
        if depth == DEEPEST:
            raise self.error(f"lists and sections are nested more than {DEEPEST} levels deep")
        if self.kind == "SequenceStart":
            items = []
            while (event := self.next()) and self.kind != "SequenceEnd":
                items.append(self.value(event, depth + 1))
            return items
        section: dict[str, Any] = {}
        while (event := self.next()) and self.kind != "MappingEnd":
            key = self.scalar(event) if self.kind == "Scalar" else None
            if not isinstance(key, str):
                raise self.error("a key must be a string")
            if key in section:
                raise self.error(f"the key {key!r:.40} is duplicated")
            section[key] = self.value(self.next(), depth + 1)
        return section

    def scalar(self, event: Any) -> Any:
        from yaml import ScalarNode

        if event.tag is not None:
            raise self.error("tags (!) are not supported")
        text = event.value
        text.encode()  # a lone surrogate is a UnicodeEncodeError
        tag = self.resolver.resolve(ScalarNode, text, event.implicit)
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if kind not in ("null", "bool", "int", "float"):
            return text  # dates, for example, stay strings
        if len(text) > MOST_DIGITS:
            raise self.error(f"a number with {len(text):,} digits")
        return getattr(self.constructor, f"construct_yaml_{kind}")(ScalarNode(tag, text))

    def error(self, reason: str) -> InputError:
        return InputError(f"{self.path}:{self.line}: not a valid configuration: {reason}")


def settings(assignments: list[str]) -> dict[str, dict[str, Any]]:
    """`--set model.heads=4 ...`: keys and values by section."""
    values: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not name:
            options = [option for option in equivalents(section) if "." in option.name]
            hint = "write it as section.key=value"
            if options and section not in SECTIONS:
                hint = suggestion(options[0], repr(f"{options[0]}={text or '...'}"))
            raise InputError(f"--set {assignment!r:.80}: {hint}")
        if section not in SECTIONS:
            raise unknown_section("section", section, SECTIONS)
        values.setdefault(section, {})[name] = literal(text.strip())
    return current_names(values)


def section_settings(assignments: list[str], only: str) -> dict[str, Any]:
    """The values of `settings` if only the options of one section are allowed."""
    values = settings(assignments)
    for section in values:
        if section != only:
            key = next(iter(values[section]))
            raise InputError(
                f"--set {section}.{key}: only options of the section {only} can be set here"
            )
    return values.get(only, {})


def literal(text: str) -> Any:
    """The value of a word of the command line, as in YAML; `none` stays a string, because it is a
    value of model.positions."""
    if text.startswith("["):  # data.labels=[good, bad]
        return [part.strip() for part in text[1:].removesuffix("]").split(",") if part.strip()]
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
