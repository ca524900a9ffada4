"""Write docs/results.md from finished runs: data, command, machine, time, score.

    python -m benchmarks results RUN:SOURCE:TARGET:WHERE ...

evaluates each run on its test files and makes the table anew. WHERE is the machine that it was
trained on, the one thing that a run does not know. Nothing in the table is written by hand.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
from datetime import date
from pathlib import Path

import torch

import regard
from regard.files import write_file
from regard.tasks.translate import bleu
from regard.text.corpus import read_pairs
from regard.training.progress import duration
from regard.view.info import final_scores

HEAD = """# Results

Made by `python -m benchmarks results` ({date}; {machine}). BLEU and chrF are sacreBLEU's, cased and
detokenised; signatures: `{bleu}` and `{chrf}`. Multi30k (29,000 training pairs) is
task 1 of WMT's multimodal translation; its source states no licence, so it is used as a benchmark
only and no model made from it is published here. The published text-only Transformer of this size
has 41.02 there in another protocol (lowercased and tokenised, beam 5, 8,000 updates, checkpoints
averaged): not the same figure.

The defaults (pre-norm, rate, warm-up, dropout) were chosen on this data set, from two sweeps of
four runs each on a GPU, one seed a run. They were compared by validation BLEU, but test2016 was
printed beside it for five of the eight, so the test score is not that of an untouched test set.
The run below is one seed; its validation BLEU is by greedy search.

| test set | command | trained on | steps | time | BLEU greedy | beam 4 | chrF beam 4 | validation |
|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks results", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN:SOURCE:TARGET:WHERE")
    parser.add_argument("--out", type=Path, default=Path("docs/results.md"))
    options = parser.parse_args(arguments)
    rows, signatures = [], {"bleu": "", "chrf": ""}
    for entry in options.runs:
        *files, where = entry.split(":")
        run, source, target = map(Path, files)
        pairs = [(s, t) for _, s, t in read_pairs(source, target)]
        model = regard.load(run)
        sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
        greedy = bleu(model.translate(sources, beam=1), targets)
        scores = bleu(model.translate(sources, beam=4, length_penalty=0.6), targets)
        signatures = {name: scores[f"{name}_signature"] for name in signatures}
        final = final_scores(run)
        card = (run / "README.md").read_text(encoding="utf-8")
        found = re.search(r"- command: (`.*`)", card)
        rows.append(
            f"| {source.name.rpartition('.')[0]} ({len(pairs):,}) | {found[1] if found else ''} | "
            f"{where} | {final['step']:,} | {duration(final['seconds'])} | {greedy['bleu']:.2f} | "
            f"{scores['bleu']:.2f} | {scores['chrf']:.2f} | {final.get('bleu', '')} |"
        )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    head = HEAD.format(date=date.today(), machine=machine, **signatures)
    write_file(options.out, head + "\n".join(rows) + "\n")
    print(f"{options.out} written")
