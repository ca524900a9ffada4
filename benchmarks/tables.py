"""docs/results.md from docs/results/*.json: the tables, and what has to be said beside them."""

from __future__ import annotations

from typing import Any

from benchmarks.translation import Found, box, captions, europarl, figure, ingredients, tried
from regard.lab.common.significance import format_p
from regard.training.progress import duration

HEAD = """# Results

Made by `python -m benchmarks results write` from `docs/results/*.json`, which `python -m
benchmarks results run NAME --data $REGARD_DATA` makes: it prepares the data, trains and evaluates
by the command line, with the commands at the end of this page. `recipes/NAME.yaml` is each
training's configuration, with a reason for every line. Intervals are 95%, by bootstrap over the
test examples; each row is one training with one seed where no more are named. CPU rows were
trained with one thread on two cores that did other work as well (three or four processes at once):
their times are upper bounds. Settings were tried out in a few runs per task before, so validation
scores are a little flattered. In the very first trials the test sets of TREC, AG News and bAbI
stood in for validation sets; the settings were not changed by what they showed, but they were
seen.

`$REGARD_DATA` is a folder of the published data sets, each file UTF-8 and xz-compressed, in the
formats of [tasks.md](tasks.md): `multi30k/` (WMT multimodal task 1), `tatoeba/` (tatoeba.org by
way of manythings.org, CC BY 2.0), `europarl/` (proceedings of the European Parliament, aligned
anew), `newstest/` (WMT), `sst2/` (GLUE), `agnews/`, `trec/` (UIUC), `imdb_reviews/` (Stanford,
unlabelled part), `shakespeare/` (nanoGPT's text), `stsb/` (STS benchmark), `squad/` (v1.1,
development set), `babi/` (CC BY 3.0). What is cut, tokenised or mixed from them is made by
`benchmarks/data.py`.
"""

SECTIONS: list[tuple[str, str, list[str], list[str]]] = [
    (
        "Language modelling: tiny shakespeare, characters",
        """\
Loss in nats for each character of the last tenth of the text, all of it, in windows of the context
length. nanoGPT's README has 1.88 after 3 minutes on a CPU and 1.4697 on a GPU (6 layers, 6 heads,
d 384, context 256, dropout 0.2, 5,000 steps), means over random windows of the same tenth. Both
choose the best of several validations on this same text, so do we: a figure to compare by, not
one of an untouched test set.""",
        ["shakespeare", "shakespeare-gpu", "box-generate"],
        ["loss", "bits_per_byte"],
    ),
    (
        "Classification",
        """\
TREC: 6 kinds of questions (UIUC). AG News: 4 topics, a **reduced training set** (19,968 of 120,000
rows; research, non-commercial), official test. A tenth of the training rows was held out for
validation and calibration. Calibration error: Guo et al. (2017), 15 bins of equal width.""",
        ["trec", "agnews"],
        ["accuracy", "macro_f1", "matthews", "calibration_error"],
    ),
    (
        "What pre-training buys: SST-2 with 1%, 10% and 100% of the labels",
        """\
`pretrained` starts from a masked language model of 24,500 unlabelled film reviews (IMDB), `scratch`
from random weights. CPU rows: 4 layers of width 128, pre-trained for 4,000 steps of 2,048 tokens
with rotary positions (`scratch` there has sinusoids); GPU rows: width 256 for both, pre-trained for
8,000 steps of 32,768 tokens. On both, `scratch` has a vocabulary, a dropout (0.3, not 0.2) and a
rate (0.001, not 0.0003) of its own, so that not all of the difference is pre-training. With all
labels there is no pre-trained row on a CPU: it was not run. The dev set (872) chooses the weights
and the temperature; the test set (1,821) is the one distributed with labels.""",
        [
            f"sst2-{p}-{k}{g}"
            for g in ("", "-gpu")
            for p in (1, 10, 100)
            for k in ("scratch", "pretrained")
        ],
        ["accuracy", "matthews", "calibration_error"],
    ),
    (
        "Masked language modelling: IMDB reviews",
        """\
Perplexity and accuracy of the 15% of single tokens that are hidden, in 500 held-out reviews of the
unlabelled part of Stanford's IMDB set. The two rows have other vocabularies (4,000 and 8,000) and
windows (64 and 128 tokens): their perplexities do not compare.""",
        ["imdb-fill", "imdb-fill-gpu"],
        ["perplexity", "accuracy"],
    ),
    (
        "Sentence similarity: STS-B",
        """\
Correlation of cosines with people's scores (scores CC BY-SA 4.0). The dev set chose the weights;
`pretrained` starts from the models of the section above. In the file of training pairs that we have
most second sentences end in a carriage return, in dev and test none do: these four rows were
trained before it was taken out when reading (the embedder in the box after).""",
        [f"stsb-{k}{g}" for g in ("", "-gpu") for k in ("scratch", "pretrained")],
        ["spearman", "pearson"],
    ),
    (
        "Sentences that mean the same in two languages",
        """\
What the embedder in the box starts from, before STS-B. How often an English sentence's translation
is the nearest of all the German sentences of the set, and the mean of one by its rank; `dev` and
`test` are STS-B's, of which it has seen nothing yet. Eight settings
were tried, one seed each (two layers or four, the width, the batch, the rate, dropout, the scale of
the cosines; figures were not kept): this one was the best on STS-B's dev set after `box-embed`,
which wins there and loses here: compare with `box:embed` above.""",
        ["box-pairs"],
        ["nearest", "reciprocal_rank", "spearman"],
    ),
    (
        "Question answering as text to text",
        """\
Exact match and F1 as SQuAD defines them. bAbI: the 20 tasks jointly, 1,000 questions each (CC BY
3.0). SQuAD: the development set of v1.1 split by article (8,683 training questions; CC BY-SA 4.0):
**not** comparable with published scores, whose training set has ten times as many, nor with models
that mark a span or were pre-trained. From nothing, so few questions teach a model hardly more than
what answers look like. The bAbI rows were trained at commit d70c524, when
`training.batch_tokens` counted the tokens of the answers: 160 (CPU) and 400 (GPU) made the same
batches that 4,158 and 10,394 tokens of contexts and questions make now. On a CPU they were trained
with rotary positions.""",
        ["babi", "babi-gpu", "squad"],
        ["exact", "f1"],
    ),
]

