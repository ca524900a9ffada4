"""The model cards of the shipped models. Figures, commands and examples come from the result, the
text from experiments/templates."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.catalogue import Recipe
from experiments.template import fill
from regard.config.sections import DataConfig
from regard.config.settings import read_yaml
from regard.training.progress import duration

TEMPLATES, RECIPES = (Path(__file__).parent / name for name in ("templates", "recipes"))
METRICS = {
    "translate": ("bleu", "chrf"),
    "classify": ("accuracy", "matthews", "calibration_error"),
    "fill": ("perplexity", "accuracy"),
    "generate": ("loss", "bits_per_byte"),
    "embed": ("spearman", "pearson", "nearest", "reciprocal_rank"),
}


@dataclass(frozen=True)
class Card:
    """The facts of a card that are not figures; its text is in templates/VERB.md."""

    title: str
    use: str  # an example command
    sets: tuple[str, ...]  # data sets of the training, keys of datasets.yaml
    licensed: bool = False  # whether all data sets state their terms


CARDS = {
    "translate": Card(
        "English to German",
        'regard translate "How much does this bicycle cost?"',
        ("europarl", "tatoeba", "multi30k"),
    ),
    "classify": Card(
        "sentiment of film reviews", 'regard classify "A wonderful, moving film."', ("imdb", "sst2")
    ),
    "fill": Card("masked words", 'regard fill "The acting was <mask>."', ("imdb",)),
    "generate": Card(
        "text in the style of plays", 'regard generate "ROMEO:"', ("shakespeare",), licensed=True
    ),
    "embed": Card(
        "sentence similarity",
        'regard search --documents FILE "someone plays an instrument"',
        ("tatoeba", "multi30k", "europarl", "stsb"),
    ),
}


def data_sets() -> dict[str, dict[str, str]]:
    """Name, description and terms of each data set."""
    text = (TEMPLATES / "datasets.yaml").read_text(encoding="utf-8")
    sets: dict[str, dict[str, str]] = yaml.safe_load(text)
    return sets


def text_sections(verb: str, longest: int) -> dict[str, str]:
    """The text of a card: description, scores, limits and licence.

    longest: the tokens of the longest input that the model reads in one piece
    """
    text = (TEMPLATES / f"{verb}.md").read_text(encoding="utf-8")
    text = text.replace("{longest}", str(longest))
    _, *parts = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    return {
        title.lower(): part.strip() for title, part in zip(parts[::2], parts[1::2], strict=True)
    }


def card(recipe: Recipe, result: dict[str, Any]) -> str:
    """The README.md of a shipped model."""
    values = read_yaml(RECIPES / f"{recipe.name}.yaml")
    longest = values.get("data", {}).get("max_length", DataConfig().max_length)
    facts, small = CARDS[recipe.box], result["packed"]
    sections = text_sections(recipe.box, longest)
    if not facts.licensed:
        licence = fill(TEMPLATES / "licence.md", {"terms": sections["licence"]})
        sections["licence"] = textwrap.fill(licence, 100)
    sets = data_sets()
    rows = [sets[name] for name in facts.sets]
    return fill(TEMPLATES / "card.md", {
        **sections, "name": small["name"], "title": facts.title, "use": facts.use,
        "parameters": f"{small['parameters'] / 1e6:.1f}",
        "megabytes": f"{small['bytes'] / 1e6:.1f}",
        "megabytes_before": f"{small['bytes_before'] / 1e6:.1f}",
        "trained": trained(result), "weights": result["weights"], "recipe": recipe.name,
        "recipes": " ".join(filter(None, (recipe.start, recipe.name))),  # the start comes first
        "train": "\n".join(entry["train"] for entry in (result.get("start"), result) if entry),
        "data": "\n".join(
            f"| {row['name']} | {row['description']} | {row['terms']} |" for row in rows
        ),
        "left_out": paragraphs(left_out(result)), "table": table(recipe.box, result),
        "signatures": paragraphs(signatures(result)),
        "evaluate": "\n".join(small["evaluate"].values()),
        "examples": paragraphs(examples(recipe.box, small["examples"])),
    })  # fmt: skip


def paragraphs(parts: list[str]) -> str:
    """Paragraphs, each followed by an empty line."""
    return "".join(f"{part}\n\n" for part in parts)


def trained(result: dict[str, Any]) -> str:
    """The length and the machine of the training, after those of the model it started from."""
    steps = f"{result['steps']:,} steps in {duration(result['time'])} on {result['machine']}"
    start = result.get("start")
    return f"{trained(start)} (`{start['name']}`), then {steps}" if start else steps


def left_out(result: dict[str, Any]) -> list[str]:
    """A paragraph about the pairs that were removed from the training data, if there are any."""
    sets = data_sets()
    parts = [
        f"{sets[name]['name']} {entry['pairs']:,} pairs (without {entry['left_out']:,} that share "
        "a sentence with a test or development set), "
        f"each {entry['times']} time{'s' * (entry['times'] != 1)}"
        for name, entry in result.get("data", {}).items()
        if isinstance(entry, dict)
    ]
    if not parts:
        return []
    return [f"The training data: {'; '.join(parts)}: {result['data']['lines']:,} lines."]


def table(verb: str, result: dict[str, Any]) -> str:
    """Scores of the full and the packed model: a table for each set of metrics."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, full in result["tests"].items():
        small = result["packed"]["tests"][name]
        metrics = tuple(metric for metric in METRICS[verb] if metric in full)
        cells = [f"{scores[m]:.4g}" for m in metrics for scores in (full, small)]
        row = f"| {name} ({full['examples']:,}) | " + " | ".join(cells) + " |"
        kinds.setdefault(metrics, []).append(row)
    parts = []
    for metrics, rows in kinds.items():
        heads = [f"{m.replace('_', ' ')}, {kind}" for m in metrics for kind in ("full", "packed")]
        line = "|---" * (len(heads) + 1) + "|"
        parts.append("\n".join(["| set | " + " | ".join(heads) + " |", line, *rows]))
    return "\n\n".join(parts)


def signatures(result: dict[str, Any]) -> list[str]:
    """A paragraph with the signatures of the metrics, if they have any."""
    entry = next(iter(result["tests"].values()))
    names = [f"`{entry[key]}`" for key in ("bleu_signature", "chrf_signature") if key in entry]
    return [f"Signatures: {', '.join(names)}."] if names else []


def examples(verb: str, outputs: dict[str, list[list[str]]]) -> list[str]:
    """The examples of a card, as paragraphs. Outputs are those of the packed model."""
    parts = []
    for kind, pairs in outputs.items():
        parts.append(f"{kind}:")
        if verb == "generate":
            for text, output in pairs:
                whole = output if output.startswith(text) else text + output
                parts.append(f"```\n{whole}\n```")
            continue
        # A <mask> would be parsed as HTML, and a | as the border of a table cell.
        signs = {ord("<"): "&lt;", ord("|"): "&#124;"}
        rows = [f"| {a.translate(signs)} | {b.translate(signs)} |" for a, b in pairs]
        parts.append("\n".join(["| input | output |", "|---|---|", *rows]))
    return parts
