"""generate: windows of documents, what is learned from them, and how a text goes on."""

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
def test_windows_have_every_token_of_every_document_once_and_in_order(sizes, longest):
    found = windows(np.array(sizes, np.int32), longest)
    places = [
        (document, place)
        for document, start, length in zip(*(column.tolist() for column in found), strict=True)
        for place in range(start, start + length)
    ]
    assert places == [(d, place) for d, size in enumerate(sizes) for place in range(size)]
    assert 1 <= found.lengths.min() <= found.lengths.max() <= longest


@given(sizes=documents, longest=st.integers(1, 12), seed=st.integers(1, 2**32 - 1))
def test_moved_windows_keep_their_document_and_length_and_stay_inside(sizes, longest, seed):
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


def test_moved_windows_reach_every_token_and_begin_at_many_places():
    sizes = np.array([23, 5, 8], np.int32)
    every = windows(sizes, 7)
    chosen = np.arange(len(every.starts))
    reached, begun = [set() for _ in sizes], [set() for _ in sizes]
    for seed in range(1, 200):
        for document, start, length in zip(*every.shifted(chosen, sizes, seed), strict=True):
            reached[document] |= set(range(start, start + length))
            begun[document].add(int(start))
    assert reached == [set(range(size)) for size in sizes]
    assert begun[0] == {*range(23 - 7 + 1), 20, 21}  # the last window has two tokens
    assert begun[1] == {0}  # it is the whole document
    assert len({tuple(every.shifted(chosen, sizes, seed).starts) for seed in range(1, 50)}) > 40


# ---- what is learned --------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(configure, bpe, data, tmp_path_factory):
    """A task with windows of 20 tokens, and the store of its documents."""
    config = configure("generate", data={"max_length": 20})
    task = Generate(bpe, "decoder", 20)
    store, report = task.build([data["generate"][0][0]], tmp_path_factory.mktemp("s"), config, True)
    assert report.kept == len(store) == 18
    return task, store


def test_a_store_has_the_documents_each_with_its_end(stored, data, bpe):
    _, store = stored
    for i, (_, text) in enumerate(read_documents(data["generate"][0][0])):
        assert store.tokens(0, i).tolist() == [*bpe.encode(text), EOS]
        assert "\n" in text


@pytest.mark.parametrize("seed", [0, 1, 77])
def test_at_each_place_the_token_that_follows_is_asked_for(seed, stored):
    task, store = stored
    every = np.arange(len(task.windows(store).starts))
    batch = task.batch(store, every, CPU, seed)
    assert batch.source is None
    assert batch.where is None
    read = batch.target.split(batch.target.tokens)
    said = batch.target.split(batch.labels)
    assert [len(row) for row in read] == task.sizes(store)[0].tolist()
    by_document = {}
    for row, wanted, (document, start, _) in zip(
        read, said, zip(*task.chosen(store, every, seed), strict=True), strict=True
    ):
        ids = [BOS, *store.tokens(0, int(document)).tolist()]
        assert row.tolist() == ids[start : start + len(row)]
        assert wanted.tolist() == ids[start + 1 : start + 1 + len(row)]
        assert row[1:].tolist() == wanted[:-1].tolist()
        by_document.setdefault(int(document), []).extend(wanted.tolist())
    if seed == 0:  # nothing is left out, nothing is learned twice
        for document, ids in by_document.items():
            assert ids == store.tokens(0, document).tolist()
        assert len(by_document) == len(store)


