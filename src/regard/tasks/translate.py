"""translate: a sentence in, a sentence out.

An example is a pair of token sequences, both closed by <eos>; how a model of each style reads it
is in sequences.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.config.sections import Config, DecodingConfig
from regard.decoding.answers import STOPS, Answer
from regard.decoding.engines.cuda_graph import release_graphs
from regard.decoding.requests import Request
from regard.decoding.search import NO_DETAILS, Details
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.tasks.sequences import Sequences, asked
from regard.tasks.task import Evaluation, Say, in_pieces
from regard.text.corpus import CorpusReport, Pair, read_pairs
from regard.text.store import Store, build_pairs


class Translate(Sequences):
    name = "translate"
    files = "two files: source, then target"
    better = "bleu"

    @classmethod
    def check_files(cls, files: Sequence[Path]) -> None:
        if len(files) != 2:
            raise InputError("translate takes two files: source, then target")

    @classmethod
    def read(cls, files: Sequence[Path], config: Config, say: Say | None = None) -> Iterator[Pair]:
        return read_pairs(files[0], files[1])

    @classmethod
    def texts(cls, example: Pair) -> Iterable[str]:
        return example[1:]

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        limits = config.data.max_length, config.data.max_ratio
        return build_pairs((files[0], files[1]), (self.source, self.target), folder, *limits, quiet)

    # ---- use ----------------------------------------------------------------------------

    def requests(
        self, texts: Sequence[str], longest: int = sys.maxsize, prefix: str = ""
    ) -> list[list[Request]]:
        """What is asked of the search for each text: one request, none for nothing, several for a
        text of more than `longest` tokens. The first translation begins with the prefix."""
        given = self.target.encode(prefix)
        found = []
        for text, ids in zip(texts, self.source.encode_batch(list(texts)), strict=True):
            pieces = [ids] if text.strip() else []
            if len(ids) >= longest:
                parts = split(text, lambda part: len(self.source.encode(part)), longest - 1)
                pieces = self.source.encode_batch(parts)
            found.append([
                Request(asked(self.style, piece), () if i else given)
                for i, piece in enumerate(pieces)
            ])  # fmt: skip
        return found

    def answer(
        self,
        model: Transformer,
        texts: Sequence[str],
        options: DecodingConfig,
        longest: int,
        prefix: str = "",
        details: Details = NO_DETAILS,
    ) -> list[Answer]:
        """A translation for each text; nothing for nothing. A text of more than `longest` tokens
        is translated in pieces (`Answer.pieces`)."""
        groups = self.requests(texts, longest, prefix)
        flat = [request for group in groups for request in group]
        found = iter(self.found(model, flat, options, details))
        return [join([next(found) for _ in group]) for group in groups]

    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Pair],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        sources = [source for _, source, _ in examples]
        wanted = [target for _, _, target in examples]
        found = self.answer(model, sources, decoding, config.data.max_length)
        release_graphs(model)  # training may continue and needs the memory
        answers = [answer.text for answer in found]
        samples = [
            f"{source} -> {answer}  (wanted: {target})"
            for source, answer, target in zip(sources, answers, wanted, strict=True)
        ]
        scores = bleu(answers, wanted, config.data.bleu)
        return Evaluation(
            scores, count=len(examples), samples=samples, answers=answers, references=wanted,
            pieces=in_pieces(found),
        )  # fmt: skip


ENDS = (r"(?<=[.!?…。！？])\s+", r"\s+")  # where to cut: between sentences, between words


def split(
    text: str, count: Callable[[str], int], most: int, ends: tuple[str, ...] = ENDS
) -> list[str]:
    """Cut a text into pieces of at most `most` tokens: between sentences if that is enough, else
    between words, else anywhere."""
    if count(text) <= most:
        return [text]
    pieces: list[str] = []
    if not ends:
        start, least = 0, max(1, most // 4)  # a character has at most four tokens
        while start < len(text):
            size = most
            while size > least and count(text[start : start + size]) > most:
                size = max(least, size * 3 // 4)
            pieces.append(text[start : start + size])
            start += size
        return pieces
    held, tokens = "", 0
    for part in re.split(ends[0], text):
        size = count(" " + part)
        if held and tokens + size <= most:
            held, tokens = f"{held} {part}", tokens + size
            continue
        if held:
            pieces.append(held)
        held, tokens = "", 0
        size = count(part)  # another one, now that no blank is before it
        if size > most:
            pieces += split(part, count, most, ends[1:])
        else:
            held, tokens = part, size
    return [*pieces, held] if held else pieces


def join(answers: list[Answer]) -> Answer:
    """One answer made of the answers to the pieces of a text."""
    if len(answers) == 1:
        return answers[0]
    whole = together(answers)
    ranks = max((len(answer.others) for answer in answers), default=0)
    for i in range(ranks):  # the next best of each piece, or its last where it has fewer
        every = [(answer, *answer.others) for answer in answers]
        whole.others.append(together([one[min(i + 1, len(one) - 1)] for one in every]))
    whole.pieces = answers
    return whole


def together(answers: list[Answer]) -> Answer:
    return Answer(
        [token for answer in answers for token in answer.tokens],
        [logprob for answer in answers for logprob in answer.logprobs],
        sum(answer.score for answer in answers),
        max((answer.stopped for answer in answers), key=STOPS.index, default="empty"),
        " ".join(answer.text for answer in answers),
    )


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], words: str = "13a"
) -> dict[str, Any]:
    """sacreBLEU and chrF, cased and detokenised, with their signatures. words: what BLEU's words
    are, which in Chinese, say, no blank tells."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores: dict[str, Any] = {}
    for name, metric in (("bleu", BLEU(tokenize=words)), ("chrf", CHRF())):
        score = metric.corpus_score(list(hypotheses), [list(references)])
        scores[name] = round(score.score, 2)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
