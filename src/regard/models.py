"""A model is a folder: `regard.load(path)` opens it.

config.yaml (complete), tokenizer.json (and source-tokenizer.json where the source has its own
vocabulary), model.safetensors, metrics.jsonl, README.md, and checkpoints/ while it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from regard.config import Config
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import Checkpoints, read_tensors
from regard.training.processes import choose_device


class Model:
    """A trained model and its vocabularies."""

    def __init__(self, config: Config, transformer: Transformer, task: Translate) -> None:
        self.config, self.transformer, self.task = config, transformer.eval(), task

    def translate(self, texts: str | Sequence[str]) -> list[str]:
        """One translation for each text, by greedy search."""
        texts = [texts] if isinstance(texts, str) else texts
        return self.task.answer(self.transformer, texts, self.config.decoding.max_length)


def load(path: str | Path, device: str = "auto") -> Model:
    """Open a model folder."""
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not a model: it has no config.yaml")
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder} has no model.safetensors: its training has not ended; "
            f"go on with: regard train --resume --out {folder}"
        )
    config = Config.load(folder / "config.yaml")
    transformer = Transformer(config.model)
    load_weights(transformer, read_tensors(folder / "model.safetensors"), folder)
    return Model(config, transformer.to(choose_device(device)), load_task(folder))


def newest_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a model, or of the newest whole checkpoint of a run that has not ended."""
    if (folder / "model.safetensors").is_file():
        return read_tensors(folder / "model.safetensors")
    checkpoints = Checkpoints(folder, 1, 1)
    state, _ = checkpoints.newest()
    if state is None:
        raise InputError(f"{folder} has neither model.safetensors nor a whole checkpoint")
    return checkpoints.weights(state["step"])


def load_task(folder: Path) -> Translate:
    target = Tokenizer.load(folder / "tokenizer.json")
    own = folder / "source-tokenizer.json"
    return Translate(Tokenizer.load(own) if own.exists() else target, target)


def load_weights(model: Transformer, tensors: dict[str, Tensor], where: Path) -> None:
    """Refuse weights of another shape in one line, with the first difference."""
    ours = model.state_dict()
    for name in sorted(ours.keys() | tensors.keys()):
        has = [str(list(t[name].shape)) if name in t else "nothing" for t in (tensors, ours)]
        if has[0] != has[1]:
            raise InputError(f"{where}: {name} is {has[0]} but the model needs {has[1]}")
    model.load_state_dict(tensors)
