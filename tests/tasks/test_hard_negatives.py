"""embed: the loss, training and evaluation use the negative example of a row."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.tasks.embed import Embed, text_sides
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer

CLS, CPU = Tokenizer.cls, torch.device("cpu")
A = [[CLS, 10, 11], [CLS, 12], [CLS, 14, 15]]
B = [[CLS, 20], [CLS, 21, 22], [CLS, 23]]
N = [[CLS, 30], [CLS, 10, 11], [CLS, 23]]  # of the second row: A[0]; of the third: its own B


def batch_of(*rows):
    class Stored:
        types = ["uint16"] * len(rows)
        sides = len(types)

        @staticmethod
        def tokens(side, i):
            return np.array(rows[side][i], np.uint16)

    return Embed(None, "encoder").batch(Stored, np.arange(len(rows[0])), CPU)


@torch.no_grad()
def test_loss_with_negative_examples_matches_a_naive_loop(network):
    model, task = network("encoder", head="pooling"), Embed(None, scale=7.0)
    a, b, n = (
        [F.normalize(model(Packed.of([row])).float(), dim=-1)[0] for row in side]
        for side in (A, B, N)
    )
    total = 0.0
    for i in range(3):
        others = [n[j] for j in range(3) if N[j] not in (A[i], B[i])]
        candidates = [math.exp(7 * float(a[i] @ x)) for x in (*b, *others)]
        back = [math.exp(7 * float(b[i] @ x)) for x in a]
        total -= 0.5 * math.log(candidates[i] / sum(candidates))
        total -= 0.5 * math.log(back[i] / sum(back))
    batch = batch_of(A, B, N)
    assert batch.tokens == 3
    loss, _ = task.loss(model, batch, 0.0)
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(loss) > float(task.loss(model, batch_of(A, B), 0.0)[0])


def test_the_negative_examples_have_a_gradient(network):
    model = network("encoder", head="pooling")
    table = next(iter(model.embeddings.values())).weight
    with torch.enable_grad():
        for sides, has in (((A, B, N), True), ((A, B), False)):
            loss, _ = Embed(None, scale=7.0).loss(model, batch_of(*sides), 0.0)
            (gradient,) = torch.autograd.grad(loss, [table])
            assert bool(gradient[30].abs().max() > 0) == has  # only N has this token


def test_training_with_negative_examples_moves_them_away(network):
    """Only training with the negative examples lowers their cosine similarity with A."""
    negatives = [[*row, 30 + i] for i, row in enumerate(A)]  # near A before training
    cosines = {}
    for name, sides in (("with", (A, B, negatives)), ("without", (A, B))):
        model = copy.deepcopy(network("encoder", head="pooling"))
        optimiser = torch.optim.Adam(model.parameters(), 2e-2)
        with torch.enable_grad():
            for _ in range(30):
                optimiser.zero_grad()
                Embed(None, scale=7.0).loss(model, batch_of(*sides), 0.0)[0].backward()
                optimiser.step()
        with torch.no_grad():
            a, n = (F.normalize(model(Packed.of(side)), dim=-1) for side in (A, negatives))
            cosines[name] = float((a * n).sum(-1).mean())
    assert cosines["with"] < cosines["without"] - 0.2, cosines


def test_store_and_evaluation_include_negative_examples(tmp_path, configure, bpe):
    rows = [{"anchor": f"a {n}", "positive": f"b {n}", "negative": f"c {n}"} for n in range(5)]
    path, plain = tmp_path / "triples.jsonl", tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        del row["negative"]
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configure("embed")
    task = Embed(bpe)
    store, _ = task.build([path], tmp_path, config, True)
    assert (store.sides, text_sides(store)) == (3, 3)
    assert bpe.decode(store.tokens(2, 3)[1:].tolist()) == "c 3"
    pairs, _ = task.build([plain], tmp_path, config, True)
    assert (task.sizes(store)[0] > task.sizes(pairs)[0]).all()

    class Near(Embed):
        """A text has the angle of its number; a negative example has the angle of its anchor."""

        def embed(self, model, texts, pooling=""):
            angles = [int(text[2:]) + (0.4 if text[0] == "b" else 0) for text in texts]
            return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)

    ranks = {}
    for file in (path, plain):
        examples = list(Near.read([file], config))
        ranks[file] = Near(bpe).evaluate(None, examples, config).scores["nearest"]
    assert ranks == {path: 0.0, plain: 1.0}


def test_rows_with_and_without_a_negative_example_cannot_be_mixed(tmp_path, call):
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"a": "x", "b": "y", "negative": "z"}\n{"a": "x", "b": "w"}\n')
    code, _, err = call("train", "--task", "embed", "--train", path, "--out", tmp_path / "m")
    assert code == 2
    assert err == f"regard: {path}:2: no negative, but the rows before it have one\n"
