"""embed: vectors, what they are learned from, and finding lines by them."""

import io
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
    """One text by itself, one number after another."""
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
def test_a_vector_is_the_pooled_output_of_unit_length(name, style, pooling, loaded):
    model = loaded(name, style)
    vectors = model.embed(TEXTS, pooling=pooling)
    assert vectors.shape == (len(TEXTS), 16)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
        assert vector.tolist() == pytest.approx(naive(model, text, pooling), abs=1e-5)
    if pooling == "mean":  # what the model does by itself
        assert np.array_equal(model.embed(TEXTS), vectors)


def test_a_vector_does_not_depend_on_the_batch(loaded, monkeypatch):
    model = loaded("embed")
    together = model.embed(TEXTS * 5)
    assert np.abs(together[:5] - model.embed(TEXTS)).max() < 1e-6
    for text, vector in zip(TEXTS, together, strict=False):
        assert np.abs(model.embed(text) - vector).max() < 1e-6
    monkeypatch.setattr("regard.tasks.batches.EVALUATED_TOKENS", 16)
    assert np.abs(model.embed(TEXTS * 5) - together).max() < 1e-6
    assert model.embed([]).shape == (0, 16)


def test_a_way_to_pool_that_does_not_exist_is_refused(loaded, call, tmp_path):
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


def test_of_a_long_text_the_beginning_is_read_and_that_is_said(loaded, call):
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
    """A batch as the task makes it, of token ids."""

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
    """Whether two pairs have a sentence in common, on whichever side."""
    return bool({tuple(A[i]), tuple(B[i])} & {tuple(A[j]), tuple(B[j])})


@torch.no_grad()
def test_the_loss_of_pairs_is_that_of_a_naive_double_loop_without_shared_sentences(network):
    model, task = network("encoder", head="pooling"), Embed(None, scale=7.0)
    found = cosines(model, A, B)
    total = 0.0
    for i in range(len(A)):
        rivals = [j for j in range(len(A)) if j == i or not shared(i, j)]
        forth = sum(math.exp(7 * found[i][j]) for j in rivals)
        back = sum(math.exp(7 * found[j][i]) for j in rivals)
        total -= 0.5 * (
            math.log(math.exp(7 * found[i][i]) / forth) + math.log(math.exp(7 * found[i][i]) / back)
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
def test_smoothing_is_pytorchs_and_stays_finite_where_sentences_are_left_out(network):
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
def test_the_loss_of_graded_pairs_is_that_of_a_naive_double_loop(network):
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
    assert float(loss) == 0  # no pair is better than another: nothing to learn


def test_a_single_pair_and_a_batch_of_the_same_sentence_teach_nothing_but_break_nothing(network):
    model, task = network("encoder", head="pooling", seed=4), Embed(None)
    for a, b in (([A[0]], [B[0]]), ([A[0]] * 3, [B[0]] * 3)):
        model.zero_grad()
        loss, _ = task.loss(model, pairs_of(a, b), 0.1)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_store_has_both_sides_and_the_score(configure, bpe, data, tmp_path):
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
def test_rows_with_and_without_score_do_not_mix(scored, configure, tmp_path):
    rows = [{"a": "one", "b": "two"}, {"a": "three", "b": "four", "score": 1}]
    rows = [*reversed(rows)] if scored else rows
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "".join(json.dumps(row) + "\n" for row in [rows[0], rows[0] | {"a": "five"}, rows[1]])
    )
    said = (
        "no score, but the rows before it have one"
        if scored
        else "a score, but the rows before it have none"
    )
    with pytest.raises(InputError, match=f"{file}:3: {said}"):
        list(Embed.read([file], configure("embed")))


# ---- how well ---------------------------------------------------------------------------


def test_a_sentence_is_nearest_to_itself_however_numbers_are_rounded(loaded, tmp_path, call):
    model = loaded("embed")
    texts = [f"The dog number {i} saw the house {i * i}." for i in range(40)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"a": text, "b": text}) + "\n" for text in texts))
    code, out, err = call("evaluate", "-m", model.folder, "--data", file, "--json", "--samples", 50)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["nearest"], told["reciprocal_rank"], told["examples"]) == (1, 1, 40)


