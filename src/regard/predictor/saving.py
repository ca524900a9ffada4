"""`Model.save`: write a model as a complete folder that `regard.load` opens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.errors import InputError
from regard.files import LARGEST_CARD, LARGEST_METRICS, new_folder, place_of, read_bounded
from regard.model.transformer import Transformer
from regard.training.checkpoint import not_finite, to_bytes
from regard.training.finish import card
from regard.training.model_folder import check_shapes, file_checksums
from regard.training.names import CARD, CONFIG, METRICS, WEIGHTS

if TYPE_CHECKING:
    from regard.predictor.model import Model

COPIED = {CARD: LARGEST_CARD, METRICS: LARGEST_METRICS}  # files of the model's folder; bytes


def save_model(
    model: Model, path: str | os.PathLike[str], files: Mapping[str, bytes] | None = None
) -> Path:
    """Write a model folder: configuration, vocabularies, the files of the task, weights, and the
    model card and metrics of the folder that the model came from.

    The weights are those in memory. The folder appears under its name when it is complete.

    Args:
        model: the model.
        path: the new folder; it must not exist, or must be empty.
        files: additional files by name; by default, those of the folder that the model came from.

    Returns:
        The path of the folder.

    Raises:
        InputError: the folder is not empty or cannot be written, the weights contain NaN or
            infinity, or they no longer match the configuration of the model.
    """
    folder = Path(path)
    place = place_of(folder)
    if place.exists() and any(place.iterdir()):
        raise InputError(f"{folder} exists and is not empty: choose a different folder")
    weights = dict(model.transformer.state_dict())
    with torch.device("meta"):
        expected = Transformer(model.config.model)
    try:
        check_shapes(expected, {name: tuple(t.shape) for name, t in weights.items()}, folder)
    except InputError as error:
        raise InputError(
            f"{error}: the network no longer has the modules of its configuration; undo "
            "replacements and parametrizations before saving"
        ) from None
    if name := not_finite(weights):
        raise InputError(f"{name} contains NaN or infinity: such a model cannot be saved")
    contents = {
        name: read_bounded(model.folder / name, limit, "a file of a model")
        for name, limit in COPIED.items()
        if model.folder is not None and (model.folder / name).is_file()
    }
    contents |= files or {}
    contents.setdefault(CARD, card(model.config, ()).encode())
    with new_folder(folder) as new:
        (new / CONFIG).write_text(model.config.to_yaml(), encoding="utf-8")
        model.task.save(new)
        for name, content in contents.items():
            (new / name).write_bytes(content)
        (new / WEIGHTS).write_bytes(to_bytes(weights, files=file_checksums(new)))
    return folder
