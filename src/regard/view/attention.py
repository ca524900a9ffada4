"""The attention weights that `regard view attention` shows, and how a picture selects from them.

The weights come from a forward pass of the model (attention_rows.py). Attention rollout (Abnar &
Zuidema 2020) follows them through the layers: half of a layer's output is its input (the residual
connection) and half is what attention mixes in, so the share of the input in layer l is
R_l = (I/2 + A_l/2) R_{l-1}, where A_l is the mean over heads. `cross_rollout` applies the same rule
to a decoder with cross-attention, whose input is two texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config.checks import choice
from regard.config.model import ModelConfig
from regard.errors import InputError

Weights = NDArray[np.float32]
KINDS = ("grid", "head", "lines", "mean", "rollout")
STACKS = ("encoder", "decoder", "cross")
ONE_HEAD = ("head", "lines")  # kinds that show one head
LISTED = 24  # lines of the table that goes with a picture


@dataclass(frozen=True)
class Stack:
    """The attention of one stack; row i of a head has the weights of token i of `rows`."""

    name: str
    rows: list[str]  # n tokens in readable form
    columns: list[str]  # m
    weights: Weights  # [L, H, n, m]
    rollout: Weights  # [L, n, m]: the share of each input token in each layer
    writes: Sequence[str] = ()  # the token that a decoder writes at each row, or ""

    def named(self, i: int) -> str:
        """The label of row i."""
        writes = self.writes[i] if self.writes else ""
        return f"{self.rows[i]} (writes {writes})" if writes else self.rows[i]


@dataclass(frozen=True)
class Attention:
    """The attention of all stacks of a model, for one text."""

    model: str
    task: str
    style: str
    text: str
    target: str  # what the decoder wrote or was given; "" if it writes nothing
    stacks: dict[str, Stack]

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(stack.weights.size + stack.rollout.size for stack in self.stacks.values())


@dataclass(frozen=True)
class View:
    """What a picture shows. Layers and heads count from 1; None means all of them."""

    kind: str
    stack: str
    layer: int | None
    head: int | None

    @property
    def title(self) -> str:
        stack = {"cross": "cross-attention"}.get(self.stack, f"self-attention of the {self.stack}")
        layers = "all layers" if self.layer is None else f"layer {self.layer}"
        if self.kind == "rollout":
            through = "all layers" if self.layer is None else f"layers 1 to {self.layer}"
            return f"{stack}, rollout through {through}"
        heads = "all heads" if self.head is None else f"head {self.head}"
        return f"{stack}, {layers}, {'mean over heads' if self.kind == 'mean' else heads}"


class Panel(NamedTuple):
    """One matrix of a picture: [n, m]."""

    title: str
    weights: Weights


def stacks_of(config: ModelConfig) -> dict[str, int]:
    """The stacks of a model that have attention, with the number of their layers."""
    layers = {}
    if config.has_encoder and config.mixer == "attention":
        layers["encoder"] = config.encoder_layers
    if config.has_decoder:
        layers["decoder"] = config.decoder_layers
        if config.has_encoder:
            layers["cross"] = config.decoder_layers
    return layers


def choose(
    config: ModelConfig,
    kind: str = "grid",
    stack: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> View:
    """What to show; an InputError if this model does not have it. Call it before the work."""
    choice("kind", kind, KINDS)
    known = stacks_of(config)
    has = f"model.style={config.style}"
    if config.mixer != "attention":
        has += f" with model.mixer={config.mixer}"
    if not known:
        raise InputError(
            f"{has} has no attention to look at: its views are regard view positions and curves"
        )
    if stack is None:
        stack = "cross" if "cross" in known else next(iter(known))
    choice("stack", stack, STACKS)
    if stack not in known:
        raise InputError(f"{has} has no {stack} attention: it has --stack {' and '.join(known)}")
    if kind in ("mean", "rollout") and head is not None:
        raise InputError(f"--kind {kind} and --head cannot be combined: it is of all heads")
    for name, value, most in (("layer", layer, known[stack]), ("head", head, config.heads)):
        if value is not None and not 1 <= value <= most:
            whole = "cross-attention" if stack == "cross" else f"the {stack}"
            what = f"{whole} has" if name == "layer" else "each layer has"
            some = f"{most} {name}{'' if most == 1 else 's'}"
            raise InputError(f"--{name} {value}: {what} {some}, counted from 1")
    if kind in ONE_HEAD:
        layer, head = layer or known[stack], head or 1
    return View(kind, stack, layer, head)


def panels(view: View, stack: Stack) -> list[list[Panel]]:
    """The matrices of a picture, in rows and columns."""
    count, heads = stack.weights.shape[:2]
    layers = range(1, count + 1) if view.layer is None else [view.layer]
    if view.kind == "rollout":
        through = view.layer or count
        return [[Panel(f"through layer {through}", stack.rollout[through - 1])]]
    if view.kind == "mean":
        return [[Panel(f"layer {layer}", stack.weights[layer - 1].mean(0)) for layer in layers]]
    shown = range(1, heads + 1) if view.head is None else [view.head]
    return [
        [Panel(f"layer {layer}, head {h}", stack.weights[layer - 1, h - 1]) for h in shown]
        for layer in layers
    ]


def rollout(weights: Weights) -> Weights:
    """[L, H, n, n] -> [L, n, n]: the share of each input token in each layer."""
    reached = np.eye(weights.shape[-1])
    layers = []
    for layer in weights.mean(1, dtype=np.float64):  # [n, n]
        reached = halved(layer) @ reached
        layers.append(reached)
    return np.array(layers, np.float32)


def cross_rollout(decoder: Weights, cross: Weights, encoder: Weights | None) -> Weights:
    """The share of each source token in each layer of a decoder, [L, n, m].

    A layer mixes its rows (self-attention, decoder[L, H, n, n]), and then half of each row is
    replaced by the encoder's output (cross-attention, cross[L, H, n, m]). A row sums to 1 - 2^-l
    after layer l; the rest comes from the target. encoder[m, m] is the rollout of the encoder, None
    if it has no attention: then the shares are those of the encoder's output.
    """
    memory = np.eye(cross.shape[-1]) if encoder is None else encoder
    reached = np.zeros(cross.shape[-2:])
    layers = []
    for own, other in zip(decoder.mean(1, dtype=np.float64), cross.mean(1), strict=True):
        reached = halved(own) @ reached / 2 + other @ memory / 2
        layers.append(reached)
    return np.array(layers, np.float32)


def halved(layer: NDArray[np.float64]) -> NDArray[np.float64]:
    """A layer with its residual connection: half its input, half its attention; rows sum to 1."""
    mixed = layer / 2 + np.eye(len(layer)) / 2
    return mixed / mixed.sum(-1, keepdims=True)


def describe(attention: Attention, view: View) -> list[str]:
    """Lines about a view: the largest weight of each token, or the mean of these per head."""
    stack = attention.stacks[view.stack]
    shown = panels(view, stack)
    lines = [f"{attention.model}: {view.title}"]
    if len(shown) == len(shown[0]) == 1:
        looks = "is made most of" if view.kind == "rollout" else "looks most at"
        for i, row in enumerate(shown[0][0].weights[:LISTED]):
            best = int(row.argmax())
            lines.append(f"  {stack.named(i)} {looks} {stack.columns[best]} ({row[best]:.2f})")
        more = len(stack.rows) - LISTED
        return lines + ([f"  and {more} more"] if more > 0 else [])
    lines.append("  how sharply they look: the largest weight of a token, mean over tokens")
    for row in shown:
        sharp = [f"{panel.weights.max(-1).mean():.2f}" for panel in row]
        name = "layers" if view.kind == "mean" else row[0].title.partition(",")[0]
        lines.append(f"  {name:9} {'  '.join(sharp)}")
    return lines


def as_dict(attention: Attention, view: View, files: Sequence[str]) -> dict[str, Any]:
    """The same for `--json`, with every weight that is shown."""
    stack = attention.stacks[view.stack]
    shown: Any = [
        [np.round(panel.weights.astype(float), 6).tolist() for panel in row]
        for row in panels(view, stack)
    ]
    if view.kind != "grid":  # grid: a row for each layer; mean of all layers: one for each
        shown = shown[0] if view.kind == "mean" and view.layer is None else shown[0][0]
    about = {name: getattr(attention, name) for name in ("model", "task", "style", "text")}
    written = {"target": attention.target, "writes": stack.writes} if stack.writes else {}
    return {
        **about, **vars(view), **written, "rows": stack.rows, "columns": stack.columns,
        "weights": shown, "files": list(files),
    }  # fmt: skip
