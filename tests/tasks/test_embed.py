"""Tests of the task embed: vectors, losses and evaluation."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard import InputError, Packed
from regard.tasks.embed import Embed
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Pairs

CLS, EOS = Tokenizer.cls, Tokenizer.eos
CPU = torch.device("cpu")
TEXTS = ["The dog slept.", "", "Der alte Mann sah das schöne Haus.", "x", "The dog slept."]


def rows_of(file):
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


@torch.no_grad()
def naive(model, text, pooling):
    """The vector of one text, computed without batches and number by number."""
    ids = model.embedder().tokenizer.encode(text)
    decoder = model.config.model.style == "decoder"
    row = [*ids, EOS] if decoder else [CLS, *ids]
    packed = Packed.of([row])
    hidden = model.transformer.hidden(*((None, packed) if decoder else (packed, None))).double()
    vector = hidden[0].clone() if pooling == "cls" else hidden[-1].clone()
    if pooling == "mean":
        for i in range(len(vector)):
            vector[i] = sum(float(hidden[t, i]) for t in range(len(row))) / len(row)
    length = math.sqrt(sum(float(v) ** 2 for v in vector))
    return [float(v) / length for v in vector]


@pytest.mark.parametrize(
    ("name", "style", "pooling"),
    [
        ("embed", "encoder", "mean"), ("embed", "encoder", "cls"), ("embed", "encoder", "last"),
        ("embed", "decoder", "mean"), ("embed", "decoder", "last"),
        ("fill", None, "mean"), ("fill", None, "cls"), ("classify", "encoder", "cls"),
        ("generate", None, "last"),
    ],
)  # fmt: skip
def test_vector_is_pooled_output_of_unit_length(name, style, pooling, loaded):
    model = loaded(name, style)
    vectors = model.embed(TEXTS, pooling=pooling)
    assert vectors.shape == (len(TEXTS), 16)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
        assert vector.tolist() == pytest.approx(naive(model, text, pooling), abs=1e-5)
    if pooling == "mean":  # the default
        assert np.array_equal(model.embed(TEXTS), vectors)


def test_vector_does_not_depend_on_batch(loaded, monkeypatch):
    model = loaded("embed")
    together = model.embed(TEXTS * 5)
    assert np.abs(together[:5] - model.embed(TEXTS)).max() < 1e-6
    for text, vector in zip(TEXTS, together, strict=False):
        assert np.abs(model.embed(text) - vector).max() < 1e-6
    monkeypatch.setattr("regard.tasks.batches.EVALUATED_TOKENS", 16)
    assert np.abs(model.embed(TEXTS * 5) - together).max() < 1e-6
    assert model.embed([]).shape == (0, 16)


def test_unknown_pooling_is_refused(loaded, call, tmp_path):
    model = loaded("embed")
    with pytest.raises(InputError, match="unknown pooling 'means'; did you mean 'mean'?"):
        model.embed("x", pooling="means")
    code, out, err = call(
        "embed", "-m", model.folder, "--pooling", "first", "--out", tmp_path / "v.npy", "x"
    )
    assert (code, out) == (2, "")
    assert err == "regard: unknown pooling 'first'; known: mean, cls, last\n"
    assert not list(tmp_path.glob("*v.npy"))
    with pytest.raises(InputError, match="model.pooling=cls and model.style=decoder cannot be"):
        loaded("generate").embed("x", pooling="cls")


def test_long_text_is_cut_with_warning(loaded, call):
    model = loaded("embed")
    long = "dog " * 100
    with pytest.warns(
        UserWarning, match="text 2 is longer than the 64 tokens .* only its beginning"
    ):
        vectors = model.embed(["x", long])
    tokenizer = model.task.tokenizer
    assert (
        np.abs(vectors[1] - model.embed(tokenizer.decode(tokenizer.encode(long)[:63]))).max() < 1e-6
    )
    code, out, err = call("embed", "-m", model.folder, stdin=["x", long])
    assert (code, out.count("\n"), err.count("\n")) == (0, 2, 1)
    assert err.startswith("regard: standard input:2: longer than the 64 tokens")


# ---- the loss ---------------------------------------------------------------------------


def pairs_of(a, b, scores=None, style="encoder"):
    """The batch that the task creates from these token ids."""

    class Stored:
        types = ("uint16", "uint16") if scores is None else ("uint16", "uint16", "float32")
        sides = len(types)

        @staticmethod
        def tokens(side, i):
            rows = (a, b, [[score] for score in scores or []])[side]
            return np.array(rows[i], np.float32 if side == 2 else np.uint16)

    return Embed(None, style).batch(Stored, np.arange(len(a)), CPU)


A = [[CLS, 10, 11], [CLS, 12], [CLS, 10, 11], [CLS, 14, 15, 16], [CLS, 17]]
B = [[CLS, 20], [CLS, 21, 22], [CLS, 23], [CLS, 21, 22], [CLS, 12]]


def cosines(model, a, b):
    vectors = [
        [F.normalize(model(Packed.of([row])).float(), dim=-1)[0] for row in side] for side in (a, b)
    ]
    return [[float(x @ y) for y in vectors[1]] for x in vectors[0]]


def shared(i, j):
    """Whether two pairs have a sentence in common, on any side."""
    return bool({tuple(A[i]), tuple(B[i])} & {tuple(A[j]), tuple(B[j])})


@torch.no_grad()
def test_loss_of_pairs_equals_double_loop_without_shared_sentences(network):
    model, task = network("encoder", head="pooling"), Embed(None, scale=7.0)
    cosine = cosines(model, A, B)
    total = 0.0
    for i in range(len(A)):
        rivals = [j for j in range(len(A)) if j == i or not shared(i, j)]
        forth = sum(math.exp(7 * cosine[i][j]) for j in rivals)
        back = sum(math.exp(7 * cosine[j][i]) for j in rivals)
        total -= 0.5 * (
            math.log(math.exp(7 * cosine[i][i]) / forth)
            + math.log(math.exp(7 * cosine[i][i]) / back)
        )
    batch = pairs_of(A, B)
    assert batch.same.tolist() == [[i == j or shared(i, j) for j in range(5)] for i in range(5)]
    assert [(i, j) for i, j in itertools.combinations(range(5), 2) if shared(i, j)] == [
        (0, 2),
        (1, 3),
        (1, 4),
    ]
    loss, same = task.loss(model, batch, 0.0)
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(same) == float(loss)
    assert batch.tokens == 5


@torch.no_grad()
def test_label_smoothing_equals_pytorch_and_is_finite_with_masked_sentences(network):
    model, task = network("encoder", head="pooling"), Embed(None, scale=7.0)
    a, b = [A[0], A[1], A[3]], [B[0], [CLS, 30], [CLS, 31]]
    similar = 7 * torch.tensor(cosines(model, a, b))
    expected = sum(
        F.cross_entropy(s, torch.arange(3), reduction="sum", label_smoothing=0.2) / 2
        for s in (similar, similar.t())
    )
    assert float(task.loss(model, pairs_of(a, b), 0.2)[0]) == pytest.approx(
        float(expected), rel=1e-5
    )
    assert task.loss(model, pairs_of(A, B), 0.2)[0].isfinite()


@torch.no_grad()
def test_loss_of_scored_pairs_equals_double_loop(network):
    model, task = network("encoder", head="pooling"), Embed(None, scale=5.0)
    scores = [1.0, 4.0, 2.5, 4.0, 0.0]
    own = [row[i] for i, row in enumerate(cosines(model, A, B))]
    inner = 1.0
    for i, j in itertools.product(range(5), repeat=2):
        if scores[i] > scores[j]:
            inner += math.exp(5 * (own[j] - own[i]))
    loss, _ = task.loss(model, pairs_of(A, B, scores), 0.0)
    assert float(loss) == pytest.approx(5 * math.log(inner), rel=1e-5)
    loss, _ = task.loss(model, pairs_of(A, B, [3.0] * 5), 0.0)
    assert float(loss) == 0  # equal scores have no order


def test_loss_of_single_or_equal_pairs_is_zero_with_finite_gradients(network):
    model, task = network("encoder", head="pooling", seed=4), Embed(None)
    for a, b in (([A[0]], [B[0]]), ([A[0]] * 3, [B[0]] * 3)):
        model.zero_grad()
        loss, _ = task.loss(model, pairs_of(a, b), 0.1)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_store_has_both_sides_and_score(configure, bpe, data, tmp_path):
    for name in ("embed", "scored"):
        task, config = Embed(bpe), configure(name)
        store, report = task.build([data[name][0][0]], tmp_path, config, True)
        rows = rows_of(data[name][0][0])
        assert (store.sides, report.kept) == (3 if name == "scored" else 2, len(rows))
        for i in (0, 1, len(rows) - 1):
            assert store.tokens(0, i).tolist() == [CLS, *bpe.encode(rows[i]["a"])]
            assert store.tokens(1, i).tolist() == [CLS, *bpe.encode(rows[i]["b"])]
        batch = task.batch(store, np.array([3, 1]), CPU)
        assert isinstance(batch, Pairs)
        assert batch.source.lengths == tuple(
            len(store.tokens(side, i)) for side in (0, 1) for i in (3, 1)
        )
        assert task.sizes(store)[0][3] == len(store.tokens(0, 3)) + len(store.tokens(1, 3))
        if name == "scored":
            assert batch.scores.tolist() == [rows[3]["score"], rows[1]["score"]]
        else:
            assert batch.scores is None


@pytest.mark.parametrize("scored", [True, False])
def test_mixing_rows_with_and_without_score_is_refused(scored, configure, tmp_path):
    rows = [{"a": "one", "b": "two"}, {"a": "three", "b": "four", "score": 1}]
    rows = [*reversed(rows)] if scored else rows
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "".join(json.dumps(row) + "\n" for row in [rows[0], rows[0] | {"a": "five"}, rows[1]])
    )
    message = (
        "no score, but the rows before it have one"
        if scored
        else "a score, but the rows before it have none"
    )
    with pytest.raises(InputError, match=f"{file}:3: {message}"):
        list(Embed.read([file], configure("embed")))


# ---- evaluation -------------------------------------------------------------------------


def test_sentence_is_nearest_to_itself_despite_rounding(loaded, tmp_path, call):
    model = loaded("embed")
    texts = [f"The dog number {i} saw the house {i * i}." for i in range(40)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"a": text, "b": text}) + "\n" for text in texts))
    code, out, err = call(
        "evaluate", "-m", model.folder, "--data", file, "--json", "--samples", 100
    )
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert (record["nearest"], record["reciprocal_rank"], record["examples"]) == (1, 1, 40)


def test_rank_of_partner_equals_count_of_nearer_sentences(loaded, data, call):
    model = loaded("embed")
    rows = rows_of(data["embed"][1][0])
    a, b = (model.embed([row[side] for row in rows]).astype(np.float64) for side in "ab")
    ranks = [sum(float(x @ y) > float(x @ b[i]) for y in b) for i, x in enumerate(a)]
    _, out, _ = call("evaluate", "-m", model.folder, "--data", *data["embed"][1], "--json")
    record = json.loads(out)
    assert record["nearest"] == pytest.approx(np.mean([rank == 0 for rank in ranks]), abs=1e-4)
    assert record["reciprocal_rank"] == pytest.approx(
        np.mean([1 / (1 + r) for r in ranks]), abs=1e-4
    )


def test_correlation_is_between_scores_and_cosines(loaded, data, call):
    model = loaded("scored")
    rows = rows_of(data["scored"][1][0])
    a, b = (model.embed([row[side] for row in rows]).astype(np.float64) for side in "ab")
    expected = np.corrcoef((a * b).sum(1), [row["score"] for row in rows])[0, 1]
    _, out, _ = call("evaluate", "-m", model.folder, "--data", *data["scored"][1], "--json")
    record = json.loads(out)
    assert record["pearson"] == pytest.approx(expected, abs=1e-4)
    assert list(record)[1:3] == ["spearman", "pearson"]
