"""Whether a call of a module still does what its class defines.

Kernels compute several modules in one pass, or a module without calling it. They read only the
weights. A user may have changed what a call does: by a hook, a subclass, a parametrisation, a
pruning mask, or a `forward` of the instance. Then the module has to be called.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as hooks

FORWARD_HOOKS = {"_forward_hooks": "a forward hook", "_forward_pre_hooks": "a forward pre-hook"}
BACKWARD_HOOKS = {"_backward_hooks": "a backward hook", "_backward_pre_hooks": "a backward hook"}


class Classes:
    """Classes whose calls kernels can replace, with their `forward` as it was defined."""

    def __init__(self, *classes: type[nn.Module]) -> None:
        self.forwards = {kind: kind.forward for kind in classes}

    def replaced(self) -> str | None:
        """The first class whose `forward` was replaced after its definition, as a reason."""
        for kind, forward in self.forwards.items():
            if kind.forward is not forward:
                return f"{kind.__name__}.forward was replaced"
        return None

    def override(self, module: nn.Module, backward: bool = True) -> str | None:
        """Why a module must be called, as the end of a sentence about it; None if it need not be.

        Args:
            module: the module; its submodules are not examined.
            backward: whether backward hooks count. They have no effect without gradients.
        """
        kind, own = type(module), vars(module)
        if (forward := self.forwards.get(kind)) is None:
            return f"is a {kind.__name__}"
        if kind.forward is not forward or "forward" in own:
            return "has its own forward method"
        if "weight" in own:
            return "has a weight that is not a parameter"
        for name, hook in (FORWARD_HOOKS | BACKWARD_HOOKS if backward else FORWARD_HOOKS).items():
            if own[name]:
                return f"has {hook}"
        if isinstance(module, nn.Embedding) and (module.max_norm or module.sparse):
            return "has max_norm or sparse gradients"
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and (
            module.weight is None or module.eps is None
        ):
            return "has no weight or no eps"
        return None


KERNELS = Classes(nn.LayerNorm, nn.RMSNorm, nn.Embedding)


def global_hook() -> bool:
    """Whether a hook for the calls of all modules is registered (torch.nn.modules.module)."""
    return bool(
        hooks._global_forward_hooks or hooks._global_forward_pre_hooks
        or hooks._global_backward_hooks or hooks._global_backward_pre_hooks
    )  # fmt: skip


def must_be_called(module: nn.Module | None, classes: Classes = KERNELS) -> bool:
    """Whether a kernel must not replace a call of this module; None: there is no module.
    torch.compile and torch.export trace calls, so all modules are called then."""
    if torch.compiler.is_compiling():
        return module is not None
    return module is not None and (global_hook() or classes.override(module) is not None)
