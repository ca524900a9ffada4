"""`regard view walk`: the forward pass of a sentence, step by step (section 3 of the paper).

The model is small and its weights are random, but it is the `Transformer` of this package. It runs
once, and every displayed number comes from a tensor of that pass (`trace`), not from a second
implementation.
"""

from __future__ import annotations

from typing import Any

import torch
from rich.rule import Rule
from rich.text import Text

from regard.config.model import ModelConfig
from regard.console import make_console
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.view import terminal
from regard.view.steps import Row, Step, Targets, Walk

SPECIALS = ("<bos>", "<eos>", "<cls>", "<mask>")
LONGEST = 300  # characters of a text; tables of long texts leave out the middle
SMALL = {"d_model": 16, "heads": 2, "d_ff": 32, "dropout": 0.0}
LAYERS = 2  # layers of each stack
WIDEST = 100  # terminal cells of a line


def walk_config(text: str, target: str | None, style: str, changes: dict[str, Any]) -> ModelConfig:
    """The configuration of a small model whose vocabulary is the special tokens and the characters
    of both texts."""
    for name in ("vocabulary_size", "source_vocabulary_size"):
        if name in changes:
            raise InputError(f"model.{name} cannot be set here: it comes from the text")
    size = len(vocabulary(text, target))
    style = changes.get("style", style)
    stacks = [stack for stack in ("encoder", "decoder") if stack in str(style).split("-")]
    values = {"style": style, **SMALL, **{f"{stack}_layers": LAYERS for stack in stacks}}
    config = ModelConfig.from_dict({**values, **changes, "vocabulary_size": size})
    if target is not None and config.style != "encoder-decoder":
        raise InputError(f"model.style={config.style} reads one text: omit --target")
    if config.custom_parts:
        raise InputError(f"model.{config.custom_parts[0]} cannot be shown: use a built-in part")
    if config.mixer != "attention":
        raise InputError(f"model.mixer={config.mixer} cannot be shown: set model.mixer=attention")
    if config.decoder_mixer != "attention":
        raise InputError(
            f"model.decoder_mixer={config.decoder_mixer} cannot be shown: set "
            "model.decoder_mixer=attention"
        )
    return config


def vocabulary(text: str, target: str | None) -> list[str]:
    """The special tokens, then the characters in the order of their first appearance."""
    for name, characters in (("text", text), ("target", text if target is None else target)):
        if not characters:
            raise InputError(f"the {name} is empty: give at least one character")
        if len(characters) > LONGEST:
            raise InputError(
                f"the {name} has {len(characters)} characters, but at most {LONGEST} can be shown"
            )
    return [*SPECIALS, *dict.fromkeys(text + (target or ""))]


def label(token: str) -> str:
    return token if token in SPECIALS else terminal.visible_name(token)


def read(text: str, target: str | None, config: ModelConfig) -> dict[str, Row]:
    """The input of each stack of the model."""
    names = vocabulary(text, target)

    def row(tokens: list[str], sentence: str, answers: Targets) -> Row:
        ids = Packed.of([[names.index(token) for token in tokens]])
        labels = [None if answer is None else label(answer) for answer in answers]
        focus = int(tokens[0] in SPECIALS)  # the first character of the text
        return Row([label(token) for token in tokens], ids, focus, sentence, labels)

    each = "Each character is a token with a number, its id"
    written = text if target is None else target
    answers: Targets = [] if config.head == "pooling" else [*written, "<eos>"]
    if config.style == "encoder-decoder":
        shifted = (
            "The decoder reads the target shifted right by one position, after <bos>: at each "
        )
        shifted += "position it has to predict the next token."
        return {
            "encoder": row([*text, "<eos>"], f"{each}; <eos> ends the sentence.", []),
            "decoder": row(["<bos>", *written], shifted, answers),
        }
    if config.style == "decoder":
        return {"decoder": row(["<bos>", *text], f"{each}; <bos> starts the sentence.", answers)}
    start = f"{each}; <cls> starts the sentence"
    if config.head != "masked-language-model":
        return {"encoder": row(["<cls>", *text], f"{start}.", [])}
    at = len(text) // 2
    sentence = f"{start}, and <mask> replaces {label(text[at])}, which the model has to predict."
    tokens = ["<cls>", *text[:at], "<mask>", *text[at + 1 :]]
    hidden = [text[at] if token == "<mask>" else None for token in tokens]
    return {"encoder": row(tokens, sentence, hidden)}


