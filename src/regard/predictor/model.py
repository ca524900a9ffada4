"""A trained model, ready to use: `regard.load(folder)`.

`Model.predict` does what the model was trained for, as its task defines it. The other methods are
named after the tasks of the package; the same names are commands.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.config.sections import Config, DecodingConfig, section
from regard.decoding.predictions import Prediction
from regard.errors import InputError, warn_user
from regard.files import cache_folder, checksum
from regard.model.transformer import Transformer
from regard.predictor.saving import save_model
from regard.tasks.answer import QuestionInput, Questions
from regard.tasks.classify import Classify, Label
from regard.tasks.common import count_cut
from regard.tasks.embed import Embed
from regard.tasks.fill import Fill, Filled
from regard.tasks.generate import Generate
from regard.tasks.index import Hit, Index, find_or_build
from regard.tasks.task import Context, Evaluation, Task, Warn, cut_note
from regard.tasks.translate import Translate
from regard.training.checkpoint import tensor_digest
from regard.training.metrics import read_history
from regard.training.model_folder import final_scores

T = TypeVar("T", bound=Task)
Texts = str | Sequence[str]

SUMMARY = ("step", "final", "seconds", "dropped")  # of the final metrics, which are not scores
MOST_CACHE = 2_000_000_000  # bytes of the keys and values of one sentence


def python_warning(i: int, message: str) -> None:
    """A Python warning about text i that names the line which called this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("regard."):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"text {i + 1} is {message}", stacklevel=level)


