"""Fixtures for all tests: random inputs and models, the command line, a seed, and one thread."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import command
from regard import ModelConfig, Packed, Transformer

with suppress(ImportError):  # tests/gpu also runs on machines that have only torch and pytest
    from hypothesis import settings

    # Derandomised: every machine runs the same examples, so failures are reproducible.
    settings.register_profile("regard", deadline=None, derandomize=True)
    settings.load_profile("regard")


# The tensors of the tests are small: a second thread makes them slower, above all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _wait_for_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command line wait for native code, so that the engine does not depend on what was
    compiled before."""
    monkeypatch.setattr("regard.cli.main.hurried", lambda options: False)


@pytest.fixture(scope="session")
def row() -> Callable[..., Packed]:
    """row([3, 7]): a packed row of sequences of these lengths, with random token ids below 20."""

    def make(lengths: Sequence[int], vocabulary: int = 20) -> Packed:
        return Packed.of([torch.randint(vocabulary, (length,)) for length in lengths])

    return make


@pytest.fixture(scope="session")
def model() -> Callable[..., Transformer]:
    """model(style="decoder", ...): a small model with random weights, float64, no dropout."""

    def make(backend: str = "auto", dtype: torch.dtype = torch.float64, **changes) -> Transformer:
        sizes = {"d_model": 16, "heads": 2, "d_ff": 24, "dropout": 0.0, "vocabulary_size": 20}
        style = changes.get("style", "encoder-decoder")
        for stack in ("encoder", "decoder"):
            if stack in style.split("-"):
                sizes[f"{stack}_layers"] = 2
        return Transformer(ModelConfig(**{**sizes, **changes}), backend).to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def run() -> Callable[..., torch.Tensor]:
    """run(model, source, target): the forward pass with the inputs that the style of the model needs."""

    def forward(model: Transformer, source: Packed, target: Packed, **options) -> torch.Tensor:
        config = model.config
        rows = source if config.has_encoder else None, target if config.has_decoder else None
        return model(*rows, **options)

    return forward


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """call("fill", "-m", folder, stdin=[lines]): run the command line in this process, with a file
    as standard input; returns (exit code, standard output, standard error)."""

    def run(*words: object, stdin: Iterable[str] = ()) -> tuple[object, str, str]:
        (tmp_path / "stdin").write_text("".join(line + "\n" for line in stdin), encoding="utf-8")
        with (tmp_path / "stdin").open() as file, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", file)
            code = command.run(*words)
        return code, *capsys.readouterr()

    return run
