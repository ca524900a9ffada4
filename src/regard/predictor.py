"""A trained model, ready to use: `regard.load(folder)`.

What a model can do is its task's; the same names are verbs of the command line.
"""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.model import CHOICES, choice
from regard.config.sections import DTYPES, Config, DecodingConfig, section
from regard.decoding.answers import Answer
from regard.decoding.engines.cpu import cpu_model
from regard.decoding.search import Details
from regard.device import choose_device
from regard.errors import InputError
from regard.files import cache_folder, checksum, write_result
from regard.model.quantise import dequantise_all, quantise_all
from regard.model.transformer import Transformer
from regard.tasks.answer import Asked, Questions
from regard.tasks.classify import Classify, Label
from regard.tasks.embed import Embed
from regard.tasks.fill import Fill, Filled
from regard.tasks.generate import Generate
from regard.tasks.index import Hit, Index, find_or_build
from regard.tasks.make import load_task
from regard.tasks.task import Task
from regard.tasks.translate import Translate
from regard.training.checkpoint import read_raw, read_weights, to_bytes
from regard.training.model_folder import check_folder, file_checksums, load_weights
from regard.training.shipped import folder_of

Warn = Callable[[int, str], None]  # the number of a text, from 0, and what is to be said of it
Kind = TypeVar("Kind", bound=Task)
Texts = str | Sequence[str]

MOST_CACHE = 2_000_000_000  # bytes of the keys and values of one sentence
AUTO = {"cuda": "bfloat16", "cpu": "float32"}  # what dtype=auto is on a device


