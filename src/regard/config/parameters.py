"""The number of parameters of each part: a closed formula, and a count of the real tensors.

The formula needs no model, so it is fast for any size; the count of the tensors verifies it.
`regard info` shows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # model.py imports this module to limit the number of parameters
    from regard.config.model import ModelConfig

PARTS = (
    "embeddings", "self-attention", "mixer", "cross-attention", "feed-forward", "norms", "head",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    formula: str  # in the symbols of the paper, with the number of occurrences first
    parameters: int


def closed_form(config: ModelConfig) -> dict[str, Part]:
    """Parameters of each part from the configuration alone."""
    c = config
    d, f, width, bias = c.d_model, c.d_ff, c.heads * c.head_size, int(c.bias)
    shared, own_bias = c.key_value_heads * c.head_size, int(c.query_key_value_bias)
    both = c.style == "encoder-decoder"
    layers = c.encoder_layers + c.decoder_layers
    cross = c.decoder_layers if both else 0
    stacks = 2 if both else 1

    tables = [("V D", c.vocabulary_size * d)]
    if both and c.tie_embeddings in ("target-output", "none"):
        tables.append(("V' D", c.source_vocabulary_size * d))
    if c.positions == "learned":
        tables.append((f"{stacks} T D", stacks * c.max_length * d))

    attention = 2 * d * (width + shared) + own_bias * (width + 2 * shared) + bias * d
    grouped = c.key_value_heads != c.heads
    terms = ["2 D HK + 2 D GK" if grouped else "4 D HK"]
    terms += ["HK + 2 GK" if grouped else "3 HK"] * own_bias + ["D"] * bias
    attention_text = " + ".join(terms) if len(terms) + grouped == 1 else f"({' + '.join(terms)})"
    gates = 2 if c.activation == "swiglu" else 1
    feed_forward = (gates + 1) * d * f + bias * (gates * f + d)
    gate = f"{gates} F" if gates > 1 else "F"
    feed_forward_text = f"({gates + 1} D F + {gate} + D)" if bias else f"{gates + 1} D F"

    mixers = 0 if c.mixer == "attention" else c.encoder_layers  # layers without self-attention
    gates_of = {"lstm": 4, "gru": 3}
    if c.mixer in gates_of:  # two directions of width D/2: 2 gates D/2 (D + D/2) weights
        rows = gates_of[c.mixer]
        mixer = rows * 3 * d * d // 2 + bias * 2 * rows * d
        mixer_text = f"({rows * 1.5:g} D D + {2 * rows} D)" if bias else f"{rows * 1.5:g} D D"
    else:
        mixer = c.kernel * d * d + bias * d if c.mixer in ("convolution", "dilated") else 0
        mixer_text = f"({c.kernel} D D + D)" if bias else f"{c.kernel} D D"

    norm = d if c.norm == "rms" else 2 * d
    sublayers = 2 * layers + cross - (mixers if c.mixer == "none" else 0)
    norms = sublayers + stacks * (int(c.norm_first) + int(c.embedding_norm))
    norm_text = "D" if c.norm == "rms" else "2 D"

    head = []
    words = c.head in ("language-model", "masked-language-model")
    if words and c.tie_embeddings in ("source-target", "none"):
        head.append(("V D", c.vocabulary_size * d))
    if c.output_bias:
        head.append(("V", c.vocabulary_size))
    if c.head == "masked-language-model":
        head.append((f"D D + D + {norm_text} + V", d * d + d + norm + c.vocabulary_size))
    if c.head == "classifier":
        assert c.classes is not None
        head.append(("D D + D + (D + 1) C", d * d + d + (d + 1) * c.classes))

    def total(terms: list[tuple[str, int]]) -> Part:
        return Part(" + ".join(text for text, _ in terms), sum(number for _, number in terms))

    # An SSRU has two matrices, D x D, and the bias of its forget gate.
    units = c.decoder_layers if c.decoder_mixer == "ssru" else 0
    mixer_terms = [(f"{mixers} {mixer_text}", mixers * mixer)] if mixer else []
    mixer_terms += [(f"{units} (2 D D + D)", units * (2 * d * d + d))] if units else []
    attending = layers - mixers - units  # layers with self-attention
    return {
        "embeddings": total(tables),
        "self-attention": Part(
            f"{attending} {attention_text}" if attending else "", attending * attention
        ),
        "mixer": total(mixer_terms),
        "cross-attention": Part(f"{cross} {attention_text}" if cross else "", cross * attention),
        "feed-forward": Part(f"{layers} {feed_forward_text}", layers * feed_forward),
        "norms": Part(f"{norms} ({norm_text})", norms * norm),
        "head": total(head),
    }


def count(names_and_sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Parameters of each part from the names and sizes of a model's tensors."""
    counts = dict.fromkeys(PARTS, 0)
    for name, size in names_and_sizes:
        counts[part_of(name)] += size
    return counts


def part_of(name: str) -> str:
    """The part that a tensor belongs to, by its name in the model."""
    words = name.split(".")
    if words[0] == "head":
        return "head"
    if any(word.endswith("norm") for word in words):
        return "norms"
    for part in ("self-attention", "mixer", "cross-attention", "feed-forward"):
        if part.replace("-", "_") in words:
            return part
    return "embeddings"  # token tables and learned positions


def operations(
    config: ModelConfig,
    sources: Sequence[int],
    targets: Sequence[int],
    predictions: int | None = None,
) -> float:
    """Floating-point operations of a training step of sequences of these lengths, forward and
    backward: 6 for each weight and each token it processes, and 12 H K for each pair of query and
    key.

    predictions: the number of tokens that the head predicts (default: all of the last stack).
    """
    d, width = config.d_model, config.heads * config.head_size
    gates = 3 if config.activation == "swiglu" else 2
    shared = config.key_value_heads * config.head_size
    attention, feed_forward = 2 * d * (width + shared), gates * d * config.d_ff
    encoder, decoder = config.encoder_layers, config.decoder_layers
    n, m = sum(targets), sum(sources)
    weights = encoder * m * (attention + feed_forward) + decoder * n * (attention + feed_forward)
    pairs = encoder * sum(visible(length, config.window) for length in sources)
    if config.mixer != "attention":
        units = decoder * (2 * d * d + d) if config.decoder_mixer == "ssru" else 0
        mixer = (closed_form(config)["mixer"].parameters - units) // encoder  # without biases
        weights, pairs = weights + encoder * m * (mixer - attention), 0
    if config.decoder_mixer == "ssru":
        weights += decoder * n * (2 * d * d - attention)
    else:
        pairs += decoder * sum((visible(length, config.window) + length) // 2 for length in targets)
    if encoder and decoder:
        weights += decoder * (n * 2 * d * width + m * 2 * d * shared)
        pairs += decoder * sum(s * t for s, t in zip(sources, targets, strict=True))
    if config.head in ("language-model", "masked-language-model"):
        if predictions is None:
            predictions = n if decoder else m
        weights += predictions * config.vocabulary_size * d
    return 6.0 * weights + 12.0 * pairs * width


def visible(length: int, window: int | None) -> int:
    """The number of pairs of query and key of a sequence within the window. The number of causal
    pairs is (visible(length, window) + length) / 2."""
    far = length - 1 if window is None else min(window, length - 1)
    return length * (2 * far + 1) - far * (far + 1)
