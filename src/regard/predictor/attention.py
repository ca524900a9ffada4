"""`Attention`: the attention weights of a model for one text, and which of them a figure shows.

The weights come from a forward pass of the model (attention_inputs.py). Attention rollout (Abnar &
Zuidema 2020) follows them through the layers: half of a layer's output is its input (the residual
connection) and half is the output of attention, so the share of the input in layer l is
R_l = (I/2 + A_l/2) R_{l-1}, where A_l is the mean over heads. `cross_rollout` applies the same rule
to a decoder with cross-attention, whose input is two texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config.checks import choice
from regard.config.model import ModelConfig
from regard.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Weights = NDArray[np.float32]
KINDS = ("grid", "head", "lines", "mean", "rollout")
STACKS = ("encoder", "decoder", "cross")
ONE_HEAD = ("head", "lines")  # kinds that show one head
MOST = 200  # tokens on one side of a figure: more would not be readable


@dataclass(frozen=True)
class Stack:
    """The attention of one stack; row i of a head has the weights of token i of `rows`.

    Attributes:
        name: encoder, decoder or cross.
        rows: the n query tokens, in readable form.
        columns: the m key tokens.
        weights: the attention weights, [layers, heads, n, m].
        rollout: the share of each input token in the output of each layer, [layers, n, m].
        writes: the token that a decoder writes at each row, or "".
    """

    name: str
    rows: list[str]
    columns: list[str]
    weights: Weights
    rollout: Weights
    writes: Sequence[str] = ()

    def named(self, i: int) -> str:
        """The label of row i."""
        writes = self.writes[i] if self.writes else ""
        return f"{self.rows[i]} (writes {writes})" if writes else self.rows[i]


@dataclass(frozen=True, repr=False)
class Attention:
    """The attention weights of all heads of all layers of a model for one text.

    `attention.cross[layer][head]` is a matrix: row i has the weights with which target token i
    looks at the source tokens, and sums to 1. Layers and heads of arrays count from 0.

    Attributes:
        model: the name of the model.
        task: the task of the model.
        style: the style of the model.
        text: the text that the model reads.
        target: the output of the decoder; "" if the model writes no text.
        stacks: the weights by name (encoder, decoder, cross), with tokens and attention rollout.
    """

    model: str
    task: str
    style: str
    text: str
    target: str
    stacks: dict[str, Stack]

    @property
    def encoder(self) -> Weights | None:
        """Self-attention of the encoder, [layers, heads, n, n]; None if there is none."""
        return self.stacks["encoder"].weights if "encoder" in self.stacks else None

    @property
    def decoder(self) -> Weights | None:
        """Self-attention of the decoder, [layers, heads, n, n]; None if there is none."""
        return self.stacks["decoder"].weights if "decoder" in self.stacks else None

    @property
    def cross(self) -> Weights | None:
        """Cross-attention of the decoder, [layers, heads, n, m]; None if there is none."""
        return self.stacks["cross"].weights if "cross" in self.stacks else None

    @property
    def source_tokens(self) -> list[str]:
        """The tokens that the encoder reads; empty for a model without an encoder."""
        if "encoder" in self.stacks:
            return self.stacks["encoder"].rows
        return self.stacks["cross"].columns if "cross" in self.stacks else []

    @property
    def target_tokens(self) -> list[str]:
        """The tokens that the decoder reads; empty for a model without a decoder."""
        if "decoder" in self.stacks:
            return self.stacks["decoder"].rows
        return self.stacks["cross"].rows if "cross" in self.stacks else []

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(stack.weights.size + stack.rollout.size for stack in self.stacks.values())

    def plot(
        self,
        kind: str = "grid",
        stack: str | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> Figure:
        """Draw attention weights.

        Args:
            kind: grid (every head as a small map), head (one head with numbers), lines (one head as
                lines between tokens), mean (the mean over heads) or rollout (the share of each
                input token in the output of a layer).
            stack: encoder, decoder or cross; None: cross if the model has it, otherwise the first.
            layer: a layer, counted from 1; None: all layers (head, lines: the last layer).
            head: a head, counted from 1; None: all heads (head, lines: the first head).

        Returns:
            A matplotlib figure; `figure.savefig("attention.png")` writes it. A notebook shows it.

        Raises:
            InputError: the model does not have this stack, layer or head, or the text has more than
                200 tokens.
        """
        from regard.predictor.attention_figure import attention_figure

        layers = {name: len(part.weights) for name, part in self.stacks.items()}
        heads = next(iter(self.stacks.values())).weights.shape[1]
        view = choose_view(layers, heads, f"model.style={self.style}", kind, stack, layer, head)
        part = self.stacks[view.stack]
        for tokens in (part.rows, part.columns):
            if len(tokens) > MOST:
                raise InputError(
                    f"the text has {len(tokens)} tokens, but a figure has room for {MOST}: "
                    "shorten the text"
                )
        return attention_figure(self, view)

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name}={list(stack.weights.shape)}" for name, stack in self.stacks.items()
        )
        target = f" -> {self.target!r:.60}" if self.target else ""
        return f"Attention({self.text!r:.60}{target}, {shapes})"


@dataclass(frozen=True)
class View:
    """The part of the weights that a picture shows. Layers and heads count from 1; None: all."""

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
    if config.has_decoder and config.decoder_mixer == "attention":
        layers["decoder"] = config.decoder_layers
    if config.has_decoder and config.has_encoder:
        layers["cross"] = config.decoder_layers
    return layers


def choose(
    config: ModelConfig,
    kind: str = "grid",
    stack: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> View:
    """`choose_view` for a configuration, so that it can be called before a model is loaded."""
    has = f"model.style={config.style}"
    if config.mixer != "attention":
        has += f" with model.mixer={config.mixer}"
    if config.decoder_mixer != "attention":
        has += f" with model.decoder_mixer={config.decoder_mixer}"
    return choose_view(stacks_of(config), config.heads, has, kind, stack, layer, head)


def choose_view(
    layers: Mapping[str, int],
    heads: int,
    has: str,
    kind: str,
    stack: str | None,
    layer: int | None,
    head: int | None,
) -> View:
    """The view of the weights; an InputError if the model does not have them.

    layers: the number of layers of each stack. has: the name of the model in messages.
    """
    choice("kind", kind, KINDS)
    if not layers:
        raise InputError(f"{has} has no attention weights")
    if stack is None:
        stack = "cross" if "cross" in layers else next(iter(layers))
    choice("stack", stack, STACKS)
    if stack not in layers:
        raise InputError(f"{has} has no {stack} attention, only {' and '.join(layers)}")
    if kind in ("mean", "rollout") and head is not None:
        raise InputError(f"kind {kind} and a head cannot be combined: it shows all heads together")
    for name, value, most in (("layer", layer, layers[stack]), ("head", head, heads)):
        if value is not None and not (isinstance(value, int) and 1 <= value <= most):
            whole = "cross-attention" if stack == "cross" else f"the {stack}"
            owner = f"{whole} has" if name == "layer" else "each layer has"
            some = f"{most} {name}{'' if most == 1 else 's'}"
            raise InputError(f"{name} {value}: {owner} {some}, counted from 1")
    if kind in ONE_HEAD:
        layer, head = layer or layers[stack], head or 1
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
    numbers = range(1, heads + 1) if view.head is None else [view.head]
    return [
        [Panel(f"layer {layer}, head {h}", stack.weights[layer - 1, h - 1]) for h in numbers]
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


def cross_rollout(decoder: Weights | None, cross: Weights, encoder: Weights | None) -> Weights:
    """The share of each source token in each layer of a decoder, [L, n, m].

    A layer mixes its rows (self-attention, decoder[L, H, n, n]), and then half of each row is
    replaced by the encoder's output (cross-attention, cross[L, H, n, m]). A row sums to 1 - 2^-l
    after layer l; the rest comes from the target. encoder[m, m] is the rollout of the encoder, None
    if it has no attention: then the shares are those of the encoder's output. decoder is None for a
    recurrent decoder, which has no attention weights: then a row is not mixed with earlier rows.
    """
    if decoder is None:
        decoder = np.broadcast_to(np.eye(cross.shape[2]), (len(cross), 1, *[cross.shape[2]] * 2))
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
