"""The steps of `regard view walk`: a table and a sentence for each, in the terms of the paper.

Each sentence contains numbers of the pass that it describes ("divided by sqrt(8) = 2.83").
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

Targets = list[str | None]  # the correct token at each position, if any; or empty


@dataclass(frozen=True)
class Step:
    """One step: `shape` is that of the complete tensor, `values` is the table that is shown."""

    step: int
    part: str  # Encoder, Decoder or Output
    name: str
    section: str  # of the paper; empty if the paper does not have it
    shape: list[int]
    dimensions: str  # the letters of the shape, as in the code
    sentence: str
    values: Values  # 4 digits; None is minus infinity, which JSON does not have
    rows: list[str]
    columns: list[str]
    shown: str = ""  # which part of the tensor the table shows, if not all
    picture: str = "vectors"  # how it is drawn: vectors, matrix, ids or guesses
    answers: Targets = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """The input of one stack."""

    tokens: list[str]  # as labels
    packed: Packed
    focus: int  # the token that sentences describe
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
        **how: Any,
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
            values, rows, columns, **how,
        ))  # fmt: skip

    # ---- the stacks -----------------------------------------------------------------------

    def first_stack(self) -> None:
        """Every step of layer 1, then the layers."""
        self.ids("characters and ids", [])
        self.embedding()
        self.query_key_value()
        self.attention()
        self.residual("self_attention", "attention")
        self.feed_forward()
        self.layers()

    def second_stack(self) -> None:
        """The decoder of an encoder-decoder: the steps that the encoder does not have."""
        self.enter("decoder")
        self.ids("target shifted right", self.row.answers)
        attention = self.trace.attention("decoder", 0)
        self.mask("causal mask", attention.masked)
        self.matrix(
            "masked self-attention", "3.2.3", attention.weights,
            "Softmax turns minus infinity into 0: each target token mixes only itself and what "
            "came before it, so all places can be learned at once.",
        )  # fmt: skip
        source = self.rows["encoder"].tokens
        weights = self.trace.attention("decoder", 0, "cross").weights
        self.matrix(
            "cross-attention", "3.2.3", weights,
            "The queries (rows) come from the target, the keys and values (columns) from the "
            f"memory: {self.most(weights, source)} in the source.",
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
            f"Each id picks its row of a learned table, V = {len(self.names)} rows of "
            f"D = {config.d_model} numbers{scaled}.",
        )  # fmt: skip
        name = "no position added"
        if config.positions == "rotary":
            sentence = "Rotary positions add nothing here: they will turn the queries and keys"
        elif config.positions == "none":
            sentence = "No position is added: nothing in these vectors says who comes first"
        else:
            x, name = x + self.position(), "position added"
            sentence = "Embedding and position are summed: the same character at another place "
            sentence += "is now another vector"
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
            what = "a row of a second learned table"
        else:
            positions, base = self.row.packed.positions(), self.config.position_base
            vectors = sinusoids(positions, self.config.d_model, base)
            vectors = vectors.to(self.trace.inputs[self.stack][0].dtype)
            what = "sines and cosines, fast waves on the left and slow ones on the right"
        self.add(
            "positional encoding", "3.5", vectors, "N D",
            f"Attention is blind to order, so each position has a vector of its own: {what}.",
        )  # fmt: skip
        return vectors

    # ---- attention (section 3.2) ----------------------------------------------------------

    def query_key_value(self) -> None:
        name, heads, at = f"{self.stack}.layers.0.self_attention", self.config.heads, self.row.focus
        if self.config.norm_first:
            self.norm("self_attention")
        product = self.trace.outputs[f"{name}.query_key_value"][0]  # [N, 3*H*K]
        parts = product.view(len(product), 3, heads, -1)  # [N, 3, H, K]
        self.add(
            "query, key, value", "3.2.2", product, "N 3HK",
            "One matrix makes three vectors of each: a query (what it looks for), a key (what it "
            "can be found by) and a value (what it hands over).",
            parts[at].flatten(1), ["query", "key", "value"], shown=f"of {self.focus}",
        )  # fmt: skip
        query = parts[:, 0]  # [N, H, K]
        self.add(
            "heads split", "3.2.2", query, "N H K",
            f"All three are cut into H = {heads} heads of K = {query.shape[-1]} numbers, so that "
            "each head can look for something else.",
            query[at], [f"head {h + 1}" for h in range(heads)], shown=f"query of {self.focus}",
        )  # fmt: skip
        rotation = getattr(self.model, self.stack).rotation(self.row.packed.positions())
        if rotation is not None:
            before, query = query, rotation(query)
            self.add(
                "rotation", "", query, "N H K",
                "Rotary positions (Su et al. 2021) turn each pair of numbers by an angle that "
                "grows with the position, so a score depends on how far apart two tokens are.",
                torch.stack((before[-1, 0], query[-1, 0])), ["before", "after"],
                shown=f"query of {self.row.tokens[-1]}, head 1",
            )  # fmt: skip
        agree(f"{name}: query", query, self.trace.plans[name].query)

    def attention(self) -> None:
        attention = self.trace.attention(self.stack, 0)
        size = attention.mixed.shape[-1]  # K
        self.matrix(
            "scores", "3.2.1", attention.scaled * math.sqrt(size),
            "Every query (row) meets every key (column): the larger their dot product, the better "
            "they match.",
        )  # fmt: skip
        self.matrix(
            "scaling", "3.2.1", attention.scaled,
            f"The scores are divided by sqrt(K) = sqrt({size}) = {math.sqrt(size):.2f}, since "
            "large ones would leave the softmax almost no gradient.",
        )  # fmt: skip
        self.mask("mask", attention.masked)
        self.matrix(
            "softmax", "3.2.1", attention.weights,
            "Softmax makes each row positive with sum 1, the attention weights: "
            f"{self.most(attention.weights, self.row.tokens)}.",
        )  # fmt: skip
        weights = attention.weights[0, self.row.focus]  # [M]
        most = [m for m in weights.argsort(descending=True).tolist() if weights[m] >= 0.005][:3]
        terms = " + ".join(f"{weights[m]:.2f} {self.row.tokens[m]}" for m in most)
        rest = " and a little of the rest" if int((weights > 0).sum()) > len(most) else ""
        self.add(
            "weighted sum", "3.2.1", attention.mixed, "N H K",
            f"Each token takes the values, weighted by its row: {self.focus} takes {terms}{rest}.",
            attention.mixed[:, 0], shown=self.first_head,
        )  # fmt: skip
        self.add(
            "heads joined", "3.2.2", attention.output, "N D",
            f"The heads are put end to end, {self.config.heads} x {size} numbers, and multiplied "
            "by W^O, which mixes what they found.",
        )  # fmt: skip

    def mask(self, name: str, masked: Tensor) -> None:
        window = self.config.window
        far = f"more than r = {window} positions away"
        if self.stack == "decoder":
            keys = f"keys after the query or {far}" if window else "keys after the query"
            sentence = f"No token may see the future: {keys} get minus infinity."
        elif window:
            sentence = f"Attention is restricted: keys {far} get minus infinity."
        else:
            sentence = "An encoder may look both ways, so nothing is hidden here; a decoder would "
            sentence += "have minus infinity where it may not look."
        self.matrix(name, "3.2.3", masked, sentence)

    def matrix(
        self, name: str, section: str, tensor: Tensor, sentence: str, keys: list[str] | None = None
    ) -> None:
        """tensor[H, N, M]: head 1 is shown; the keys are the row's own unless given."""
        self.add(
            name, section, tensor, "H N M", sentence, tensor[0], columns=keys or self.row.tokens,
            shown=self.first_head, picture="matrix",
        )  # fmt: skip

    def most(self, weights: Tensor, keys: list[str]) -> str:
        weight, at = weights[0, self.row.focus].max(dim=0)
        return f"{self.focus} looks most at {keys[int(at)]} ({float(weight):.2f})"

    # ---- residual, norm and feed-forward (sections 3.1 and 3.3) -----------------------

    def norm(self, sublayer: str) -> None:
        """Pre-norm: the input of the sub-layer."""
        before, after, _ = self.trace.residual(f"{self.stack}.layers.0.{sublayer}")
        self.add(
            "norm", "3.1", after, "N D",
            f"Each vector is normalised before the sub-layer sees it (pre-norm): {self.focus} "
            f"{self.spread(before, after)}.",
        )  # fmt: skip

    def residual(self, sublayer: str, what: str) -> None:
        before, after, result = self.trace.residual(f"{self.stack}.layers.0.{sublayer}")
        name = "residual" if self.config.norm_first else "residual and norm"
        sentence = f"The input is added to what {what} gave, and the sum is normalised: "
        sentence += f"{self.focus} {self.spread(before, after)}."
        if self.config.norm_first:
            sentence = f"The input, as it was before the norm, is added to what {what} gave: a "
            sentence += "straight way through all layers."
        self.add(name, "3.1", result, "N D", sentence)

    def spread(self, before: Tensor, after: Tensor) -> str:
        """How a norm changed the focus token."""

        def numbers(x: Tensor) -> str:
            x = x[self.row.focus]  # [D]
            if self.config.norm == "rms":
                return f"mean square {x.square().mean():.2f}"
            return f"mean {round(float(x.mean()), 2) + 0:.2f}, variance {x.var(correction=0):.2f}"

        return f"goes from {numbers(before)} to {numbers(after)}"

    def feed_forward(self) -> None:
        name, config = f"{self.stack}.layers.0.feed_forward", self.config
        if config.norm_first:
            self.norm("feed_forward")
        inner = self.trace.inputs[f"{name}.outer"][0][self.row.focus]  # [F], after the activation
        does = f"leaves {self.focus} numbers from {inner.min():.2f} to {inner.max():.2f}"
        if config.activation == "relu":
            does = f"sets {int((inner == 0).sum())} of {len(inner)} numbers of {self.focus} to 0"
        names = {"relu": "ReLU", "gelu": "GELU", "swiglu": "the gate of SwiGLU"}
        self.add(
            "feed-forward", "3.3", self.trace.outputs[name][0], "N D",
            f"The same network at every position goes from D = {config.d_model} to F = "
            f"{config.d_ff} and back; in between {names[config.activation]} {does}.",
        )  # fmt: skip
        self.residual("feed_forward", "the feed-forward network")

    def layers(self) -> None:
        outputs = self.trace.layers(self.stack)
        followed = torch.stack([x[self.row.focus] for x in outputs])  # [1 + L, D], or one row more
        cosine = F.cosine_similarity(followed[0], followed[-1], dim=0).clamp(-1, 1)
        count = len(outputs) - 1 - self.config.norm_first  # less the input and the closing norm
        each, letters = "each with weights of its own", "N D"
        if self.config.style == "encoder-decoder" and self.stack == "encoder":
            each, letters = f"{each}, and the last gives the memory that the decoder reads", "M D"
        elif self.config.style == "encoder-decoder":
            each = "each with masked self-attention, cross-attention and feed-forward"
        rows = ["input", *(f"layer {i + 1}" for i in range(count)), "norm"][: len(outputs)]
        self.add(
            "stack", "3.1", outputs[-1], letters,
            f"The stack has {'one layer' if count == 1 else f'{count} layers'}, {each}; on the way "
            f"{self.focus} turns by {math.degrees(cosine.acos()):.0f} degrees.",
            followed, rows, shown=f"{self.focus} after each layer",
        )  # fmt: skip

    # ---- output (section 3.4) -----------------------------------------------------

    def output(self) -> None:
        """The head: logits and probabilities, or one vector for the sentence."""
        self.part, head, result = "Output", self.config.head, self.trace.output
        if head == "pooling":
            vectors = {"mean": "the mean of all tokens", "cls": "that of the first token",
                       "last": "that of the last token"}  # fmt: skip
            sentence = f"One vector stands for the sentence: {vectors[self.config.pooling]}."
            self.add("pooling", "", result, "B D", sentence, rows=["sentence"])
        elif head == "classifier":
            self.guesses(
                "B C", ["sentence"], [f"class {i}" for i in range(result.shape[1])], [],
                "The last vector of <cls>, which could see all tokens, goes through one layer more "
                f"and gives each of C = {result.shape[1]} classes a score.",
            )  # fmt: skip
        else:
            more = " (after one layer more)" if head == "masked-language-model" else ""
            tied = self.model.head.output is None
            self.guesses(
                "N V", self.row.tokens, self.names, self.row.answers,
                f"The last vector of each place{more} is compared with the V = {len(self.names)} "
                f"rows of {'the embedding table' if tied else 'a table of its own'}, which gives "
                "each token a score.",
            )  # fmt: skip

    def guesses(
        self, letters: str, rows: list[str], names: list[str], answers: Targets, sentence: str
    ) -> None:
        logits = self.trace.output
        self.add("logits", "3.4", logits, letters, sentence, rows=rows, columns=names)
        shares = logits.softmax(-1)
        right = [float(shares[n, names.index(a)]) for n, a in enumerate(answers) if a is not None]
        guess = f"blind chance is 1/{len(names)} = {1 / len(names):.3f}"
        if right:
            average = " on average" if len(right) > 1 else ""
            guess += f", the right answer gets {sum(right) / len(right):.3f}{average}"
        self.add(
            "probabilities", "3.4", shares, letters,
            "Softmax turns the scores into probabilities, but the model is untrained and only "
            f"guesses: {guess}.",
            rows=rows, columns=names, picture="guesses", answers=answers,
        )  # fmt: skip
