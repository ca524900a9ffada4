"""classify: labels, their weights and their probabilities, in three styles."""

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


def test_an_encoder_reads_cls_and_the_text(stored, bpe):
    task, store, rows = stored("encoder")
    batch = task.batch(store, np.arange(5), CPU)
    found = [row.tolist() for row in batch.source.split(batch.source.tokens)]
    assert found == [[CLS, *bpe.encode(row.text)] for row in rows[:5]]
    assert [task.labels[i] for i in batch.labels.tolist()] == [row.label for row in rows[:5]]
    assert (batch.target, batch.tokens) == (None, 5)
    assert task.sizes(store)[0][:5].tolist() == [len(row) for row in found]


def test_the_other_styles_write_the_label_as_a_text(stored, bpe):
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
def test_the_class_is_told_from_the_vector_of_cls_alone(network):
    model = network("encoder", head="classifier", classes=3)
    row = Packed.of([[CLS, 10, 11, 12], [CLS, 20]])
    hidden = model.hidden(row)
    head = model.head
    expected = torch.stack([head.classes(torch.tanh(head.transform(hidden[i]))) for i in (0, 4)])
    assert torch.allclose(model(row), expected)
    noise = torch.randn_like(hidden)
    noise[[0, 4]] = 0  # every other vector may be anything
    assert torch.equal(head(hidden + noise, row, model.output_matrix()), model(row))


def test_a_label_may_have_any_character_but_control_characters():
    assert not wrong_labels(["nicht\u00a0gut", "好\u3000评", "👩\u200d🚀"])
    for control in "\n\t\x1b\x9b\u2028\u202e":
        assert "without control characters" in wrong_labels(["good", f"bad{control}"])


def test_labels_are_sorted_or_as_data_labels_has_them(configure, data, tmp_path):
    files = [*data["classify"][0]]
    counts = Counter(label for _, _, label in read_classified(files[0]))
    assert find_labels(counts, configure("classify"), files) == ["de", "en", "number"]
    order = ["number", "de", "en"]
    config = configure("classify", data={"labels": order}, training={"steps": 1})
    train(config, tmp_path / "run", quiet=True)
    assert regard.load(tmp_path / "run", "cpu").task.labels == order
    saved = json.loads((tmp_path / "run" / "labels.json").read_text())
    assert saved["labels"] == order


def test_a_long_text_is_cut_and_counted_and_said(configure, bpe, tmp_path, loaded, call):
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
    assert report.notes == {"cut to 64 tokens": 2}  # found, not made

    model = loaded("classify")
    said = "longer than the 64 tokens that the model was trained on: only its beginning was read"
    code, _, err = call("classify", "-m", model.folder, stdin=["a", "", long])
    assert (code, err) == (0, f"regard: standard input:3: {said}\n")
    with pytest.warns(UserWarning, match=f"text 2 is {said}"):
        found = model.classify(["short", long])
    beginning = model.task.tokenizer.decode(model.task.tokenizer.encode(long)[:63])
    assert found[1].probabilities == pytest.approx(model.classify(beginning).probabilities)


# ---- the loss ---------------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_is_pytorchs_with_and_without_weights(stored, network, bpe):
    model = network("encoder", head="classifier", classes=3, vocabulary_size=bpe.size)
    task, store, rows = stored("encoder")
    batch = task.batch(store, np.arange(20), CPU)
    logits = torch.cat(
        [model(Packed.of([[CLS, *bpe.encode(row.text)]])) for row in rows[:20]]
    ).float()
    wanted = torch.tensor([task.labels.index(row.label) for row in rows[:20]])
    loss, likelihood = task.loss(model, batch, 0.0)
    plain = F.cross_entropy(logits, wanted, reduction="sum")
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
        logits, wanted, torch.tensor(weights), reduction="sum", label_smoothing=0.1
    )
    assert float(loss) == pytest.approx(float(weighted), rel=1e-5)
    assert float(likelihood) == pytest.approx(float(plain), rel=1e-5)  # always the same measure
    twice, _ = task.loss(model, batch, 0.1, r_drop=3.0)  # without dropout both passes are one
    assert float(twice) == pytest.approx(float(weighted), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "style"), [("classify", "decoder"), ("classify", "encoder-decoder"), ("fill", None)]
)
def test_weights_are_refused_where_nothing_would_hear_them(name, style, configure):
    with pytest.raises(InputError, match=r"training.balance=true .*cannot be combined"):
        configure(name, style, training={"balance": True})


