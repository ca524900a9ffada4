"""Small models with random weights and a complete task, for the tests of exports."""

from __future__ import annotations

from typing import Any

import torch

from learned import BPE, BYTE
from regard import Config, ModelConfig
from regard.config.sections import DataConfig, DecodingConfig, TrainingConfig
from regard.model.transformer import Transformer
from regard.predictor.model import Model
from regard.tasks.registry import find_task
from regard.text.tokenizer import Tokenizer

TASKS = {"encoder-decoder": "translate", "decoder": "generate", "encoder": "fill"}
# Every option of the architecture, one at a time, for all styles.
OPTIONS: list[dict[str, Any]] = [
    {"norm_first": True},
    {"norm": "rms"},
    {"norm": "rms", "norm_first": True, "norm_epsilon": 0.1},
    {"norm_epsilon": 0.1, "embedding_norm": True},
    {"norm": "rms", "embedding_norm": True},
    {"activation": "gelu"},
    {"activation": "gelu-tanh"},
    {"activation": "silu", "d_ff": 20},
    {"activation": "swiglu"},
    {"bias": False, "activation": "swiglu"},
    {"bias": False, "query_key_value_bias": True},
    {"query_key_value_bias": False},
    {"position_base": 300.0},
    {"positions": "learned", "max_length": 40},
    {"positions": "none"},
    {"positions": "rotary"},
    {"positions": "rotary", "position_base": 300.0, "key_value_heads": 2},
    {"key_value_heads": 1},
    {"head_size": 6, "key_value_heads": 2},
    {"scale_embeddings": False},
    {"tie_embeddings": "none"},
]
SENTENCES = [
    f"{subject} {verb} {where}."
    for subject in (
        "A man in a blue shirt",
        "Two young girls",
        "The old dog",
        "A group of tourists",
    )
    for verb in ("is waiting", "jumped over a red bicycle", "slowly walks", "can't be seen")
    for where in ("in front of a shop", "near the water, at night", "on a snowy mountain")
] + ["<eos> is text, and so is <unk>.", "Yes!"]


def tiny_model(
    style: str = "encoder-decoder",
    task: str | None = None,
    tokenizers: tuple[Tokenizer, Tokenizer] = (BYTE, BYTE),
    learned: dict[str, Any] | None = None,
    **options: Any,
) -> Model:
    """A model with these options of the architecture; the other sizes are small."""
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    if style != "encoder-decoder":
        layers = {f"{style}_layers": 2}
    sizes = {"d_model": 16, "heads": 4, "d_ff": 24, "style": style} | layers
    sizes |= {"vocabulary_size": tokenizers[1].size, "source_vocabulary_size": tokenizers[0].size}
    if tokenizers[0] is not tokenizers[1]:
        sizes |= {"tie_embeddings": "target-output"}
    config = Config(
        task=task or TASKS[style],
        model=ModelConfig(**(sizes | options)),
        data=DataConfig(),
        training=TrainingConfig(),
        decoding=DecodingConfig(),
    )
    torch.manual_seed(1)
    transformer = Transformer(config.model).eval()
    with torch.no_grad():  # biases and norms are constant without this
        for parameter in transformer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    task_object = find_task(config.task).make(config, tokenizers, **(learned or {}))
    return Model(config, transformer, task_object)


def rows_of(model: Model, lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    """Random token ids without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config.model
    size = min(config.source_vocabulary_size, config.vocabulary_size)
    return [torch.randint(6, size, (n,), generator=generator).tolist() for n in lengths]


__all__ = ["BPE", "BYTE", "OPTIONS", "SENTENCES", "rows_of", "tiny_model"]
