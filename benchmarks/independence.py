"""Whether outputs depend on the batch: a trained model on the same lines in different batches.

python -m benchmarks independence -m MODEL --input FILE
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import regard
from regard.decoding import requests
from regard.text.reading import open_text

MODES = ({"beam": 1}, {"beam": 4}, {"temperature": 1.0, "seed": 3})
SMALL = 1_500  # tokens of a batch: about a tenth of the default


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks independence", description=__doc__)
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("--input", required=True, type=Path, metavar="FILE")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args(arguments)
    model = regard.load(options.model, options.device, options.dtype)
    texts = [text for _, text in open_text(options.input)]
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    for mode in MODES:
        usual = model.predict(texts, **mode)
        previous = requests.BATCH_TOKENS[options.device]
        requests.BATCH_TOKENS[options.device] = SMALL
        other = model.predict([texts[i] for i in order], **mode)
        requests.BATCH_TOKENS[options.device] = previous
        pairs = [(usual[i], output) for i, output in zip(order, other, strict=True)]
        different = sum(a.text != b.text for a, b in pairs)
        difference = max(abs(a.score - b.score) for a, b in pairs if a.text == b.text)
        print(
            f"{mode}: {different} of {len(pairs):,} texts differ; the scores of "
            f"the others differ by at most {difference:.1e}"
        )
