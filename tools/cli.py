"""Write docs/reference/cli.md from the argument parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from experiments.template import fill
from regard.cli.main import build_parser
from regard.files import write_file

PAGE = Path("docs/reference/cli.md")
TEMPLATE = Path(__file__).parent / "templates" / "cli.md"


def page() -> str:
    """The whole page."""
    commands = list(parsers(build_parser()))
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {escaped(text)} |"
            for name, text, _ in commands]  # fmt: skip
    sections = [section(name, parser) for name, _, parser in commands]
    return fill(TEMPLATE, {"commands": "\n".join(rows), "sections": "\n\n".join(sections)})


def parsers(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Each command that runs something: its name with all verbs, its description, its parser."""
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in nested:
        for child in action.choices.values():
            yield from parsers(child)
    if not nested:
        yield parser.prog, parser.description or "", parser


def section(name: str, parser: argparse.ArgumentParser) -> str:
    """The heading, synopsis and options of one command."""
    texts = [a for a in parser._actions if not a.option_strings]
    synopsis = " ".join([name, "[options]", *map(operand, texts)])
    lines = [f"## {name}", "", escaped(parser.description or ""), "", "```text", synopsis, "```"]
    lines += ["", "| option | |", "|---|---|"]
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            lines.append(f"| {spelling(action)} | {explanation(action, parser)} |")
    for group in parser._action_groups:
        if group.description:
            lines += ["", escaped(f"{(group.title or '').capitalize()}: {group.description}")]
    return "\n".join(lines)


def spelling(action: argparse.Action) -> str:
    """The names of an option and the placeholder of its value."""
    if not action.option_strings:
        return f"`{operand(action)}`"
    value = operand(action)
    return ", ".join(f"`{' '.join(filter(None, [name, value]))}`" for name in action.option_strings)


def operand(action: argparse.Action) -> str:
    """The placeholder of a value, as the help text shows it."""
    formatter = argparse.HelpFormatter("")
    default = (action.option_strings or [action.dest])[-1].lstrip("-").replace("-", "_").upper()
    return formatter._format_args(action, default).replace("|", "\\|")


def explanation(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """The help text of an option."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    required = bool(action.option_strings and action.required)
    return escaped(", ".join(filter(None, [text, "required" if required else ""])))


def escaped(text: str) -> str:
    """A text for a table cell: no character is read as Markdown or HTML."""
    for character, replacement in (("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(character, replacement)
    return text


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools cli", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="page to write (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    write_file(options.out, page())
    print(f"wrote {options.out}")
