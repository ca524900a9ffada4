"""regard: the Transformer, whole.

    from regard import ModelConfig, Packed, Transformer

Names load on first use, so that `import regard` and `regard --help` need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.box.pack import pack as pack
    from regard.config.model import ModelConfig as ModelConfig
    from regard.config.sections import Config as Config
    from regard.errors import InputError as InputError
    from regard.model.transformer import AttentionCapture as AttentionCapture
    from regard.model.transformer import Transformer as Transformer
    from regard.predictor.loading import load as load
    from regard.predictor.training import train as train
    from regard.tasks.configuration import make_config as make_config
    from regard.tasks.registry import register_task as register_task
    from regard.tasks.task import Task as Task
    from regard.text.batching import Packed as Packed

__version__ = "0.1.0"

_WHERE = {
    "AttentionCapture": "regard.model.transformer",
    "Config": "regard.config.sections",
    "InputError": "regard.errors",
    "ModelConfig": "regard.config.model",
    "Packed": "regard.text.batching",
    "Task": "regard.tasks.task",
    "Transformer": "regard.model.transformer",
    "load": "regard.predictor.loading",
    "make_config": "regard.tasks.configuration",
    "pack": "regard.box.pack",
    "register_task": "regard.tasks.registry",
    "train": "regard.predictor.training",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
