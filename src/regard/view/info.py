"""`regard info`: the number of parameters of each part of a model, by formula and in tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Column, Table

from regard.config.model import ModelConfig
from regard.config.parameters import PARTS, Part, closed_form, count
from regard.console import make_console
from regard.model.transformer import Transformer


@dataclass(frozen=True)
class ParameterTable:
    """The number of parameters of each part, by formula and counted in the tensors."""

    config: ModelConfig
    formula: dict[str, Part]
    tensors: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.tensors.values())

    @property
    def agrees(self) -> bool:
        return all(self.formula[part].parameters == self.tensors[part] for part in PARTS)

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON values, for `--json`."""
        return {
            "parameters": self.total,
            "parts": {part: size for part, size in self.tensors.items() if size},
            "agrees_with_formula": self.agrees,
            "config": {"model": self.config.to_dict()},
        }

    def show(self, preset: str) -> None:
        """Print the table; `preset` is the name of the configuration in its title."""
        c = self.config
        layers = " + ".join(str(n) for n in (c.encoder_layers, c.decoder_layers) if n)
        title = (
            f"{preset}, {c.style}: {layers} layers, d_model (D) {c.d_model}, heads (H) {c.heads} "
            f"of size (K) {c.head_size}, d_ff (F) {c.d_ff}, vocabulary (V) {c.vocabulary_size:,}"
        )
        right = [Column(name, justify="right") for name in ("by formula", "in tensors", "share")]
        table = Table("part", "formula", *right)
        for part in PARTS:
            own, size = self.formula[part], self.tensors[part]
            if size or own.parameters:
                figures = f"{own.parameters:,}", f"{size:,}", f"{size / self.total:.1%}"
                table.add_row(part, own.formula, *figures)
        table.add_section()
        expected = sum(part.parameters for part in self.formula.values())
        table.add_row("total", "", f"{expected:,}", f"{self.total:,}", "100.0%", style="bold")
        console = make_console()
        console.print(title, soft_wrap=True)  # rich would break a long path
        console.print(table)
        verdict = "formula and tensors agree" if self.agrees else "FORMULA AND TENSORS DISAGREE"
        console.print(f"{self.total / 1e6:.2f}M parameters; {verdict}")


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Count the parameters of a model of this configuration, without allocating it.

    Args:
        config: the configuration of the model.

    Returns:
        The parameters of each part.
    """
    with torch.device("meta"):  # shapes without memory: `big` in milliseconds
        model = Transformer(config)
    tensors = count((name, p.numel()) for name, p in model.named_parameters())
    return ParameterTable(config, closed_form(config), tensors)
