"""regard: a complete implementation of the Transformer.

    import regard

    translator = regard.load("box:translate")
    print(translator.translate("Where is the station?"))

Names load on first use, so that `import regard` and `regard --help` do not import torch.
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
    from regard.config.sections import DataConfig as DataConfig
    from regard.config.sections import DecodingConfig as DecodingConfig
    from regard.config.sections import TrainingConfig as TrainingConfig
    from regard.decoding.generate import generate as generate
    from regard.decoding.predictions import Prediction as Prediction
    from regard.errors import ConversionFailed as ConversionFailed
    from regard.errors import InputError as InputError
    from regard.errors import TrainingFailed as TrainingFailed
    from regard.interop.conversion import export_model as export_model
    from regard.interop.conversion import import_model as import_model
    from regard.model.attention import MultiHeadAttention as MultiHeadAttention
    from regard.model.positions import Positions as Positions
    from regard.model.transformer import AttentionCapture as AttentionCapture
    from regard.model.transformer import Transformer as Transformer
    from regard.predictor.attention import Attention as Attention
    from regard.predictor.loading import load as load
    from regard.predictor.model import Model as Model
    from regard.predictor.training import train as train
    from regard.tasks.configuration import make_config as make_config
    from regard.tasks.custom_metrics import register_metric as register_metric
    from regard.tasks.registry import register_task as register_task
    from regard.tasks.task import Task as Task
    from regard.text.batching import Packed as Packed
    from regard.text.tokenizer import Tokenizer as Tokenizer
    from regard.training import losses as losses
    from regard.training.trainer import Trainer as Trainer

__version__ = "0.1.0"

_MODULES = {
    "Attention": "regard.predictor.attention",
    "AttentionCapture": "regard.model.transformer",
    "Config": "regard.config.sections",
    "ConversionFailed": "regard.errors",
    "DataConfig": "regard.config.sections",
    "DecodingConfig": "regard.config.sections",
    "InputError": "regard.errors",
    "Model": "regard.predictor.model",
    "ModelConfig": "regard.config.model",
    "MultiHeadAttention": "regard.model.attention",
    "Packed": "regard.text.batching",
    "Positions": "regard.model.positions",
    "Prediction": "regard.decoding.predictions",
    "Task": "regard.tasks.task",
    "Tokenizer": "regard.text.tokenizer",
    "Trainer": "regard.training.trainer",
    "TrainingConfig": "regard.config.sections",
    "TrainingFailed": "regard.errors",
    "Transformer": "regard.model.transformer",
    "export_model": "regard.interop.conversion",
    "generate": "regard.decoding.generate",
    "import_model": "regard.interop.conversion",
    "load": "regard.predictor.loading",
    "losses": "regard.training",
    "make_config": "regard.tasks.configuration",
    "pack": "regard.box.pack",
    "register_attention": "regard.config.registry",
    "register_metric": "regard.tasks.custom_metrics",
    "register_mixer": "regard.config.registry",
    "register_positions": "regard.config.registry",
    "register_schedule": "regard.config.registry",
    "register_task": "regard.tasks.registry",
    "train": "regard.predictor.training",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from difflib import get_close_matches

        by_lower = {known.lower(): known for known in _MODULES}
        near = get_close_matches(name.lower(), by_lower, n=1)
        hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
        raise AttributeError(f"module 'regard' has no attribute {name!r}{hint}", name=name)
    if name == "losses":
        return import_module("regard.training.losses")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
