"""The pronoun picture: the head that resolves `it` in a pair of sentences.

In "The animal didn't cross the street because it was too tired" (or "too wide"), only the last
adjective determines what `it` refers to. A translation model can resolve it in three places: in the
encoder, where it reads `it`; and in the decoder, before it writes the German pronoun, in
cross-attention or in self-attention. All heads of the three are compared. The margin of a head is
the weight on the correct phrase (article and noun) minus the weight on the wrong one, in the worse
of the two sentences. A head that prefers the same noun in both sentences has a negative margin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.predictor.attention import Attention
from regard.predictor.attention_figure import draw_lines
from regard.predictor.attention_inputs import gather
from regard.text.builtin import PRONOUN_PHRASES, PRONOUN_SENTENCE, pronoun_of
from regard.text.tokenizer import Tokenizer
from regard.view.picture import new_figure, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.predictor.model import Model

CLEAR = 0.1  # smallest margin of a head that counts as resolving the pronoun


@dataclass(frozen=True)
class Sentence:
    """The attention of one sentence, and the positions of its phrases, for each stack."""

    attention: Attention
    rows: dict[str, list[int]]  # the tokens of the pronoun
    phrases: dict[str, tuple[list[int], list[int]]]  # the tokens of the animal, of the street

    def weights(self, stack: str, layer: int, head: int) -> tuple[float, float]:
        """The weights on the animal and on the street: sums over a phrase, means over the rows."""
        weights = self.attention.stacks[stack].weights[layer - 1, head - 1]  # [n, m]
        mean = weights[self.rows[stack]].mean(0)
        animal, street = (float(mean[places].sum()) for places in self.phrases[stack])
        return animal, street


@dataclass(frozen=True)
class PronounHead:
    """The weights of a head in both sentences: weights[sentence][phrase]; layer, head from 1."""

    stack: str
    layer: int
    head: int
    weights: tuple[tuple[float, float], tuple[float, float]]

    @property
    def margin(self) -> float:
        """Weight on the correct phrase minus weight on the wrong one, in the worse sentence."""
        tired, wide = self.weights
        return min(tired[0] - tired[1], wide[1] - wide[0])

    @property
    def name(self) -> str:
        stack = {"cross": "cross-attention"}.get(self.stack, f"the {self.stack}")
        return f"head {self.head} of layer {self.layer} of {stack}"


def read_sentences(model: Model) -> tuple[Sentence, Sentence]:
    """The attention of both sentences, each with its correct translation."""
    tired, wide = PRONOUN_SENTENCE
    return read_sentence(model, *tired), read_sentence(model, *wide)


def read_sentence(model: Model, english: str, german: str) -> Sentence:
    attention = gather(model, english, german)
    source, target = getattr(model.task, "source", model.task.tokenizer), model.task.tokenizer
    animal, street = (places(source, english, phrase) for phrase in PRONOUN_PHRASES[0])
    # The decoder reads <bos> first, so a token of the translation has the next position.
    tier, straße = ([i + 1 for i in places(target, german, p)] for p in PRONOUN_PHRASES[1])
    written = places(target, german, f"weil {pronoun_of(german)}", skip="weil")
    return Sentence(
        attention,
        {"encoder": places(source, english, "it"), "decoder": written, "cross": written},
        {"encoder": (animal, street), "decoder": (tier, straße), "cross": (animal, street)},
    )


def places(tokenizer: Tokenizer, text: str, phrase: str, skip: str = "") -> list[int]:
    """The tokens of a phrase in a text. skip: words at the start of the phrase to leave out."""
    match = re.search(rf"\b{re.escape(phrase)}\b", text)
    assert match is not None, f"{phrase!r} is not in {text!r}"
    start, end = (len(text[:i].encode()) for i in (match.start() + len(skip), match.end()))
    start += bool(skip)  # the space after them
    sizes = tokenizer.sizes[tokenizer.encode(text)]  # bytes of each token
    ends = np.cumsum(sizes)
    inside: list[int] = np.flatnonzero((ends > start) & (ends - sizes < end)).tolist()
    return inside


def find_heads(sentences: tuple[Sentence, Sentence]) -> list[PronounHead]:
    """Every head of every stack, the largest margin first."""
    heads = []
    for name, stack in sentences[0].attention.stacks.items():
        for layer, head in np.ndindex(stack.weights.shape[:2]):
            tired, wide = (sentence.weights(name, layer + 1, head + 1) for sentence in sentences)
            heads.append(PronounHead(name, layer + 1, head + 1, (tired, wide)))
    return sorted(heads, key=lambda candidate: -candidate.margin)


def describe_heads(candidates: list[PronounHead]) -> list[str]:
    """Lines about the best head, and about the best head of the encoder, with their weights."""
    best = candidates[0]
    lines = [f'What "it" refers to: {verdict(best)} (of {len(candidates)} heads).', *numbers(best)]
    own = next((candidate for candidate in candidates if candidate.stack == "encoder"), best)
    if own is not best:
        lines += [f'In the encoder, at "it": {verdict(own)}.', *numbers(own)]
    return lines


def verdict(best: PronounHead) -> str:
    if best.margin >= CLEAR:
        return f"{best.name} shows it best"
    return f"no head shows it clearly; {best.name} is closest"


def numbers(candidate: PronounHead) -> list[str]:
    """Lines with the four weights of a head."""
    phrases = PRONOUN_PHRASES[1 if candidate.stack == "decoder" else 0]
    lines = []
    for (english, german), weights in zip(PRONOUN_SENTENCE, candidate.weights, strict=True):
        subject = (
            '"it"'
            if candidate.stack == "encoder"
            else f'before it writes "{pronoun_of(german)}" it'
        )
        seen = ", ".join(f"{p} {w:.2f}" for p, w in zip(phrases, weights, strict=True))
        lines.append(
            f"  {english.rpartition(' was ')[2][:-1] + ':':10} {subject} attends to {seen}"
        )
    return lines


def draw_pronoun(
    sentences: tuple[Sentence, Sentence], candidate: PronounHead, out: Path
) -> list[Path]:
    """Draw the two sentences side by side, with a head's weights as lines from the pronoun."""
    phrases = PRONOUN_PHRASES[1 if candidate.stack == "decoder" else 0]

    def draw() -> Figure:
        stacks = [sentence.attention.stacks[candidate.stack] for sentence in sentences]
        tall = max(len(side) for stack in stacks for side in (stack.rows, stack.columns))
        picture = new_figure(15, 0.33 * tall + 2.4)
        panels = zip(picture.subplots(1, 2), sentences, stacks, candidate.weights, strict=True)
        for panel, sentence, stack, weights in panels:
            rows = sentence.rows[candidate.stack]
            draw_lines(panel, stack, stack.weights[candidate.layer - 1, candidate.head - 1], rows)
            panel.set_title(sentence.attention.text, fontsize=12, pad=12)
            seen = ",  ".join(f"{p}: {w:.2f}" for p, w in zip(phrases, weights, strict=True))
            panel.text(0.5, -0.02, seen, transform=panel.transAxes, ha="center", va="top",
                       fontsize=14, weight="bold")  # fmt: skip
        name = candidate.name[0].upper() + candidate.name[1:]
        query = (
            '"it" attends to'
            if candidate.stack == "encoder"
            else "it attends to before the pronoun"
        )
        picture.suptitle(f"{name}: what {query}", fontsize=15, weight="bold")
        return picture

    return save_picture(draw, out)
