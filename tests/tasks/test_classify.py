"""Tests of the task classify: labels, class weights and probabilities, in three styles."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from regard import InputError, Packed
from regard.tasks.classify import Classify, find_labels, wrong_labels
from regard.tasks.train import train_config as train
from regard.text.corpus import read_classified
from regard.text.tokenizer import Tokenizer

CLS, EOS, SEP, BOS = Tokenizer.cls, Tokenizer.eos, Tokenizer.sep, Tokenizer.bos
CPU = torch.device("cpu")
STYLES = ("encoder", "decoder", "encoder-decoder")
TEXTS = ["The dog slept.", "Der Hund schlief.", "12 and 37", "x"]


@pytest.fixture(scope="module")
def stored(configure, data, bpe, tmp_path_factory):
    """stored("encoder"): the task and the store of the training file."""

    def make(style, labels=("de", "en", "number"), **more):
        file = data["classify"][0][0]
        task = Classify(bpe, style, 64, labels)
        config = configure("classify", style, **more)
        store, _ = task.build([file], tmp_path_factory.mktemp("store"), config, True)
        task.prepare(store, config)
        return task, store, list(read_classified(file))

    return make


# ---- data -------------------------------------------------------------------------------


def test_encoder_reads_cls_and_text(stored, bpe):
    task, store, rows = stored("encoder")
    batch = task.batch(store, np.arange(5), CPU)
    inputs = [row.tolist() for row in batch.source.split(batch.source.tokens)]
    assert inputs == [[CLS, *bpe.encode(row.text)] for row in rows[:5]]
    assert [task.labels[i] for i in batch.labels.tolist()] == [row.label for row in rows[:5]]
    assert (batch.target, batch.tokens) == (None, 5)
    assert task.sizes(store)[0][:5].tolist() == [len(row) for row in inputs]


def test_other_styles_generate_label_as_text(stored, bpe):
    task, store, rows = stored("decoder")
    batch = task.batch(store, np.arange(3), CPU)
    expected = [[*bpe.encode(row.text), SEP, *bpe.encode(row.label)] for row in rows[:3]]
    assert [row.tolist() for row in batch.target.split(batch.target.tokens)] == expected
    assert batch.labels.tolist() == [id for row in rows[:3] for id in (*bpe.encode(row.label), EOS)]
    assert task.sizes(store)[0][:3].tolist() == list(map(len, expected))
    task, store, rows = stored("encoder-decoder")
    batch = task.batch(store, np.arange(3), CPU)
    assert batch.source.lengths == tuple(len(bpe.encode(row.text)) + 1 for row in rows[:3])
    assert batch.target.lengths == tuple(len(bpe.encode(row.label)) + 1 for row in rows[:3])
    assert [side[:3].tolist() for side in task.sizes(store)] == [
        [*batch.source.lengths], [*batch.target.lengths],
    ]  # fmt: skip


@torch.no_grad()
def test_class_depends_only_on_vector_of_cls(network):
    model = network("encoder", head="classifier", classes=3)
    row = Packed.of([[CLS, 10, 11, 12], [CLS, 20]])
    hidden = model.hidden(row)
    head = model.head
    expected = torch.stack([head.classes(torch.tanh(head.transform(hidden[i]))) for i in (0, 4)])
    assert torch.allclose(model(row), expected)
    noise = torch.randn_like(hidden)
    noise[[0, 4]] = 0  # the other vectors have no effect
    assert torch.equal(head(hidden + noise, row, model.output_matrix()), model(row))


def test_label_may_contain_all_but_control_characters():
    assert not wrong_labels(["nicht\u00a0gut", "好\u3000评", "👩\u200d🚀"])
    for control in "\n\t\x1b\x9b\u2028\u202e":
        assert "without control characters" in wrong_labels(["good", f"bad{control}"])


def test_labels_are_sorted_or_have_order_of_data_labels(configure, data, tmp_path):
    files = [*data["classify"][0]]
    counts = Counter(label for _, _, label in read_classified(files[0]))
    assert find_labels(counts, configure("classify"), files) == ["de", "en", "number"]
    order = ["number", "de", "en"]
    config = configure("classify", data={"labels": order}, training={"steps": 1})
    train(config, tmp_path / "run", quiet=True)
    assert regard.load(tmp_path / "run", "cpu").task.labels == order
    saved = json.loads((tmp_path / "run" / "labels.json").read_text())
    assert saved["labels"] == order


def test_long_text_is_cut_with_note_and_warning(configure, bpe, tmp_path, loaded, call):
    long = "word " * 200
    (tmp_path / "rows.tsv").write_text(f"a\tshort\nb\t{long}\na\t{long}more\nb\tx\n")
    task = Classify(bpe, "encoder", 64, ["a", "b"])
    config = configure("classify")
    store, report = task.build([tmp_path / "rows.tsv"], tmp_path / "cache", config, True)
    assert report.notes == {"cut to 64 tokens": 2}
    assert str(report) == "4 kept, 2 cut to 64 tokens (kept)"
    assert task.sizes(store)[0].max() == 64
    row = task.batch(store, np.array([1]), CPU).source.tokens.tolist()
    assert row == [CLS, *bpe.encode(long)[:63]]
    _, report = task.build([tmp_path / "rows.tsv"], tmp_path / "cache", config, True)
    assert report.notes == {"cut to 64 tokens": 2}  # also if the store is read from the cache

    model = loaded("classify")
    warning = "longer than the 64 tokens that the model was trained on: only its beginning was read"
    code, _, err = call("classify", "-m", model.folder, stdin=["a", "", long])
    assert (code, err) == (0, f"regard: standard input:3: {warning}\n")
    with pytest.warns(UserWarning, match=f"text 2 is {warning}"):
        results = model.classify(["short", long])
    beginning = model.task.tokenizer.decode(model.task.tokenizer.encode(long)[:63])
    assert results[1].probabilities == pytest.approx(model.classify(beginning).probabilities)


# ---- the loss ---------------------------------------------------------------------------


@torch.no_grad()
def test_loss_equals_pytorch_cross_entropy_with_and_without_weights(stored, network, bpe):
    model = network("encoder", head="classifier", classes=3, vocabulary_size=bpe.size)
    task, store, rows = stored("encoder")
    batch = task.batch(store, np.arange(20), CPU)
    logits = torch.cat(
        [model(Packed.of([[CLS, *bpe.encode(row.text)]])) for row in rows[:20]]
    ).float()
    targets = torch.tensor([task.labels.index(row.label) for row in rows[:20]])
    loss, likelihood = task.loss(model, batch, 0.0)
    plain = F.cross_entropy(logits, targets, reduction="sum")
    assert float(loss) == pytest.approx(float(plain), rel=1e-5)
    assert float(likelihood) == pytest.approx(float(plain), rel=1e-5)

    task, store, rows = stored("encoder", training={"balance": True})
    counts = Counter(row.label for row in rows)
    # The formula of scikit-learn's class_weight="balanced": n / (classes * count).
    weights = [len(rows) / (3 * counts[label]) for label in task.labels]
    assert task.weights.tolist() == pytest.approx(weights)
    assert len(set(weights)) == 3
    assert sum(weights[task.labels.index(row.label)] for row in rows) == pytest.approx(len(rows))
    loss, likelihood = task.loss(model, batch, 0.1)
    weighted = F.cross_entropy(
        logits, targets, torch.tensor(weights), reduction="sum", label_smoothing=0.1
    )
    assert float(loss) == pytest.approx(float(weighted), rel=1e-5)
    # The second value has neither weights nor smoothing.
    assert float(likelihood) == pytest.approx(float(plain), rel=1e-5)
    twice, _ = task.loss(model, batch, 0.1, r_drop=3.0)  # both passes are equal without dropout
    assert float(twice) == pytest.approx(float(weighted), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "style"), [("classify", "decoder"), ("classify", "encoder-decoder"), ("fill", None)]
)
def test_class_weights_are_refused_without_classifier_head(name, style, configure):
    with pytest.raises(InputError, match=r"training.balance=true .*cannot be combined"):
        configure(name, style, training={"balance": True})


# ---- probabilities ----------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@torch.no_grad()
def test_probabilities_are_softmax_of_model_outputs(style, loaded):
    model = loaded("classify", style)
    task, network = model.task, model.transformer
    temperature = task.temperature
    for text, result in zip(TEXTS, model.classify(TEXTS), strict=True):
        ids = task.tokenizer.encode(text)
        if style == "encoder":
            sums = network(Packed.of([[CLS, *ids]]))[0].double()
        else:
            sums = []
            for label in task.labels:
                label_ids = [*task.tokenizer.encode(label), EOS]
                if style == "decoder":
                    row = [*ids, SEP, *label_ids[:-1]]
                    logits = network(None, Packed.of([row]))[len(ids) :]
                else:
                    logits = network(Packed.of([[*ids, EOS]]), Packed.of([[BOS, *label_ids[:-1]]]))
                sums.append(
                    float(logits.double().log_softmax(-1)[range(len(label_ids)), label_ids].sum())
                )
            sums = torch.tensor(sums, dtype=torch.float64)
        expected = (sums / temperature).softmax(0).tolist()
        assert list(result.probabilities) == task.labels
        assert list(result.probabilities.values()) == pytest.approx(expected, abs=1e-4)
        assert sum(result.probabilities.values()) == pytest.approx(1)
        assert result.probability == max(result.probabilities.values())
        assert result.probabilities[result.label] == result.probability


@pytest.mark.parametrize("style", STYLES)
def test_label_does_not_depend_on_batch(style, loaded):
    model = loaded("classify", style)
    together = model.classify(TEXTS * 3)
    for text, result in zip(TEXTS * 3, together, strict=True):
        alone = model.classify(text)
        assert (result.label, result.probability) == (
            alone.label,
            pytest.approx(alone.probability, abs=1e-5),
        )


@pytest.mark.parametrize("style", STYLES)
def test_calibration_lowers_cross_entropy_and_keeps_labels(style, network, bpe, configure, data):
    head = {"head": "classifier", "classes": 3} if style == "encoder" else {}
    model = network(style, vocabulary_size=bpe.size, **head)
    task = Classify(bpe, style, 64, ["de", "en", "number"])
    examples = list(task.read(data["classify"][0], configure("classify")))[:40]
    targets = [task.number(example) for example in examples]
    logits = task.logits(model, [row.text for _, row in examples])

    def cross_entropy(temperature):
        task.temperature = temperature
        probabilities = task.probabilities(logits)
        assert np.allclose(probabilities.sum(1), 1)
        return -np.log(probabilities[range(len(targets)), targets]).mean()

    before, labels = cross_entropy(1.0), task.probabilities(logits).argmax(1).tolist()
    task.finish(model, examples)
    best = task.temperature
    assert 0.05 < best != 1.0
    assert cross_entropy(best) < before
    assert task.probabilities(logits).argmax(1).tolist() == labels
    for factor in (0.5, 0.9, 1.1, 2) if best < 20 else (0.5, 0.9):  # 20 is the upper bound
        assert cross_entropy(factor * best) > cross_entropy(best)


def test_training_ends_with_a_calibration(loaded, data):
    model = loaded("classify")
    task = Classify(model.task.tokenizer, "encoder", 64, model.task.labels)
    task.finish(model.transformer, list(task.read(data["classify"][1], model.config)))
    assert task.temperature == model.task.temperature != 1.0


# ---- the folder and the command line ----------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"labels": ["de", "en", "number"]}',
        '{"labels": ["de", "en", "number"], "temperature": 0}',
        '{"labels": ["de", "en", "number"], "temperature": NaN}',
        '{"labels": ["de", "en", "number"], "temperature": "warm"}',
        '{"labels": ["de", "de", "number"], "temperature": 1}',
        '{"labels": ["de", "en", 3], "temperature": 1}',
        '{"labels": ["de", "en"], "temperature": 1}',
        '{"labels": "abc", "temperature": 1}',
        '{"labels": [], "temperature": 1}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_damaged_labels_file_is_one_line_error(damage, trained, tmp_path, call):
    folder = tmp_path / "model"
    shutil.copytree(trained("classify"), folder)
    (folder / "labels.json").write_text(damage)
    code, out, err = call("classify", "-m", folder, "text")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"regard: {folder / 'labels.json'} is not the one that")
    code, out, err = call("info", folder, "--accept-changes")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"regard: {folder / 'labels.json'}: ")
    (folder / "labels.json").unlink()
    code, out, err = call("classify", "-m", folder, "text")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_blank_line_gives_empty_line(loaded, call):
    model = loaded("classify")
    lines = ["The dog slept.", "", " \t", "Der Hund schlief."]
    code, out, err = call("classify", "-m", model.folder, stdin=lines)
    assert (code, err) == (0, "")
    first, *blank, last = out.split("\n")[:-1]
    assert blank == ["", ""]
    for line, result in zip((first, last), model.classify([lines[0], lines[3]]), strict=True):
        assert line == f"{result.label}\t{result.probability:.4f}"
    code, out, _ = call("classify", "-m", model.folder, "--json", stdin=lines)
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["text"] for record in records] == lines
    assert records[1] == {"text": "", "label": None, "probability": None, "probabilities": {}}
    assert records[0]["probabilities"] == pytest.approx(model.classify(lines[0]).probabilities)


def test_labels_may_be_integers(configure, tmp_path, call):
    rows = [{"text": f"{word} {i}", "label": i % 2} for i, word in enumerate(["yes", "no"] * 8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configure("classify", data={"train": [str(tmp_path / "rows.jsonl")], "valid": []})
    train(config, tmp_path / "run", quiet=True)
    model = regard.load(tmp_path / "run", "cpu")
    assert model.task.labels == ["0", "1"]
    assert model.task.temperature == 1.0  # there is no validation data to fit it on
    assert model.classify("yes 3").label in ("0", "1")
