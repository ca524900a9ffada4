"""generate: windows of documents, training batches, perplexity, and completions."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import Packed
from regard.config.sections import DecodingConfig
from regard.tasks.documents import windows
from regard.tasks.generate import Generate
from regard.text import corpus
from regard.text.corpus import read_documents
from regard.text.tokenizer import Tokenizer

BOS, EOS = Tokenizer.bos, Tokenizer.eos
CPU = torch.device("cpu")

# ---- windows ----------------------------------------------------------------------------

documents = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@given(sizes=documents, longest=st.integers(1, 12))
def test_windows_contain_each_token_once_and_in_order(sizes, longest):
    result = windows(np.array(sizes, np.int32), longest)
    places = [
        (document, place)
        for document, start, length in zip(*(column.tolist() for column in result), strict=True)
        for place in range(start, start + length)
    ]
    assert places == [(d, place) for d, size in enumerate(sizes) for place in range(size)]
    assert 1 <= result.lengths.min() <= result.lengths.max() <= longest


@given(sizes=documents, longest=st.integers(1, 12), seed=st.integers(1, 2**32 - 1))
def test_shifted_windows_keep_document_and_length(sizes, longest, seed):
    sizes = np.array(sizes, np.int32)
    every = windows(sizes, longest)
    chosen = np.random.default_rng(seed).permutation(len(every.starts))[:5]
    moved = every.shifted(chosen, sizes, seed)
    assert moved.documents.tolist() == every.documents[chosen].tolist()
    assert moved.lengths.tolist() == every.lengths[chosen].tolist()
    assert (moved.starts >= 0).all()
    assert (moved.starts + moved.lengths <= sizes[moved.documents]).all()
    assert (abs(moved.starts - every.starts[chosen]) <= every.lengths[chosen] // 2).all()
    again = every.shifted(chosen, sizes, seed)
    assert moved.starts.tolist() == again.starts.tolist()


def test_shifted_windows_cover_all_tokens_and_many_starts():
    sizes = np.array([23, 5, 8], np.int32)
    every = windows(sizes, 7)
    chosen = np.arange(len(every.starts))
    reached, window_starts = [set() for _ in sizes], [set() for _ in sizes]
    for seed in range(1, 200):
        for document, start, length in zip(*every.shifted(chosen, sizes, seed), strict=True):
            reached[document] |= set(range(start, start + length))
            window_starts[document].add(int(start))
    assert reached == [set(range(size)) for size in sizes]
    assert window_starts[0] == {*range(23 - 7 + 1), 20, 21}  # the last window has two tokens
    assert window_starts[1] == {0}  # it is the whole document
    assert len({tuple(every.shifted(chosen, sizes, seed).starts) for seed in range(1, 50)}) > 40


# ---- training batches ------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(configure, bpe, data, tmp_path_factory):
    """A task with windows of 20 tokens, and the store of its documents."""
    config = configure("generate", data={"max_length": 20})
    task = Generate(bpe, "decoder", 20)
    store, report = task.build([data["generate"][0][0]], tmp_path_factory.mktemp("s"), config, True)
    assert report.kept == len(store) == 18
    return task, store


def test_store_has_each_document_with_eos(stored, data, bpe):
    _, store = stored
    for i, (_, text) in enumerate(read_documents(data["generate"][0][0])):
        assert store.tokens(0, i).tolist() == [*bpe.encode(text), EOS]
        assert "\n" in text


@pytest.mark.parametrize("seed", [0, 1, 77])
def test_label_is_the_next_token(seed, stored):
    task, store = stored
    every = np.arange(len(task.windows(store).starts))
    batch = task.batch(store, every, CPU, seed)
    assert batch.source is None
    assert batch.where is None
    inputs = batch.target.split(batch.target.tokens)
    labels = batch.target.split(batch.labels)
    assert [len(row) for row in inputs] == task.sizes(store)[0].tolist()
    by_document = {}
    for row, expected, (document, start, _) in zip(
        inputs, labels, zip(*task.chosen(store, every, seed), strict=True), strict=True
    ):
        ids = [BOS, *store.tokens(0, int(document)).tolist()]
        assert row.tolist() == ids[start : start + len(row)]
        assert expected.tolist() == ids[start + 1 : start + 1 + len(row)]
        assert row[1:].tolist() == expected[:-1].tolist()
        by_document.setdefault(int(document), []).extend(expected.tolist())
    if seed == 0:  # each token occurs exactly once
        for document, ids in by_document.items():
            assert ids == store.tokens(0, document).tolist()
        assert len(by_document) == len(store)


def test_a_batch_is_a_pure_function_of_its_seed(stored):
    task, store = stored
    batches = [task.batch(store, np.arange(12), CPU, seed).labels for seed in (5, 5, 6)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_whole_file_can_be_one_document_with_blank_lines(configure, tmp_path, monkeypatch):
    content = "\n\nA first line.\n\n\n  indented\nlast\n\n"
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(content)
    config = configure("generate", data={"documents": "file", "vocabulary": "byte"})
    task = Generate(Tokenizer("byte"), "decoder", 20)
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert [text for _, text in task.read(files, config)] == [content] * 2
    store, _ = task.build(files, tmp_path / "cache", config, True)
    texts = [task.tokenizer.decode(store.tokens(0, i).tolist()) for i in range(len(store))]
    assert texts == [content] * 2
    monkeypatch.setattr(corpus, "LONGEST_DOCUMENT", 12)  # a larger one is split and loses no text
    parts = list(read_documents(files[0], whole=True))
    assert len(parts) > 2
    assert "".join(part.text for part in parts) == content
    assert [part.line for part in parts] == sorted({part.line for part in parts})


# ---- perplexity -------------------------------------------------------------------------


@torch.no_grad()
def direct_sum(model, texts, longest):
    """The sum of all log-probabilities and the number of tokens, window by window."""
    total, tokens = 0.0, 0
    for text in texts:
        ids = [*model.task.tokenizer.encode(text), EOS]
        for start in range(0, len(ids), longest):
            part = ids[start : start + longest]
            before = ids[start - 1] if start else BOS
            logits = model.transformer(None, Packed.of([[before, *part[:-1]]]))
            total += float(logits.double().log_softmax(-1)[range(len(part)), part].sum())
            tokens += len(part)
    return total, tokens


@pytest.mark.parametrize("vocabulary", ["bpe", "byte"])
def test_perplexity_matches_a_direct_computation_by_window(vocabulary, loaded, trained, data, call):
    model = loaded("generate", None, vocabulary=vocabulary)
    file = data["generate"][1][0]
    texts = [text for _, text in read_documents(file)]
    total, tokens = direct_sum(model, texts, 64)
    code, out, err = call(
        "evaluate", "-m", model.folder, "--data", file, "--json", "--samples", 100
    )
    assert (code, err) == (0, "")
    output = json.loads(out)
    assert output["loss"] == pytest.approx(-total / tokens, abs=2e-4)
    assert output["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-3)
    size = sum(len(text.encode()) for text in texts)
    assert (output["tokens"], output["bytes"]) == (tokens, size)
    assert output["bits_per_byte"] == pytest.approx(-total / math.log(2) / size, abs=2e-4)
    if vocabulary == "byte":  # a token is a byte, except for <eos>
        assert tokens == size + len(texts)
        bits = output["loss"] / math.log(2) * tokens / size
        assert output["bits_per_byte"] == pytest.approx(bits, abs=2e-4)
    lines = (model.folder / "metrics.jsonl").read_text().splitlines()
    final = json.loads(lines[-1])  # the validation scores of the same file
    assert final["loss"] == pytest.approx(output["loss"], abs=2e-4)
    assert final["bits_per_byte"] == pytest.approx(output["bits_per_byte"], abs=2e-4)


# ---- completions -----------------------------------------------------------------------


@torch.no_grad()
def argmax(model, prompt, steps):
    """Greedy decoding with a full forward pass for each token."""
    tokens = []
    while len(tokens) < steps and EOS not in tokens:
        logits = model.transformer(None, Packed.of([[*prompt, *tokens]]))
        tokens.append(int(logits[-1].argmax()))
    return tokens


GREEDY = {"temperature": 0.0, "beam": 1, "max_length": 15}
PROMPTS = ["", "The", "The old man saw the dog.\nThe ", "x"]


def test_greedy_completion_matches_full_forward_passes(loaded):
    model = loaded("generate")
    completions = model.predict(PROMPTS, **GREEDY)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = model.task.tokenizer.encode(prompt)
        assert completion.token_ids == argmax(model, [BOS, *ids], 15)
        assert completion.text == model.task.tokenizer.decode(completion.token_ids)
        assert "".join(model.stream(prompt, **GREEDY)) == completion.text
        assert model.generate(prompt, **GREEDY) == completion.text  # independent of the batch


def test_long_prompt_is_truncated_at_its_start_with_a_warning(loaded, call):
    model = loaded("generate", None, vocabulary="byte")
    longest = model.longest
    fits, too_long = "f" * (longest - 1), "The beginning. " + "m" * (longest - 3) + "end"
    message = "longer than the 64 tokens that the model was trained on: only its end was read"
    with pytest.warns(UserWarning, match=f"text 2 is {message}") as warned:
        completions = model.predict([fits, too_long], **GREEDY)
    assert len(warned) == 1
    ids = model.task.tokenizer.encode(too_long)
    assert completions[1].source_ids == ids[-longest:]
    assert completions[1].token_ids == argmax(model, ids[-longest:], 15)
    ids = model.task.tokenizer.encode(fits)
    assert completions[0].token_ids == argmax(model, [BOS, *ids], 15)
    code, out, err = call("generate", "-m", model.folder, "--temperature", 0, "--max-length", 3,
                          stdin=["a", fits, too_long])  # fmt: skip
    assert (code, out.count("\n")) == (0, 3)
    assert err == f"regard: standard input:3: {message}\n"
    with pytest.warns(UserWarning, match=message):
        assert "".join(model.stream(too_long, **GREEDY)) == completions[1].text


def test_until_ends_the_completion_before_a_text(loaded, call):
    model = loaded("generate")
    whole = model.generate("The", temperature=0.0, max_length=40)
    middle = whole[5:8]
    assert len(middle) == 3
    cut = model.generate("The", temperature=0.0, max_length=40, until=middle)
    assert cut == whole[: whole.index(middle)]
    same = model.generate("The", temperature=0.0, max_length=40, until="a text that never occurs")
    assert same == whole
    code, out, _ = call("generate", "-m", model.folder, "--temperature", 0, "--max-length", 40,
                        "--until", middle, "The")  # fmt: skip
    assert (code, out) == (0, "The" + cut + "\n")


def test_until_backslash_n_ends_completions_at_a_newline(loaded, call):
    model = loaded("generate", None, vocabulary="byte")
    options = ["--temperature", 2, "--max-length", 60, "--n-best", 8, "--json"]
    _, out, _ = call("generate", "-m", model.folder, *options, "The")
    free = json.loads(out)["n_best"]
    assert any("\n" in completion["text"] for completion in free)
    _, out, _ = call("generate", "-m", model.folder, *options, "--until", r"\n", "The")
    output = json.loads(out)
    assert [completion["text"] for completion in output["n_best"]] == [
        completion["text"].partition("\n")[0] for completion in free
    ]
    assert output["text"] == output["n_best"][0]["text"]
    for cut, whole in zip(output["n_best"], free, strict=True):
        if "\n" in whole["text"]:  # its last token is the newline
            assert (cut["stopped"], cut["tokens"][-1]) == ("until", "\\n")
            assert cut["tokens"] == whole["tokens"][: len(cut["tokens"])]
            assert len(cut["logprobs"]) == len(cut["tokens"])
        else:
            assert cut == whole


def test_output_has_one_line_for_each_input_line(loaded, call):
    model = loaded("generate", None, vocabulary="byte")
    prompts = ["The dog", "", " ", "a\tb", "x" * 30]
    options = ["--temperature", 2, "--max-length", 40, "--seed", 3]
    code, out, err = call("generate", "-m", model.folder, *options, stdin=prompts)
    lines = out.split("\n")
    assert (code, err, lines.pop()) == (0, "", "")
    assert len(lines) == len(prompts)
    for line, prompt in zip(lines, prompts, strict=True):
        assert line.startswith(prompt.replace("\t", " "))
        assert len(line) > len(prompt)
    code, out, _ = call("generate", "-m", model.folder, *options, "--json", stdin=prompts)
    output = [json.loads(line) for line in out.splitlines()]
    assert [record["prompt"] for record in output] == prompts
    flat = str.maketrans("\n\r\t", "   ")
    assert [(p["prompt"] + p["text"]).translate(flat) for p in output] == lines


def test_completion_depends_on_the_seed(loaded):
    model = loaded("generate")
    assert model.decoding({}) == DecodingConfig(beam=1, temperature=0.8, max_length=8)
    texts = [model.generate("The", seed=seed, max_length=30) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
