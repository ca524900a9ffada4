"""`regard.load`: open a model folder, or a model in the box.

A folder is checked before it is used: the sizes of its files, their checksums, and the shapes and
values of its weights. Nothing in a folder is executed.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from regard.config.checks import choice
from regard.config.sections import DTYPES
from regard.decoding.engines.cpu import cpu_model
from regard.device import choose_device
from regard.errors import InputError
from regard.files import write_result
from regard.model.quantise import dequantise_all, quantise_all
from regard.model.transformer import Transformer
from regard.predictor.model import Model
from regard.tasks.registry import find_task
from regard.training.checkpoint import read_raw, to_bytes
from regard.training.model_folder import file_checksums, load_weights, read_config
from regard.training.shipped import folder_of
from regard.training.unfinished import model_weights

AUTO = {"cuda": "bfloat16", "cpu": "float32"}  # the meaning of dtype=auto on each device


def load(path: str | os.PathLike[str], device: str = "auto", dtype: str = "auto") -> Model:
    """Open a model folder, or a model in the box: "box:translate" (regard/box).

    A run that is still training or was interrupted can be opened too: with its best weights so far,
    or those of its newest checkpoint. A warning names their step.

    Args:
        path: the folder.
        device: auto, cpu or cuda.
        dtype: float32, bfloat16, int8 (on a CPU), or auto: see AUTO.

    Raises:
        InputError: a file is missing, damaged or different from the one that the weights were saved
            with (see `accept_changes`), or the weights contain NaN or infinity.
    """
    return open_folder(path, device, dtype)


def open_folder(
    path: str | os.PathLike[str], device: str, dtype: str, changed: bool = False
) -> Model:
    """See `load`. changed: accept files that differ from those the weights were saved with."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f'a model is a folder, or "box:translate", not {path!r:.60}')
    folder = folder_of(path)
    choice("device", str(device).partition(":")[0], ("auto", *AUTO))
    choice("dtype", dtype, DTYPES)
    config = read_config(folder, changed)
    task = find_task(config.task).load(folder, config)
    transformer = Transformer(config.model)
    load_weights(transformer, model_weights(folder), folder)
    if dtype == "int8":  # so that computations without int8 use the same weights
        transformer.load_state_dict(dequantise_all(quantise_all(transformer.state_dict()), folder))
    where = choose_device(device)
    if dtype == "auto":
        dtype = AUTO[where.type]
    weights = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    model = Model(config, transformer.to(where, weights), task, folder)
    if dtype == "int8":
        transformer.precision = dtype
        check_int8(transformer)
    return model


def check_int8(transformer: Transformer) -> None:
    """Refuse int8 if the native code cannot be used."""
    if transformer.output_matrix().is_cuda:
        raise InputError("dtype=int8 is for a CPU: use device=cpu or another dtype")
    if cpu_model(transformer) is None:
        raise InputError(
            "dtype=int8 needs native code, which this machine or this model does not have: "
            "install a C++ compiler (g++ or clang++) or use another dtype"
        )


def accept_changes(path: str | Path) -> list[str]:
    """Record the current files of a model folder after an intended change, so that `load` accepts
    them. Returns their names. Nothing is written if the folder cannot be loaded."""
    folder = folder_of(path)
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder} has no model.safetensors, which records the changes")
    open_folder(folder, "cpu", "float32", changed=True)
    files = file_checksums(folder)
    weights = folder / "model.safetensors"
    write_result(weights, to_bytes(read_raw(weights), files=files))
    return list(files)
