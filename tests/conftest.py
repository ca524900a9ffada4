"""What the tests share: seeded random rows and models, and a fixed number of threads."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import command
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


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line in this process waits for native code: the engine must not depend on what
    was built before."""
    monkeypatch.setattr("regard.cli.main.hurried", lambda options: False)


@pytest.fixture(scope="session")
def row() -> Callable[..., Packed]:
    """row([3, 7]): random token ids below 20 in sequences of these lengths."""

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
    """run(model, source, target): the forward pass with the rows that the style takes."""

    def forward(model: Transformer, source: Packed, target: Packed, **options) -> torch.Tensor:
        config = model.config
        rows = source if config.has_encoder else None, target if config.has_decoder else None
        return model(*rows, **options)

    return forward


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """call("fill", "-m", folder, stdin=[lines]): the command line in this process, with a real
    file as standard input: (exit code, standard output, standard error)."""

    def run(*words: object, stdin: Iterable[str] = ()) -> tuple[object, str, str]:
        (tmp_path / "stdin").write_text("".join(line + "\n" for line in stdin), encoding="utf-8")
        with (tmp_path / "stdin").open() as file, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", file)
            code = command.run(*words)
        return code, *capsys.readouterr()

    return run
