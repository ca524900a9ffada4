"""The task answer: a model reads a context and a question, and generates the answer.

The input is context <sep> question. A context that is too long for the model is read in windows
that overlap by half, and the answer with the best score is returned. Training skips such questions
and reports their number.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from regard.config.sections import Config, DecodingConfig
from regard.errors import InputError
from regard.tasks.common import fields_of, in_pieces, n_best
from regard.tasks.lazy import np, runtime
from regard.tasks.sequences import Sequences
from regard.tasks.task import Context, Evaluation, Option
from regard.text.corpus import QUESTIONS, CorpusReport, Question

if TYPE_CHECKING:
    from regard.tasks.runtime import Chunk, DecodingPlan, Prediction, Request, Transformer

Example = tuple[Path, Question]


class QuestionInput(NamedTuple):
    """A question and the context that contains its answer."""

    context: str
    question: str

    @classmethod
    def of(cls, text: str, context: str | None, where: str) -> QuestionInput:
        """Parse an input.

        Args:
            text: CONTEXT<tab>QUESTION or JSON; a question if there is a `context`.
            context: the context of the question, or None if the text contains it.
            where: the position of the text, for error messages.

        Raises:
            InputError: the text has no context or no question.
        """
        if context is not None:
            return cls(context, text)
        context, tab, question = text.partition("\t")
        if text.lstrip().startswith("{"):
            try:
                fields = json.loads(text)
                context, question = fields["context"], fields["question"]
                tab = "\t" if isinstance(context, str) and isinstance(question, str) else ""
            except (ValueError, KeyError, TypeError, RecursionError):
                tab = ""
        if not tab or not question.strip():
            raise InputError(
                f'{where}: expected CONTEXT<tab>QUESTION or {{"context", "question"}}, or a '
                "question with a separate context"
            )
        return cls(context, question)


class Questions(Sequences):
    """Question answering from a context."""

    name = "answer"
    help = "Answer questions from a context, one line per question."
    doing = "answering"
    input_name = "QUESTION"
    files = "JSON lines"
    better = "f1"
    has_metrics = True
    special_tokens = ("sep",)  # between context and question
    counted = 0  # contexts are much longer than answers
    defaults: ClassVar = {
        "data": {"max_length": 512}, "decoding": {"max_length": 30},
        "training": {"label_smoothing": 0.0},
    }  # fmt: skip
    config_options = ("data.bpe_dropout", "data.duplicates")
    options = (
        Option(
            "context", "text that contains the answers (default: each line is CONTEXT<tab>QUESTION "
            "or JSON)", str, metavar="TEXT", argument=False,
        ),
    )  # fmt: skip
    row_format = QUESTIONS

    @classmethod
    def texts(cls, example: Example) -> Iterable[str]:
        return example[1][1:4]

    @classmethod
    def input_text(cls, example: Example) -> str:
        return "\n".join(example[1][1:3])

    def check(self, example: Example) -> None:
        path, row = example
        self.room(self.target.encode(row.question), self.longest, f"{path}:{row.line}")

    def room(self, question: Sequence[int], longest: int, where: str) -> int:
        """Return the number of context tokens that fit into the input together with a question."""
        room = longest - len(question) - 1 - self.added  # 1: <sep> after the context
        if room < 1:
            raise InputError(
                f"{where}: the question has {len(question)} tokens, but question and context "
                f"together can have at most {longest}: shorten the question"
            )
        return room

    def encode(self, examples: list[Example], config: Config, report: CorpusReport) -> Chunk:
        tokenizer = self.target
        encoded = (
            tokenizer.encode_batch([getattr(row, side) for _, row in examples])
            for side in ("context", "question", "answer")
        )
        sources, targets, after = [], [], 1 + len(tokenizer.target_prefix)
        for context, question, target in zip(*encoded, strict=True):
            source = [*context, tokenizer.sep, *question]
            if max(len(source) + self.added, len(target) + after) > config.data.max_length:
                report.skip("too long")
                continue
            sources.append([*source, tokenizer.end])
            targets.append([*target, tokenizer.end])
        return sources, targets

    def identity(self, config: Config) -> list[object]:
        data = config.data
        return ["answer", self.target.fingerprint, data.max_length, data.duplicates]

    def types(self, files: Sequence[Path], config: Config) -> list[str]:
        return [runtime.token_type(self.target.size)] * 2

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        """Compute exact match and F1 as defined by SQuAD, and exact match for each kind of question
        if the data has the field `task`."""
        rows = [row for _, row in examples]
        questions = [QuestionInput(row.context, row.question) for row in rows]
        plan = self.plan_answers(questions, config.decoding, config.data.max_length)
        answers = plan.run(model)
        runtime.release_graphs(model)  # training may continue and needs the memory
        texts = [answer.text for answer in answers]
        pairs = list(zip(texts, rows, strict=True))
        exact = np.array([runtime.metrics.exact_match(text, row.answers) for text, row in pairs])
        f1 = np.array([runtime.metrics.token_f1(text, row.answers) for text, row in pairs])
        metrics = {
            "f1": lambda chosen: float(f1[chosen].mean()),
            "exact": lambda chosen: float(exact[chosen].mean()),
        } | runtime.registered_metrics(self.name, texts, [list(row.answers) for row in rows])
        kinds: dict[str, list[float]] = defaultdict(list)
        for row, correct in zip(rows, exact.tolist(), strict=True):
            if row.task:
                kinds[row.task].append(correct)
        details = {kind: round(sum(values) / len(values), 4) for kind, values in kinds.items()}
        samples = [f"{row.question} -> {text}  (expected: {row.answer})" for text, row in pairs[:3]]
        return Evaluation(
            runtime.scores_of(metrics, len(rows)), metrics, len(rows), samples, texts,
            [row.answer for row in rows], {"exact_by_task": details} if details else {},
            in_pieces(answers),
        )  # fmt: skip

    def requests(
        self, inputs: Sequence[QuestionInput], longest: int, most: int
    ) -> list[list[Request]]:
        """Create one request for each question, or one for each window of its context. An answer
        has at most `most` tokens, independent of the length of its context."""
        contexts = self.target.encode_batch([item.context for item in inputs])
        questions = self.target.encode_batch([item.question for item in inputs])
        groups = []
        for i, (context, question) in enumerate(zip(contexts, questions, strict=True)):
            room = self.room(question, longest, f"question {i + 1}")
            starts = range(0, max(1, len(context) - room // 2), max(1, room // 2))
            if len(context) <= room:
                starts = range(1)
            windows = [[*context[s : s + room], self.target.sep, *question] for s in starts]
            groups.append([self.request_of(ids, limit=most) for ids in windows])
        return groups

    def plan_answers(
        self,
        inputs: Sequence[QuestionInput],
        options: DecodingConfig,
        longest: int,
        check: Callable[[list[Prediction]], list[Prediction]] = list,
    ) -> DecodingPlan:
        """Plan to answer each question. The answer from a long context is the best answer of its
        windows. `check` is applied to the answers."""

        def finish(groups: list[list[Prediction]]) -> list[Prediction]:
            answers = []
            for candidates in groups:
                best = max(candidates, key=lambda answer: answer.score)
                answers.append(replace(best, pieces=candidates if len(candidates) > 1 else []))
            return check(answers)

        groups = self.requests(inputs, longest, options.max_length)
        return self.plan_groups(groups, options, finish)

    @staticmethod
    def clean(text: str) -> str:
        return text.strip()

    def predict(
        self, model: Transformer, inputs: Sequence[QuestionInput], context: Context
    ) -> list[Prediction]:
        return self.plan(inputs, context).run(model)

    def plan(self, inputs: Sequence[QuestionInput], context: Context) -> DecodingPlan:
        check = partial(self.checked, context=context)
        return self.plan_answers(inputs, context.decoding, context.longest, check)

    @staticmethod
    def split_note(count: int) -> str:
        return f"the best answer of {count} windows was chosen"

    def parse(
        self, text: str, options: Namespace, longest: int, where: str
    ) -> QuestionInput | None:
        if not text.strip():
            return None
        question = QuestionInput.of(text, options.context, where)
        self.room(self.target.encode(question.question), longest, where)
        return question

    def to_json(
        self, text: str, prediction: Prediction | None, options: Namespace
    ) -> dict[str, Any]:
        answer = prediction or runtime.Prediction([], [], 0.0, "empty")
        question = QuestionInput.of(text, options.context, "").question if prediction else ""
        fields = {"question": question, "answer": answer.text} | fields_of(answer, self.target)
        return fields | (n_best(answer, self.target, "answer") if answer.others else {})