def python_warning(i: int, said: str) -> None:
    """The usual way to warn in Python: it names the line that called this module."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals is globals():
        level, frame = level + 1, frame.f_back
    warnings.warn(f"text {i + 1} is {said}", stacklevel=level)


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


def refuse_nan(results: Iterable[float]) -> None:
    """Raise an error if a model computed NaN: all of its weights may still be finite."""
    if any(map(math.isnan, results)):
        raise InputError(
            "the model computed NaN: its weights are damaged or too large for its precision; load "
            "it with dtype float32, or train it again"
        )


class Model:
    """A trained model and its vocabularies.

    Options of decoding are named as in the section `decoding` of a configuration, beam=1 for
    example; what is not given is as the model's own configuration has it.
    """

    def __init__(
        self, config: Config, transformer: Transformer, task: Task, folder: Path | None = None
    ) -> None:
        self.config, self.transformer, self.task = config, transformer.eval(), task
        self.folder = folder

    def of(self, kind: type[Kind]) -> Kind:
        """The task, if it is of this kind."""
        if not isinstance(self.task, kind):
            raise InputError(f"this model was trained to {self.task.name}: it cannot {kind.name}")
        return self.task

    # ---- translate ----------------------------------------------------------------------

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
    ) -> list[Answer]:
        """The same with tokens, log-probabilities, score and n-best list; on request with the best
        `alternatives` to each token, the `history` of the search and the `attention` of all heads.

        warn: called with the number of a text (from 0) that had to be cut, and what was done;
        otherwise that is a Python warning.
        """
        texts = listed(texts)
        check_text(prefix)
        task, details = self.of(Translate), Details(history, alternatives, attention)
        decoding = self.decoding(options)
        answers = task.answer(self.transformer, texts, decoding, self.longest, prefix, details)
        refuse_nan(answer.score for answer in answers)
        for i, answer in enumerate(answers):
            if answer.pieces:
                warn(i, self.in_pieces(len(answer.pieces)))
        return answers

    def stream(
        self, text: str, *, prefix: str = "", warn: Warn = python_warning, **options: Any
    ) -> Iterator[str]:
        """The translation, or what follows a prompt, bit by bit, as it comes."""
        check_text(text, prefix)
        if isinstance(self.task, Generate):
            decoding = self.decoding(options)
            if self.task.is_cut(self.task.request(text, self.longest).source):
                warn(0, self._only("end"))
            return self.task.stream(self.transformer, text, decoding, self.longest)
        task = self.of(Translate)
        requests = task.requests([text], self.longest, prefix)[0]
        if len(requests) > 1:
            warn(0, self.in_pieces(len(requests)))
        return task.stream(self.transformer, requests, self.decoding(options))

    def in_pieces(self, count: int) -> str:
        """What is said of a text that had to be cut."""
        done = f"translated in {count} pieces"
        if isinstance(self.task, Questions):
            done = f"the best answer of {count} windows is given"
        return f"longer than the {self.longest} tokens that the model was trained on: {done}"

    def score(
        self, pairs: Sequence[tuple[str, str]], *, warn: Warn = python_warning
    ) -> list[Answer]:
        """How probable given translations are: (source, translation) pairs. What is longer than
        the model was trained on is scored whole, with a warning."""
        for pair in pairs:
            if isinstance(pair, str) or not isinstance(pair, Sized) or len(pair) != 2:
                raise InputError(f"a pair is (source, translation), not {pair!r:.60}")
            check_text(*pair)
        limit = self.config.model.max_length if self.config.model.positions == "learned" else None
        found = self.of(Translate).score(
            self.transformer, pairs, self.config.decoding.length_penalty, limit
        )
        for i, answer in enumerate(found):
            if max(len(answer.source), len(answer.tokens)) > self.longest:
                warn(i, f"longer than the {self.longest} tokens that the model was trained on")
        return found

    # ---- the other tasks ----------------------------------------------------------------

    def answer(
        self, questions: Texts, context: Texts, *, warn: Warn = python_warning, **options: Any
    ) -> list[Answer]:
        """The answer to each question from its context, or from one context for all."""
        asked, contexts = listed(questions), listed(context)
        if len(contexts) == 1:
            contexts *= len(asked)
        if len(contexts) != len(asked):
            raise InputError(f"{len(asked)} questions but {len(contexts)} contexts")
        pairs = [Asked(c, q) for c, q in zip(contexts, asked, strict=True)]
        task, decoding = self.of(Questions), self.decoding(options)
        answers = task.answer(self.transformer, pairs, decoding, self.longest)
        refuse_nan(answer.score for answer in answers)
        for i, answer in enumerate(answers):
            if answer.pieces:
                warn(i, self.in_pieces(len(answer.pieces)))
        return answers

    def generate(
        self, prompts: Texts, *, until: str = "", warn: Warn = python_warning, **options: Any
    ) -> list[Answer]:
        """What follows each prompt; it stops before the text `until`, if that is given."""
        texts, task = listed(prompts), self.of(Generate)
        decoding = self.decoding(options)
        answers = task.answer(self.transformer, texts, decoding, self.longest, until)
        refuse_nan(answer.score for answer in answers)
        for i, answer in enumerate(answers):
            if task.is_cut(answer.source):
                warn(i, self._only("end"))
        return answers

    def classify(self, texts: Texts, *, warn: Warn = python_warning) -> list[Label]:
        """The label of each text, with the calibrated probabilities of all."""
        texts, task = listed(texts), self.of(Classify)
        self._warn_cut(texts, warn)
        labels = task.classify(self.transformer, texts)
        refuse_nan(label.probability for label in labels)
        return labels

    def fill(
        self, texts: Texts, top: int = 5, where: Callable[[int], str] = lambda i: f"text {i + 1}"
    ) -> list[Filled]:
        """The best words for each <mask> of each text; `where` names a text that has none."""
        if not isinstance(top, int | np.integer) or top < 1:
            raise InputError(f"top must be at least 1, not {top!r:.60}")
        filled = self.of(Fill).fill(self.transformer, listed(texts), top, self.longest, where)
        refuse_nan(p for one in filled for gap in one.gaps for _, p in gap.candidates)
        return filled

    def embed(
        self, texts: Texts, *, pooling: str = "", warn: Warn = python_warning
    ) -> NDArray[np.float32]:
        """A vector of unit length for each text: [texts, D]. pooling: mean, cls or last."""
        texts, embedder = listed(texts), self.embedder()
        self.check_pooling(pooling)
        self._warn_cut(texts, warn)
        vectors = embedder.embed(self.transformer, texts, pooling)
        refuse_nan(vectors.sum(1).tolist())
        return vectors

    def check_pooling(self, pooling: str) -> None:
        """Refuse what is no way to make one vector of many; none: the model's own."""
        if pooling:
            choice("pooling", pooling, CHOICES["pooling"])
            replace(self.config.model, head="pooling", classes=None, pooling=pooling)

    def embed_tokens(
        self, texts: Texts, *, warn: Warn = python_warning
    ) -> list[tuple[list[str], NDArray[np.float32]]]:
        """For each text its tokens and the vector of each in this context: [n, D]."""
        texts, embedder = listed(texts), self.embedder()
        self._warn_cut(texts, warn)
        return embedder.embed_tokens(self.transformer, texts)

    def embedder(self) -> Embed:
        """The task embed, which every model of one stack can do that reads a text as it does."""
        if isinstance(self.task, Embed):
            return self.task
        style = self.config.model.style
        if style == "encoder-decoder" or not isinstance(self.task, Fill | Classify | Generate):
            raise InputError(f"this model was trained to {self.task.name}: it cannot embed")
        return Embed(self.task.tokenizer, style, "mean", self.longest)

    def index(
        self, documents: Path, folder: Path | None = None, quiet: bool = True, rebuild: bool = False
    ) -> Index:
        """The vectors of a file's lines, made now or found: in `folder`, or in the cache."""
        embedder, size = self.embedder(), self.config.model.d_model
        if self.folder is None:
            raise InputError(
                "an index belongs to a model that lies in a folder: regard.load(folder)"
            )
        name = checksum(self.folder / "model.safetensors")
        identity = f"{name} {embedder.pooling} {self.transformer.output_matrix().dtype}"
        identity += f" {self.transformer.precision or ''}".rstrip()

        def embed(texts: list[str]) -> NDArray[np.float32]:
            return embedder.embed(self.transformer, texts)

        where = folder or cache_folder() / "search"
        return find_or_build(where, documents, embed, identity, size, quiet, rebuild)

    def search(self, queries: Texts, documents: str | Path, top: int = 5) -> list[list[Hit]]:
        """The lines of a file that are nearest to each query, best first."""
        return self.index(Path(documents)).search(self.embed(queries), top)

    def _warn_cut(self, texts: list[str], warn: Warn) -> None:
        for i, ids in enumerate(self.task.tokenizer.encode_batch(texts)):
            if len(ids) >= self.longest:
                warn(i, self._only("beginning"))

    def _only(self, part: str) -> str:
        long = f"longer than the {self.longest} tokens that the model was trained on"
        return f"{long}: only its {part} was read"

    # ---- options ------------------------------------------------------------------------

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

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is read in one piece."""
        longest = self.config.data.max_length
        if self.config.model.positions == "learned":
            longest = min(longest, self.config.model.max_length)
        return longest


def load(path: str | Path, device: str = "auto", dtype: str = "auto") -> Model:
    """Open a model folder, or one in the box: "box:translate" (regard/box).

    Args:
        dtype: float32, bfloat16, int8 (on a CPU), or auto: see AUTO.

    Raises:
        InputError: a file is missing, damaged or different from the one that the weights were saved
            with (see `accept_changes`), or the weights contain NaN or infinity.
    """
    return open_folder(path, device, dtype)


def open_folder(path: str | Path, device: str, dtype: str, changed: bool = False) -> Model:
    """See `load`. changed: accept files that differ from those the weights were saved with."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f'a model is a folder, or "box:translate", not {path!r:.60}')
    folder = folder_of(path)
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not a model: it has no config.yaml")
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder} has no model.safetensors: its training has not ended; "
            f"go on with: regard train --resume --out {folder}"
        )
    choice("device", str(device).partition(":")[0], ("auto", *AUTO))
    choice("dtype", dtype, DTYPES)
    config = check_folder(folder, changed)
    task = load_task(folder, config)
    transformer = Transformer(config.model)
    load_weights(transformer, read_weights(folder / "model.safetensors"), folder)
    if dtype == "int8":  # what is not done in int8, a view or a full pass, has the same weights
        transformer.load_state_dict(dequantise_all(quantise_all(transformer.state_dict()), folder))
    where = choose_device(device)
    if dtype == "auto":
        dtype = AUTO[where.type]
    weights = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    model = Model(config, transformer.to(where, weights), task, folder)
    if dtype == "int8":
        transformer.precision = dtype
        check_int8(transformer)
    return model


def check_int8(transformer: Transformer) -> None:
    """Refuse int8 where only PyTorch can serve."""
    if transformer.output_matrix().is_cuda:
        raise InputError("dtype=int8 is for a CPU: use device=cpu or another dtype")
    if cpu_model(transformer) is None:
        raise InputError(
            "dtype=int8 needs native code, which this machine or this model does not have: "
            "install a C++ compiler (g++ or clang++) or use another dtype"
        )


def accept_changes(path: str | Path) -> list[str]:
    """Record the current files of a model folder after an intended change, so that `load` accepts
    them. Returns their names. Nothing is written if the folder cannot be loaded."""
    folder = folder_of(path)
    open_folder(folder, "cpu", "float32", changed=True)
    files = file_checksums(folder)
    weights = folder / "model.safetensors"
    write_result(weights, to_bytes(read_raw(weights), files=files))
    return list(files)