def test_the_rank_of_the_partner_is_counted_by_hand(loaded, data, call):
    model = loaded("embed")
    rows = rows_of(data["embed"][1][0])
    a, b = (model.embed([row[side] for row in rows]).astype(np.float64) for side in "ab")
    ranks = [sum(float(x @ y) > float(x @ b[i]) for y in b) for i, x in enumerate(a)]
    _, out, _ = call("evaluate", "-m", model.folder, "--data", *data["embed"][1], "--json")
    told = json.loads(out)
    assert told["nearest"] == pytest.approx(np.mean([rank == 0 for rank in ranks]), abs=1e-4)
    assert told["reciprocal_rank"] == pytest.approx(np.mean([1 / (1 + r) for r in ranks]), abs=1e-4)


def test_grades_are_compared_with_cosines(loaded, data, call):
    model = loaded("scored")
    rows = rows_of(data["scored"][1][0])
    a, b = (model.embed([row[side] for row in rows]).astype(np.float64) for side in "ab")
    expected = np.corrcoef((a * b).sum(1), [row["score"] for row in rows])[0, 1]
    _, out, _ = call("evaluate", "-m", model.folder, "--data", *data["scored"][1], "--json")
    told = json.loads(out)
    assert told["pearson"] == pytest.approx(expected, abs=1e-4)
    assert list(told)[1:3] == ["spearman", "pearson"]


# ---- the command line -------------------------------------------------------------------


def test_numbers_lines_json_and_files_are_the_same_vectors(loaded, call, tmp_path):
    model = loaded("embed")
    vectors = model.embed(TEXTS)
    code, out, err = call("embed", "-m", model.folder, stdin=TEXTS)
    assert (code, err) == (0, "")
    printed = np.array([[float(x) for x in line.split()] for line in out.splitlines()])
    assert np.abs(printed - vectors).max() < 1e-6
    _, out, _ = call("embed", "-m", model.folder, "--json", stdin=TEXTS)
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["text"] for one in told] == TEXTS
    assert np.abs(np.array([one["vector"] for one in told]) - vectors).max() < 2e-6
    code, out, err = call("embed", "-m", model.folder, "--out", tmp_path / "v.npy", stdin=TEXTS)
    assert (code, out, err) == (0, "", "")
    saved = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert saved.dtype == np.float32
    assert np.abs(saved - vectors).max() < 1e-6
    code, out, _ = call("embed", "-m", model.folder, "--out", tmp_path / "none.npy", stdin=[])
    assert np.load(tmp_path / "none.npy").shape == (0, 16)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError, InputError])
