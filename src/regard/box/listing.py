"""`regard info`: the models that ship with the package, with their sizes and scores."""

from __future__ import annotations

from typing import Any

from regard.config.sections import Config
from regard.console import as_json, make_console
from regard.tasks.registry import task_names
from regard.training.shipped import boxed, contents, folder_of


def listing() -> list[dict[str, Any]]:
    """Each model: its name, style, parameters, bytes on the disk, and its final scores."""
    from regard.config.parameters import closed_form
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
    """Print the models as a table, or as one JSON object per line."""
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
        table.add_row(
            row["model"], row["style"], f"{row['parameters'] / 1e6:.1f}M",
            f"{row['bytes'] / 1e6:.1f} MB", summary,
        )  # fmt: skip
    console = make_console()
    console.print(table if rows else "there is no model in the box")
    for row in rows:
        console.print(f"{row['model']}: {row['folder']}/README.md", soft_wrap=True)
