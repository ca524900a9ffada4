"""answer: a context and a question in, the answer out as text.

The input is context <sep> question. A context that is too long for the model is read in windows
that overlap by half, and the answer with the best score wins; in training such questions are left
out, and counted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.config.sections import Config, DecodingConfig
from regard.decoding.answers import Answer
from regard.decoding.engines.cuda_graph import release_graphs
from regard.decoding.requests import Request
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.tasks.metrics import exact_match, token_f1
from regard.tasks.sequences import SEP, Sequences, asked
from regard.tasks.task import Evaluation, Ids, Say, in_pieces, read_rows
from regard.text.corpus import CorpusReport, Question, read_questions
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.store import Chunk, Store, build, token_type
from regard.text.tokenizer import Tokenizer

Example = tuple[Path, Question]


class Asked(NamedTuple):
    context: str
    question: str

    @classmethod
    def of(cls, text: str, context: str | None, where: str) -> Asked:
        """A line as people write it: CONTEXT<tab>QUESTION, JSON, or a question to a context."""
        if context is not None:
            return cls(context, text)
        context, tab, question = text.partition("\t")
        if text.lstrip().startswith("{"):
            try:
                whole = json.loads(text)
                context, question = whole["context"], whole["question"]
                tab = "\t" if isinstance(context, str) and isinstance(question, str) else ""
            except (ValueError, KeyError, TypeError, RecursionError):
                tab = ""
        if not tab or not question.strip():
            raise InputError(
                f'{where}: needs CONTEXT<tab>QUESTION or {{"context", "question"}}, or --context'
            )
        return cls(context, question)


class Questions(Sequences):
    name = "answer"
    better = "f1"
    counted = 0  # contexts are a hundred times as long as answers

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        style: str = "encoder-decoder",
        bpe_dropout: float = 0.0,
        longest: int = 512,
    ) -> None:
        super().__init__(source, target, style, bpe_dropout)
        self.longest = longest

    @classmethod
    def read(
        cls, files: Sequence[Path], config: Config, say: Say | None = None
    ) -> Iterator[Example]:
        return read_rows(files, read_questions, config, say)

    @classmethod
    def texts(cls, example: Example) -> Iterable[str]:
        return example[1][1:4]

    def check(self, example: Example) -> None:
        path, row = example
        self.room(self.target.encode(row.question), self.longest, f"{path}:{row.line}")

    def room(self, question: Sequence[int], longest: int, where: str) -> int:
        """Tokens of a context that are read together with a question."""
        room = longest - len(question) - 2  # 2: <sep>, and what closes the input
        if room < 1:
            raise InputError(
                f"{where}: the question has {len(question)} tokens: with its context the model "
                f"reads at most {longest}"
            )
        return room

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        tokenizer, most = self.target, config.data.max_length

        def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
            rows = (row for _, row in self.read(files, config))
            for chunk in in_chunks(rows, lambda row: len(row.context) + len(row.question)):
                contexts, questions, answers = (
                    tokenizer.encode_batch([getattr(row, side) for row in chunk])
                    for side in ("context", "question", "answer")
                )
                sides: tuple[list[list[int]], list[list[int]]] = ([], [])
                for context, question, answer in zip(contexts, questions, answers, strict=True):
                    source, target = [*context, SEP, *question], answer
                    if max(len(source), len(target)) >= most:
                        report.skip("too long")
                        continue
                    for side, ids in zip(sides, (source, target), strict=True):
                        side.append([*ids, tokenizer.eos])
                yield sides

        identity = ["answer", tokenizer.fingerprint, most, config.data.duplicates]
        types = [token_type(tokenizer.size)] * 2
        return build(files, identity, types, encode, folder, quiet)

    # ---- use ----------------------------------------------------------------------------

    def requests(self, asked_for: Sequence[Asked], longest: int, most: int) -> list[list[Request]]:
        """One request for each question, or one for each window of its context. An answer has at
        most `most` tokens, however long its context is."""
        contexts = self.target.encode_batch([one.context for one in asked_for])
        questions = self.target.encode_batch([one.question for one in asked_for])
        found = []
        for i, (context, question) in enumerate(zip(contexts, questions, strict=True)):
            room = self.room(question, longest, f"question {i + 1}")
            starts = range(0, max(1, len(context) - room // 2), max(1, room // 2))
            if len(context) <= room:
                starts = range(1)
            found.append([
                Request(asked(self.style, [*context[s : s + room], SEP, *question]), (), most)
                for s in starts
            ])  # fmt: skip
        return found

    def answer(
        self,
        model: Transformer,
        asked_for: Sequence[Asked],
        options: DecodingConfig,
        longest: int,
    ) -> list[Answer]:
        """The answer to each question, the best of those to the windows of a long context."""
        groups = self.requests(asked_for, longest, options.max_length)
        flat = [request for group in groups for request in group]
        found = iter(self.found(model, flat, options))
        answers = []
        for group in groups:
            every = [next(found) for _ in group]
            best = max(every, key=lambda answer: answer.score)
            for one in (best, *best.others):
                one.text = one.text.strip()
            answers.append(replace(best, pieces=every if len(every) > 1 else []))
        return answers

    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Example],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        """Exact match and F1 as SQuAD defines them, and for each kind of question where the data
        names it."""
        rows = [row for _, row in examples]
        asked_for = [Asked(row.context, row.question) for row in rows]
        found = self.answer(model, asked_for, decoding, config.data.max_length)
        release_graphs(model)  # training may continue and needs the memory
        answers = [answer.text for answer in found]
        pairs = list(zip(answers, rows, strict=True))
        exact = np.array([exact_match(answer, row.answers) for answer, row in pairs])
        f1 = np.array([token_f1(answer, row.answers) for answer, row in pairs])

        def mean(values: Any) -> Any:
            return lambda chosen: float(values[chosen].mean())

        metrics = {"f1": mean(f1), "exact": mean(exact)}
        whole: Ids = np.arange(len(rows))
        scores: dict[str, Any] = {n: round(metric(whole), 4) for n, metric in metrics.items()}
        kinds: dict[str, list[float]] = defaultdict(list)
        for row, right in zip(rows, exact.tolist(), strict=True):
            if row.task:
                kinds[row.task].append(right)
        details = {kind: round(sum(right) / len(right), 4) for kind, right in kinds.items()}
        samples = [f"{row.question} -> {a}  (wanted: {row.answer})" for a, row in pairs[:3]]
        return Evaluation(
            scores, metrics, len(rows), samples, answers, [row.answer for row in rows],
            {"exact_by_task": details} if details else {}, in_pieces(found),
        )  # fmt: skip
