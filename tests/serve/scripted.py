"""A translation model for tests that writes what a function returns, with attention weights."""

from __future__ import annotations

import asyncio
import random
import re
from types import SimpleNamespace

import torch

from regard.decoding.predictions import Prediction
from regard.serve.document import Format
from regard.serve.placeholders import NUMBERS
from regard.serve.translation import translate
from regard.text.tokenizer import Tokenizer

BYTES = Tokenizer("byte")


class ScriptedModel:
    """Translates from `languages[0]` to `languages[1]` by a function of a text, which returns an
    n-best list. A text of the same length attends to itself; other weights are random."""

    def __init__(self, write, languages=("en", "de")):
        self.write, self.languages, self.task = write, languages, "translate"
        self.model = SimpleNamespace(config=SimpleNamespace(decoding=SimpleNamespace(beam=4)))
        self.calls = []  # the texts of each batch

    async def predict(self, texts, n_best=1, beam=4, split=True, attention=False):
        assert not split
        assert n_best <= beam
        self.calls.append(list(texts))
        return [self.prediction(text, attention) for text in texts]

    def prediction(self, text, attention):
        source = [*BYTES.encode(text), BYTES.eos]
        first, *others = [
            Prediction(
                [*BYTES.encode(output), BYTES.eos], [], -float(i), "end", output, source,
                tokenizers=(BYTES, BYTES),
            )
            for i, output in enumerate(self.write(text))
        ]  # fmt: skip
        first.others = others
        if attention:
            n, m = len(first.token_ids), len(source)
            weights = torch.eye(n) if n == m else torch.rand(n, m)
            first.attention = {"cross": [weights[None]]}
        return first


def pool_of(*models):
    """A pool with these models."""

    def translator(source, target):
        return next(model for model in models if model.languages == (source, target))

    scheduler = SimpleNamespace(check_room=lambda tokens: None)
    return SimpleNamespace(
        of_task=lambda task: list(models), translator=translator, scheduler=scheduler
    )


def run(model, text, form=Format(), **options):  # noqa: B008 - a constant
    """Translate one text with a scripted model; returns the translation."""
    [translation] = asyncio.run(translate(pool_of(model), [text], "en", "de", form=form, **options))
    return translation.text


def copy(text):
    """Write the text itself."""
    return [text]


def garbler(seed):
    """A function that loses, repeats, changes and reorders the words of a text."""
    generator = random.Random(seed)

    def garble(text):
        outputs = []
        for _ in range(generator.randint(1, 4)):
            words = re.findall(r"\S+", text)
            for _ in range(generator.randint(0, 3)):
                i = generator.randrange(len(words) + 1)
                words[i:i] = generator.choice(
                    [["Wort"], words[:1], ["&"], ["<b>"], NUMBERS[:1], []]
                )
                del words[generator.randrange(len(words)) : generator.randint(0, len(words))]
                words = words or ["leer"]
                if generator.random() < 0.3:
                    generator.shuffle(words)
            outputs.append(" ".join(words))
        return outputs

    return garble
