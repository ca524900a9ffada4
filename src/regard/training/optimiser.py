"""Adam with the betas and the learning rate of the paper (section 5.3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.registry import SCHEDULES
from regard.config.sections import TrainingConfig
from regard.errors import InputError

STATES = ("exp_avg", "exp_avg_sq", "step")


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The learning rate of step 1, 2, ...: linear warm-up to `learning_rate`, then the schedule.

    inverse-sqrt is the paper's formula, with its highest value as a parameter instead of a factor.
    `regard.register_schedule` adds schedules.

    Raises:
        InputError: a registered schedule returns a value that is not a finite number of at least 0.
    """
    warmup = config.warmup
    if step < warmup:
        return config.learning_rate * step / warmup
    if config.schedule == "inverse-sqrt":
        return config.learning_rate * math.sqrt(warmup / step)
    if config.schedule == "cosine":
        progress = (step - warmup) / max(1, config.steps - warmup)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if config.schedule == "constant":
        return config.learning_rate
    rate = SCHEDULES.call(config.schedule, step, config)
    try:
        rate = float(rate)
        valid = math.isfinite(rate) and rate >= 0
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InputError(
            f"the schedule {config.schedule!r} returned {rate!r:.60} for step {step}: a learning "
            "rate must be a finite number of at least 0"
        )
    return rate


def make_optimiser(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam or AdamW; weight decay is for matrices only."""
    kind = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return kind(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=1e-9, fused=True)


def update(
    model: nn.Module, optimiser: torch.optim.Optimizer, rate: float, loss: Tensor, tokens: Tensor,
    clip: float,
) -> Tensor:  # fmt: skip
    """Take one step with gradients that are sums over tokens. Returns the norm of the mean
    gradient before clipping.

    If the loss or the gradient contains NaN or infinity, the fused kernel of the optimiser changes
    nothing. The host does not have to wait for that decision.

    loss, tokens: the sum of the loss, and the number that the sums are divided by; scalars.
    clip: the largest norm of the mean gradient; 0: no clipping.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients) / tokens.to(gradients[0].dtype)
    scale = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    for group in optimiser.param_groups:
        group["lr"] = rate
    # The fused kernel divides gradients by grad_scale and does nothing where found_inf is 1.
    fused: Any = optimiser
    fused.grad_scale = (tokens / scale).float()
    fused.found_inf = (~(loss.isfinite() & norm.isfinite())).float()
    optimiser.step()
    return norm


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the names of the parameters."""
    return {
        f"{state}.{name}": optimiser.state[p][state]
        for name, p in model.named_parameters()
        for state in STATES
        if p in optimiser.state
    }


def load_optimiser(
    model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Restore the state that `optimiser_tensors` returned."""
    for name, p in model.named_parameters():
        if f"step.{name}" in tensors:
            optimiser.state[p] = {s: tensors[f"{s}.{name}"].to(p.device) for s in STATES}
