"""The gradient of a step does not depend on how its batch is split."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import ModelConfig, Transformer
from regard.files import cache_folder
from regard.tasks.make import learn_task


def test_splitting_a_batch_in_any_way_gives_the_same_gradient(configure):
    """The loss is divided by the tokens of the whole step, not by those of each part."""
    config = configure()
    task = learn_task(config, None, print, quiet=True)
    files = [Path(file) for file in config.data.train]
    store, _ = task.build(files, cache_folder(), config, True)
    values = {**config.model.to_dict(), "vocabulary_size": task.target.size,
              "source_vocabulary_size": task.source.size}  # fmt: skip
    model = Transformer(ModelConfig.from_dict(values)).double().eval()
    examples = np.arange(20)
    tokens = int(store.lengths[1][examples].sum())

    def gradients(parts):
        model.zero_grad()
        for part in parts:
            batch = task.batch(store, part, torch.device("cpu"))
            (task.loss(model, batch, 0.1)[0] / tokens).backward()
        return [p.grad.clone() for p in model.parameters()]

    whole = gradients([examples])

    @given(cuts=st.lists(st.integers(1, 19), unique=True, max_size=6))
    def check(cuts):
        for a, b in zip(gradients(np.split(examples, sorted(cuts))), whole, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)

    check()
