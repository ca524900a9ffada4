"""`regard demo`: train, translate and look at attention, in a few minutes on a laptop.

The demo trains a model on the built-in corpus and translates sentences of its test set. The German
translation of "it" depends on an adjective at the end of the sentence: the demo searches for the
attention head that finds this adjective, and draws it.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.options import file_path
from regard.console import as_json, make_console
from regard.errors import InputError
from regard.files import place_of
from regard.tasks.configuration import make_config

if TYPE_CHECKING:
    from rich.console import Console

    from regard.view.pronoun import PronounHead


def demo_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--out", type=file_path, default=Path("regard-demo"), metavar="DIR",
        help="folder to create for the data and the model (default: regard-demo)",
    )  # fmt: skip
    verb.add_argument("--quiet", action="store_true", help="show no progress on standard error")


def demo(options: argparse.Namespace) -> int:
    """Train a small model on the built-in corpus and translate with it, in a few minutes."""
    scores = run_demo(options.out, options.quiet, to_stderr=options.json)
    if options.json:
        print(as_json(scores))
    return 0


def run_demo(out: Path, quiet: bool, to_stderr: bool = False) -> dict[str, Any]:
    """Train, translate and report; returns the scores."""
    from regard.predictor.loading import load
    from regard.tasks.bleu import bleu
    from regard.tasks.builtin import OPTIONS, write_corpus
    from regard.tasks.train import train_config
    from regard.text.builtin import builtin_corpus, pronoun_accuracy
    from regard.view.pronoun import draw_pronoun, find_heads, read_sentences

    place_of(out)
    if out.exists():
        if not (out / "regard-demo").exists():
            raise InputError(
                f"{out} exists and was not created by regard demo: choose a different --out"
            )
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "regard-demo").touch()  # so that a second demo may replace it
    files = write_corpus(out / "data")
    values = {section: dict(keys) for section, keys in OPTIONS.items()}
    values["data"] |= {"train": files["train"], "valid": files["valid"]}
    began = time.perf_counter()
    command = ["demo", "--out", str(out)]
    config = make_config("translate", "tiny", values)
    train_config(config, out / "run", quiet=quiet, command=command)
    minutes = (time.perf_counter() - began) / 60
    test = builtin_corpus("test")
    model = load(out / "run")
    translations = model.translate([english for english, _ in test])
    references = [german for _, german in test]
    right, total = pronoun_accuracy(references, translations)
    exact = sum(map(str.__eq__, translations, references)) / len(test)
    scores = {
        **bleu(translations, references), "exact": exact,
        "pronouns": right / total, "minutes": round(minutes, 2), "sentences": len(test),
    }  # fmt: skip
    sentences = read_sentences(model)
    looks = find_heads(sentences)
    draw_pronoun(sentences, looks[0], out / "pronoun")
    scores["pronoun_head"] = asdict(looks[0]) | {"margin": looks[0].margin}
    show(make_console(stderr=to_stderr), out, scores, test, translations, total, looks)
    return scores


def show(
    console: Console,
    out: Path,
    scores: dict[str, Any],
    test: list[tuple[str, str]],
    translations: list[str],
    total: int,
    looks: list[PronounHead],
) -> None:
    """Print translations, scores, and the weights of the head for the pronoun."""
    from rich.table import Table

    from regard.text.builtin import PRONOUN_SENTENCE
    from regard.view.curves import draw_curves
    from regard.view.pronoun import describe_heads

    table = Table(
        "sentences that are not in the training data", "translations of the model", expand=True
    )
    showcase = [english for english, _ in PRONOUN_SENTENCE]
    chosen = [i for i, (english, _) in enumerate(test) if english in showcase]
    for i in [*chosen, *range(len(test) // 6, len(test), len(test) // 6)]:
        mark = "" if translations[i] == test[i][1] else f"  (expected: {test[i][1]})"
        table.add_row(test[i][0], translations[i] + mark)
    console.print(table)
    console.print(
        f"sacreBLEU {scores['bleu']:.2f} on {len(test)} held-out sentences "
        f"({scores['exact']:.1%} word for word), the right pronoun in {scores['pronouns']:.1%} of "
        f"{total}, trained in {scores['minutes']:.1f} minutes\n{scores['bleu_signature']}"
    )
    console.print("\n" + "\n".join(describe_heads(looks)) + "\n", soft_wrap=True)
    for name in ("pronoun.png", "pronoun.svg"):
        console.print(f"picture of this head: {out / name}", soft_wrap=True)
    for path in draw_curves([out / "run"], None):
        console.print(f"training curves: {path}", soft_wrap=True)
    console.print(
        "\nNext steps:\n"
        f"  regard translate -m {out}/run "
        '"The dog didn\'t cross the river because it was too deep."\n'
        f'  regard view attention -m {out}/run --out attention.html "The cat slept."\n'
        '  regard view walk "The cat slept."\n'
        f"  regard info {out}/run\n"
        "  regard train --task translate --train YOUR.en YOUR.de --preset tiny --out run",
        soft_wrap=True,
    )
