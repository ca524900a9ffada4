"""A model is a folder: `regard.load(path)` opens it.

config.yaml (complete), tokenizer.json (and source-tokenizer.json where the source has its own
vocabulary), model.safetensors, metrics.jsonl, README.md, and checkpoints/ while it trains.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import Config, DecodingConfig, choice, section
from regard.decoding.answers import Answer
from regard.decoding.search import Wanted
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import Checkpoints, read_tensors
from regard.training.processes import choose_device

Warn = Callable[[int, str], None]  # the number of a text, from 0, and what is to be said of it


def python_warning(level: int) -> Warn:
    """The usual way to warn in Python, so many calls above."""

    def warn(i: int, said: str) -> None:
        warnings.warn(f"text {i + 1} is {said}", stacklevel=level)

    return warn


def check_text(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a text is a string, not {text!r:.60}")


class Model:
    """A trained model and its vocabularies.

    Options of decoding are named as in the section `decoding` of a configuration, beam=1 for
    example; what is not given is as the model's own configuration has it.
    """

    def __init__(self, config: Config, transformer: Transformer, task: Translate) -> None:
        self.config, self.transformer, self.task = config, transformer.eval(), task

    def translate(self, texts: str | Sequence[str], **options: Any) -> list[str]:
        """One translation for each text."""
        options.setdefault("warn", python_warning(4))
        return [answer.text for answer in self.answers(texts, **options)]

    def answers(
        self,
        texts: str | Sequence[str],
        *,
        prefix: str = "",
        alternatives: int = 0,
        history: bool = False,
        attention: bool = False,
        warn: Warn | None = None,
        **options: Any,
    ) -> list[Answer]:
        """The same with tokens, log-probabilities, score and n-best list; on request with the best
        `alternatives` to each token, the `history` of the search and the `attention` of all heads.

        warn: called with the number of a text (from 0) that had to be cut, and what was done;
        otherwise that is a Python warning.
        """
        texts = [texts] if isinstance(texts, str) else texts
        check_text(prefix, *texts)
        wanted = Wanted(history=history, alternatives=alternatives, attention=attention)
        decoding = self.decoding(options)
        answers = self.task.answer(self.transformer, texts, decoding, self.longest, prefix, wanted)
        warn = warn or python_warning(3)
        for i, answer in enumerate(answers):
            if answer.pieces:
                warn(i, self._in_pieces(len(answer.pieces)))
        return answers

    def stream(
        self, text: str, *, prefix: str = "", warn: Warn | None = None, **options: Any
    ) -> Iterator[str]:
        """The translation bit by bit, as it comes."""
        check_text(text, prefix)
        requests = self.task.requests([text], self.longest, prefix)[0]
        if len(requests) > 1:
            (warn or python_warning(3))(0, self._in_pieces(len(requests)))
        return self.task.stream(self.transformer, requests, self.decoding(options))

    def _in_pieces(self, count: int) -> str:
        return (
            f"longer than the {self.longest} tokens that the model was trained on: "
            f"translated in {count} pieces"
        )

    def score(self, pairs: Sequence[tuple[str, str]], *, warn: Warn | None = None) -> list[Answer]:
        """How probable given translations are: (source, translation) pairs. What is longer than
        the model was trained on is scored whole, with a warning."""
        for pair in pairs:
            if len(pair) != 2 or isinstance(pair, str):
                raise InputError(f"a pair is (source, translation), not {pair!r:.60}")
            check_text(*pair)
        limit = self.config.model.max_length if self.config.model.positions == "learned" else None
        found = self.task.score(self.transformer, pairs, self.config.decoding.length_penalty, limit)
        warn = warn or python_warning(3)
        for i, answer in enumerate(found):
            if max(len(answer.source), len(answer.tokens)) > self.longest:
                warn(i, f"longer than the {self.longest} tokens that the model was trained on")
        return found

    def decoding(self, options: dict[str, Any]) -> DecodingConfig:
        """The model's own options of decoding with these changes."""
        values = asdict(self.config.decoding) | options
        if options.get("temperature") and "beam" not in options:
            values["beam"] = 1
        return section(DecodingConfig, "decoding", values)

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is translated in one piece."""
        longest = self.config.data.max_length
        if self.config.model.positions == "learned":
            longest = min(longest, self.config.model.max_length)
        return longest


def load(path: str | Path, device: str = "auto", dtype: str = "auto") -> Model:
    """Open a model folder. dtype: float32, bfloat16, or auto: bfloat16 on a GPU."""
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not a model: it has no config.yaml")
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder} has no model.safetensors: its training has not ended; "
            f"go on with: regard train --resume --out {folder}"
        )
    choice("dtype", dtype, ("auto", "float32", "bfloat16"))
    config = Config.load(folder / "config.yaml")
    transformer = Transformer(config.model)
    load_weights(transformer, read_tensors(folder / "model.safetensors"), folder)
    where = choose_device(device)
    if dtype == "auto":
        dtype = "bfloat16" if where.type == "cuda" else "float32"
    return Model(config, transformer.to(where, getattr(torch, dtype)), load_task(folder))


def newest_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a model, or of the newest whole checkpoint of a run that has not ended."""
    if (folder / "model.safetensors").is_file():
        return read_tensors(folder / "model.safetensors")
    checkpoints = Checkpoints(folder, 1, 1)
    state, _ = checkpoints.newest()
    if state is None:
        raise InputError(f"{folder} has neither model.safetensors nor a whole checkpoint")
    return checkpoints.weights(state["step"])


def load_task(folder: Path) -> Translate:
    target = Tokenizer.load(folder / "tokenizer.json")
    own = folder / "source-tokenizer.json"
    return Translate(Tokenizer.load(own) if own.exists() else target, target)


def load_weights(model: Transformer, tensors: dict[str, Tensor], where: Path) -> None:
    """Refuse weights of another shape in one line, with the first difference."""
    ours = model.state_dict()
    for name in sorted(ours.keys() | tensors.keys()):
        has = [str(list(t[name].shape)) if name in t else "nothing" for t in (tensors, ours)]
        if has[0] != has[1]:
            raise InputError(f"{where}: {name} is {has[0]} but the model needs {has[1]}")
    model.load_state_dict(tensors)