# ---- probabilities ----------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@torch.no_grad()
def test_probabilities_are_those_of_the_model_and_sum_to_one(style, loaded):
    model = loaded("classify", style)
    task, network = model.task, model.transformer
    temperature = task.temperature
    for text, found in zip(TEXTS, model.classify(TEXTS), strict=True):
        ids = task.tokenizer.encode(text)
        if style == "encoder":
            sums = network(Packed.of([[CLS, *ids]]))[0].double()
        else:
            sums = []
            for label in task.labels:
                said = [*task.tokenizer.encode(label), EOS]
                if style == "decoder":
                    row = [*ids, SEP, *said[:-1]]
                    logits = network(None, Packed.of([row]))[len(ids) :]
                else:
                    logits = network(Packed.of([[*ids, EOS]]), Packed.of([[BOS, *said[:-1]]]))
                sums.append(float(logits.double().log_softmax(-1)[range(len(said)), said].sum()))
            sums = torch.tensor(sums, dtype=torch.float64)
        expected = (sums / temperature).softmax(0).tolist()
        assert list(found.probabilities) == task.labels
        assert list(found.probabilities.values()) == pytest.approx(expected, abs=1e-4)
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert found.probability == max(found.probabilities.values())
        assert found.probabilities[found.label] == found.probability


@pytest.mark.parametrize("style", STYLES)
def test_a_text_has_the_same_label_whoever_is_beside_it(style, loaded):
    model = loaded("classify", style)
    together = model.classify(TEXTS * 3)
    for text, found in zip(TEXTS * 3, together, strict=True):
        alone = model.classify(text)
        assert (found.label, found.probability) == (
            alone.label,
            pytest.approx(alone.probability, abs=1e-5),
        )


@pytest.mark.parametrize("style", STYLES)
def test_calibration_makes_held_out_labels_more_probable_and_changes_none(
    style, network, bpe, configure, data
):
    head = {"head": "classifier", "classes": 3} if style == "encoder" else {}
    model = network(style, vocabulary_size=bpe.size, **head)
    task = Classify(bpe, style, 64, ["de", "en", "number"])
    examples = list(task.read(data["classify"][0], configure("classify")))[:40]
    wanted = [task.number(example) for example in examples]
    logits = task.logits(model, [row.text for _, row in examples])

    def likelihood(temperature):
        task.temperature = temperature
        found = task.probabilities(logits)
        assert np.allclose(found.sum(1), 1)
        return -np.log(found[range(len(wanted)), wanted]).mean()

    before, labels = likelihood(1.0), task.probabilities(logits).argmax(1).tolist()
    task.finish(model, examples)
    best = task.temperature
    assert 0.05 < best != 1.0
    assert likelihood(best) < before
    assert task.probabilities(logits).argmax(1).tolist() == labels
    for other in (0.5, 0.9, 1.1, 2) if best < 20 else (0.5, 0.9):  # 20: the bound
        assert likelihood(other * best) > likelihood(best)


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
def test_damaged_labels_are_one_line(damage, trained, tmp_path, call):
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


def test_an_empty_line_gives_an_empty_line(loaded, call):
    model = loaded("classify")
    given = ["The dog slept.", "", " \t", "Der Hund schlief."]
    code, out, err = call("classify", "-m", model.folder, stdin=given)
    assert (code, err) == (0, "")
    first, *blank, last = out.split("\n")[:-1]
    assert blank == ["", ""]
    for line, found in zip((first, last), model.classify([given[0], given[3]]), strict=True):
        assert line == f"{found.label}\t{found.probability:.4f}"
    code, out, _ = call("classify", "-m", model.folder, "--json", stdin=given)
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["text"] for one in told] == given
    assert told[1] == {"text": "", "label": None, "probability": None, "probabilities": {}}
    assert told[0]["probabilities"] == pytest.approx(model.classify(given[0]).probabilities)


def test_classes_may_be_numbered(configure, tmp_path, call):
    rows = [{"text": f"{word} {i}", "label": i % 2} for i, word in enumerate(["yes", "no"] * 8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configure("classify", data={"train": [str(tmp_path / "rows.jsonl")], "valid": []})
    train(config, tmp_path / "run", quiet=True)
    model = regard.load(tmp_path / "run", "cpu")
    assert model.task.labels == ["0", "1"]
    assert model.task.temperature == 1.0  # nothing was held out to fit it on
    assert model.classify("yes 3").label in ("0", "1")
