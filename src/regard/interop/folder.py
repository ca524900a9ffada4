"""Turn an `ImportedModel` into a `Model`, and write it as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.sections import Config, DecodingConfig, section
from regard.errors import InputError
from regard.interop.model import ImportedModel
from regard.model.transformer import Transformer
from regard.predictor.model import Model
from regard.predictor.saving import save_model
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.text.sandbox import check_template
from regard.training.checkpoint import not_finite
from regard.training.model_folder import check_shapes
from regard.training.names import CARD, CHAT_TEMPLATE

LONGEST = 4_096  # tokens of an input by default, even if the model supports more


def make_model(imported: ImportedModel, source: Path) -> Model:
    """Create a `Model` with the weights of an imported model, in float32 on the CPU.

    Args:
        imported: what a reader returned; its tensors become the parameters of the model.
        source: the file or folder that was read, for messages.

    Returns:
        The model; it has no folder yet.

    Raises:
        InputError: the weights do not have the shapes of the configuration, or contain NaN or
            infinity; or the chat template is too large or not valid.
    """
    if imported.chat_template is not None:
        try:
            check_template(imported.chat_template)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    with torch.device("meta"):
        transformer = Transformer(imported.config)
    shapes = {name: tuple(x.shape) for name, x in imported.tensors.items()}
    check_shapes(transformer, shapes, source)
    if name := not_finite(imported.tensors):
        raise InputError(f"{source}: {name} contains NaN or infinity: the file is damaged")
    imported.tensors = alone(imported.tensors)
    transformer.load_state_dict(imported.tensors, assign=True)  # without a second copy
    config = config_of(imported)
    task_class = find_task(imported.task)
    known: dict[str, Any] = {}
    if imported.labels:
        known = {"labels": list(imported.labels), "temperature": imported.temperature}
    task = task_class.make(config, imported.tokenizers, **known)
    return Model(config, transformer.eval(), task)


def alone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in float32, with copies of those that share memory with another one."""
    result, places = {}, set()
    for name, tensor in tensors.items():
        x = tensor.to(torch.float32).contiguous()
        memory = x.untyped_storage()
        own = memory.nbytes() == x.nbytes and memory.data_ptr() not in places
        result[name] = x if own else x.clone()
        places.add(memory.data_ptr())
    return result


def config_of(imported: ImportedModel) -> Config:
    """The configuration of an imported model: the defaults of its task, its architecture, and its
    decoding options."""
    model = imported.config
    two = imported.tokenizers[0] is not imported.tokenizers[1]
    data = {
        "max_length": min(imported.max_length, LONGEST),
        "shared_vocabulary": not two,
        "labels": list(imported.labels),
    }
    if not two:
        del data["shared_vocabulary"]
    if not imported.labels:
        del data["labels"]
    base = make_config(imported.task, values={"data": data, "model": {"style": model.style}})
    values = {**vars(base.decoding), **imported.decoding}
    decoding = section(DecodingConfig, "decoding", values)
    return replace(base, model=model, decoding=decoding)


def write_model(
    model: Model, imported: ImportedModel, folder: Path, card: str, files: Mapping[str, bytes]
) -> None:
    """Write the folder of an imported model.

    Args:
        model: the result of `make_model`.
        imported: the model that it was made from.
        folder: the new folder.
        card: the text of the model card.
        files: additional files by name.

    Raises:
        InputError: the folder is not empty or cannot be written.
    """
    added = {CARD: card.encode(), **files}
    if imported.chat_template is not None:
        added[CHAT_TEMPLATE] = imported.chat_template.encode()
    save_model(model, folder, added)