def test_an_unfinished_run_keeps_its_vectors_in_a_partial_file(
    stop, loaded, call, tmp_path, monkeypatch
):
    model = loaded("embed")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old.npy").write_bytes(b"what was there")
    calls = []

    def embed(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 2:
            raise stop("enough")
        return np.ones((1, 16), np.float32)

    monkeypatch.setattr("regard.tasks.embed.Embed.embed", embed)
    monkeypatch.setattr("regard.text.lines.MOST_LINES", 1)  # a line at a time
    command = ["embed", "-m", model.folder, "--out", folder / "old.npy"]
    if stop is RuntimeError:
        with pytest.raises(RuntimeError, match="enough"):
            call(*command, stdin=TEXTS)
    else:
        code, _, err = call(*command, stdin=TEXTS)
        assert code == (130 if stop is KeyboardInterrupt else 2)
        assert f"not complete: the first 2 vectors are in {folder}/old.npy.partial\n" in err
    assert len(calls) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["old.npy", "old.npy.partial"]
    assert np.load(folder / "old.npy.partial", allow_pickle=False).tolist() == [[1.0] * 16] * 2
    assert (folder / "old.npy").read_bytes() == b"what was there"


@pytest.mark.parametrize("out", ["missing/v.npy", "."])
def test_a_file_that_cannot_be_written_is_one_line_before_any_work(out, loaded, call, tmp_path):
    code, said, err = call(
        "embed", "-m", loaded("embed").folder, "--out", tmp_path / out, stdin=TEXTS
    )
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert str(tmp_path / out) in err
    assert [path.name for path in tmp_path.iterdir()] == ["stdin"]


def test_every_token_has_a_vector_in_its_context(loaded, call):
    model = loaded("embed")
    tokenizer = model.task.tokenizer
    found = model.embed_tokens(TEXTS)
    for text, (tokens, vectors) in zip(TEXTS, found, strict=True):
        ids = [CLS, *tokenizer.encode(text)]
        assert tokens == tokenizer.tokens(ids)
        with torch.no_grad():
            hidden = model.transformer.hidden(Packed.of([ids])).numpy()
        assert vectors.shape == (len(ids), 16)
        assert np.abs(vectors - hidden).max() < 1e-5
    code, out, err = call("embed", "-m", model.folder, "--tokens", "--json", stdin=TEXTS)
    assert (code, err) == (0, "")
    for line, text, (tokens, vectors) in zip(out.splitlines(), TEXTS, found, strict=True):
        told = json.loads(line)
        assert (told["text"], told["tokens"]) == (text, tokens)
        assert np.abs(np.array(told["vectors"]) - vectors).max() < 1e-5
    _, out, _ = call("embed", "-m", model.folder, "--tokens", stdin=TEXTS)
    blocks = out.split("\n\n")[:-1]
    assert [len(block.splitlines()) for block in blocks] == [len(tokens) for tokens, _ in found]
    decoder = loaded("generate").embed_tokens("x")
    assert decoder[0][-1] == "<eos>"


def test_options_that_exclude_each_other_are_one_line(loaded, call, tmp_path):
    for options in (["--tokens", "--out", tmp_path / "v.npy"], ["--out", tmp_path / "v.npy", "--json"],
                    ["--tokens", "--pooling", "cls"]):  # fmt: skip
        code, out, err = call("embed", "-m", loaded("embed").folder, *options, "text")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "cannot be combined" in err
    assert not (tmp_path / "v.npy").exists()


def test_a_line_is_the_best_hit_for_itself(loaded, call, tmp_path, data):
    model = loaded("embed")
    lines = ["The dog slept.", "", "The queen saw the house.", "12 and 13", "Der Hund schlief."]
    file = tmp_path / "lines.txt"
    file.write_text("".join(line + "\n" for line in lines))
    for number, line in enumerate(lines, 1):
        if line:
            hits = model.search(line, file, top=3)
            assert (hits[0].line, hits[0].text) == (number, line)
            assert hits[0].score == pytest.approx(1, abs=1e-5)
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    code, out, err = call("search", "-m", model.folder, "--documents", file, "--top", 2, "--json",
                          lines[2], lines[3])  # fmt: skip
    assert (code, err) == (0, "")
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["query"] for one in told] == lines[2:4]
    assert [one["hits"][0]["line"] for one in told] == [3, 4]
    assert [len(one["hits"]) for one in told] == [2, 2]
    code, out, err = call("search", "-m", model.folder, "--documents", file, "--top", 1, lines[0])
    assert (code, out, err) == (0, f"1.0000\t1\t{lines[0]}\n", "")
    code, out, err = call("search", "-m", model.folder, "--documents", file, "--top", 0, "x")
    assert (code, out, err) == (2, "", "regard: --top must be at least 1, not 0\n")


def test_scores_of_a_search_are_the_cosines(loaded, tmp_path):
    model = loaded("fill")  # it has learned from text alone, and can embed as well
    lines = [f"The dog saw {i} cats." for i in range(30)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    query = "The cat saw 7 dogs."
    cosines = model.embed(lines).astype(np.float64) @ model.embed(query)
    hits = model.search(query, tmp_path / "lines.txt", top=30)
    assert {hit.line: pytest.approx(hit.score, abs=1e-5) for hit in hits} == {
        i + 1: cosine for i, cosine in enumerate(cosines.tolist())
    }


def test_a_translator_cannot_embed(trained, call, tmp_path):
    folder = trained("translate")
    for command in (["embed", "--out", tmp_path / "v.npy"], ["search", "--documents", "x"]):
        code, out, err = call(command[0], "-m", folder, *command[1:], "text")
        assert (code, out, err) == (
            2,
            "",
            "regard: this model was trained to translate: it cannot embed\n",
        )
    assert not list(tmp_path.glob("*.npy"))


def test_a_vector_file_is_what_numpy_would_write(loaded, call, tmp_path):
    model = loaded("embed")
    call("embed", "-m", model.folder, "--out", tmp_path / "v.npy", stdin=TEXTS)
    buffer = io.BytesIO()
    np.save(buffer, np.load(tmp_path / "v.npy"))
    assert (tmp_path / "v.npy").read_bytes() == buffer.getvalue()
