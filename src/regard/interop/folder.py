"""Turn an `ImportedModel` into a `Model`, and write it as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.config.sections import Config, DecodingConfig, section
from regard.errors import InputError
from regard.interop.model import ImportedModel
from regard.model.transformer import Transformer
from regard.predictor.model import Model
from regard.predictor.saving import save_model
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.text.sandbox import LARGEST_TEMPLATE
from regard.training.checkpoint import not_finite
from regard.training.model_folder import load_weights
from regard.training.names import CARD

TEMPLATE = "chat_template.jinja"
LONGEST = 4_096  # tokens of an input, even if the model supports more


def make_model(imported: ImportedModel, source: Path) -> Model:
    """Create a `Model` with the weights of an imported model, in float32 on the CPU.

    Args:
        imported: what a reader returned.
        source: the file or folder that was read, for messages.

    Returns:
        The model; it has no folder yet.

    Raises:
        InputError: the weights do not have the shapes of the configuration, or contain NaN or
            infinity; or the chat template is too large.
    """
    template = imported.chat_template
    if template is not None and len(template) > LARGEST_TEMPLATE:
        raise InputError(
            f"{source}: the chat template has more than {LARGEST_TEMPLATE:,} characters"
        )
    with torch.device("meta"):
        transformer = Transformer(imported.config)
    transformer = transformer.to_empty(device="cpu")
    load_weights(transformer, imported.tensors, source)
    if name := not_finite(imported.tensors):
        raise InputError(f"{source}: {name} contains NaN or infinity: the file is damaged")
    config = config_of(imported)
    task_class = find_task(imported.task)
    known: dict[str, Any] = {}
    if imported.labels:
        known = {"labels": list(imported.labels), "temperature": imported.temperature}
    task = task_class.make(config, imported.tokenizers, **known)
    return Model(config, transformer.eval(), task)


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
        added[TEMPLATE] = imported.chat_template.encode()
    save_model(model, folder, added)
