"""A corpus small enough that a whole training takes a second."""

import pytest

from regard.files import cache_folder
from regard.tasks.configuration import make_config
from regard.text.builtin import builtin_corpus


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Files of 150 training and 12 validation pairs: (train, valid)."""
    native = cache_folder() / "native"
    native.mkdir(exist_ok=True)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (cache_folder() / "native").symlink_to(native)  # so that it is not compiled again and again
    paths = []
    for split, size in (("train", 150), ("valid", 12)):
        pairs = builtin_corpus(split)[:size]
        for side, name in enumerate(("en", "de")):
            path = tmp_path / f"{split}.{name}"
            path.write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
            paths.append(str(path))
    return paths[:2], paths[2:]


@pytest.fixture
def configure(corpus):
    """configure(training={"steps": 9}): a very small model on that corpus, with dropout."""
    train, valid = corpus

    def make(**sections):
        values = {
            "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16},
            "data": {"train": train, "valid": valid, "vocabulary_size": 300},
            "training": {
                "steps": 24, "batch_tokens": 300, "validate_every": 10, "checkpoint_every": 4,
                "keep": 3, "average": 3,
            },
            "decoding": {"max_length": 5},
        }  # fmt: skip
        for section, keys in sections.items():
            values[section] = {**values[section], **keys}
        return make_config("translate", "tiny", values)

    return make
