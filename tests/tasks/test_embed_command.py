"""Tests of the commands embed and search: output formats, files, and conflicting options."""

import io
import json

import numpy as np
import pytest
import torch

from regard import InputError, Packed
from regard.text.tokenizer import Tokenizer

CLS = Tokenizer.cls
TEXTS = ["The dog slept.", "", "Der alte Mann sah das schöne Haus.", "x", "The dog slept."]


def test_text_json_and_file_output_have_the_same_vectors(loaded, call, tmp_path):
    model = loaded("embed")
    vectors = model.embed(TEXTS)
    code, out, err = call("embed", "-m", model.folder, stdin=TEXTS)
    assert (code, err) == (0, "")
    printed = np.array([[float(x) for x in line.split()] for line in out.splitlines()])
    assert np.abs(printed - vectors).max() < 1e-6
    _, out, _ = call("embed", "-m", model.folder, "--json", stdin=TEXTS)
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["text"] for record in records] == TEXTS
    assert np.abs(np.array([record["vector"] for record in records]) - vectors).max() < 2e-6
    code, out, err = call("embed", "-m", model.folder, "--out", tmp_path / "v.npy", stdin=TEXTS)
    assert (code, out, err) == (0, "", "")
    saved = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert saved.dtype == np.float32
    assert np.abs(saved - vectors).max() < 1e-6
    code, out, _ = call("embed", "-m", model.folder, "--out", tmp_path / "none.npy", stdin=[])
    assert np.load(tmp_path / "none.npy").shape == (0, 16)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError, InputError])
def test_unfinished_run_keeps_its_vectors_in_partial_file(
    stop, loaded, call, tmp_path, monkeypatch
):
    model = loaded("embed")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old.npy").write_bytes(b"previous content")
    calls = []

    def embed(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 2:
            raise stop("enough")
        return np.ones((1, 16), np.float32)

    monkeypatch.setattr("regard.tasks.embed.Embed.embed", embed)
    monkeypatch.setattr("regard.text.lines.MOST_LINES", 1)  # batches of one line
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
    assert (folder / "old.npy").read_bytes() == b"previous content"


@pytest.mark.parametrize("out", ["missing/v.npy", "."])
def test_invalid_output_path_is_refused_before_computation(out, loaded, call, tmp_path):
    code, output, err = call(
        "embed", "-m", loaded("embed").folder, "--out", tmp_path / out, stdin=TEXTS
    )
    assert (code, output, err.count("\n")) == (2, "", 1)
    assert str(tmp_path / out) in err
    assert [path.name for path in tmp_path.iterdir()] == ["stdin"]


def test_embed_tokens_returns_hidden_state_of_every_token(loaded, call):
    model = loaded("embed")
    tokenizer = model.task.tokenizer
    results = model.embed_tokens(TEXTS)
    for text, (tokens, vectors) in zip(TEXTS, results, strict=True):
        ids = [CLS, *tokenizer.encode(text)]
        assert tokens == tokenizer.tokens(ids)
        with torch.no_grad():
            hidden = model.transformer.hidden(Packed.of([ids])).numpy()
        assert vectors.shape == (len(ids), 16)
        assert np.abs(vectors - hidden).max() < 1e-5
    code, out, err = call("embed", "-m", model.folder, "--tokens", "--json", stdin=TEXTS)
    assert (code, err) == (0, "")
    for line, text, (tokens, vectors) in zip(out.splitlines(), TEXTS, results, strict=True):
        record = json.loads(line)
        assert (record["text"], record["tokens"]) == (text, tokens)
        assert np.abs(np.array(record["vectors"]) - vectors).max() < 1e-5
    _, out, _ = call("embed", "-m", model.folder, "--tokens", stdin=TEXTS)
    blocks = out.split("\n\n")[:-1]
    assert [len(block.splitlines()) for block in blocks] == [len(tokens) for tokens, _ in results]
    decoder = loaded("generate").embed_tokens("x")
    assert decoder[0][-1] == "<eos>"


def test_conflicting_options_are_one_line_error(loaded, call, tmp_path):
    for options in (["--tokens", "--out", tmp_path / "v.npy"], ["--out", tmp_path / "v.npy", "--json"],
                    ["--tokens", "--pooling", "cls"]):  # fmt: skip
        code, out, err = call("embed", "-m", loaded("embed").folder, *options, "text")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "cannot be combined" in err
    assert not (tmp_path / "v.npy").exists()


def test_line_is_its_own_best_hit(loaded, call, tmp_path, data):
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
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["query"] for record in records] == lines[2:4]
    assert [record["hits"][0]["line"] for record in records] == [3, 4]
    assert [len(record["hits"]) for record in records] == [2, 2]
    code, out, err = call("search", "-m", model.folder, "--documents", file, "--top", 1, lines[0])
    assert (code, out, err) == (0, f"1.0000\t1\t{lines[0]}\n", "")
    code, out, err = call("search", "-m", model.folder, "--documents", file, "--top", 0, "x")
    assert (code, out, err) == (2, "", "regard: --top must be at least 1, not 0\n")


def test_search_scores_are_cosines(loaded, tmp_path):
    model = loaded("fill")  # models of other tasks can embed as well
    lines = [f"The dog saw {i} cats." for i in range(30)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    query = "The cat saw 7 dogs."
    cosines = model.embed(lines).astype(np.float64) @ model.embed(query)
    hits = model.search(query, tmp_path / "lines.txt", top=30)
    assert {hit.line: pytest.approx(hit.score, abs=1e-5) for hit in hits} == {
        i + 1: cosine for i, cosine in enumerate(cosines.tolist())
    }


def test_translation_model_cannot_embed(trained, call, tmp_path):
    folder = trained("translate")
    for command in (["embed", "--out", tmp_path / "v.npy"], ["search", "--documents", "x"]):
        code, out, err = call(command[0], "-m", folder, *command[1:], "text")
        assert (code, out, err) == (
            2,
            "",
            "regard: this model was trained to translate: it cannot embed\n",
        )
    assert not list(tmp_path.glob("*.npy"))


def test_vector_file_equals_numpy_file(loaded, call, tmp_path):
    model = loaded("embed")
    call("embed", "-m", model.folder, "--out", tmp_path / "v.npy", stdin=TEXTS)
    buffer = io.BytesIO()
    np.save(buffer, np.load(tmp_path / "v.npy"))
    assert (tmp_path / "v.npy").read_bytes() == buffer.getvalue()