def walk_steps(text: str, target: str | None, config: ModelConfig, seed: int) -> list[Step]:
    """Run the model once and describe each step."""
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must be from 0 to 2^63 - 1, not {seed}")
    rows = read(text, target, config)
    with torch.random.fork_rng(devices=[]):  # the caller's random state does not change
        torch.manual_seed(seed)
        model = Transformer(config)
    walk = Walk(model, rows, [label(name) for name in vocabulary(text, target)])
    walk.first_stack()
    if config.style == "encoder-decoder":
        walk.second_stack()
    walk.output()
    return walk.steps


def write_walk(steps: list[Step], config: ModelConfig, seed: int) -> None:
    """Print the steps. A sentence is printed beside its table if both fit, otherwise above it."""
    console = make_console()
    width = min(console.width, WIDEST)
    layers = " + ".join(str(n) for n in (config.encoder_layers, config.decoder_layers) if n)
    norm = "pre-norm" if config.norm_first else "post-norm"
    legend = (
        f"{config.style}, {layers} layers, {norm}, {config.positions} positions, seed {seed}",
        f"D = {config.d_model} d_model, H = {config.heads} heads of K = {config.head_size}, "
        f"F = {config.d_ff} d_ff, V = {config.vocabulary_size} vocabulary",
        f"N tokens, M keys; shades: blank is the smallest value, then {terminal.SHADES[1:]}",
    )
    console.print(Text("A sentence in the Transformer, step by step", "bold"))
    console.print(*(Text(line, "dim") for line in legend), sep="\n", end="\n\n")
    part = ""
    for step in steps:
        if step.part != part:
            part = step.part
            rule = Rule(Text(f"{part} ", "bold"), characters="━", style="dim", align="left")
            console.print(rule, width=width)
        console.print(*draw(step, width), sep="\n", end="\n\n", soft_wrap=True)


def draw(step: Step, width: int) -> list[Text]:
    title = Text.assemble((f" {step.step:2} ", "bold reverse"), (f" {step.name}", "bold"))
    notes = (step.shown, f"section {step.section}" if step.section else "")
    title.append("".join(f"  {text}" for text in notes if text), "dim")
    shape = f"{step.shape} {step.dimensions}"
    head = [title]
    if title.cell_len + 2 + len(shape) > width:
        title = Text()
        head.append(title)
    title.append(shape.rjust(width - title.cell_len), "bold cyan")
    indent, gap = 5, 2
    room = width - indent - gap
    text = max(26, room * 36 // 100)  # cells of a sentence beside its table
    # A table of vectors may leave out columns; other tables should be complete.
    table = picture(step, room - text if step.picture == "vectors" else room)
    if max(line.cell_len for line in table) <= room - text:
        sentence = terminal.wrap(step.sentence, text)
        return [*head, *terminal.side_by_side(sentence, table, indent, indent + text + gap)]
    lines = [Text(line) for line in terminal.wrap(step.sentence, room)]
    return [*head, *(Text(" " * indent).append(line) for line in (*lines, *table))]


def picture(step: Step, width: int) -> list[Text]:
    if step.picture == "matrix":
        return terminal.matrix(step.rows, step.columns, step.values, width)
    if step.picture == "guesses":
        return terminal.predictions(step.rows, step.columns, step.values, step.answers, width)
    if step.picture == "ids":
        titled = {"token": step.columns, "id": [str(n) for n in step.values[0]]}
        if step.answers:
            titled["answer"] = [str(answer) for answer in step.answers]
        return terminal.strip(titled, width)
    return terminal.vectors(step.rows, step.columns, step.values, width)