def check_text(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a text is a string, not {text!r:.60}")


def listed(texts: Texts) -> list[str]:
    if not isinstance(texts, Iterable):
        raise InputError(f"texts are a string or several strings, not {texts!r:.60}")
    texts = [texts] if isinstance(texts, str) else list(texts)
    check_text(*texts)
    return texts


class Model:
    """A trained model and its vocabularies.

    Options of decoding have the names of the section `decoding` of a configuration, for example
    beam=1; the default is the value in the configuration of the model.
    """

    def __init__(
        self, config: Config, transformer: Transformer, task: Task, folder: Path | None = None
    ) -> None:
        self.config, self.transformer, self.task = config, transformer.eval(), task
        self.folder = folder

    def of(self, task: type[T]) -> T:
        """The model's task as this one; an InputError if the model cannot do it."""
        return task.of(self.task, self.config)

    def predict(self, inputs: Any, *, warn: Warn = python_warning, **options: Any) -> Any:
        """What the model was trained for: one prediction for each input.

        Args:
            inputs: one input, or a list of inputs.
            warn: called with the index of an input that is too long, and what was done with it.
                The default is a Python warning.
            options: options of decoding, and those of the task.

        Returns:
            One prediction for one string; otherwise a list (for embed an array).
        """
        one = isinstance(inputs, str)
        own = {option.name for option in self.task.options if option.argument}
        arguments = {name: options.pop(name) for name in own & options.keys()}
        predictions = self.run(self.task, [inputs] if one else inputs, warn, options, **arguments)
        return predictions[0] if one else predictions

    def run(
        self,
        task: type[T] | Task,
        inputs: Sequence[Any],
        warn: Warn,
        decoding: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Predict with this task; decoding: options of decoding."""
        own = task if isinstance(task, Task) else self.of(task)
        context = Context(self.decoding(decoding or {}), self.longest, warn)
        return own.predict(self.transformer, inputs, context, **options)

    def evaluate(self, examples: Sequence[Any], **decoding: Any) -> Evaluation:
        """The metrics of the task on examples (`regard.tasks.evaluation.read_examples`)."""
        config = replace(self.config, decoding=self.decoding(decoding))
        return self.task.evaluate(self.transformer, examples, config)

    def translate(self, texts: Texts, **options: Any) -> list[str]:
        """One translation for each text."""
        return [answer.text for answer in self.answers(texts, **options)]

    def answers(
        self,
        texts: Texts,
        *,
        prefix: str = "",
        alternatives: int = 0,
        history: bool = False,
        attention: bool = False,
        warn: Warn = python_warning,
        **options: Any,
    ) -> list[Prediction]:
        """Translations with tokens, log-probabilities, score and n-best list; on request with the
        best `alternatives` to each token, the `history` of the search and the `attention` of all
        heads. warn: see `predict`."""
        texts = listed(texts)
        check_text(prefix)
        return self.run(
            Translate, texts, warn, options, prefix=prefix, alternatives=alternatives,
            history=history, attention=attention,
        )  # fmt: skip

    def stream(
        self, text: str, *, prefix: str = "", warn: Warn = python_warning, **options: Any
    ) -> Iterator[str]:
        """The translation of a text, or the completion of a prompt, part by part."""
        check_text(text, prefix)
        task = self.task if isinstance(self.task, Generate) else self.of(Translate)
        own = {"prefix": prefix} if isinstance(task, Translate) else {}
        context = Context(self.decoding(options), self.longest, warn)
        return task.stream_text(self.transformer, text, context, **own)

    def score(
        self, pairs: Sequence[tuple[str, str]], *, warn: Warn = python_warning
    ) -> list[Prediction]:
        """How probable given translations are: (source, translation) pairs. A text that is longer
        than the model was trained on is scored as a whole, with a warning."""
        for pair in pairs:
            if isinstance(pair, str) or not isinstance(pair, Sized) or len(pair) != 2:
                raise InputError(f"a pair is (source, translation), not {pair!r:.60}")
            check_text(*pair)
        return self.run(Translate, pairs, warn, score=True)

    def answer(
        self, questions: Texts, context: Texts, *, warn: Warn = python_warning, **options: Any
    ) -> list[Prediction]:
        """The answer to each question from its context, or from one context for all."""
        texts, contexts = listed(questions), listed(context)
        if len(contexts) == 1:
            contexts *= len(texts)
        if len(contexts) != len(texts):
            raise InputError(f"{len(texts)} questions but {len(contexts)} contexts")
        pairs = [QuestionInput(c, q) for c, q in zip(contexts, texts, strict=True)]
        return self.run(Questions, pairs, warn, options)

    def generate(
        self, prompts: Texts, *, until: str = "", warn: Warn = python_warning, **options: Any
    ) -> list[Prediction]:
        """The completion of each prompt; it stops before the text `until`, if that is given."""
        return self.run(Generate, listed(prompts), warn, options, until=until)

    def classify(self, texts: Texts, *, warn: Warn = python_warning) -> list[Label]:
        """The label of each text, with the calibrated probabilities of all labels."""
        return self.run(Classify, listed(texts), warn)

    def fill(self, texts: Texts, top: int = 5) -> list[Filled]:
        """The best words for each <mask> of each text."""
        if not isinstance(top, int | np.integer) or top < 1:
            raise InputError(f"top must be at least 1, not {top!r:.60}")
        return self.run(Fill, listed(texts), python_warning, top=top)

    def embed(
        self, texts: Texts, *, pooling: str = "", warn: Warn = python_warning
    ) -> NDArray[np.float32]:
        """A vector of unit length for each text: [texts, D]. pooling: mean, cls or last."""
        return self.run(Embed, listed(texts), warn, pooling=pooling)

    def embed_tokens(
        self, texts: Texts, *, warn: Warn = python_warning
    ) -> list[tuple[list[str], NDArray[np.float32]]]:
        """For each text its tokens and the vector of each in this context: [n, D]."""
        return self.run(Embed, listed(texts), warn, tokens=True)

    def embedder(self) -> Embed:
        """The task embed, which every model of one stack can do that reads single texts."""
        return self.of(Embed)

    def index(
        self, documents: Path, folder: Path | None = None, quiet: bool = True, rebuild: bool = False
    ) -> Index:
        """The vectors of a file's lines, built now or found: in `folder`, or in the cache."""
        embedder, size = self.embedder(), self.config.model.d_model
        if self.folder is None:
            raise InputError("an index belongs to a model that is in a folder: regard.load(folder)")
        weights = self.folder / "model.safetensors"
        if weights.is_file():
            name = checksum(weights)
        else:  # an unfinished run
            name = tensor_digest({k: v.cpu() for k, v in self.transformer.state_dict().items()})
        identity = f"{name} {embedder.pooling} {self.transformer.output_matrix().dtype}"
        identity += f" {self.transformer.precision or ''}".rstrip()
        embed = partial(embedder.embed, self.transformer)
        where = folder or cache_folder() / "search"
        too_long = partial(count_cut, embedder.tokenizer, embedder.longest)
        index = find_or_build(where, documents, embed, identity, size, quiet, rebuild, too_long)
        if index.cut:
            warn_user(f"{documents}: {cut_note(index.cut, embedder.longest, 'line')}")
        return index

    def search(self, queries: Texts, documents: str | Path, top: int = 5) -> list[list[Hit]]:
        """The lines of a file that are nearest to each query, best first."""
        return self.index(Path(documents)).search(self.embed(queries), top)

    def decoding(self, options: dict[str, Any]) -> DecodingConfig:
        """The model's own options of decoding with these changes."""
        values = asdict(self.config.decoding) | options
        if options.get("temperature") and "beam" not in options:
            values["beam"] = 1
        beam = options.get("beam")  # of any type: it is checked with all others below
        if isinstance(beam, int) and beam > 1 and "temperature" not in options:
            values |= {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
        chosen = section(DecodingConfig, "decoding", values)
        model = self.config.model
        each = 2 * 4 * model.decoder_layers * model.heads * model.head_size  # keys, values; float32
        if (needed := each * chosen.width * chosen.max_length) > MOST_CACHE:
            raise InputError(
                f"decoding.max_length={chosen.max_length} with {chosen.width} hypotheses needs "
                f"{needed / 1e9:.1f} GB for one sentence: lower it, decoding.beam or "
                f"decoding.n_best (at most {MOST_CACHE / 1e9:.0f} GB)"
            )
        return chosen

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model, with its weights as they are in memory, as a new folder that
        `regard.load` opens.

        Args:
            path: the new folder; it must not exist, or must be empty.

        Returns:
            The path of the folder.

        Raises:
            InputError: the folder cannot be used, the weights contain NaN or infinity, or they no
                longer match the configuration.
        """
        return save_model(self, path)

    @property
    def scores(self) -> dict[str, Any]:
        """The final validation scores of the training, by name; empty if it had no validation data
        or has not finished, or if the model has no folder."""
        final = final_scores(self.folder) if self.folder is not None else {}
        return {name: value for name, value in final.items() if name not in SUMMARY}

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of the training, one dictionary for each line of metrics.jsonl: loss and
        speed of some steps (`loss`), validations (`valid_loss`) and the final scores (`final`)."""
        return read_history(self.folder) if self.folder is not None else []

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is read in one piece."""
        return self.config.longest_input
