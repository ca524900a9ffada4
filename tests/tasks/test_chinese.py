"""Translation from and to Chinese, which has no spaces between words."""

import pytest

import regard
from regard.tasks.configuration import make_config
from regard.tasks.train import train_config as train

PAIRS = [
    ("The dog sleeps.", "狗在睡觉。"),
    ("The cat sleeps.", "猫在睡觉。"),
    ("The dog eats fish.", "狗吃鱼。"),
    ("The cat eats fish.", "猫吃鱼。"),
    ("I drink tea.", "我喝茶。"),
    ("He drinks water.", "他喝水。"),
    ("I read a book.", "我读书。"),
    ("He reads a book.", "他读书。"),
]


@pytest.mark.parametrize("direction", [1, -1])
def test_small_model_overfits_chinese_sentences_in_both_directions(
    tmp_path, monkeypatch, direction
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    files = [str(tmp_path / name) for name in ("source", "target")]
    pairs = [pair[::direction] for pair in PAIRS]
    for path, lines in zip(files, zip(*pairs, strict=True), strict=True):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    config = make_config("translate", "tiny", {
        "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "heads": 2, "d_ff": 64, "dropout": 0.0},
        "data": {"train": files, "valid": files, "vocabulary_size": 330, "bleu": "zh" if direction == 1 else "13a"},
        "training": {"steps": 120, "warmup": 20, "learning_rate": 0.01, "batch_tokens": 256, "validate_every": 60, "average": 1},
    })  # fmt: skip
    scores = train(config, tmp_path / "run", quiet=True)
    model = regard.load(tmp_path / "run")
    assert model.translate([source for source, _ in pairs], beam=1) == [
        target for _, target in pairs
    ]
    assert scores["bleu"] == 100
    assert ("tok:zh" in scores["bleu_signature"]) == (direction == 1)
