"""Adam with the paper's betas, and its learning rate (section 5.3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.sections import TrainingConfig

STATES = ("exp_avg", "exp_avg_sq", "step")


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The rate of step 1, 2, ...: linear warm-up to `learning_rate`, then the schedule.

    inverse-sqrt is the paper's formula with its highest value given instead of a factor.
    """
    warmup = config.warmup
    if step < warmup:
        return config.learning_rate * step / warmup
    if config.schedule == "inverse-sqrt":
        return config.learning_rate * math.sqrt(warmup / step)
    if config.schedule == "cosine":
        progress = (step - warmup) / max(1, config.steps - warmup)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate


def make_optimiser(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    decayed = [p for p in model.parameters() if p.dim() > 1]  # matrices, not biases and norms
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return kind(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=1e-9, fused=True)


def update(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    rate: float,
    loss: Tensor,
    tokens: Tensor,
    clip: float,
) -> Tensor:
    """One step from gradients that are sums over tokens; gives back the norm of their mean.

    If it or the loss is not finite nothing changes, which the optimiser's kernel sees by itself:
    the host decides nothing and waits for nothing. clip: the longest gradient; 0: any length.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients) / tokens.to(gradients[0].dtype)
    shorter = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    for group in optimiser.param_groups:
        group["lr"] = rate
    # What gradients are divided by, and whether to do nothing: these two are how the fused kernel
    # is asked for both.
    asked: Any = optimiser
    asked.grad_scale = (tokens / shorter).float()
    asked.found_inf = (~(loss.isfinite() & norm.isfinite())).float()
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
    for name, p in model.named_parameters():
        if f"step.{name}" in tensors:
            optimiser.state[p] = {
                state: tensors[f"{state}.{name}"].to(p.device) for state in STATES
            }
