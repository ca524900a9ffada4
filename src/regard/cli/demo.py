"""`regard demo`: the whole story in minutes on a laptop.

Train on the built-in corpus from nothing, translate sentences it has never seen, and look at the
word that needs attention: what "it" is in German depends on an adjective at the far end of the
sentence. The head that finds out is searched and drawn.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from regard.config.sections import Config
from regard.console import make_console
from regard.errors import InputError
from regard.files import place_of, write_file
from regard.predictor import load
from regard.tasks.train import train
from regard.tasks.translate import bleu
from regard.text.builtin import PRONOUN_SENTENCE, builtin_corpus, pronoun_accuracy
from regard.view.curves import draw_curves
from regard.view.pronoun import (
    PronounHead,
    describe_heads,
    draw_pronoun,
    find_heads,
    read_sentences,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 128, "dropout": 0.1},
    "data": {"vocabulary_size": 1000},
    "training": {
        "steps": 600, "batch_tokens": 2048, "warmup": 100, "learning_rate": 3e-3,
        "validate_every": 300, "checkpoint_every": 300, "average": 1,
    },
}  # fmt: skip


def write_corpus(folder: Path) -> dict[str, list[str]]:
    """The built-in corpus as files: English and German of each split."""
    folder.mkdir(exist_ok=True)
    files: dict[str, list[str]] = {}
    for split in ("train", "valid", "test"):
        pairs = builtin_corpus(split)
        files[split] = [str(folder / f"{split}.{side}") for side in ("en", "de")]
        for side, name in enumerate(files[split]):
            write_file(Path(name), "".join(pair[side] + "\n" for pair in pairs))
    return files


def demo(out: Path, quiet: bool, to_stderr: bool = False) -> dict[str, Any]:
    """Train, translate and report; gives back the scores."""
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
    train(Config.build("translate", "tiny", values), out / "run", quiet=quiet, command=command)
    minutes = (time.perf_counter() - began) / 60
    test = builtin_corpus("test")
    model = load(out / "run")
    answers = model.translate([english for english, _ in test])
    wanted = [german for _, german in test]
    right, total = pronoun_accuracy(wanted, answers)
    scores = {
        **bleu(answers, wanted), "exact": sum(map(str.__eq__, answers, wanted)) / len(test),
        "pronouns": right / total, "minutes": round(minutes, 2), "sentences": len(test),
    }  # fmt: skip
    sentences = read_sentences(model)
    looks = find_heads(sentences)
    draw_pronoun(sentences, looks[0], out / "pronoun")
    scores["pronoun_head"] = asdict(looks[0]) | {"margin": looks[0].margin}
    show(make_console(stderr=to_stderr), out, scores, test, answers, total, looks)
    return scores


def show(
    console: Console,
    out: Path,
    scores: dict[str, Any],
    test: list[tuple[str, str]],
    answers: list[str],
    total: int,
    looks: list[PronounHead],
) -> None:
    table = Table("sentences never seen in training", "what the model makes of them", expand=True)
    showcase = [english for english, _ in PRONOUN_SENTENCE]
    chosen = [i for i, (english, _) in enumerate(test) if english in showcase]
    for i in [*chosen, *range(len(test) // 6, len(test), len(test) // 6)]:
        mark = "" if answers[i] == test[i][1] else f"  (wanted: {test[i][1]})"
        table.add_row(test[i][0], answers[i] + mark)
    console.print(table)
    console.print(
        f"sacreBLEU {scores['bleu']:.2f} on {len(test)} held-out sentences "
        f"({scores['exact']:.1%} word for word), the right pronoun in {scores['pronouns']:.1%} of "
        f"{total}, trained in {scores['minutes']:.1f} minutes\n{scores['bleu_signature']}"
    )
    console.print("\n" + "\n".join(describe_heads(looks)) + "\n", soft_wrap=True)
    for name in ("pronoun.png", "pronoun.svg"):
        console.print(f"the picture of it: {out / name}", soft_wrap=True)
    for path in draw_curves([out / "run"], None):
        console.print(f"the curves of the training: {path}", soft_wrap=True)
    console.print(
        "\nWhat to try next:\n"
        f"  regard translate -m {out}/run "
        '"The dog didn\'t cross the river because it was too deep."\n'
        f'  regard view attention -m {out}/run --out attention.html "The cat slept."\n'
        '  regard view walk "The cat slept."\n'
        f"  regard info {out}/run\n"
        "  regard train --task translate --train YOUR.en YOUR.de --preset tiny --out run",
        soft_wrap=True,
    )
