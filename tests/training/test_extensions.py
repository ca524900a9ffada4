"""Runs with custom tokenizers, positions, schedules and metrics, and loading their models."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

import regard
from regard import InputError, Positions
from regard.config.registry import POSITIONS, SCHEDULES
from regard.config.sections import TrainingConfig
from regard.tasks import custom_metrics
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.training.optimiser import learning_rate
from regard.training.run import train

LINES = [
    (label, f"{label} {word}") for label in ("good", "bad") for word in ("film", "book", "play")
]
TEXTS = [text for _, text in LINES]


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    for registry in (POSITIONS, SCHEDULES):
        monkeypatch.setattr(registry, "_factories", {})
    monkeypatch.setattr(custom_metrics, "_METRICS", {})


def make(folder, model=(), training=(), data=()):
    file = folder / "train.tsv"
    file.write_text("".join(f"{label}\t{text}\n" for label, text in LINES), encoding="utf-8")
    sizes = {"encoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16}
    steps = {"steps": 3, "warmup": 1, "validate_every": 3, "checkpoint_every": 3, "average": 1}
    return make_config(
        "classify", "tiny",
        {
            "model": sizes | dict(model), "training": steps | dict(training),
            "data": {"train": [str(file)], "valid": [str(file)], **dict(data)},
        },
    )  # fmt: skip


def run(config, out, **options):
    return train(config, out, find_task=find_task, device="cpu", quiet=True, **options)


class Letters:
    vocab_size = 27

    def encode(self, text):
        return [ord(letter) - 97 if letter != " " else 26 for letter in text]

    def decode(self, ids):
        return "".join(chr(97 + i) if i < 26 else " " for i in ids)


def test_model_with_a_python_tokenizer_needs_it_again(tmp_path):
    run(make(tmp_path), tmp_path / "run", tokenizer=Letters())
    with pytest.raises(InputError, match="tokenizer.json: the model was trained with a tokenizer"):
        regard.load(tmp_path / "run", device="cpu")
    model = regard.load(tmp_path / "run", device="cpu", tokenizer=Letters())
    assert model.config.model.vocabulary_size == 27 + 6
    assert {label.label for label in model.classify(TEXTS)} <= {"good", "bad"}
    resumed = make(tmp_path, training={"steps": 4})
    run(resumed, tmp_path / "run", tokenizer=Letters(), resume=True)
    dropout = replace(resumed, data=replace(resumed.data, bpe_dropout=0.1))
    with pytest.raises(InputError, match="data.bpe_dropout needs a learned vocabulary"):
        run(dropout, tmp_path / "other", tokenizer=Letters())


def test_a_model_with_a_hugging_face_tokenizer_is_complete(tmp_path):
    transformers = pytest.importorskip("transformers")
    library = tokenizers.Tokenizer(BPE())
    library.pre_tokenizer = ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=280, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    library.train_from_iterator(TEXTS, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=library)
    run(make(tmp_path), tmp_path / "run", tokenizer=fast)
    model = regard.load(tmp_path / "run", device="cpu")
    assert model.config.model.vocabulary_size == library.get_vocab_size() + 6
    assert model.task.tokenizer.encode("good film") == [
        6 + i for i in fast.encode("good film", add_special_tokens=False)
    ]
    assert len(model.classify(TEXTS)) == len(TEXTS)


class Alibi(Positions):
    def __init__(self, config):
        super().__init__()
        rates = 0.5 ** torch.arange(1.0, config.heads + 1)
        self.register_buffer("rates", rates, persistent=False)

    def bias(self, distance):
        return -self.rates[:, None, None] * distance.abs()[..., None, :, :]


def test_run_with_custom_positions_schedule_and_metric(tmp_path, monkeypatch):
    regard.register_positions("alibi", Alibi)
    regard.register_schedule("halving", lambda step, config: config.learning_rate * 0.5**step)
    regard.register_metric(
        "top2",
        lambda p, classes: float((p.argsort(1)[:, -2:] == classes[:, None]).any(1).mean()),
        task="classify",
    )
    config = make(tmp_path, {"positions": "alibi"}, {"schedule": "halving"})
    scores = run(config, tmp_path / "run")
    assert scores["top2"] == 1.0  # there are two classes
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert any("top2" in json.loads(line) for line in lines)
    model = regard.load(tmp_path / "run", device="cpu")
    assert model.config.model.positions == "alibi"
    examples = [(tmp_path, row) for row in find_task("classify").read_file(tmp_path / "train.tsv")]
    assert model.evaluate_examples(examples).scores["top2"] == 1.0
    monkeypatch.setattr(POSITIONS, "_factories", {})
    with pytest.raises(InputError, match="unknown model.positions 'alibi'.*register_positions"):
        regard.load(tmp_path / "run", device="cpu")


def test_invalid_schedules_and_metrics_are_refused():
    regard.register_schedule("wrong", lambda step, config: float("nan"))
    config = TrainingConfig(schedule="wrong", learning_rate=1.0, warmup=1)
    with pytest.raises(InputError, match="the schedule 'wrong' returned nan for step 2"):
        learning_rate(2, config)
    with pytest.raises(InputError, match="unknown training.schedule 'zzz'; known: inverse-sqrt"):
        TrainingConfig(schedule="zzz")
    with pytest.raises(InputError, match="the task generate does not use registered metrics"):
        regard.register_metric("mine", len, task="generate")
    with pytest.raises(InputError, match="'bleu' is a built-in name"):
        regard.register_metric("bleu", len)
    regard.register_metric("mine", lambda predictions, references: "good")
    metric = custom_metrics.registered_metrics("translate", ["a"], ["b"])["mine"]
    with pytest.raises(InputError, match="the metric 'mine' returned 'good'"):
        metric(np.array([0]))
