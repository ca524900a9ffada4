"""The models of a service, and how handlers use them.

Handlers call the methods of `ServedModel`, which have the names of the methods of `Model` and
return the same results. They wait for the model's thread (scheduler.py) without blocking the event
loop.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.decoding.predictions import Prediction
from regard.decoding.search import DecodingPlan
from regard.errors import InputError
from regard.predictor.loading import open_folder
from regard.predictor.model import Model
from regard.serve.errors import Loading, ServiceError
from regard.serve.scheduler import Scheduler
from regard.serve.settings import Limits, ModelName
from regard.tasks.classify import Label
from regard.tasks.fill import Filled

T = TypeVar("T")
INLINE = 2_000  # characters that are tokenised in the event loop; longer texts in another thread
LANGUAGES = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")  # source and target: "en-de"
FORMATS = {"csv", "gz", "tsv", "txt", "xz", "zst"}  # suffixes of files that are not languages


def ignore_warning(index: int, message: str) -> None:
    """A `warn` argument for predictions: a service has no one to warn about long texts."""


@dataclass(eq=False)
class ServedModel:
    """A loaded model in a service."""

    name: str
    model: Model
    scheduler: Scheduler
    limits: Limits
    languages: tuple[str, str] | None = None  # source and target, if it translates
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def task(self) -> str:
        """The name of the task that the model was trained for."""
        return self.model.task.name

    async def predict(self, inputs: Sequence[str], **options: Any) -> list[Prediction]:
        """Translate, answer or continue texts; arguments as for `Model.predict`."""
        plan = await self.plan(inputs, **options)
        transformer = self.model.transformer
        if transformer.decoder is None:  # it predicts all tokens at once, without a search
            run = partial(map, lambda each: each.run(transformer))
            sizes = [sum(len(request.source) for request in plan.requests)]
            [predictions] = await self.scheduler.compute(object(), list_of(run), [plan], sizes)
            return predictions
        return await self.scheduler.decode(transformer, plan)

    async def plan(self, inputs: Sequence[str], **options: Any) -> DecodingPlan:
        """Tokenise texts; see `Model.plan`."""
        make = partial(self.model.plan, list(inputs), warn=ignore_warning, **options)
        others = [options.get("prefix") or "", *(options.get("context") or ())]
        return await in_thread(make, sum(map(len, [*inputs, *others])))

    def stream(
        self, plan: DecodingPlan
    ) -> AsyncGenerator[tuple[list[int], Prediction | None], None]:
        """Decode a plan with one request token by token; see `Scheduler.stream`."""
        return self.scheduler.stream(self.model.transformer, plan)

    async def classify(self, texts: Sequence[str]) -> list[Label]:
        """See `Model.classify`."""
        classify = partial(self.model.classify, warn=ignore_warning)
        return await self._compute("classify", classify, texts)

    async def fill(self, texts: Sequence[str], top: int = 5) -> list[Filled]:
        """See `Model.fill`."""
        return await self._compute(f"fill {top}", partial(self.model.fill, top=top), texts)

    async def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """See `Model.embed`; one vector for each text."""
        return await self._compute("embed", partial(self.model.embed, warn=ignore_warning), texts)

    async def call(self, function: Callable[[], T], tokens: int) -> T:
        """Call a function in the model's thread, between two decoding steps."""
        run = list_of(partial(map, lambda each: each()))
        [result] = await self.scheduler.compute(object(), run, [function], [tokens])
        return result

    async def _compute(
        self, kind: str, function: Callable[[list[str]], Any], texts: Sequence[str]
    ) -> list[Any]:
        sizes = [len(text) // 3 + 2 for text in texts]
        return await self.scheduler.compute((self, kind), function, texts, sizes)


def list_of(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], list[Any]]:
    """A function that returns the results of another one as a list."""
    return lambda items: list(function(items))


async def in_thread(function: Callable[[], T], characters: int) -> T:
    """Call a function that processes this many characters: directly if there are few, otherwise in
    another thread, so that the event loop is not blocked."""
    return function() if characters <= INLINE else await asyncio.to_thread(function)


class ModelPool:
    """The models of a service by name, in the order of the command line."""

    def __init__(self, scheduler: Scheduler, limits: Limits) -> None:
        self.scheduler, self.limits = scheduler, limits
        self.models: dict[str, ServedModel] = {}
        self.ready = False  # whether all models are loaded

    def add(self, name: str, model: Model, languages: tuple[str, str] | None = None) -> None:
        """Add a loaded model."""
        if name in self.models:
            raise InputError(f"two models have the name {name!r}: write NAME=MODEL for one of them")
        if languages is None and model.task.name == "translate":
            languages = languages_of(name, model)
        self.models[name] = ServedModel(name, model, self.scheduler, self.limits, languages)

    def load(
        self, names: Sequence[ModelName], device: str = "auto", dtype: str = "auto",
        mapped: bool = False,
    ) -> None:  # fmt: skip
        """Load models, and mark the pool as ready.

        mapped: share the weights in memory with other processes; see `open_folder`.
        """
        for each in names:
            self.add(each.name, open_folder(each.path, device, dtype, mapped=mapped))
        self.ready = True

    def of_task(self, task: str) -> list[ServedModel]:
        """The models that were trained for a task."""
        return [model for model in self.models.values() if model.task == task]

    def find(self, task: str, name: str | None = None) -> ServedModel:
        """The model with this name, or the first one for the task.

        Raises:
            ServiceError: there is no such model, or it was trained for another task.
        """
        if name is not None and name in self.models:
            model = self.models[name]
            if model.task != task:
                raise ServiceError(
                    400,
                    f"the model {name!r} was trained to {model.task}: it cannot {task}",
                    field="model",
                )
            return model
        if not self.ready:
            raise Loading
        if name is not None:
            raise ServiceError(
                404, f"there is no model {name!r}; known: {', '.join(self.models) or 'none'}",
                code="model_not_found", field="model",
            )  # fmt: skip
        if not (models := self.of_task(task)):
            raise ServiceError(
                404, f"this service has no model for the task {task}", code="model_not_found"
            )
        return models[0]

    def translator(self, source: str, target: str) -> ServedModel:
        """The model that translates from one language to another.

        Raises:
            ServiceError: there is no such model.
        """
        models = self.of_task("translate")
        for model in models:
            if model.languages == (source, target):
                return model
        if not self.ready:
            raise Loading
        pairs = dict.fromkeys("-".join(model.languages) for model in models if model.languages)
        known = ", ".join(pairs)
        raise ServiceError(
            400, f"no model translates from {source} to {target}; known: {known or 'none'}",
            code="unsupported_languages", field="target",
        )  # fmt: skip


def languages_of(name: str, model: Model) -> tuple[str, str]:
    """The languages of a model, from its name, if that is a pair such as "en-de", or from the
    suffixes of its two training files.

    Raises:
        InputError: the languages are unknown.
    """
    if pair := LANGUAGES.fullmatch(name):
        return pair[1], pair[2]
    files = [Path(file) for file in model.config.data.train]
    suffixes = [[suffix[1:] for suffix in file.suffixes] for file in files]
    known = [
        next((s for s in reversed(each) if re.fullmatch("[a-z]{2,3}", s) and s not in FORMATS), "")
        for each in suffixes
    ]
    if len(known) == 2 and all(known) and known[0] != known[1]:
        return known[0], known[1]
    raise InputError(
        f"the languages of the model {name!r} are unknown: write -m en-de=MODEL for a model that "
        "translates from English to German"
    )
