"""The models in the box, made from finished runs: packed, scored beside what they were, described.

The packed folder with its card is src/regard/box/VERB. The card is written from the same result
that docs/results.md is made of; its examples are what the packed model said, not a choice of ours.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cards import card
from benchmarks.recipes import Files, Recipe
from regard.box.pack import pack
from regard.config.sections import Config
from regard.files import checksum, new_folder, write_file
from regard.predictor import Model, load
from regard.training.shipped import boxed

# What the card shows each model's answer to: what it is for, and what is beyond it.
ASKED: dict[str, dict[str, list[str]]] = {
    "translate": {
        "Of the kind that it learned from": [
            "How much does this bicycle cost?",
            "I would like to book a room for two nights.",
            "My sister is older than me, but she looks younger.",
            "A young girl in a red dress is playing with a dog on the beach.",
            "The committee voted in favour of the report on the protection of consumers.",
        ],
        "Of another kind": [
            "It's raining cats and dogs.",
            "The striker netted a late equaliser in stoppage time.",
            "Install the driver and reboot the laptop.",
            "Quantum computers may one day break today's encryption.",
            "lol i dunno tbh",
        ],
    },
    "classify": {
        "Of the kind that it learned from": [
            "A wonderful, moving film.",
            "Two hours of my life that I will never get back.",
            "The plot is thin, but the actors are a joy to watch.",
        ],
        "Of another kind": [
            "Not bad at all!",
            "I expected to hate it, and I was wrong.",
            "The soup was cold and the waiter rude.",
            "The meeting is at three o'clock.",
        ],
    },
    "fill": {
        "Of the kind that it learned from": [
            "This is one of the <mask> movies I have ever seen.",
            "The acting was <mask>.",
            "I <mask> this film when I was a child.",
        ],
        "Of another kind": [
            "Paris is the capital of <mask>.",
            "Two plus two is <mask>.",
        ],
    },
    "generate": {
        "Of the kind that it learned from": ["ROMEO:", "First Citizen:\n"],
        "Of another kind": ["The computer"],
    },
    "embed": {  # two sentences each: how alike they are
        "Of the kind that it learned from": [
            "A man is playing a guitar. | Someone is playing an instrument.",
            "A man is playing a guitar. | A woman is slicing an onion.",
            "Two dogs run through the snow. | Dogs are running in the snow.",
            "Two dogs run through the snow. | Zwei Hunde rennen durch den Schnee.",
            "Two dogs run through the snow. | Eine Frau liest die Zeitung.",
        ],
        "Of another kind": [
            "The film is good. | The film is not good.",
            "How do I reset my password? | I forgot my login.",
            "The dog bit the man. | The man bit the dog.",
        ],
    },
}


def said(model: Model, asked: str) -> str:
    """What the model makes of an example, in one line (a play: in several)."""
    if model.task.name == "translate":
        return model.translate(asked)[0]
    if model.task.name == "classify":
        label = model.classify(asked)[0]
        return f"{label.label} ({label.probability:.2f})"
    if model.task.name == "fill":
        words = model.fill(asked, top=3)[0].gaps[0].candidates
        return ", ".join(f"{word.strip()} ({probability:.2f})" for word, probability in words)
    if model.task.name == "generate":
        return model.generate(asked)[0].text
    first, second = model.embed([part.strip() for part in asked.split("|")])
    return f"{float(first @ second):.2f}"


def put_in_box(
    recipe: Recipe,
    run: Path,
    result: dict[str, Any],
    before: dict[str, Any],
    box: Path,
    evaluate: Callable[[list[str]], dict[str, Any]],
) -> None:
    """Pack the run, score it as the run was scored, let it speak, write its card, and put it into
    the box when all of this is done. Scores that an earlier call has are not made again."""
    folder = run.with_name(f"{run.name}-packed")
    small = pack(run, folder, replace_old=True)
    name_files(recipe, folder / "config.yaml")
    found: dict[str, Any] = {
        "name": boxed(recipe.box), "parameters": small.parameters, "bytes": small.size,
        "bytes_before": small.before, "model": checksum(folder / "model.safetensors"),
    }  # fmt: skip

    def words(files: Files, model: str) -> list[str]:
        verb, option, _, *rest = recipe.test_command(files)
        return [verb, option, model, *rest]

    tests = recipe.tests.items()
    found["evaluate"] = {n: " ".join(["regard", *words(f, found["name"])]) for n, f in tests}
    found["tests"] = known_scores(before, found["model"], found["evaluate"])
    for name, files in tests:
        if name not in found["tests"]:
            found["tests"][name] = evaluate(words(files, str(folder)))
    model = load(folder, "cpu", "float32")
    found["examples"] = {
        kind: [[asked, said(model, asked)] for asked in some]
        for kind, some in ASKED[recipe.box].items()
    }
    result["packed"] = found
    write_file(folder / "README.md", card(recipe, result))
    with new_folder(box / recipe.box, replace=True) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)


def known_scores(
    before: Mapping[str, Any], model: str, commands: Mapping[str, str]
) -> dict[str, Any]:
    """The scores that an earlier call has of the very same weights by the very same commands."""
    if before.get("model") != model:
        return {}
    same = [name for name in commands if before["evaluate"].get(name) == commands[name]]
    return {name: before["tests"][name] for name in same if name in before["tests"]}


def name_files(recipe: Recipe, path: Path) -> None:
    """Let the configuration name its files as the recipe does, wherever they lay."""
    config = Config.load(path)
    data = replace(config.data, train=list(recipe.train), valid=list(recipe.valid))
    write_file(path, replace(config, data=data).to_yaml())
