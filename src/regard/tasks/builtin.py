"""Training on the built-in corpus: its files, and options that suit it (`regard demo`, the lab)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.files import write_file
from regard.text.builtin import builtin_corpus

OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 128, "dropout": 0.1},
    "data": {"vocabulary_size": 1000},
    "training": {
        "steps": 600, "batch_tokens": 2048, "warmup": 100, "learning_rate": 3e-3,
        "validate_every": 300, "checkpoint_every": 300, "average": 1,
    },
}  # fmt: skip


def write_corpus(folder: Path) -> dict[str, list[str]]:
    """Write the built-in corpus to a folder: English and German files of each split."""
    folder.mkdir(exist_ok=True)
    files: dict[str, list[str]] = {}
    for split in ("train", "valid", "test"):
        pairs = builtin_corpus(split)
        files[split] = [str(folder / f"{split}.{side}") for side in ("en", "de")]
        for side, name in enumerate(files[split]):
            write_file(Path(name), "".join(pair[side] + "\n" for pair in pairs))
    return files
