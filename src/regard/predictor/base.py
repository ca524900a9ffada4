"""The base class of `Model`: its parts, its tokenizers, and predictions of any task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, Unpack

import torch

from regard.config.sections import Config, DecodingConfig, section
from regard.decoding.search import DecodingPlan
from regard.errors import InputError, unknown
from regard.model.transformer import Transformer
from regard.predictor.data import as_paths, as_share, column_names, row_errors
from regard.predictor.inputs import (
    check_evaluation_mode,
    check_no_table,
    check_pair,
    check_text,
    python_warning,
    question_inputs,
)
from regard.predictor.options import DecodingOptions, chosen_options, decoding_keywords
from regard.tasks.answer import QuestionInput, Questions
from regard.tasks.classify import Classify
from regard.tasks.documents import Documents
from regard.tasks.embed import Embed
from regard.tasks.evaluation import read_examples
from regard.tasks.generate import Generate
from regard.tasks.rows import rows_to_file
from regard.tasks.sequences import Sequences
from regard.tasks.task import Context, Evaluation, Task, Warn
from regard.tasks.translate import Translate
from regard.text.chat import ChatTemplate
from regard.text.tokenizer import Tokenizer

T = TypeVar("T", bound=Task)
TEXT_TASKS = (Translate, Classify, Documents, Embed)  # tasks whose inputs are strings

MOST_CACHE = 2_000_000_000  # bytes of the keys and values of one sentence


class BaseModel:
    """The parts of a `Model`, and predictions of any task."""

    def __init__(
        self, config: Config, transformer: Transformer, task: Task, folder: Path | None = None
    ) -> None:
        self.config, self.transformer, self.task = config, transformer.eval(), task
        self.folder = folder

    def __repr__(self) -> str:
        model, weights = self.config.model, self.transformer.output_matrix()
        stacks = [
            f"{layers} {name} layer{'s' * (layers > 1)}"
            for name, layers, exists in (
                ("encoder", model.encoder_layers, model.has_encoder),
                ("decoder", model.decoder_layers, model.has_decoder),
            )
            if exists
        ]
        count = sum(parameter.numel() for parameter in self.transformer.parameters())
        dtype = self.transformer.precision or str(weights.dtype).removeprefix("torch.")
        return (
            f"Model(task={self.task.name}, style={model.style}, {', '.join(stacks)}, "
            f"d_model={model.d_model}, {count:,} parameters, "
            f"vocabulary of {model.vocabulary_size:,}, device={weights.device}, dtype={dtype}, "
            f"folder={None if self.folder is None else str(self.folder)!r})"
        )

    # ---- tokenizers ---------------------------------------------------------------------

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads."""
        return self.task.source if isinstance(self.task, Sequences) else self.task.tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that the model writes."""
        return self.task.tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model.

        Raises:
            InputError: the model has two: `source_tokenizer` and `target_tokenizer`.
        """
        if self.source_tokenizer is not self.target_tokenizer:
            raise InputError(
                "this model has two tokenizers: use source_tokenizer or target_tokenizer"
            )
        return self.target_tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template of the model; None if it has none."""
        return self.task.chat_template if isinstance(self.task, Generate) else None

    @property
    def labels(self) -> list[str]:
        """The labels of a model that classifies, in the order of its classes.

        Raises:
            InputError: the model was not trained to classify.
        """
        return list(self.of(Classify).labels)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.transformer.output_matrix().device

    # ---- any task -----------------------------------------------------------------------

    @decoding_keywords
    def predict(
        self,
        inputs: Any,
        *,
        context: str | Iterable[str] | None = None,
        n_best: int | None = None,
        warn: Warn = python_warning,
        **options: Any,
    ) -> Any:
        """Predict with the task that the model was trained for, with all details.

        A model that translates, answers or generates returns `Prediction` objects, with text,
        tokens, log-probabilities, score and n-best list; the others return the results of
        `classify`, `fill` and `embed`.

        Args:
            inputs: one input (a string), or a list of inputs.
            context: for a model that answers questions: the context of each question, or one
                context for all of them.
            n_best: number of predictions in the n-best list (`Prediction.n_best`).
            warn: called with the index of an input that is too long, and a message about it. The
                default is a Python warning.
            **options: options of decoding, see `DecodingOptions`.
            **options: options of the task. translate: split (the default is True: translate the
                sentences of a text one by one), prefix (the beginning of every translation),
                alternatives (the number of most probable tokens to return at each position),
                history (return the candidates of every step), attention (return the attention
                weights). generate: until (stop before this text). fill: top. embed: pooling,
                tokens.

        Returns:
            One prediction for one string; a list for a list (for embed an array).

        Raises:
            InputError: an input or an option is not valid.
        """
        single = isinstance(inputs, str)
        inputs, chosen, arguments = self._arguments(inputs, context, n_best, options)
        predictions = self.run(self.task, inputs, warn, chosen, **arguments)
        return predictions[0] if single else predictions

    def plan(
        self,
        inputs: Sequence[Any],
        *,
        context: str | Iterable[str] | None = None,
        n_best: int | None = None,
        warn: Warn = python_warning,
        **options: Any,
    ) -> DecodingPlan:
        """Prepare what `predict` decodes, for a service that decodes several plans at once.

        Args:
            inputs: a list of inputs.
            context: see `predict`.
            n_best: see `predict`.
            warn: see `predict`.
            **options: options of decoding and of the task, see `predict`.

        Returns:
            The plan; `DecodingPlan.run(model.transformer)` returns what `predict` returns.

        Raises:
            InputError: an input or an option is not valid, or the model writes no text.
        """
        inputs, chosen, arguments = self._arguments(inputs, context, n_best, options)
        check_evaluation_mode(self.transformer)
        return self.task.plan(
            inputs, Context(self.decoding(chosen), self.longest, warn), **arguments
        )

    def _arguments(
        self,
        inputs: Any,
        context: str | Iterable[str] | None,
        n_best: int | None,
        options: Mapping[str, Any],
    ) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        """The arguments of `predict`: inputs, options of decoding, and options of the task."""
        if context is not None and not isinstance(self.task, Questions):
            raise InputError(f"context: this model was trained to {self.task.name} and reads none")
        if isinstance(self.task, Questions) and context is not None:
            inputs = question_inputs(inputs, context)
        own = {option.name for option in self.task.options if option.argument}
        chosen = chosen_options(options, n_best)
        arguments = {name: chosen.pop(name) for name in own & chosen.keys()}
        for name in chosen:
            if name not in DecodingConfig.__dataclass_fields__ and get_close_matches(name, own):
                raise unknown("option", name, own)
            if not self.task.decodes:
                raise InputError(
                    f"this model was trained to {self.task.name}: it has no option {name!r}"
                )
        return self._inputs(inputs, pairs=bool(arguments.get("score"))), chosen, arguments

    def _inputs(self, inputs: Any, pairs: bool) -> list[Any]:
        """The inputs of `predict` as a list; pairs: they are (source, translation) pairs."""
        if isinstance(inputs, str):
            inputs = [inputs]
        check_no_table(inputs)
        if isinstance(inputs, bytes | dict) or not isinstance(inputs, Iterable):
            raise InputError(f"inputs are a string or a list, not {inputs!r:.60}")
        inputs = list(inputs)
        if isinstance(self.task, Questions):
            return [
                QuestionInput.of(text, None, f"question {i + 1}") if isinstance(text, str) else text
                for i, text in enumerate(inputs)
            ]
        if pairs:
            for pair in inputs:
                check_pair(pair)
        elif isinstance(self.task, TEXT_TASKS):
            check_text(*inputs)
        return inputs

    def run(
        self,
        task: type[T] | Task,
        inputs: Sequence[Any],
        warn: Warn,
        decoding: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Predict with a task.

        Args:
            task: a task, or its class.
            inputs: the inputs of the task.
            warn: see `predict`.
            decoding: options of decoding.
            options: options of the task.

        Returns:
            The result of `Task.predict`: one prediction for each input.
        """
        own = task if isinstance(task, Task) else self.of(task)
        check_evaluation_mode(self.transformer)
        context = Context(self.decoding(decoding or {}), self.longest, warn)
        return own.predict(self.transformer, inputs, context, **options)

    def of(self, task: type[T]) -> T:
        """The model's task as another task.

        Args:
            task: the class of the task.

        Returns:
            The task with the vocabulary of this model.

        Raises:
            InputError: the model cannot do it.
        """
        return task.of(self.task, self.config)

    @decoding_keywords
    def evaluate(
        self,
        data: Any,
        *,
        columns: Mapping[str, str] | None = None,
        **options: Unpack[DecodingOptions],
    ) -> Evaluation:
        """Compute the metrics of the task on test data.

        Example:
            >>> model.evaluate([("The cat slept.", "Die Katze schlief.")]).scores["chrf"]

        Args:
            data: the test data, as in `regard.train`: a path; a tuple or list of paths; or rows: a
                list or an iterator of tuples or dicts (generate, fill: of strings), a pandas
                DataFrame or a Hugging Face `Dataset`. If the model was trained with a share as
                `valid`, the same share ("5%") is the held-out part of the training data.
            columns: field name -> column name, for columns without a usual name; None: for files,
                the columns that the model was trained with.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            The scores by name (`Evaluation.scores`), the outputs, and what confidence intervals
            need.

        Raises:
            InputError: the data cannot be used, or an option is not valid.
        """
        names = column_names(columns)
        share = as_share(data, "data")
        paths = [share] if share is not None else as_paths(data)
        if paths is not None:
            files = [Path(path) for path in paths]
            chosen = None if columns is None else names
            return self.evaluate_examples(
                read_examples(self.task, files, self.config, chosen), **options
            )
        with TemporaryDirectory(prefix="regard-") as folder, row_errors(Path(folder)):
            path = rows_to_file(self.task.name, data, Path(folder, "data.jsonl"), names)
            return self.evaluate_examples(
                read_examples(self.task, [path], self.config, {}), **options
            )

    def evaluate_examples(
        self, examples: Sequence[Any], **options: Unpack[DecodingOptions]
    ) -> Evaluation:
        """Compute the metrics of the task on examples that are already read.

        Args:
            examples: examples as `regard.tasks.evaluation.read_examples` returns them.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            The scores, and the values that confidence intervals need.

        Raises:
            InputError: there are no examples, or an option is not valid.
        """
        if not len(examples):
            raise InputError("the data is empty: it has no examples")
        check_evaluation_mode(self.transformer)
        config = replace(self.config, decoding=self.decoding(chosen_options(options)))
        return self.task.evaluate(self.transformer, examples, config)

    # ---- settings -----------------------------------------------------------------------

    def decoding(self, options: dict[str, Any]) -> DecodingConfig:
        """The model's own options of decoding with changes.

        Args:
            options: values by name, as in `DecodingConfig`.

        Returns:
            The complete options.

        Raises:
            InputError: an option is unknown or not valid, or needs too much memory.
        """
        values = asdict(self.config.decoding) | options
        if options.get("temperature") and "beam" not in options:
            values["beam"] = 1
        beam = options.get("beam")  # of any type: it is checked with all others below
        if isinstance(beam, int) and beam > 1 and "temperature" not in options:
            values |= {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
        chosen = section(DecodingConfig, "decoding", values)
        model = self.config.model
        width = model.key_value_heads * model.head_size
        each = 2 * 4 * model.decoder_layers * width  # keys, values; float32
        if (needed := each * chosen.width * chosen.max_length) > MOST_CACHE:
            raise InputError(
                f"decoding.max_length={chosen.max_length} with {chosen.width} hypotheses needs "
                f"{needed / 1e9:.1f} GB for one sentence: lower it, decoding.beam or "
                f"decoding.n_best (at most {MOST_CACHE / 1e9:.0f} GB)"
            )
        return chosen

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is read in one piece."""
        return self.config.longest_input
