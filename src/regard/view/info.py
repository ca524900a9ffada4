"""`regard info`: the parameters of a model by part, formula beside tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from regard.config.model import ModelConfig
from regard.config.parameters import PARTS, Part, closed_form, count
from regard.console import make_console
from regard.files import open_regular, parse_json
from regard.model.transformer import Transformer

LONGEST_LINE = 100_000  # bytes of the last line of the metrics


@dataclass(frozen=True)
class ParameterTable:
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
        """For `--json`; the total is the largest number in it."""
        return {
            "parameters": self.total,
            "parts": {part: size for part, size in self.tensors.items() if size},
            "agrees_with_formula": self.agrees,
            "config": {"model": self.config.to_dict()},
        }

    def show(self, preset: str) -> None:
        c = self.config
        layers = " + ".join(str(n) for n in (c.encoder_layers, c.decoder_layers) if n)
        table = Table(
            title=f"{preset}, {c.style}: {layers} layers, d_model (D) {c.d_model}, "
            f"heads (H) {c.heads} of size (K) {c.head_size}, d_ff (F) {c.d_ff}, "
            f"vocabulary (V) {c.vocabulary_size:,}",
            title_justify="left",
        )
        table.add_column("part")
        table.add_column("formula")
        table.add_column("by formula", justify="right")
        table.add_column("in tensors", justify="right")
        table.add_column("share", justify="right")
        for part in PARTS:
            by_formula, size = self.formula[part], self.tensors[part]
            if size or by_formula.parameters:
                share = f"{size / self.total:.1%}"
                table.add_row(
                    part, by_formula.formula, f"{by_formula.parameters:,}", f"{size:,}", share
                )
        table.add_section()
        by_formula_total = sum(part.parameters for part in self.formula.values())
        table.add_row(
            "total", "", f"{by_formula_total:,}", f"{self.total:,}", "100.0%", style="bold"
        )
        console = make_console()
        console.print(table)
        verdict = "formula and tensors agree" if self.agrees else "FORMULA AND TENSORS DISAGREE"
        console.print(f"{self.total / 1e6:.2f}M parameters; {verdict}")


def final_scores(run: Path) -> dict[str, Any]:
    """The final record of a run, which is the last line of its metrics; empty if the run has not
    finished or the line is not valid."""
    try:
        with open_regular(run / "metrics.jsonl") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_LINE))
            last = parse_json(file.read(LONGEST_LINE).splitlines()[-1])
    except (ValueError, IndexError):  # no such file, no line, or an incomplete line
        return {}
    known = isinstance(last, dict) and "final" in last
    known = known and all(type(value) in (str, int, float) for value in last.values())
    return last if known and "".join(map(str, [*last, *last.values()])).isprintable() else {}


def parameter_table(config: ModelConfig) -> ParameterTable:
    with torch.device("meta"):  # shapes without memory: `big` in milliseconds
        model = Transformer(config)
    tensors = count((name, p.numel()) for name, p in model.named_parameters())
    return ParameterTable(config, closed_form(config), tensors)
