"""The tables of docs/results.md for translation: several seeds, ingredients, score against time."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cards import signatures
from experiments.catalogue import RECIPE_FOLDER
from experiments.ingredients import BASE
from experiments.results import Results
from experiments.scores import PAPER
from regard.config.settings import read_yaml
from regard.lab.common.significance import format_p, holm, pool, t_test
from regard.training.progress import duration
from regard.view.picture import COLOURS, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNIFICANT = 0.05  # p-values below count as a difference
PICTURE = "results/europarl-base"  # next to results.md, .png and .svg
MULTI30K = ("multi30k", "multi30k-cased", "multi30k-defaults")


def over_seeds(seeds: dict[str, Any], test: str, metric: str) -> list[float]:
    """The scores of all seeds."""
    return [entry["tests"][test][metric] for entry in seeds.values() if test in entry["tests"]]


def mean(values: list[float], places: int = 2) -> str:
    """The mean, and the standard deviation if there are several values."""
    spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{places}f}{spread}"


def multi30k(results: Results) -> str:
    """Scores over seeds, and the signatures of the metrics."""
    lines = ["| run | set | BLEU | chrF | seeds | steps | training | whole command | trained on |",
             "|---" * 9 + "|"]  # fmt: skip
    signatures: dict[str, list[str]] = {}
    for name in MULTI30K:
        if name not in results:
            continue
        row = results[name]
        seeds = row.get("seeds") or {"": row}
        first = next(iter(seeds.values()))
        alone = [entry for entry in seeds.values() if "wall" in entry]
        times = [entry["time"] for entry in alone or seeds.values()]
        whole = f"{mean([entry['wall'] for entry in alone], 0)} s" if alone else ""
        for test, scores in first["tests"].items():
            signatures.setdefault(scores["bleu_signature"], []).append(name)
            cells = [mean(over_seeds(seeds, test, metric)) for metric in ("bleu", "chrf")]
            lines.append(
                f"| {name} | {test} ({scores['examples']:,}) | " + " | ".join(cells)
                + f" | {len(over_seeds(seeds, test, 'bleu'))} | {first['steps']:,}"
                + f" | {mean(times, 0)} s | {whole} | {row['machine']} |"
            )  # fmt: skip
        if name == "multi30k":
            lines.append("| Wu et al. 2021, text-only | test2016 | 41.02 | | | 8,000 | | | |")
    notes = [f"- `{s}`: {', '.join(dict.fromkeys(names))}" for s, names in signatures.items()]
    chrf = next(iter(first["tests"].values()))["chrf_signature"]
    return "\n".join([*lines, "", "Signatures:", "", *notes, f"- `{chrf}`"])


def ingredients(result: dict[str, Any]) -> str:
    """The rows next to the unchanged recipe, with a test over seeds."""
    rows = result["rows"]

    def scores(name: str, test: str) -> list[float]:
        return [entry[test]["bleu"] for entry in rows[name]["seeds"].values()]

    trained = [name for name in rows if rows[name]["seeds"]]
    lines = ["| row | what differs | val BLEU | test2016 BLEU | difference | p | seeds |",
             "|---" * 7 + "|"]  # fmt: skip
    compared = {name: scores(name, "test2016") for name in trained}
    spread = pool(list(compared.values())) if any(len(v) > 1 for v in compared.values()) else None
    others = [name for name in trained if name != BASE] if spread and BASE in compared else []
    tests = {name: t_test(compared[name], compared[BASE], spread) for name in others if spread}
    adjusted = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    for name in trained:
        between = ["", ""]
        if name in tests:
            bold = "**" if adjusted[name] < SIGNIFICANT else ""
            between = [f"{bold}{tests[name].difference:+.2f}{bold}", format_p(adjusted[name])]
        cells = [
            name, ", ".join(f"`{option}`" for option in rows[name]["options"]),
            mean(scores(name, "val")), mean(compared[name]), *between, str(len(compared[name])),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    notes = []
    if spread:
        notes.append(
            f"- bold: the difference from the recipe on test2016 has p < {SIGNIFICANT} (Student's "
            "t-test over seeds with the standard deviation pooled over all rows, "
            f"{spread.deviation:.2f} BLEU, and Holm's correction)."
        )
    missing = [name for name in rows if not rows[name]["seeds"]]
    if missing:
        notes.append(f"- Not trained, for lack of time: {', '.join(missing)}.")
    notes += [f"- Failed: {n}: {why}." for n, why in result["failed"].items()]
    if result.get("set"):
        changed = ", ".join(f"`{option}`" for option in result["set"])
        notes.insert(0, f"- Every row, including the recipe, was trained with {changed}.")
    return "\n".join([*lines, "", *notes, "", f"Trained on {result['machine']}."])


def trials(result: dict[str, Any]) -> str:
    """The trainings before the recipe was chosen, sorted by validation score."""
    lines = ["| changes | steps | val | test2016 |", "|---" * 4 + "|"]
    rows = sorted(result["rows"], key=lambda row: -row["val"])
    lines += [f"| {' '.join(f'`{option}`' for option in row['options'])} | {row['steps']:,} "
              f"| {row['val']:.2f} | {row['test2016']:.2f} |" for row in rows]  # fmt: skip
    return "\n".join(lines)


def europarl(row: dict[str, Any]) -> dict[str, str]:
    """The tables of the section, and the values of its text."""
    lines = ["| set | BLEU | chrF | steps | training | trained on |", "|---" * 6 + "|"]
    for test, scores in row["tests"].items():
        cells = [figure(scores, metric) for metric in ("bleu", "chrf")]
        lines.append(
            f"| {test} ({scores['examples']:,}) | " + " | ".join(cells)
            + f" | {row['steps']:,} | {duration(row['time'])} | {row['machine']} |"
        )  # fmt: skip
    size = read_yaml(RECIPE_FOLDER / "europarl-base.yaml")["training"]["batch_tokens"]
    if row.get("curve"):
        lines += ["", "Single checkpoints on newstest2014 (time without validation and saving):"]
        lines += ["", "| step | minutes | target tokens, 10⁶ | BLEU | chrF |", "|---" * 5 + "|"]
        for point in row["curve"]:
            tokens = point["step"] * size / 1e6
            lines.append(f"| {point['step']:,} | {point['seconds'] / 60:.1f} | {tokens:,.0f} "
                         f"| {point['bleu']:.2f} | {point['chrf']:.2f} |")  # fmt: skip
        lines += ["", f"![BLEU on newstest2014 against minutes of training]({PICTURE}.svg)"]
    rate = row["steps"] * size / row["time"]  # tokens per second
    hour = 3600 * rate
    return {
        "europarl": "\n".join(lines),
        "europarl_steps": f"{row['steps']:,}",
        "europarl_batch": f"{size:,}",
        "europarl_seconds": f"{row['time']:.1f}",
        "europarl_rate": f"{rate:,.0f}",
        "europarl_hour": f"{hour / 1e9:.2f}",
        "europarl_fraction": f"{hour / PAPER:.2f}",
        "europarl_paper": f"{PAPER / hour * 60:.0f}",
        "europarl_minutes": f"{row['time'] / 60:.1f}",
        "europarl_total": f"{rate * row['time'] / 1e9:.2f}",
        "europarl_weights": row["weights"],
        "europarl_signatures": signatures(row)[0],
    }


def figure(scores: dict[str, Any], metric: str) -> str:
    """A score with its interval, if there is one; empty if the test has no such score."""
    if metric not in scores:
        return ""
    value = f"{scores[metric]:.4g}"
    if metric in scores["intervals"]:
        low, high = scores["intervals"][metric]
        value += f" ({low:.4g} to {high:.4g})"
    return value


def draw_curve(results: Results, folder: Path) -> list[Path]:
    """Draw the score against the time. Returns the files."""
    row = results.get("europarl-base", {})
    if not row.get("curve"):
        return []

    def draw() -> Figure:
        from matplotlib.figure import Figure

        picture = Figure(figsize=(9, 5), dpi=100, layout="constrained")
        panel = picture.subplots()
        minutes = [point["seconds"] / 60 for point in row["curve"]]
        scores = [point["bleu"] for point in row["curve"]]
        panel.plot(minutes, scores, color=COLOURS[0], marker="o", label="single checkpoints")
        best = row["tests"]["newstest2014"]["bleu"]
        label = f"final weights ({row['weights']})"
        panel.plot(minutes[-1], best, "*", color=COLOURS[1], markersize=16, label=label)
        panel.annotate(f"{best:.1f}", (minutes[-1], best), (-8, 8), textcoords="offset points",
                       ha="right", color=COLOURS[1])  # fmt: skip
        panel.set(xlabel=f"minutes of training, {row['machine']}", ylabel="BLEU, newstest2014")
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        panel.legend(loc="lower right")
        panel.set_title("base on 600,000 pairs of Europarl", loc="left")
        return picture

    return save_picture(draw, folder / PICTURE)
