"""`regard pack`: write a finished model with int8 weights, in a quarter of its size.

Matrices are quantised with one scale per row (model/quantise.py); everything else stays as it is.
Paths of data files are shortened, so that they do not name the folders of this machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from regard.errors import InputError
from regard.files import (
    LARGEST_CARD,
    LARGEST_METRICS,
    new_folder,
    place_of,
    read_bounded,
    real_path,
)
from regard.model.quantise import quantise_all
from regard.predictor.loading import load
from regard.training.checkpoint import to_bytes
from regard.training.model_folder import file_checksums
from regard.training.shipped import folder_of

NOTE = (
    "Packed by `regard pack`: every matrix as whole numbers of 8 bits, with a float32 scale for "
    "each row."
)
MOST_COMPARED = 300_000_000  # characters compared in the search for names of data files
# The folders of /some/where/multi30k/train.en.xz: all but the last two names. No web addresses.
NAME = r"""[^\s/`'"]+"""
BEGINS = r"(?<![\w.~:/$-])"
ROOT = r"(?:file:/+|[A-Za-z]:/+|/+)"  # /, //server, file:///, C:/
QUOTE = """'"'"'"""  # a single quote as shlex.quote writes it
QUOTED = rf"""{BEGINS}'(?={ROOT})(?:[^'\n]|{QUOTE})*'"""
ELSEWHERE = rf"{BEGINS}{ROOT}(?:(?:{NAME}/+)*(?={NAME}/+{NAME})|(?={NAME}))"


@dataclass(frozen=True)
class PackedModel:
    """The result of `pack`.

    Attributes:
        folder: the folder of the packed model.
        parameters: the number of parameters.
        size: bytes of all its files.
        before: bytes of the weights before packing.
    """

    folder: Path
    parameters: int
    size: int
    before: int


def pack(model: str | Path, out: str | Path, *, replace_old: bool = False) -> PackedModel:
    """Write a finished model with int8 weights, in a quarter of its size.

    Args:
        model: the model folder, or a model in the box ("box:translate").
        out: the folder to write.
        replace_old: replace an existing folder.

    Returns:
        The folder, and the sizes before and after.

    Raises:
        InputError: the model cannot be loaded, or `out` exists or cannot be written.
    """
    folder, out = folder_of(model), Path(out)
    check_out(folder, out, replace_old)
    opened = load(folder, "cpu", "float32")
    weights = opened.transformer.state_dict()
    metrics, card = (
        read_bounded(folder / name, largest, description) if (folder / name).exists() else None
        for name, largest, description in (
            ("metrics.jsonl", LARGEST_METRICS, "the metrics of a run"),
            ("README.md", LARGEST_CARD, "a model card"),
        )
    )
    data = opened.config.data
    files = [*data.train, *data.valid]
    train, valid = (list(map(short_path, paths)) for paths in (data.train, data.valid))
    config = replace(opened.config, data=replace(data, train=train, valid=valid))
    with new_folder(out, replace=replace_old) as new:
        (new / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        opened.task.save(new)
        checksums = file_checksums(new)
        (new / "model.safetensors").write_bytes(to_bytes(quantise_all(weights), files=checksums))
        if metrics is not None:
            (new / "metrics.jsonl").write_bytes(metrics)
        if card is not None:
            text = portable(card.decode(errors="replace"), files)
            note = "" if "`regard pack`" in text else f"\n{NOTE}\n"
            (new / "README.md").write_text(text + note, encoding="utf-8")
    stored = folder / "model.safetensors"  # an unfinished run has none
    return PackedModel(
        out, sum(tensor.numel() for tensor in weights.values()),
        sum(path.stat().st_size for path in out.iterdir()),
        stored.stat().st_size if stored.exists() else sum(t.nbytes for t in weights.values()),
    )  # fmt: skip


def check_out(folder: Path, out: Path, replace_old: bool) -> None:
    """Refuse a folder `out` that cannot be used. Call it before the work."""
    place = place_of(out)
    if not place.exists():
        return
    if real_path(folder) == place:
        raise InputError(f"{out} is the model itself: choose a different folder")
    if not replace_old and any(place.iterdir()):
        raise InputError(f"{out} exists: choose a different folder")
    if real_path(folder).is_relative_to(place):
        raise InputError(
            f"{folder} is in {out} and would be deleted with it: choose a different folder"
        )


def short_path(path: str) -> str:
    """The last two names of a path that begins at a root; any other path as it is."""
    root = re.match(ROOT, path)
    return "/".join(re.split("/+", path[root.end() :])[-2:]) if root else path


def portable(text: str, paths: Collection[str] = ()) -> str:
    """Shorten the absolute paths in a text, so that it does not name the folders of this machine.

    paths: paths that the text may contain. These, and paths that are quoted for a shell, may
        contain characters that end any other path, such as spaces and quotes.
    """

    def shorten(matched: re.Match[str]) -> str:
        word = matched["word"] or ""
        if not word or word in paths:
            return short_path(word)
        return shlex.quote(short_path(word[1:-1].replace(QUOTE, "'")))

    if len(paths) * len(text) > MOST_COMPARED:
        raise InputError(f"the model card is too long for {len(paths):,} data files: shorten it")
    known = {form for path in paths for form in (path, shlex.quote(path)) if form in text}
    forms = "|".join(re.escape(form) for form in sorted(known, key=len, reverse=True))
    words = [rf"{BEGINS}(?:{forms})(?![\w/-])"] if known else []
    return re.sub(rf"(?P<word>{'|'.join([*words, QUOTED])})|{ELSEWHERE}", shorten, text)
