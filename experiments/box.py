"""Ship a model: quantise a finished run, score it again, write its model card, copy it to the box.

The folder of the shipped model is src/regard/box/VERB. Its card is written from the same result as
docs/results.md. The inputs of its examples are fixed here, not selected by their outputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.cards import card
from experiments.catalogue import Files, Recipe
from regard.box.pack import pack
from regard.config.sections import Config
from regard.files import checksum, new_folder, write_file
from regard.predictor.loading import load
from regard.predictor.model import Model
from regard.training.shipped import boxed

SIMILAR, DIFFERENT = "Similar to the training data", "Different from the training data"

# The inputs of the examples in each model card.
EXAMPLES: dict[str, dict[str, list[str]]] = {
    "translate": {
        SIMILAR: [
            "How much does this bicycle cost?",
            "I would like to book a room for two nights.",
            "My sister is older than me, but she looks younger.",
            "A young girl in a red dress is playing with a dog on the beach.",
            "The committee voted in favour of the report on the protection of consumers.",
        ],
        DIFFERENT: [
            "It's raining cats and dogs.",
            "The striker netted a late equaliser in stoppage time.",
            "Install the driver and reboot the laptop.",
            "Quantum computers may one day break today's encryption.",
            "lol i dunno tbh",
        ],
    },
    "classify": {
        SIMILAR: [
            "A wonderful, moving film.",
            "Two hours of my life that I will never get back.",
            "The plot is thin, but the actors are a joy to watch.",
        ],
        DIFFERENT: [
            "Not bad at all!",
            "I expected to hate it, and I was wrong.",
            "The soup was cold and the waiter rude.",
            "The meeting is at three o'clock.",
        ],
    },
    "fill": {
        SIMILAR: [
            "This is one of the <mask> movies I have ever seen.",
            "The acting was <mask>.",
            "I <mask> this film when I was a child.",
        ],
        DIFFERENT: [
            "Paris is the capital of <mask>.",
            "Two plus two is <mask>.",
        ],
    },
    "generate": {
        SIMILAR: ["ROMEO:", "First Citizen:\n"],
        DIFFERENT: ["The computer"],
    },
    "embed": {  # two sentences each; the output is their similarity
        SIMILAR: [
            "A man is playing a guitar. | Someone is playing an instrument.",
            "A man is playing a guitar. | A woman is slicing an onion.",
            "Two dogs run through the snow. | Dogs are running in the snow.",
            "Two dogs run through the snow. | Zwei Hunde rennen durch den Schnee.",
            "Two dogs run through the snow. | Eine Frau liest die Zeitung.",
        ],
        DIFFERENT: [
            "The film is good. | The film is not good.",
            "How do I reset my password? | I forgot my login.",
            "The dog bit the man. | The man bit the dog.",
        ],
    },
}


def example_output(model: Model, text: str) -> str:
    """The output of a model for an example, in one line (generated text may have several)."""
    if model.task.name == "translate":
        return model.translate(text)
    if model.task.name == "classify":
        label = model.classify(text)
        return f"{label.label} ({label.probability:.2f})"
    if model.task.name == "fill":
        words = model.fill(text, top=3).gaps[0].candidates
        return ", ".join(f"{word.strip()} ({probability:.2f})" for word, probability in words)
    if model.task.name == "generate":
        return model.generate(text)
    first, second = model.embed([part.strip() for part in text.split("|")])
    return f"{float(first @ second):.2f}"


def ship(
    recipe: Recipe,
    run: Path,
    result: dict[str, Any],
    before: dict[str, Any],
    box: Path,
    evaluate: Callable[[list[str]], dict[str, Any]],
) -> None:
    """Quantise a run, score it, write its card, and replace the shipped model when all is done.

    Args:
        run: the folder of the finished training.
        result: the result of the recipe; receives the key "packed".
        before: the "packed" part of an earlier result, whose scores are reused.
        box: the folder of shipped models.
        evaluate: runs `regard evaluate` with these words and returns the scores.
    """
    folder = run.with_name(f"{run.name}-packed")
    small = pack(run, folder, replace_old=True)
    name_files(recipe, folder / "config.yaml")
    packed: dict[str, Any] = {
        "name": boxed(recipe.box), "parameters": small.parameters, "bytes": small.size,
        "bytes_before": small.before, "model": checksum(folder / "model.safetensors"),
    }  # fmt: skip

    def words(files: Files, model: str) -> list[str]:
        verb, option, _, *rest = recipe.test_command(files)
        return [verb, option, model, *rest]

    tests = recipe.tests.items()
    packed["evaluate"] = {
        name: " ".join(["regard", *words(files, packed["name"])]) for name, files in tests
    }
    packed["tests"] = known_scores(before, packed["model"], packed["evaluate"])
    for name, files in tests:
        if name not in packed["tests"]:
            packed["tests"][name] = evaluate(words(files, str(folder)))
    model = load(folder, "cpu", "float32")
    packed["examples"] = {
        kind: [[text, example_output(model, text)] for text in texts]
        for kind, texts in EXAMPLES[recipe.box].items()
    }
    result["packed"] = packed
    write_file(folder / "README.md", card(recipe, result))
    with new_folder(box / recipe.box, replace=True) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)


def known_scores(
    before: Mapping[str, Any], model: str, commands: Mapping[str, str]
) -> dict[str, Any]:
    """The scores of an earlier call for the same weights and the same commands."""
    if before.get("model") != model:
        return {}
    same = [name for name in commands if before["evaluate"].get(name) == commands[name]]
    return {name: before["tests"][name] for name in same if name in before["tests"]}


def name_files(recipe: Recipe, path: Path) -> None:
    """Write the file names of the recipe into a configuration, instead of those of this machine."""
    config = Config.load(path)
    data = replace(config.data, train=list(recipe.train), valid=list(recipe.valid))
    write_file(path, replace(config, data=data).to_yaml())
