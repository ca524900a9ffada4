"""The task fill: an encoder predicts hidden words (masked language modelling, BERT, Devlin 2019).

Training selects the fraction data.mask of the tokens and predicts them: 80% of them are replaced by
<mask>, 10% by a random token, and 10% stay unchanged. The vector of a token therefore represents it
whether it is hidden or not, so the model is also a good start for fine-tuning on texts without
masks (classify, embed).
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.common import one_line, refuse_nan
from regard.tasks.documents import Documents, perplexity
from regard.tasks.lazy import np, runtime, torch
from regard.tasks.task import Array, Context, Evaluation, Ids, Option, Tokenizers

if TYPE_CHECKING:
    from regard.tasks.runtime import Batch, Packed, Store, Transformer

HELD_OUT = 2026  # random seed for hiding words in validation and evaluation
MASK = "<mask>"


@dataclass(frozen=True)
class Gap:
    """The best words for one `<mask>`.

    Attributes:
        candidates: words in the form in which the text would contain them, with their
            probabilities; the most probable word is first.
    """

    candidates: list[tuple[str, float]]


@dataclass(frozen=True)
class Filled:
    """A text with all its masks replaced by words.

    Attributes:
        text: the text with the best word in place of each `<mask>`.
        gaps: the best words for each `<mask>`.
    """

    text: str
    gaps: list[Gap]

    def __repr__(self) -> str:
        best = ", ".join(
            f"{gap.candidates[0][0]!r} {gap.candidates[0][1]:.4f}" for gap in self.gaps
        )
        return f"Filled({self.text!r}, best words: {best})"


@dataclass(eq=False, repr=False)
class Fill(Documents):
    """Prediction of hidden words.

    Attributes:
        mask: fraction of the tokens that training hides (data.mask).
        whole_words: hide complete words instead of single tokens (data.whole_words).
    """

    name = "fill"
    help = "Replace each <mask> by its best word; print the best words with their probabilities."
    doing = "filling"
    styles = ("encoder",)
    defaults: ClassVar = {"model": {"style": "encoder"}, "training": {"label_smoothing": 0.0}}
    config_options = ("data.documents", "data.mask", "data.whole_words")
    options = (
        Option(
            "top",
            "number of words to print for each <mask> (default: 5)",
            int,
            5,
            least=1,
            most=1000,
        ),
    )
    ends = 0

    mask: float = 0.15
    whole_words: bool = False

    def __post_init__(self) -> None:
        self.tokenizer.require(self.name, "mask")

    @property
    def window(self) -> int:
        return self.text_room()

    @classmethod
    def make(cls, config: Config, tokenizers: Tokenizers) -> Fill:
        data = config.data
        return cls(tokenizers[1], config.model.style, data.max_length, data.mask, data.whole_words)

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        rows = []
        for document, start, length in zip(*self.chosen(store, examples, seed), strict=True):
            ids = store.tokens(0, int(document))[start : start + length]
            rows.append(self.tokenizer.frame_array(ids, self.style))
        return self.hide(rows, device, seed or HELD_OUT)

    def hide(self, rows: list[Array], device: torch.device, seed: int) -> Batch:
        """Create a batch from the rows that the model reads, with at least one hidden word."""
        tokens = np.concatenate(rows).astype(np.int64)
        random = np.random.default_rng([seed, 1])
        chance = random.random(len(tokens))
        if self.whole_words:  # all tokens of a word have the value of its first token
            chance = chance[self.tokenizer.word_starts(tokens)]
        if self.added:
            chance[np.isin(tokens, self.tokenizer.frame([], self.style))] = 2.0
        places = np.flatnonzero(chance < self.mask)
        if not len(places):
            places = np.array([chance.argmin()])
        targets = tokens[places]
        replacement = random.random(len(places))
        hidden = tokens.copy()
        hidden[places[replacement < 0.8]] = self.tokenizer.mask
        words = self.tokenizer.text_ids
        random_tokens = words[random.integers(0, len(words), len(places))]
        randomised = (replacement >= 0.8) & (replacement < 0.9)
        hidden[places[randomised]] = random_tokens[randomised]
        row = runtime.Packed(torch.from_numpy(hidden), torch.from_numpy(runtime.bounds(rows))).to(
            device
        )
        labels, where = (torch.from_numpy(side).to(device) for side in (targets, places))
        return runtime.Batch(row, None, labels, where)

    def check_comparable(self, other: Documents) -> None:
        super().check_comparable(other)
        assert isinstance(other, Fill)
        if (self.mask, self.whole_words) != (other.mask, other.whole_words):
            raise InputError(
                "the two models hide different words: data.mask or data.whole_words differ"
            )

    def from_loss(self, loss: float, store: Store) -> dict[str, Any]:
        return {"perplexity": perplexity(loss)}

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        """Compute perplexity and accuracy of hidden words. All evaluations hide the same words."""
        size = self.text_room()
        rows = [
            np.array(self.tokenizer.frame(ids[start : start + size], self.style))
            for ids in self.tokenizer.encode_batch([text for _, text in examples])
            for start in range(0, len(ids), size)
        ]
        matrix = model.output_matrix()
        likelihood, correct, count = (np.zeros(len(rows)) for _ in range(3))
        for i, indices in enumerate(
            runtime.by_size([len(row) for row in rows], runtime.EVALUATED_TOKENS)
        ):
            batch = self.hide([rows[j] for j in indices], matrix.device, HELD_OUT + i)
            assert batch.source is not None
            assert batch.where is not None
            with torch.no_grad():
                hidden = model.hidden(batch.source)[batch.where]
                logits = model.head(hidden, None, matrix).float()
                logprobs = logits.log_softmax(-1).gather(1, batch.labels[:, None])[:, 0]
            best = logits.argmax(-1) == batch.labels
            ends, places = batch.source.offsets.cpu().numpy(), batch.where.cpu().numpy()
            owner = np.array(indices)[np.searchsorted(ends, places, "right") - 1]
            ones = torch.ones_like(logprobs)
            for sums, values in ((likelihood, -logprobs), (correct, best), (count, ones)):
                np.add.at(sums, owner, values.cpu().double().numpy())

        def mean(values: Array, chosen: Ids) -> float:
            return float(values[chosen].sum() / max(1.0, count[chosen].sum()))

        metrics = {
            "perplexity": lambda chosen: perplexity(mean(likelihood, chosen)),
            "accuracy": lambda chosen: mean(correct, chosen),
        }
        scores = runtime.scores_of(metrics, len(rows)) | {"hidden": int(count.sum())}
        return Evaluation(scores, metrics, len(rows))

    def predict(
        self, model: Transformer, inputs: Sequence[str], context: Context, top: int = 5
    ) -> list[Filled]:
        """Find the `top` most probable words for every <mask> of each text."""
        parts = [text.split(MASK) for text in inputs]
        longest, matrix = context.longest, model.output_matrix()
        words = torch.from_numpy(self.tokenizer.text_ids).to(matrix.device)
        rows = [self.encode_parts(part, longest, f"text {i + 1}") for i, part in enumerate(parts)]

        def read(row: Packed, hidden: torch.Tensor) -> list[Any]:
            gaps = row.tokens == self.tokenizer.mask
            logits = model.head(hidden[gaps], None, matrix)
            special = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
            special[words] = False
            logits = logits.masked_fill(special, -math.inf)  # special tokens are not words
            most = min(top, len(words))
            best = logits.softmax(-1, dtype=torch.float32).topk(most)
            counts = [int(part.sum()) for part in row.split(gaps)]
            sides = (best.indices.split(counts), best.values.split(counts))
            return [(i.tolist(), v.tolist()) for i, v in zip(*sides, strict=True)]

        filled = []
        results = runtime.forward(model, rows, read, alone=True)
        for part, (tokens, values) in zip(parts, results, strict=True):
            gaps = [
                Gap([(self.tokenizer.spelling(t), p) for t, p in zip(*gap, strict=True)])
                for gap in zip(tokens, values, strict=True)
            ]
            text = part[0]
            for gap, after in zip(gaps, part[1:], strict=True):
                word = gap.candidates[0][0]
                blank = self.tokenizer.includes_space and word.startswith(" ")
                text = (text.removesuffix(" ") if blank else text) + word + after
            filled.append(Filled(text, gaps))
        refuse_nan(p for result in filled for gap in result.gaps for _, p in gap.candidates)
        return filled

    def encode_parts(self, parts: list[str], longest: int, where: str) -> list[int]:
        """Encode a text with its special tokens and masks, from its parts between the masks. With
        BPE, a space before a mask is part of the hidden word, because BPE tokens include the space
        before a word."""
        if len(parts) < 2:
            raise InputError(f"{where}: there is no {MASK} to fill: write it in place of a word")
        if self.tokenizer.includes_space:
            parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
        ids: list[int] = []
        for i, part in enumerate(self.tokenizer.encode_batch(parts)):
            ids += [self.tokenizer.mask] if i else []
            ids += part
        ids = self.tokenizer.frame(ids, self.style)
        if len(ids) > longest:
            raise InputError(
                f"{where}: {len(ids)} tokens, but the model was trained on at most {longest}: "
                f"shorten the text around the {MASK}"
            )
        return ids

    def parse(self, text: str, options: Namespace, longest: int, where: str) -> str:
        self.encode_parts(text.split(MASK), longest, where)
        return text

    def line(self, text: str, prediction: Filled, options: Namespace) -> str:
        words = [
            ", ".join(f"{word.strip() or repr(word)} {p:.3f}" for word, p in gap.candidates)
            for gap in prediction.gaps
        ]
        return "\t".join(map(one_line, [prediction.text, *words]))

    def to_json(self, text: str, prediction: Filled, options: Namespace) -> dict[str, Any]:
        gaps = [
            [{"word": word, "probability": p} for word, p in gap.candidates]
            for gap in prediction.gaps
        ]
        return {"text": text, "filled": prediction.text, "gaps": gaps}
