"""The command lines `python -m benchmarks`, `python -m experiments` and `python -m tools`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from regard.errors import InputError


def run_command(package: str, purpose: str, commands: Mapping[str, str]) -> int:
    """Run the command that sys.argv names and return the exit code.

    Args:
        package: its module NAME has the function main(arguments), which may return an exit code.
        purpose: one sentence for the help text.
        commands: a one-line description for each NAME.
    """
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in commands:
        try:
            code: int | None = import_module(f"{package}.{name}").main(arguments)
        except InputError as error:
            print(f"{package}: {error}", file=sys.stderr)
            return 2
        return code or 0
    if name in ("-h", "--help"):
        width = max(map(len, commands))
        print(f"usage: python -m {package} COMMAND [options]\n\n{purpose}\n\ncommands:")
        for command, description in commands.items():
            print(f"  {command:{width}}  {description}")
        print(f"\nFor the options of a command: python -m {package} COMMAND --help")
        return 0
    known = ", ".join(commands)
    print(f"{package}: unknown command {name!r}; known: {known}", file=sys.stderr)
    return 2
