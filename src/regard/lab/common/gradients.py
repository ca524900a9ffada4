"""How much the last output of an encoder depends on the input t steps back: the gradient, in
float64, so that a gradient that decays can be distinguished from one that is exactly zero.

The norm is estimated with random vectors: for v of independent normal numbers the expected square
of |v' J| is the square of J's Frobenius norm, where J[D, D] is the derivative of the last output by
one input. Each sequence has its own v; the results are root mean squares over sequences.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.config.model import ModelConfig
from regard.model.transformer import Transformer
from regard.tasks.batches import packed
from regard.tasks.task import Ids

SMALLEST = 1e-290  # near the end of float64: smaller values cannot be distinguished from zero
AT_ONCE = 16_384  # tokens

Norms = NDArray[np.float64]


def gradient_norms(model: Transformer, sequences: Sequence[Ids], seed: int = 1) -> Norms:
    """|v' J| for sequences of one length n: [B, n], at t the input t steps before the last.

    The output is that of the last layer, the input an embedding with its position.
    """
    length = len(sequences[0])
    model = copy.deepcopy(model).double().train()  # cuDNN has gradients of recurrence only so
    model.backend = "padded"
    model.requires_grad_(False)
    random = np.random.default_rng(seed)
    at_once = max(1, AT_ONCE // length)
    starts = range(0, len(sequences), at_once)
    return np.concatenate([
        chunk_norms(model, sequences[start : start + at_once], random) for start in starts
    ])  # fmt: skip


def chunk_norms(model: Transformer, sequences: Sequence[Ids], random: np.random.Generator) -> Norms:
    count, length, width = len(sequences), len(sequences[0]), model.config.d_model
    device = model.output_matrix().device
    inputs: list[Tensor] = []

    def keep_input(_: nn.Module, __: tuple[Tensor, ...], embedded: Tensor) -> Tensor:
        inputs.append(embedded.detach().requires_grad_())
        return inputs[0]

    hook = model.table("source").register_forward_hook(keep_input)
    output = model.hidden(packed(list(sequences), device)).view(count, length, width)[:, -1]
    hook.remove()
    vectors = torch.from_numpy(random.standard_normal((count, width))).to(device)
    (gradient,) = torch.autograd.grad((output * vectors).sum(), inputs)
    if model.config.scale_embeddings:
        gradient = gradient / math.sqrt(width)
    return norms(gradient.view(count, length, width).flip(1).cpu().numpy(), 2)


def norms(x: NDArray[np.float64], axis: int) -> Norms:
    """Euclidean norms of vectors whose squares may underflow."""
    largest = np.abs(x).max(axis, keepdims=True)
    unit = np.divide(x, largest, out=np.zeros_like(x), where=largest > 0)
    return np.sqrt((unit**2).sum(axis)) * largest.squeeze(axis)


def root_mean_square(x: NDArray[np.float64], axis: int = 0) -> Norms:
    return norms(x, axis) / math.sqrt(x.shape[axis])


def reach(gradients: Norms) -> int:
    """The largest t at which gradients[t] is not zero. Where it underflows before the end, the path
    is assumed to continue."""
    farthest = int(np.flatnonzero(gradients)[-1])
    return farthest if gradients[farthest] > SMALLEST else len(gradients) - 1


def decay(steps: Sequence[int], gradients: Norms) -> float:
    """The factor per step of the exponential that fits the gradients so many steps back, without
    those that underflow."""
    valid = gradients > SMALLEST
    return math.exp(np.polyfit(np.asarray(steps)[valid], np.log(gradients[valid]), 1)[0])


def measure_reach(config: ModelConfig, length: int, device: torch.device, seed: int = 1) -> int:
    """How far back the last output of a new model depends on a sequence of this length."""
    torch.manual_seed(seed)
    model = Transformer(config).to(device)
    random = np.random.default_rng(seed)
    tokens = random.integers(config.vocabulary_size, size=length)
    return reach(gradient_norms(model, [tokens], seed)[0])
