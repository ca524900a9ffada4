"""`regard import` and `regard export`: exchange models with other toolkits."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.options import bounded, file_path
from regard.console import as_json, visible_line, warn
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.interop.proof import Receipt

TARGETS = ("hf", "ctranslate2", "onnx", "gguf")
LARGEST_TEXTS = 100 * 2**20  # bytes of a file with texts


def proof_options(verb: argparse.ArgumentParser) -> None:
    """The options of the comparison, which both commands have."""
    verb.add_argument(
        "--text", type=file_path, metavar="FILE",
        help="compare both runtimes on the lines of this file (default: built-in texts)",
    )  # fmt: skip
    verb.add_argument(
        "--count", type=bounded(int, 1, 100_000), default=None, metavar="N",
        help="number of texts in each comparison (default: all lines of the file or 200 built-in "
        "texts for token ids, 24 for outputs, 8 for greedy decoding)",
    )  # fmt: skip
    verb.add_argument(
        "--tolerance", type=bounded(float, 0, 1e6), metavar="X",
        help="largest accepted difference between outputs (default: depends on the format)",
    )  # fmt: skip
    verb.add_argument(
        "--agreement", type=bounded(float, 0, 1), metavar="X",
        help="required fraction of equal greedy tokens (default: 0.99 for most formats)",
    )  # fmt: skip


def import_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "source", type=file_path, metavar="SOURCE",
        help="Hugging Face folder, GGUF file, Marian file or folder, or a vocabulary "
        "(.spm, .model, vocab.txt, merges.txt)",
    )  # fmt: skip
    verb.add_argument(
        "--out", type=file_path, required=True, metavar="FOLDER", help="model folder to create"
    )
    proof_options(verb)


def import_command(options: argparse.Namespace) -> int:
    """Import a model from another toolkit, and verify that it computes the same outputs."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # hide the progress bars of the other runtime
    from regard.interop.conversion import import_model

    receipt = import_model(
        options.source, options.out, texts=read_texts(options.text), quiet=options.json,
        **proof_arguments(options),
    )  # fmt: skip
    report(options, receipt)
    return 0


def export_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model", type=file_path, metavar="MODEL",
        help="model folder, or a shipped model such as box:translate",
    )  # fmt: skip
    verb.add_argument(
        "--to", required=True, choices=TARGETS, metavar="TARGET",
        help=f"target format: {', '.join(TARGETS)}",
    )  # fmt: skip
    verb.add_argument(
        "--out", type=file_path, required=True, metavar="FOLDER", help="folder to create"
    )
    proof_options(verb)


def export_command(options: argparse.Namespace) -> int:
    """Export a model to another toolkit, and verify that it computes the same outputs."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # hide the progress bars of the other runtime
    from regard.interop.conversion import export_model

    receipt = export_model(
        options.model, options.to, options.out, texts=read_texts(options.text),
        quiet=options.json, **proof_arguments(options),
    )  # fmt: skip
    report(options, receipt)
    return 0


def proof_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the comparison that the user has set."""
    names = ("count", "tolerance", "agreement")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def read_texts(path: Path | None) -> list[str] | None:
    """The lines of a file; None if there is no file."""
    if path is None:
        return None
    from regard.files import read_bounded

    content = read_bounded(path, LARGEST_TEXTS, "a file with texts")
    try:
        lines = content.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from None
    if not (texts := [line for line in lines if line.strip()]):
        raise InputError(f"{path} contains no text")
    return texts


def report(options: argparse.Namespace, receipt: Receipt) -> None:
    """Print the receipt."""
    from regard.interop.proof import fields

    if options.json:
        print(as_json(fields(receipt) | {"folder": str(options.out)}))
        return
    for sentence in receipt.sentences():
        if sentence == receipt.note:
            warn(sentence)
        else:
            print(visible_line(sentence))
    print(f"{visible_line(str(options.out))} is ready")
