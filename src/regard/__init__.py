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
    from regard.config.registry import register_attention as register_attention
    from regard.config.registry import register_mixer as register_mixer
    from regard.config.registry import register_positions as register_positions
    from regard.config.registry import register_schedule as register_schedule
    from regard.config.sections import Config as Config
    from regard.decoding.generate import generate as generate
    from regard.errors import InputError as InputError
    from regard.model.attention import MultiHeadAttention as MultiHeadAttention
    from regard.model.positions import Positions as Positions
    from regard.model.transformer import AttentionCapture as AttentionCapture
    from regard.model.transformer import Transformer as Transformer
    from regard.predictor.loading import load as load
    from regard.tasks.configuration import make_config as make_config
    from regard.tasks.custom_metrics import register_metric as register_metric
    from regard.tasks.registry import register_task as register_task
    from regard.tasks.task import Task as Task
    from regard.tasks.train import train as train
    from regard.text.batching import Packed as Packed

__version__ = "0.1.0"

_WHERE = {
    "AttentionCapture": "regard.model.transformer",
    "Config": "regard.config.sections",
    "InputError": "regard.errors",
    "ModelConfig": "regard.config.model",
    "MultiHeadAttention": "regard.model.attention",
    "Packed": "regard.text.batching",
    "Positions": "regard.model.positions",
    "Task": "regard.tasks.task",
    "Transformer": "regard.model.transformer",
    "generate": "regard.decoding.generate",
    "load": "regard.predictor.loading",
    "make_config": "regard.tasks.configuration",
    "pack": "regard.box.pack",
    "register_attention": "regard.config.registry",
    "register_metric": "regard.tasks.custom_metrics",
    "register_mixer": "regard.config.registry",
    "register_positions": "regard.config.registry",
    "register_schedule": "regard.config.registry",
    "register_task": "regard.tasks.registry",
    "train": "regard.tasks.train",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
