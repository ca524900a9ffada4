"""`regard VERB`: thin. Parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the work
failed, 2 the user's input is at fault (one line, no traceback; `--debug` shows it), 130
interrupted. torch is imported inside the verbs, so that every `--help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from regard import __version__
from regard.errors import InputError
from regard.model.config import PRESETS, STYLES, ModelConfig

app = typer.Typer(
    name="regard",
    help="The Transformer, whole: learn it, train it, use it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
view = typer.Typer(no_args_is_help=True, help="Pictures and tables to look at.")
app.add_typer(view, name="view")

Style = Annotated[str, typer.Option(help=" | ".join(STYLES))]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="section.key=value", help="Change one option; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if version:
        print(f"regard {__version__}")
        raise typer.Exit


@app.command()
def info(
    preset: Annotated[str, typer.Option(help=" | ".join(PRESETS))] = "base",
    style: Style = STYLES[0],
    vocab: Annotated[int, typer.Option(help="Vocabulary size, shared by both sides.")] = 37_000,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Parameters by part: the closed formula beside the tensors of the real model."""
    config = configure(preset, set_, style=style, vocabulary_size=vocab)
    from regard.view.info import parameter_table

    table = parameter_table(config)
    if as_json:
        print(json.dumps(table.to_dict()))
    else:
        table.show(preset)
    if not table.agrees:  # a formula that no longer describes the model is our fault
        raise typer.Exit(1)


@view.command()
def walk(
    text: Annotated[str, typer.Argument(help="The sentence to follow, at most 24 characters.")],
    target: Annotated[str | None, typer.Option(help="What the decoder writes; default: TEXT.")] = None,
    style: Style = STYLES[0],
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """What happens to a sentence, step by step, in a real (small, seeded) model."""
    from regard.view.walk import walk_config, walk_steps, write_walk

    config = walk_config(text, target, style, settings(set_))
    steps = walk_steps(text, target, config, seed)
    if as_json:
        for step in steps:
            print(json.dumps(step.to_dict(), ensure_ascii=False))
    else:
        write_walk(steps, config, seed)


def settings(assignments: list[str] | None) -> dict[str, Any]:
    """`--set model.heads=4`: keys of the section `model`, values as YAML would read them."""
    values: dict[str, Any] = {}
    for assignment in assignments or []:
        key, equals, text = assignment.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not name:
            raise InputError(f"--set {assignment!r}: write it as section.key=value")
        if section != "model":
            raise InputError(f"--set {assignment!r}: unknown section {section!r}; known: model")
        values[name] = literal(text.strip())
    return values


def literal(text: str) -> Any:
    """A word of the command line as a value, as YAML reads it (`none` is a word: positions=none)."""
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def configure(preset: str, assignments: list[str] | None, **values: Any) -> ModelConfig:
    return ModelConfig.preset(preset, **{**values, **settings(assignments)})


def main() -> None:
    try:
        app()
    except InputError as error:
        if "--debug" in sys.argv:
            raise
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `regard ... | head`: the reader has enough, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
