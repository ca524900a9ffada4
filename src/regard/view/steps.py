"""The steps of `regard view walk`: a table and a sentence for each, in the terms of the paper.

The sentences quote numbers of the forward pass that they describe ("divided by sqrt(8) = 2.83").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.model.positions import sinusoids
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.view.terminal import Values
from regard.view.trace import Trace, agree

Targets = list[str | None]  # the correct token at each position, None where there is none; or empty


@dataclass(frozen=True)
class Step:
    """One step: `shape` is the shape of the complete tensor, `values` is the displayed table."""

    step: int
    part: str  # Encoder, Decoder or Output
    name: str
    section: str  # of the paper; empty if the step is not in the paper
    shape: list[int]
    dimensions: str  # the letters of the shape, as in the code
    sentence: str
    values: Values  # 4 digits; None is minus infinity, which JSON does not have
    rows: list[str]
    columns: list[str]
    shown: str = ""  # which part of the tensor the table shows; empty: all of it
    picture: str = "vectors"  # how it is drawn: vectors, matrix, ids or guesses
    answers: Targets = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """The input of one stack."""

    tokens: list[str]  # as labels
    packed: Packed
    focus: int  # the position of the token that the sentences describe
    sentence: str
    answers: Targets


class Walk:
    """Collects the steps, stack by stack."""

    def __init__(self, model: Transformer, rows: dict[str, Row], names: list[str]) -> None:
        self.model, self.config, self.rows, self.names = model, model.config, rows, names
        packed = {stack: row.packed for stack, row in rows.items()}
        self.trace = Trace(model, packed.get("encoder"), packed.get("decoder"))
        self.first_head = f"layer 1, head 1 of {self.config.heads}"
        self.steps: list[Step] = []
        self.enter(next(iter(rows)))

    def enter(self, stack: str) -> None:
        self.part, self.stack, self.row = stack.capitalize(), stack, self.rows[stack]
        self.focus = self.row.tokens[self.row.focus]

    def add(
        self,
        name: str,
        section: str,
        tensor: Tensor,
        dimensions: str,
        sentence: str,
        table: Tensor | None = None,
        rows: list[str] | None = None,
        columns: list[str] | None = None,
        **details: Any,
    ) -> None:
        """Add a step. Default: the table is the tensor, with one row per token."""
        table = tensor if table is None else table  # [rows, columns]
        rows = self.row.tokens if rows is None else rows
        columns = [str(i) for i in range(table.shape[1])] if columns is None else columns
        values = [  # adding 0 turns -0.0 into 0.0
            [None if x == -math.inf else round(x, 4) + 0 for x in row] for row in table.tolist()
        ]
        self.steps.append(Step(
            len(self.steps) + 1, self.part, name, section, list(tensor.shape), dimensions, sentence,
            values, rows, columns, **details,
        ))  # fmt: skip

    # ---- the stacks -----------------------------------------------------------------------

    def first_stack(self) -> None:
        """Add every step of layer 1, then the complete stack."""
        self.ids("characters and ids", [])
        self.embedding()
        self.query_key_value()
        self.attention()
        self.residual("self_attention", "attention")
        self.feed_forward()
        self.layers()

    def second_stack(self) -> None:
        """Add the steps of an encoder-decoder's decoder that differ from those of the encoder."""
        self.enter("decoder")
        self.ids("target shifted right", self.row.answers)
        attention = self.trace.attention("decoder", 0)
        self.mask("causal mask", attention.masked)
        self.matrix(
            "masked self-attention", "3.2.3", attention.weights,
            "Softmax turns minus infinity into a weight of 0: each target token attends only to "
            "itself and to earlier tokens, so training can predict all positions in parallel.",
        )  # fmt: skip
        source = self.rows["encoder"].tokens
        weights = self.trace.attention("decoder", 0, "cross").weights
        self.matrix(
            "cross-attention", "3.2.3", weights,
            "The queries (rows) come from the target, and the keys and values (columns) from the "
            f"encoder's output: {self.strongest(weights, source)} in the source.",
            source,
        )  # fmt: skip
        self.layers()

    def ids(self, name: str, answers: Targets) -> None:
        ids, tokens = self.row.packed.tokens, self.row.tokens
        self.add(
            name, "3.4", ids, "N", self.row.sentence, ids[None], ["id"], tokens,
            picture="ids", answers=answers,
        )  # fmt: skip

    # ---- from ids to vectors (sections 3.4 and 3.5) ---------------------------------------

    def embedding(self) -> None:
        config, inputs, outputs = self.config, self.trace.inputs, self.trace.outputs
        side, call = ("source", 0) if self.stack == "encoder" else ("target", -1)
        table = "embeddings.shared" if "embeddings.shared" in outputs else f"embeddings.{side}"
        x = outputs[table][call]  # [N, D]
        scaled = ""
        if config.scale_embeddings:
            root = math.sqrt(config.d_model)
            x, scaled = x * root, f", multiplied by sqrt({config.d_model}) = {root:.2f}"
        self.add(
            "embedding", "3.4", x, "N D",
            f"Each id selects one row of a learned table with V = {len(self.names)} rows of "
            f"D = {config.d_model} numbers{scaled}.",
        )  # fmt: skip
        name = "no position added"
        if config.positions == "rotary":
            sentence = "Rotary positions are not added here: they rotate the queries and keys later"
        elif config.positions == "none":
            sentence = "This model uses no positions: the vectors do not depend on the token order"
        else:
            x, name = x + self.position(), "position added"
            sentence = "The embedding and the positional encoding are added: the same character "
            sentence += "now has a different vector at each position"
        if config.embedding_norm:
            norm = f"{self.stack}.embedding_norm"
            agree(f"{norm}: input", x, inputs[norm][0])
            x, sentence = outputs[norm][0], f"{sentence}; the result is normalised"
        agree(f"{self.stack}: input", x, inputs[self.stack][0])
        self.add(name, "3.5", x, "N D", f"{sentence}.")

    def position(self) -> Tensor:
        """The vectors of the positions, [N, D]."""
        if self.config.positions == "learned":
            vectors = self.trace.modules[f"{self.stack}.positions"](self.row.packed.positions())
            kind = "a row of a second learned table"
        else:
            positions, base = self.row.packed.positions(), self.config.position_base
            vectors = sinusoids(positions, self.config.d_model, base)
            vectors = vectors.to(self.trace.inputs[self.stack][0].dtype)
            kind = "sines and cosines, with high frequencies on the left and low ones on the right"
        self.add(
            "positional encoding", "3.5", vectors, "N D",
            "Attention itself does not depend on the token order, so each position has its own "
            f"vector: {kind}.",
        )  # fmt: skip
        return vectors

    # ---- attention (section 3.2) ----------------------------------------------------------

    def query_key_value(self) -> None:
        name, heads, at = f"{self.stack}.layers.0.self_attention", self.config.heads, self.row.focus
        if self.config.norm_first:
            self.norm("self_attention")
        product = self.trace.outputs[f"{name}.query_key_value"][0]  # [N, (H + 2 G) K]
        shared = self.config.key_value_heads
        query, key, value = product.unflatten(1, (-1, self.config.head_size)).split(
            (heads, shared, shared), dim=1
        )
        # Of all heads; with grouped heads, only the first G heads of the query.
        first = [x[at, :shared].flatten() for x in (query, key, value)]
        self.add(
            "query, key, value", "3.2.2", product, "N 3HK" if shared == heads else "N (H+2G)K",
            "One matrix product computes three vectors for each token: a query and a key, which "
            "determine the attention weights, and a value, the content that they weight.",
            torch.stack(first), ["query", "key", "value"], shown=f"of {self.focus}",
        )  # fmt: skip
        self.add(
            "heads split", "3.2.2", query, "N H K",
            f"The query, key and value are split into H = {heads} heads of K = {query.shape[-1]} "
            "numbers, so that each head can attend to different tokens.",
            query[at], [f"head {h + 1}" for h in range(heads)], shown=f"query of {self.focus}",
        )  # fmt: skip
        rotation = getattr(self.model, self.stack).rotation(self.row.packed.positions())
        if rotation is not None:
            before, query = query, rotation(query)
            self.add(
                "rotation", "", query, "N H K",
                "Rotary positions (Su et al. 2021) rotate each pair of numbers by an angle that "
                "is proportional to the position, so a score depends on the positions only "
                "through the distance between query and key.",
                torch.stack((before[-1, 0], query[-1, 0])), ["before", "after"],
                shown=f"query of {self.row.tokens[-1]}, head 1",
            )  # fmt: skip
        agree(f"{name}: query", query, self.trace.plans[name].query)

    def attention(self) -> None:
        attention = self.trace.attention(self.stack, 0)
        size = attention.mixed.shape[-1]  # K
        self.matrix(
            "scores", "3.2.1", attention.scaled * math.sqrt(size),
            "A score is the dot product of a query (row) and a key (column): the larger it is, the "
            "better they match.",
        )  # fmt: skip
        self.matrix(
            "scaling", "3.2.1", attention.scaled,
            f"The scores are divided by sqrt(K) = sqrt({size}) = {math.sqrt(size):.2f}, because "
            "large scores would push the softmax into regions with very small gradients.",
        )  # fmt: skip
        self.mask("mask", attention.masked)
        self.matrix(
            "softmax", "3.2.1", attention.weights,
            "Softmax turns each row into attention weights, which are non-negative and sum to 1: "
            f"{self.strongest(attention.weights, self.row.tokens)}.",
        )  # fmt: skip
        weights = attention.weights[0, self.row.focus]  # [M]
        keys = [m for m in weights.argsort(descending=True).tolist() if weights[m] >= 0.005][:3]
        terms = " + ".join(f"{weights[m]:.2f} {self.row.tokens[m]}" for m in keys)
        rest = " and smaller terms" if int((weights > 0).sum()) > len(keys) else ""
        self.add(
            "weighted sum", "3.2.1", attention.mixed, "N H K",
            "The result for each token is the sum of the values, weighted by its row: for "
            f"{self.focus} it is {terms}{rest}.",
            attention.mixed[:, 0], shown=self.first_head,
        )  # fmt: skip
        self.add(
            "heads joined", "3.2.2", attention.output, "N D",
            f"The results of the heads are concatenated, {self.config.heads} x {size} numbers, and "
            "multiplied by W^O, which combines them.",
        )  # fmt: skip

    def mask(self, name: str, masked: Tensor) -> None:
        window = self.config.window
        far = f"more than r = {window} positions away"
        if self.stack == "decoder":
            keys = f"keys after the query or {far}" if window else "keys after the query"
            sentence = "A token must not attend to later tokens: the scores of "
            sentence += f"{keys} are set to minus infinity."
        elif window:
            sentence = f"Attention is restricted to a window: the scores of keys {far} are set to "
            sentence += "minus infinity."
        else:
            sentence = "An encoder attends in both directions, so no score is masked here; a "
            sentence += "decoder sets the scores of later keys to minus infinity."
        self.matrix(name, "3.2.3", masked, sentence)

    def matrix(
        self, name: str, section: str, tensor: Tensor, sentence: str, keys: list[str] | None = None
    ) -> None:
        """Add a step for tensor[H, N, M], of which head 1 is shown. Default of `keys`: the tokens
        of the same stack."""
        self.add(
            name, section, tensor, "H N M", sentence, tensor[0], columns=keys or self.row.tokens,
            shown=self.first_head, picture="matrix",
        )  # fmt: skip

    def strongest(self, weights: Tensor, keys: list[str]) -> str:
        """The key with the largest weight of the focus token, as a clause."""
        weight, at = weights[0, self.row.focus].max(dim=0)
        return f"{self.focus} attends most to {keys[int(at)]} ({float(weight):.2f})"

    # ---- residual, norm and feed-forward (sections 3.1 and 3.3) -----------------------

    def norm(self, sublayer: str) -> None:
        """Add the norm before a sub-layer (pre-norm)."""
        before, after, _ = self.trace.residual(f"{self.stack}.layers.0.{sublayer}")
        self.add(
            "norm", "3.1", after, "N D",
            f"Each vector is normalised before it enters the sub-layer (pre-norm): {self.focus} "
            f"{self.spread(before, after)}.",
        )  # fmt: skip

    def residual(self, sublayer: str, title: str) -> None:
        before, after, result = self.trace.residual(f"{self.stack}.layers.0.{sublayer}")
        name = "residual" if self.config.norm_first else "residual and norm"
        sentence = f"The input of {title} is added to its output, and the sum is normalised: "
        sentence += f"{self.focus} {self.spread(before, after)}."
        if self.config.norm_first:
            sentence = f"The vector before the norm is added to the output of {title}: this "
            sentence += "residual connection leads through all layers without a norm."
        self.add(name, "3.1", result, "N D", sentence)

    def spread(self, before: Tensor, after: Tensor) -> str:
        """How a norm changes the vector of the focus token, as a clause."""

        def numbers(x: Tensor) -> str:
            x = x[self.row.focus]  # [D]
            if self.config.norm == "rms":
                return f"mean square {x.square().mean():.2f}"
            return f"mean {round(float(x.mean()), 2) + 0:.2f}, variance {x.var(correction=0):.2f}"

        return f"changes from {numbers(before)} to {numbers(after)}"

    def feed_forward(self) -> None:
        name, config = f"{self.stack}.layers.0.feed_forward", self.config
        if config.norm_first:
            self.norm("feed_forward")
        inner = self.trace.inputs[f"{name}.outer"][0][self.row.focus]  # [F], after the activation
        effect = f"yields numbers from {inner.min():.2f} to {inner.max():.2f} for {self.focus}"
        if config.activation == "relu":
            effect = f"sets {int((inner == 0).sum())} of {len(inner)} numbers of {self.focus} to 0"
        names = {
            "relu": "ReLU", "gelu": "GELU", "gelu-tanh": "GELU", "silu": "SiLU",
            "swiglu": "the gate of SwiGLU",
        }  # fmt: skip
        self.add(
            "feed-forward", "3.3", self.trace.outputs[name][0], "N D",
            "The same two-layer network is applied at every position, from "
            f"D = {config.d_model} numbers to F = {config.d_ff} and back to D; between the layers, "
            f"{names[config.activation]} {effect}.",
        )  # fmt: skip
        self.residual("feed_forward", "the feed-forward network")

    def layers(self) -> None:
        outputs = self.trace.layers(self.stack)
        vectors = torch.stack(
            [x[self.row.focus] for x in outputs]
        )  # [1 + L, D], pre-norm [2 + L, D]
        cosine = F.cosine_similarity(vectors[0], vectors[-1], dim=0).clamp(-1, 1)
        count = len(outputs) - 1 - self.config.norm_first  # without the input and the final norm
        each, letters = "each with its own weights", "N D"
        if self.config.style == "encoder-decoder" and self.stack == "encoder":
            each, letters = f"{each}, and the decoder reads the output of the last", "M D"
        elif self.config.style == "encoder-decoder":
            each = "each with masked self-attention, cross-attention and feed-forward"
        rows = ["input", *(f"layer {i + 1}" for i in range(count)), "norm"][: len(outputs)]
        self.add(
            "stack", "3.1", outputs[-1], letters,
            f"The stack has {'one layer' if count == 1 else f'{count} layers'}, {each}; the input "
            f"and output vectors of {self.focus} differ by an angle of "
            f"{math.degrees(cosine.acos()):.0f} degrees.",
            vectors, rows, shown=f"{self.focus} after each layer",
        )  # fmt: skip

    # ---- output (section 3.4) -----------------------------------------------------

    def output(self) -> None:
        """Add the steps of the head: logits and probabilities, or one vector for the sentence."""
        self.part, head, result = "Output", self.config.head, self.trace.output
        if head == "pooling":
            vectors = {"mean": "the mean over all tokens", "cls": "the vector of the first token",
                       "last": "the vector of the last token"}  # fmt: skip
            sentence = f"One vector represents the sentence: {vectors[self.config.pooling]}."
            self.add("pooling", "", result, "B D", sentence, rows=["sentence"])
        elif head == "classifier":
            self.predictions(
                "B C", ["sentence"], [f"class {i}" for i in range(result.shape[1])], [],
                "The output vector of <cls>, which attends to the other tokens, passes through one "
                f"more layer and yields a score for each of C = {result.shape[1]} classes.",
            )  # fmt: skip
        else:
            more = " (after one more layer)" if head == "masked-language-model" else ""
            table = "the embedding table" if self.model.head.output is None else "a separate table"
            table += ", plus a bias," if self.config.output_bias else ""
            self.predictions(
                "N V", self.row.tokens, self.names, self.row.answers,
                f"The dot products of the output vector at each position{more} with the "
                f"V = {len(self.names)} rows of {table} are the scores of the tokens.",
            )  # fmt: skip

    def predictions(
        self, letters: str, rows: list[str], names: list[str], answers: Targets, sentence: str
    ) -> None:
        """Add the steps for the logits, described by `sentence`, and for the probabilities."""
        logits = self.trace.output
        self.add("logits", "3.4", logits, letters, sentence, rows=rows, columns=names)
        shares = logits.softmax(-1)
        right = [float(shares[n, names.index(a)]) for n, a in enumerate(answers) if a is not None]
        chance = f"a uniform guess would be 1/{len(names)} = {1 / len(names):.3f}"
        if right:
            average = " on average" if len(right) > 1 else ""
            chance += f", and the correct token gets {sum(right) / len(right):.3f}{average}"
        self.add(
            "probabilities", "3.4", shares, letters,
            "Softmax turns the scores into probabilities, which are arbitrary because the model is "
            f"not trained: {chance}.",
            rows=rows, columns=names, picture="guesses", answers=answers,
        )  # fmt: skip
