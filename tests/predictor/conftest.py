"""The models of tests/view: every task and style, with random weights."""

from view.conftest import folder, model

__all__ = ["folder", "model"]