STYLES = """\
## Which style for which task: the built-in corpus, English to German

`regard lab styles` trains the three styles on the same batches of sentences with about the same
number of parameters. A decoder reads the sentence before it writes; an encoder fills all places of
its answer at once, and no place knows what the others say.
"""

ABLATION = """\
## Ablation: the paper's Table 3 on Multi30k

`regard lab ablate`: each row is the base with one thing changed, on {examples:,} validation pairs,
{seeds} seeds, {steps:,} steps each. The base: {base}.
"""


def tables(found: Found) -> str:
    parts = [
        HEAD,
        *box(found),
        *captions(found),
        *ingredients(found),
        *tried(found),
        *europarl(found),
    ]
    for title, said, names, metrics in SECTIONS:
        rows = [found[name] for name in names if name in found]
        if rows:
            parts += [f"## {title}\n", said + "\n", table(rows, metrics)]
            parts += [by_task(rows)] if any(kinds(row) for row in rows) else []
    if "styles" in found:
        parts += [STYLES, styles(found["styles"])]
    if "ablate" in found:
        parts += [ablation(found["ablate"])]
    parts += ["## Commands\n", "```", *commands(found), "```", ""]
    return "\n".join(parts)


def styles(found: dict[str, Any]) -> str:
    lines = ["| style | layers | parameters | BLEU | exact | ms a step | tokens read "
             "| steps to write | ms a token, alone | ms a token, 32 at once |",
             "|---" * 10 + "|"]  # fmt: skip
    for name, one in found["styles"].items():
        quality, decoding = one["quality"], one["decoding"]
        cells = [
            " + ".join(map(str, one["layers"])), f"{one['parameters']:,}",
            *(f"{quality[m]['value']:.4g} ({quality[m]['low']:.4g} to {quality[m]['high']:.4g})"
              for m in ("bleu", "exact")),
            f"{one['training']['ms_per_step']:.0f}", f"{one['tokens_read']:.1f}",
            f"{decoding['steps']:.1f}",
            *(f"{decoding[b]['ms_per_token']:.2f}" for b in ("batch_1", "batch_32")),
        ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nTimes: {found['machine']}.\n"


def ablation(found: dict[str, Any]) -> str:
    model, training = found["base"]["model"], found["base"]["training"]
    layers = f"{model['encoder_layers']} + {model['decoder_layers']} layers"
    base = (
        f"{layers}, d_model {model['d_model']}, d_ff {model['d_ff']}, {model['heads']} heads of "
        f"size {model['head_size']}, dropout {model['dropout']}, label smoothing "
        f"{training['label_smoothing']}"
    )
    key = f"{found['counts']}_{found['metric']}"
    title = {"valid_bleu": "valid BLEU", "test_bleu": "test BLEU"}[key]
    lines = [f"| row | what differs | parameters, 10⁶ | perplexity | {title} | difference | p "
             "| ms a step | s to 90% |",
             "|---" * 9 + "|"]  # fmt: skip
    for row in found["rows"]:
        one, seconds = row.get("difference"), row["seconds_to_quality"]
        between = ["", ""]
        if one is not None:
            bold = "**" if one["significant"] else ""
            between = [f"{bold}{one['value']:+.1f}{bold}", format_p(one["adjusted"])]
        cells = [
            row["name"], row["differs"].replace("_", "\\_"), f"{row['parameters'] / 1e6:.2f}",
            spread(row["perplexity"], 2), spread(row[key], 1), *between,
            f"{row['ms_per_step']:.1f}", "never" if seconds is None else f"{seconds:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    said = [f"- {note.replace('*:', 'bold:')}" for note in found["notes"]]
    said += [f"- Left out: {name}: {why}." for name, why in found["skipped"].items()]
    said += [f"- Failed: {name}: {why}." for name, why in found["failed"].items()]
    head = ABLATION.format(
        examples=found["examples"], seeds=len(found["seeds"]), steps=found["steps"], base=base
    )
    return "\n".join([head, *lines, "", *said, "", f"Trained and timed on {found['machine']}.", ""])


def spread(figures: dict[str, Any], places: int) -> str:
    deviation = f" ±{figures['spread']:.{places}f}" if "spread" in figures else ""
    return f"{figures['value']:.{places}f}{deviation}"


def table(rows: list[dict[str, Any]], metrics: list[str]) -> str:
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
    return "\n".join(lines) + "\n"


def kinds(row: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = row["tests"].get("test", {}).get("exact_by_task", {})
    return found


def by_task(rows: list[dict[str, Any]]) -> str:
    """Exact match for each kind of question, runs side by side."""
    rows = [row for row in rows if kinds(row)]
    names = list(kinds(rows[0]))
    lines = ["| exact match | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [f"{100 * kinds(row)[name]:.0f}" for name in names]
        lines.append(f"| {row['name']}, % | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def commands(found: Found) -> list[str]:
    """Each once; of several seeds the first one's."""
    lines = []
    for row in found.values():
        packed = row.get("packed", {}).get("evaluate", {})
        lines += [row["train"], *row["evaluate"].values(), *packed.values()]
    return lines
