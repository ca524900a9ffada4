"""What the tests share: seeded random rows and models, and a fixed number of threads."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
import torch

from regard import ModelConfig, Packed, Transformer

with suppress(ImportError):  # tests/gpu also runs on machines that have only torch and pytest
    from hypothesis import settings

    # Derandomised: the same examples on every machine, so a failure is everybody's failure.
    settings.register_profile("regard", deadline=None, derandomize=True)
    settings.load_profile("regard")


# The tensors here are small: a second thread would only wait, and on a busy machine it waits long.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def row() -> Callable[..., Packed]:
    """row([3, 7]): random token ids below 20 in sequences of these lengths."""

    def make(lengths: Sequence[int], vocabulary: int = 20) -> Packed:
        return Packed.of([torch.randint(vocabulary, (length,)) for length in lengths])

    return make


@pytest.fixture(scope="session")
def model() -> Callable[..., Transformer]:
    """model(style="decoder", ...): a small model with random weights, float64, no dropout."""

    def make(engine: str = "auto", dtype: torch.dtype = torch.float64, **changes) -> Transformer:
        sizes = {"d_model": 16, "heads": 2, "d_ff": 24, "dropout": 0.0, "vocabulary_size": 20}
        style = changes.get("style", "encoder-decoder")
        for stack in ("encoder", "decoder"):
            if stack in style.split("-"):
                sizes[f"{stack}_layers"] = 2
        return Transformer(ModelConfig(**{**sizes, **changes}), engine).to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def run() -> Callable[..., torch.Tensor]:
    """run(model, source, target): the forward pass with the rows that the style takes."""

    def forward(model: Transformer, source: Packed, target: Packed, **options) -> torch.Tensor:
        config = model.config
        rows = source if config.has_encoder else None, target if config.has_decoder else None
        return model(*rows, **options)

    return forward
