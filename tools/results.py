"""Write docs/results.md and its picture from docs/results/*.json."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments import cards
from experiments.catalogue import RECIPES
from experiments.results import FOLDER, Results, load_results
from experiments.template import fill
from regard.errors import InputError
from regard.files import write_file
from regard.lab.common.significance import format_p
from regard.training.progress import duration
from tools.translation import draw_curve, europarl, figure, ingredients, multi30k, trials

PAGE = Path("docs/results.md")
TEMPLATE = Path(__file__).parent / "templates" / "results.md"
REQUIRED = ("multi30k", "ingredients", "multi30k-tried", "europarl-base", "styles", "ablate")

# The tables with one row per test: placeholder of the template, results, metrics.
TABLES: dict[str, tuple[list[str], list[str]]] = {
    "shakespeare": (
        ["shakespeare", "shakespeare-gpu", "box-generate"], ["loss", "bits_per_byte"]
    ),
    "classification": (
        ["trec", "agnews"], ["accuracy", "macro_f1", "matthews", "calibration_error"]
    ),
    "sst2": (
        [f"sst2-{percent}-{kind}{gpu}" for gpu in ("", "-gpu") for percent in (1, 10, 100)
         for kind in ("scratch", "pretrained")],
        ["accuracy", "matthews", "calibration_error"],
    ),
    "imdb": (["imdb-fill", "imdb-fill-gpu"], ["perplexity", "accuracy"]),
    "stsb": (
        [f"stsb-{kind}{gpu}" for gpu in ("", "-gpu") for kind in ("scratch", "pretrained")],
        ["spearman", "pearson"],
    ),
    "pairs": (["box-pairs"], ["nearest", "reciprocal_rank", "spearman"]),
    "answering": (["babi", "babi-gpu", "squad"], ["exact", "f1"]),
}  # fmt: skip


def page(results: Results) -> str:
    """The whole page.

    Raises:
        InputError: a result that the page needs is missing.
    """
    missing = [name for name in REQUIRED if name not in results]
    if missing:
        raise InputError(f"{FOLDER} has no {missing[0]}.json: see python -m experiments --help")
    values = {
        "shipped": shipped(results),
        "multi30k": multi30k(results),
        "ingredients": ingredients(results["ingredients"]),
        "trials": trials(results["multi30k-tried"]),
        **europarl(results["europarl-base"]),
        "styles": styles(results["styles"]),
        **ablation(results["ablate"]),
        "commands": "\n".join(commands(results)),
    }
    for name, (names, metrics) in TABLES.items():
        rows = [results[name] for name in names if name in results]
        values[name] = "\n\n".join([table(rows, metrics), *by_task(rows)])
    return fill(TEMPLATE, values)


def shipped(results: Results) -> str:
    """The scores of each shipped model, with full and with quantised weights."""
    parts = []
    for recipe in RECIPES:
        result = results.get(recipe.name, {})
        if recipe.box and "packed" in result:
            small = result["packed"]
            parts += [
                f"`{small['name']}`: {small['parameters'] / 1e6:.1f} million parameters, "
                f"{small['bytes'] / 1e6:.1f} MB; {cards.trained(result)}.",
                cards.table(recipe.box, result), *cards.signatures(result),
            ]  # fmt: skip
    return "\n\n".join(parts)


def styles(result: dict[str, Any]) -> str:
    """One row for each style: quality, size and speed."""
    lines = ["| style | layers | parameters | BLEU | exact | ms a step | tokens read "
             "| steps to write | ms a token, alone | ms a token, 32 at once |",
             "|---" * 10 + "|"]  # fmt: skip
    for name, entry in result["styles"].items():
        quality, decoding = entry["quality"], entry["decoding"]
        cells = [
            " + ".join(map(str, entry["layers"])), f"{entry['parameters']:,}",
            *(f"{quality[m]['value']:.4g} ({quality[m]['low']:.4g} to {quality[m]['high']:.4g})"
              for m in ("bleu", "exact")),
            f"{entry['training']['ms_per_step']:.0f}", f"{entry['tokens_read']:.1f}",
            f"{decoding['steps']:.1f}",
            *(f"{decoding[b]['ms_per_token']:.2f}" for b in ("batch_1", "batch_32")),
        ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nTimes: {result['machine']}."


def ablation(result: dict[str, Any]) -> dict[str, str]:
    """The table of the ablation, and the values of the text above it."""
    model, training = result["base"]["model"], result["base"]["training"]
    layers = f"{model['encoder_layers']} + {model['decoder_layers']} layers"
    base = (
        f"{layers}, d_model {model['d_model']}, d_ff {model['d_ff']}, {model['heads']} heads of "
        f"size {model['head_size']}, dropout {model['dropout']}, label smoothing "
        f"{training['label_smoothing']}"
    )
    key = f"{result['counts']}_{result['metric']}"
    title = {"valid_bleu": "valid BLEU", "test_bleu": "test BLEU"}[key]
    lines = [f"| row | what differs | parameters, 10⁶ | perplexity | {title} | difference | p "
             "| ms a step | s to 90% |",
             "|---" * 9 + "|"]  # fmt: skip
    for row in result["rows"]:
        entry, seconds = row.get("difference"), row["seconds_to_quality"]
        between = ["", ""]
        if entry is not None:
            bold = "**" if entry["significant"] else ""
            between = [f"{bold}{entry['value']:+.1f}{bold}", format_p(entry["adjusted"])]
        cells = [
            row["name"], row["differs"].replace("_", "\\_"), f"{row['parameters'] / 1e6:.2f}",
            spread(row["perplexity"], 2), spread(row[key], 1), *between,
            f"{row['ms_per_step']:.1f}", "never" if seconds is None else f"{seconds:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    notes = [f"- {note.replace('*:', 'bold:')}" for note in result["notes"]]
    notes += [f"- Left out: {name}: {why}." for name, why in result["skipped"].items()]
    notes += [f"- Failed: {name}: {why}." for name, why in result["failed"].items()]
    machine = f"Trained and timed on {result['machine']}."
    return {
        "ablation_examples": f"{result['examples']:,}", "ablation_steps": f"{result['steps']:,}",
        "ablation_seeds": str(len(result["seeds"])), "ablation_base": base,
        "ablation": "\n".join([*lines, "", *notes, "", machine]),
    }  # fmt: skip


def spread(figures: dict[str, Any], places: int) -> str:
    """A mean with its standard deviation, if there is one."""
    deviation = f" ±{figures['spread']:.{places}f}" if "spread" in figures else ""
    return f"{figures['value']:.{places}f}{deviation}"


def table(rows: list[dict[str, Any]], metrics: list[str]) -> str:
    """One row for each test of each result."""
    lines = ["| run | set | " + " | ".join(m.replace("_", " ") for m in metrics)
             + " | steps | time | trained on |",
             "|---" * (len(metrics) + 5) + "|"]  # fmt: skip
    for row in rows:
        for name, scores in row["tests"].items():
            cells = [figure(scores, metric) for metric in metrics]
            lines.append(
                f"| {row['name']} | {name} ({scores['examples']:,}) | " + " | ".join(cells)
                + f" | {row['steps']:,} | {duration(row['time'])} | {row['machine']} |"
            )  # fmt: skip
    return "\n".join(lines)


def exact_by_task(row: dict[str, Any]) -> dict[str, float]:
    """Exact match for each type of question, if the result has it."""
    scores: dict[str, float] = row["tests"].get("test", {}).get("exact_by_task", {})
    return scores


def by_task(rows: list[dict[str, Any]]) -> list[str]:
    """A table of exact match for each type of question, one row per run; none without scores."""
    rows = [row for row in rows if exact_by_task(row)]
    if not rows:
        return []
    names = list(exact_by_task(rows[0]))
    lines = ["| exact match | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [f"{100 * exact_by_task(row)[name]:.0f}" for name in names]
        lines.append(f"| {row['name']}, % | " + " | ".join(cells) + " |")
    return ["\n".join(lines)]


def commands(results: Results) -> list[str]:
    """The commands of every result, with the first seed if there are several."""
    lines = []
    for row in results.values():
        packed = row.get("packed", {}).get("evaluate", {})
        lines += [row["train"], *row["evaluate"].values(), *packed.values()]
    return lines


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools results", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="page to write (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    results = load_results(FOLDER)
    write_file(options.out, page(results))
    pictures = draw_curve(results, options.out.parent)
    print(f"wrote {', '.join(map(str, [options.out, *pictures]))}")