def test_a_batch_is_a_pure_function_of_its_seed(stored):
    task, store = stored
    batches = [task.batch(store, np.arange(12), CPU, seed).labels for seed in (5, 5, 6)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_a_file_can_be_one_document_with_all_its_blank_lines(configure, tmp_path, monkeypatch):
    content = "\n\nA first line.\n\n\n  indented\nlast\n\n"
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(content)
    config = configure("generate", data={"documents": "file", "vocabulary": "byte"})
    task = Generate(Tokenizer("byte"), "decoder", 20)
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert [text for _, text in task.read(files, config)] == [content] * 2
    store, _ = task.build(files, tmp_path / "cache", config, True)
    found = [task.tokenizer.decode(store.tokens(0, i).tolist()) for i in range(len(store))]
    assert found == [content] * 2
    monkeypatch.setattr(corpus, "LONGEST_DOCUMENT", 12)  # a larger one is cut, not shortened
    parts = list(read_documents(files[0], whole=True))
    assert len(parts) > 2
    assert "".join(part.text for part in parts) == content
    assert [part.line for part in parts] == sorted({part.line for part in parts})


# ---- perplexity -------------------------------------------------------------------------


@torch.no_grad()
def by_hand(model, texts, longest):
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
def test_the_perplexity_is_that_of_the_whole_text_window_by_window(
    vocabulary, loaded, trained, data, call
):
    model = loaded("generate", None, vocabulary=vocabulary)
    file = data["generate"][1][0]
    texts = [text for _, text in read_documents(file)]
    total, tokens = by_hand(model, texts, 64)
    code, out, err = call("evaluate", "-m", model.folder, "--data", file, "--json", "--samples", 50)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["loss"] == pytest.approx(-total / tokens, abs=2e-4)
    assert told["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-3)
    size = sum(len(text.encode()) for text in texts)
    assert (told["tokens"], told["bytes"]) == (tokens, size)
    assert told["bits_per_byte"] == pytest.approx(-total / math.log(2) / size, abs=2e-4)
    if vocabulary == "byte":  # a token is a byte, but for the ends of the documents
        assert tokens == size + len(texts)
        bits = told["loss"] / math.log(2) * tokens / size
        assert told["bits_per_byte"] == pytest.approx(bits, abs=2e-4)
    lines = (model.folder / "metrics.jsonl").read_text().splitlines()
    final = json.loads(lines[-1])  # what the validation said of the same file
    assert final["loss"] == pytest.approx(told["loss"], abs=2e-4)
    assert final["bits_per_byte"] == pytest.approx(told["bits_per_byte"], abs=2e-4)


# ---- going on ---------------------------------------------------------------------------


@torch.no_grad()
def argmax(model, read, steps):
    """The most probable token again and again, each time by a full pass over everything."""
    said = []
    while len(said) < steps and EOS not in said:
        logits = model.transformer(None, Packed.of([[*read, *said]]))
        said.append(int(logits[-1].argmax()))
    return said


GREEDY = {"temperature": 0.0, "beam": 1, "max_length": 15}
PROMPTS = ["", "The", "The old man saw the dog.\nThe ", "x"]


def test_greedy_text_is_what_full_passes_say(loaded):
    model = loaded("generate")
    answers = model.predict(PROMPTS, **GREEDY)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = model.task.tokenizer.encode(prompt)
        assert answer.token_ids == argmax(model, [BOS, *ids], 15)
        assert answer.text == model.task.tokenizer.decode(answer.token_ids)
        assert "".join(model.stream(prompt, **GREEDY)) == answer.text
        assert model.generate(prompt, **GREEDY) == answer.text  # independent of the batch


def test_a_prompt_longer_than_the_model_is_read_from_its_end_and_said_so(loaded, call):
    model = loaded("generate", None, vocabulary="byte")
    longest = model.longest
    fits, much = "f" * (longest - 1), "The beginning. " + "m" * (longest - 3) + "end"
    said = "longer than the 64 tokens that the model was trained on: only its end was read"
    with pytest.warns(UserWarning, match=f"text 2 is {said}") as warned:
        answers = model.predict([fits, much], **GREEDY)
    assert len(warned) == 1
    ids = model.task.tokenizer.encode(much)
    assert answers[1].source_ids == ids[-longest:]
    assert answers[1].token_ids == argmax(model, ids[-longest:], 15)
    ids = model.task.tokenizer.encode(fits)
    assert answers[0].token_ids == argmax(model, [BOS, *ids], 15)
    code, out, err = call("generate", "-m", model.folder, "--temperature", 0, "--max-length", 3,
                          stdin=["a", fits, much])  # fmt: skip
    assert (code, out.count("\n")) == (0, 3)
    assert err == f"regard: standard input:3: {said}\n"
    with pytest.warns(UserWarning, match=said):
        assert "".join(model.stream(much, **GREEDY)) == answers[1].text


def test_until_cuts_before_a_text(loaded, call):
    model = loaded("generate")
    whole = model.generate("The", temperature=0.0, max_length=40)
    middle = whole[5:8]
    assert len(middle) == 3
    cut = model.generate("The", temperature=0.0, max_length=40, until=middle)
    assert cut == whole[: whole.index(middle)]
    same = model.generate("The", temperature=0.0, max_length=40, until="never said by anybody")
    assert same == whole
    code, out, _ = call("generate", "-m", model.folder, "--temperature", 0, "--max-length", 40,
                        "--until", middle, "The")  # fmt: skip
    assert (code, out) == (0, "The" + cut + "\n")


def test_backslash_n_is_a_line_end_and_an_answer_then_is_one_line(loaded, call):
    model = loaded("generate", None, vocabulary="byte")
    options = ["--temperature", 2, "--max-length", 60, "--n-best", 8, "--json"]
    _, out, _ = call("generate", "-m", model.folder, *options, "The")
    free = json.loads(out)["n_best"]
    assert any("\n" in one["text"] for one in free)
    _, out, _ = call("generate", "-m", model.folder, *options, "--until", r"\n", "The")
    told = json.loads(out)
    assert [one["text"] for one in told["n_best"]] == [
        one["text"].partition("\n")[0] for one in free
    ]
    assert told["text"] == told["n_best"][0]["text"]
    for one, whole in zip(told["n_best"], free, strict=True):
        if "\n" in whole["text"]:  # its tokens end with the one that it was to stop before
            assert (one["stopped"], one["tokens"][-1]) == ("until", "\\n")
            assert one["tokens"] == whole["tokens"][: len(one["tokens"])]
            assert len(one["logprobs"]) == len(one["tokens"])
        else:
            assert one == whole


def test_one_line_comes_out_for_each_line_that_goes_in(loaded, call):
    model = loaded("generate", None, vocabulary="byte")
    given = ["The dog", "", " ", "a\tb", "x" * 30]
    options = ["--temperature", 2, "--max-length", 40, "--seed", 3]
    code, out, err = call("generate", "-m", model.folder, *options, stdin=given)
    lines = out.split("\n")
    assert (code, err, lines.pop()) == (0, "", "")
    assert len(lines) == len(given)
    for line, prompt in zip(lines, given, strict=True):
        assert line.startswith(prompt.replace("\t", " "))
        assert len(line) > len(prompt)
    code, out, _ = call("generate", "-m", model.folder, *options, "--json", stdin=given)
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["prompt"] for one in told] == given
    flat = str.maketrans("\n\r\t", "   ")
    assert [(p["prompt"] + p["text"]).translate(flat) for p in told] == lines


def test_the_same_seed_goes_on_the_same_way_and_another_does_not(loaded):
    model = loaded("generate")
    assert model.decoding({}) == DecodingConfig(beam=1, temperature=0.8, max_length=8)
    texts = [model.generate("The", seed=seed, max_length=30) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
