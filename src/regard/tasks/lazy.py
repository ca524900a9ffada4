"""Modules that are imported at their first use, so that `regard --help` does not import torch."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np", "runtime", "torch"]

if TYPE_CHECKING:
    import numpy as np
    import torch

    from regard.tasks import runtime as runtime
else:

    class Lazy(ModuleType):
        """Imports the module of this name when one of its attributes is used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    np, torch, runtime = Lazy("numpy"), Lazy("torch"), Lazy("regard.tasks.runtime")
