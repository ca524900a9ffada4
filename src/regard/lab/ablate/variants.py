"""The variants of a base model: the rows of the paper's Table 3, for any base.

The paper varied one model. Here the same ratios apply to the model that is the base, so that the
variants of the paper's base are the rows of the paper. `--rows` selects them by name or group.
This module does not import torch: the command line reads it for `--help`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config.sections import Config
from regard.errors import InputError, unknown

Values = dict[str, dict[str, Any]]  # settings by section
Build = Callable[[Values], Config]  # the base with these settings changed

BASE = "base"
GROUPS = {  # of variants, and what they change
    BASE: "the model itself",
    "A": "heads, at equal cost",
    "B": "head size",
    "C": "layers, width, feed-forward",
    "D": "dropout, label smoothing",
    "E": "learned positions",
    "norm": "post-norm or pre-norm",
    "tied": "which embeddings are one matrix",
    "mixer": "what mixes the encoder's positions",
}
TIES = ("all", "source-target", "target-output", "none")
MIXERS = ("attention", "lstm", "gru", "convolution", "dilated")
WINDOW = 8
SIGNS = {  # the paper's letters
    "model.encoder_layers": "N", "model.decoder_layers": "N dec.", "model.d_model": "d_model",
    "model.d_ff": "d_ff", "model.heads": "h", "model.head_size": "d_k", "model.dropout": "P_drop",
    "training.label_smoothing": "ε_ls",
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """The base with one change: a row of the table."""

    name: str
    group: str
    changes: dict[str, Any]  # by their whole names: {"model.heads": 1}
    config: Config

    def describe(self) -> str:
        """The changes, in the paper's letters."""
        changes = dict(self.changes)
        decoder = changes.get("model.decoder_layers")
        if decoder is not None and changes.get("model.encoder_layers", decoder) == decoder:
            changes = {"model.encoder_layers": changes.pop("model.decoder_layers")} | changes
        return " ".join(f"{SIGNS.get(k, k.split('.')[1])}={v}" for k, v in changes.items())


def make_variants(
    names: Sequence[str], build: Build
) -> tuple[list[Variant], list[tuple[str, str]]]:
    """The requested variants, the base first; and those that this base cannot have, and why.

    names: of variants or groups. A variant that is requested by its own name must be possible.
    """
    base = build({})
    candidates = {name: (group, changes) for group, name, changes in all_variants(base)}
    known = [*GROUPS, *candidates]
    for name in names:
        if name not in known:
            raise unknown("row", name, known)
    variants, skipped = [Variant(BASE, BASE, {}, base)], list[tuple[str, str]]()
    for name, (group, changes) in candidates.items():
        if group not in names and name not in names:
            continue
        try:
            variant = make_variant(group, name, changes, build)
            same = [other.name for other in variants if other.config == variant.config]
            if same:
                raise InputError(f"it is the same as {same[0]}")
            variants.append(variant)
        except InputError as error:
            if name in names:
                raise InputError(f"--rows {name}: {error}") from None
            skipped.append((name, str(error)))
    return variants, skipped


def make_variant(group: str, name: str, changes: dict[str, Any] | str, build: Build) -> Variant:
    if isinstance(changes, str):
        raise InputError(changes)
    values: Values = {}
    for key, value in changes.items():
        section, _, option = key.partition(".")
        values.setdefault(section, {})[option] = value
    return Variant(name, group, changes, build(values))


def all_variants(base: Config) -> Iterable[tuple[str, str, dict[str, Any] | str]]:
    """(group, name, changes or the reason why it is impossible) of each variant."""
    m = base.model
    width = m.heads * m.head_size
    for top, bottom in ((1, 8), (1, 2), (2, 1), (4, 1)):
        heads = max(1, m.heads * top // bottom)
        changes: dict[str, Any] | str = {"model.heads": heads, "model.head_size": width // heads}
        if width % heads:
            changes = f"{heads} heads cannot share {width} features evenly"
        yield "A", f"A-heads-{heads}", changes
    for part in (4, 2):
        size = m.head_size // part
        small = f"head size {m.head_size} has no whole part of 1/{part}"
        fits = m.head_size % part == 0
        yield "B", f"B-key-{size}", {"model.head_size": size} if fits else small
    for top in (1, 2, 4):
        layers = {
            f"model.{stack}_layers": max(1, round(n * top / 3))
            for stack, n in (("encoder", m.encoder_layers), ("decoder", m.decoder_layers))
            if n
        }
        yield "C", "C-layers-" + "+".join(map(str, dict.fromkeys(layers.values()))), layers
    for name, key in (("width", "d_model"), ("ff", "d_ff")):
        for top, bottom in ((1, 2), (2, 1)):
            size = getattr(m, key) * top // bottom
            changes = {f"model.{key}": size}
            if key == "d_model":  # each head keeps its share of the width
                changes["model.head_size"] = max(1, m.head_size * top // bottom)
            yield "C", f"C-{name}-{size}", changes
    for value in (0.0, min(0.5, 2 * m.dropout) or 0.1):
        yield "D", f"D-dropout-{value:.2g}", {"model.dropout": value}
    for value in (0.0, 0.2):
        yield "D", f"D-smoothing-{value:.2g}", {"training.label_smoothing": value}
    yield "E", "E-learned", {"model.positions": "learned"}
    for name, first in (("post", False), ("pre", True)):
        if first != m.norm_first:
            yield "norm", f"norm-{name}", {"model.norm_first": first}
    for tie in TIES:
        if tie != m.tie_embeddings:
            yield "tied", f"tied-{tie}", {"model.tie_embeddings": tie}
    for mixer in MIXERS:
        if mixer != m.mixer:
            yield "mixer", f"mixer-{mixer}", {"model.mixer": mixer}
    yield "mixer", f"mixer-window-{WINDOW}", {"model.window": WINDOW}
