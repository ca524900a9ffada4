"""`regard.load`: open a model folder, or a model in the box.

A folder is checked before it is used: the sizes of its files, their checksums, and the shapes and
values of its weights. Nothing in a folder is executed.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from regard.config.checks import choice
from regard.config.model import ModelConfig
from regard.config.sections import DTYPES
from regard.decoding.engines.cpu import cpu_model
from regard.device import FLOAT16, choose_device
from regard.errors import InputError
from regard.files import checksum, write_result
from regard.model.quantise import dequantise_all, quantise_all
from regard.model.transformer import Transformer
from regard.ops.cpu import build
from regard.predictor.model import Model
from regard.tasks.registry import find_task
from regard.text.external import as_tokenizers
from regard.training.checkpoint import read_raw, to_bytes
from regard.training.mapped import mapped_tensors
from regard.training.model_folder import file_checksums, load_weights, read_config
from regard.training.names import WEIGHTS
from regard.training.shipped import folder_of
from regard.training.unfinished import check_weights, model_weights

# The meaning of dtype=auto on each device.
AUTO = {"cuda": "bfloat16", "cpu": "float32", "mps": "float32"}


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    tokenizer: object = None,
) -> Model:
    """Open a model folder, or a model in the box: "box:translate" (regard/box).

    A run that is still training or was interrupted can be opened too: with its best weights so far,
    or those of its newest checkpoint. A warning names their step.

    Args:
        path: the folder.
        device: "auto" (the GPU if there is one), "cpu", "cuda", "cuda:1", "mps", or a torch.device.
        dtype: "float32", "bfloat16", "int8" (on a CPU), a torch.dtype, or "auto": bfloat16 on a
            CUDA device, float32 elsewhere.
        tokenizer: the tokenizer of a model that was trained with a Python object as its tokenizer,
            which is not saved; a pair if source and target have different ones.

    Returns:
        The model, ready to use.

    Raises:
        InputError: a file is missing, damaged or different from the one that the weights were saved
            with (see `accept_changes`), the weights contain NaN or infinity, or there is no such
            device.
    """
    return open_folder(path, device, dtype, tokenizer=tokenizer)


def open_folder(
    path: str | os.PathLike[str],
    device: str | torch.device,
    dtype: str | torch.dtype,
    changed: bool = False,
    tokenizer: object = None,
    mapped: bool = False,
) -> Model:
    """See `load`.

    Args:
        changed: accept files that differ from those with which the weights were saved.
        mapped: on a CPU, share the weights in memory with other processes that do the same. They
            are mapped from a file in the cache, which the first process writes. Unfinished runs
            and models with custom parts are loaded without mapping.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f'a model is a folder, or "box:translate", not {path!r:.60}')
    folder = folder_of(path)
    where, dtype = choose_device(device), dtype_name(dtype)
    if dtype == "auto":
        dtype = AUTO[where.type]
    config = read_config(folder, changed)
    check_weights(folder)
    tokenizers = None if tokenizer is None else as_tokenizers(tokenizer)
    task = find_task(config.task).load(folder, config, tokenizers)
    mapped = mapped and where.type == "cpu" and (folder / WEIGHTS).is_file()
    if mapped and not config.model.custom_parts:
        transformer = map_transformer(folder, config.model, dtype)
    else:
        transformer = read_transformer(folder, config.model, where, dtype)
    return Model(config, transformer, task, folder)


def read_transformer(
    folder: Path, config: ModelConfig, where: torch.device, dtype: str
) -> Transformer:
    """The Transformer of a model folder, in evaluation mode."""
    transformer = Transformer(config)
    load_weights(transformer, model_weights(folder), folder)
    if dtype == "int8":  # so that computations without int8 use the same weights
        transformer.load_state_dict(dequantise_all(quantise_all(transformer.state_dict()), folder))
    weights = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    transformer.to(where, weights).eval()
    if dtype == "int8":
        transformer.precision = dtype
        check_int8(transformer)
    return transformer


def map_transformer(folder: Path, config: ModelConfig, dtype: str) -> Transformer:
    """`read_transformer` on a CPU, with weights that are mapped into memory: the parameters, and
    the blocked layout of the C++ code."""
    library = build.library("inference")
    code = "none" if library is None else Path(library._name).name
    source = f"{checksum(folder / WEIGHTS)} {config} {dtype} {code}"

    def make() -> dict[str, torch.Tensor]:
        transformer = read_transformer(folder, config, torch.device("cpu"), dtype)
        compiled = cpu_model(transformer)
        blocks = {} if compiled is None else compiled.blocks
        return add_prefix("parameters.", transformer.state_dict()) | add_prefix("blocks.", blocks)

    tensors = mapped_tensors(hashlib.sha256(source.encode()).hexdigest(), make)
    with Uninitialised():  # all weights are replaced
        transformer = Transformer(config)
    transformer.load_state_dict(select_prefix("parameters.", tensors), assign=True)
    transformer.eval()
    transformer.precision = dtype if dtype == "int8" else None
    cpu_model(transformer, select_prefix("blocks.", tensors))
    return transformer


class Uninitialised(TorchFunctionMode):
    """Modules that are created in this block leave their weights uninitialised: functions that
    change a tensor do nothing. Memory that is never written needs no pages. (Modules on the device
    "meta" need none either, but the first one imports a large part of torch.)"""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__name__.endswith("_") and not func.__name__.endswith("__"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def add_prefix(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with a prefix before their names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def select_prefix(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names have a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def dtype_name(dtype: str | torch.dtype) -> str:
    """The name of a dtype that a model can be used in; an InputError for others."""
    name = str(dtype).removeprefix("torch.")
    if name in ("float16", "half"):
        raise InputError(FLOAT16)
    choice("dtype", name, DTYPES)
    return name


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
