"""`regard info` and `regard pack`: the parameters of a model, and the models in the box."""

from __future__ import annotations

import argparse
from typing import Any

from regard.cli.options import architecture_options, bounded, file_path, preset_option
from regard.config.model import STYLES, ModelConfig
from regard.config.parameters import closed_form
from regard.config.sections import Config
from regard.config.settings import section_settings
from regard.console import as_json, make_console, visible_line, warn
from regard.errors import InputError
from regard.tasks.registry import find_task, task_names
from regard.training.names import WEIGHTS
from regard.training.shipped import boxed, contents, folder_of


def info_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model",
        nargs="?",
        type=file_path,
        metavar="MODEL",
        help="model folder, or a model in the box such as box:translate",
    )
    preset_option(verb)
    verb.add_argument(
        "--vocab", type=bounded(int, 1, 10_000_000), metavar="N",
        help="vocabulary size (default: 37000)",
    )  # fmt: skip
    verb.add_argument(
        "--accept-changes", action="store_true",
        help="store new checksums for MODEL after you have edited its files",
    )  # fmt: skip
    architecture_options(verb)


def info(options: argparse.Namespace) -> int:
    """Show the parameters of a model by part, or list the models in the box."""
    chosen = (options.preset, options.vocab, options.style)
    if options.accept_changes and options.model is None:
        raise InputError("--accept-changes needs MODEL: the folder whose files were changed")
    if options.model is None and not options.assignments and set(chosen) == {None}:
        show_box(options.json)
        return 0
    preset = options.preset or "base"
    if options.model is None:
        values = {"style": options.style or STYLES[0], "vocabulary_size": options.vocab or 37_000}
        values |= section_settings(options.assignments, "model")
        config = ModelConfig.preset(preset, **values)
    else:
        from regard.training.checkpoint import Checkpoints
        from regard.training.model_folder import read_config

        if options.accept_changes:
            from regard.predictor.loading import accept_changes

            names = ", ".join(accept_changes(options.model))
            warn(f"{options.model} now accepts {names} as they are")
        whole = read_config(folder := folder_of(options.model))
        if not (folder / WEIGHTS).is_file():
            step = max(Checkpoints(folder).steps(), default=0)
            steps = f"step {step:,} of {whole.training.steps:,}"
            warn(f"{options.model} has not finished training ({steps})")
        find_task(whole.task)  # refuses an unknown task
        config = whole.model
    from regard.training.model_folder import final_scores
    from regard.view.info import parameter_table

    table = parameter_table(config)
    scores = final_scores(folder_of(options.model)) if options.model else {}
    if options.json:
        print(as_json(table.to_dict() | ({"scores": scores} if scores else {})))
    else:
        table.show(str(options.model or preset))
        for name, value in scores.items():
            print(visible_line(f"{name:16} {value}"))
    return 0 if table.agrees else 1  # a disagreement is a bug in regard


def listing() -> list[dict[str, Any]]:
    """The models in the box: name, style, parameters, bytes on the disk, and final scores."""
    from regard.training.model_folder import final_scores

    rows = []
    for task in sorted(contents(), key=task_names().index):
        folder = folder_of(boxed(task))
        model = Config.load(folder / "config.yaml").model
        rows.append({
            "model": boxed(task), "folder": str(folder), "style": model.style,
            "parameters": sum(part.parameters for part in closed_form(model).values()),
            "bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
            "scores": final_scores(folder),
        })  # fmt: skip
    return rows


def show_box(as_objects: bool) -> None:
    """Print the models in the box as a table, or as one JSON object per line."""
    rows = listing()
    if as_objects:
        for row in rows:
            print(as_json(row))
        return
    from rich.table import Table

    table = Table("model", "style", "parameters", "size", "validation", box=None, pad_edge=False)
    for row in rows:
        scores = {k: v for k, v in row["scores"].items() if isinstance(v, float) and k != "seconds"}
        summary = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        millions = (f"{row['parameters'] / 1e6:.1f}M", f"{row['bytes'] / 1e6:.1f} MB")
        table.add_row(row["model"], row["style"], *millions, summary)
    console = make_console()
    console.print(table if rows else "there is no model in the box")
    for row in rows:
        console.print(f"{row['model']}: {row['folder']}/README.md", soft_wrap=True)


def pack_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", type=file_path, metavar="RUN", help="folder of a trained model")
    verb.add_argument(
        "--out",
        type=file_path,
        required=True,
        metavar="FOLDER",
        help="folder to create for the int8 model",
    )


def pack(options: argparse.Namespace) -> int:
    """Write a copy of a model with int8 weights, about a quarter of the size."""
    from regard.box.pack import pack as pack_model

    packed = pack_model(options.model, options.out)
    if options.json:
        print(as_json(vars(packed) | {"folder": str(packed.folder)}))
    else:
        print(
            f"{visible_line(str(packed.folder))} is ready: {packed.parameters:,} parameters, all "
            f"files {packed.size:,} bytes (the weights alone were {packed.before:,})"
        )
    return 0
