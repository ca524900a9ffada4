"""Several processes that train one model (torchrun): gloo on CPUs, NCCL on GPUs.

Each process computes the gradients of its own rows. Gradients and losses are summed over all
processes before anything is divided or decided, so all processes take identical steps.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.device import choose_device
from regard.errors import InputError


class Processes:
    """This process (number `rank` of `world`), and the device that it computes on."""

    def __init__(self, device: str | torch.device) -> None:
        self.rank, self.world = environment_number("RANK", 0), environment_number("WORLD_SIZE", 1)
        local_rank = environment_number("LOCAL_RANK", 0)
        self.device = choose_device(device, local_rank if self.world > 1 else None)
        cuda = self.device.type == "cuda"
        if cuda:  # training kernels run on the current device
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group(
                "nccl" if cuda else "gloo", timeout=timedelta(minutes=30),
                device_id=self.device if cuda else None,
            )  # fmt: skip

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of `tensor` over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over all processes, concatenated into one message."""
        if self.world == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = self.sum(torch.cat([g.flatten() for g in gradients]))
        parts = flat.split([g.numel() for g in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def agree(self, number: int) -> int:
        """The value of `number` in the first process."""
        own = int(number) if self.first else 0
        return int(self.sum(torch.tensor([own], device=self.device)))

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        if self.world > 1:
            dist.barrier()

    def close(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def environment_number(name: str, default: int) -> int:
    """The value of an environment variable that torchrun sets."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(
            f"the environment variable {name} is {text!r:.40}, not a number: unset it to train "
            "with one process, or start the training with torchrun"
        )
    return int(text)
