"""Every task with the special tokens of a model from another toolkit: batches, predictions,
training, fine-tuning, evaluation and attention weights."""

from functools import cache

import numpy as np
import pytest
import torch

import regard
from regard import InputError
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.errors import RegardWarning
from regard.tasks.answer import QuestionInput, Questions
from regard.tasks.embed import Embed
from regard.tasks.fill import Fill
from regard.tasks.generate import Generate
from regard.tasks.rows import rows_to_file
from regard.tasks.sequences import arrange, request
from regard.tasks.translate import Translate
from regard.text.builtin import builtin_corpus
from tests.imported import imported
from tests.tasks.conftest import classified, questions, sentences

CPU = torch.device("cpu")
ROWS = {
    "translate": builtin_corpus("train", 24), "generate": sentences(24), "fill": sentences(24),
    "classify": [(text, label) for label, text in classified(24)], "answer": questions(24),
    "embed": builtin_corpus("train", 24),
}  # fmt: skip
CASES = [
    ("embed", "encoder", "bert"), ("embed", "decoder", "gpt2"), ("classify", "encoder", "bert"),
    ("classify", "encoder-decoder", "bart"), ("fill", "encoder", "bert"), ("fill", "encoder", "bart"),
    ("generate", "decoder", "gpt2"), ("generate", "decoder", "llama"),
    ("translate", "encoder-decoder", "marian"), ("translate", "encoder-decoder", "bart"),
    ("translate", "decoder", "bart"), ("answer", "encoder-decoder", "bart"),
]  # fmt: skip
TEXT = "The old horse slept."


def train(task, style, tokenizer=None, preset="tiny", **more):
    layers = {f"model.{side}_layers": 1 for side in ("encoder", "decoder") if side in style}
    settings = {
        "model.style": style, "model.d_model": 16, "model.heads": 2, "model.d_ff": 16,
        "data.max_length": 96, "decoding.max_length": 8, "training.batch_tokens": 600, **layers,
    }  # fmt: skip
    if task == "fill":
        settings["data.whole_words"] = True
    return regard.train(
        task, ROWS[task], ROWS[task][:4], preset=preset, settings=settings, steps=3,
        warmup=1, tokenizer=tokenizer, quiet=True, device="cpu", **more,
    )  # fmt: skip


@cache
def trained(task, style, kind):
    """A tiny model after three steps of training with an imported tokenizer."""
    return train(task, style, imported(kind))


def predict(model):
    if model.task.name == "answer":
        return model.answer("Where is Mary?", context="Mary went to the garden.")
    if model.task.name == "fill":
        return model.fill("The old <mask> slept in the (<mask>).")
    return model.predict(TEXT)


@pytest.mark.parametrize(("task", "style", "kind"), CASES)
def test_every_task_trains_predicts_and_loads(task, style, kind, tmp_path):
    model = trained(task, style, kind)
    assert model.tokenizer.fingerprint == imported(kind).fingerprint
    assert {row["step"] for row in model.history} >= {3}
    folder = model.save(tmp_path / "saved")
    loaded = regard.load(folder, device="cpu")
    assert loaded.tokenizer.specials == imported(kind).specials
    first, second = predict(model), predict(loaded)
    if task == "embed":
        assert np.array_equal(first, second)
        assert first.shape == (16,)
    else:
        assert first == second
    assert model.evaluate(ROWS[task][:4]).count >= 4
    if task == "answer":
        attention = model.attention("Where is Mary?", context="Mary went to the garden.")
    else:
        attention = model.attention(TEXT)
    assert all(np.isfinite(stack.weights).all() for stack in attention.stacks.values())


@pytest.mark.parametrize(("task", "before"), [("classify", "fill"), ("embed", "fill")])
def test_fine_tuning_keeps_the_imported_tokenizer(task, before, tmp_path):
    start = trained(before, "encoder", "bert").save(tmp_path / "start")
    model = train(task, "encoder", preset=None, start_from=start)
    assert model.tokenizer.specials == imported("bert").specials
    assert model.task.ids(["the"]) == [[2, *imported("bert").encode("the"), 3]]


# ---- what a model reads -----------------------------------------------------------------


def test_rows_of_encoders_are_cut_with_all_their_special_tokens():
    bert = imported("bert")
    for task in (
        trained("embed", "encoder", "bert").task,
        trained("classify", "encoder", "bert").task,
    ):
        [long] = task.ids(["the " * 500])
        assert len(long) == task.longest == 96
        assert (long[0], long[-1]) == (bert.cls, bert.sep)
        assert task.text_room() == 94
    short = Embed(bert, "encoder", 2)
    with pytest.raises(InputError, match="an input of 2 tokens has no room"):
        short.ids(["the"])


@pytest.mark.parametrize(("task", "style", "kind"), CASES)
def test_sizes_of_stored_examples_are_those_of_the_batches(task, style, kind, tmp_path):
    model = trained(task, style, kind)
    path = rows_to_file(task, ROWS[task], tmp_path / "rows.jsonl")
    store, _ = model.task.build([path], tmp_path, model.config, True)
    sizes = model.task.sizes(store)
    for i in range(len(sizes[0])):
        batch = model.task.batch(store, np.array([i]), CPU, seed=1)
        rows = [row for row in (batch.source, batch.target) if row is not None]
        assert [len(row.tokens) for row in rows] == [int(side[i]) for side in sizes]
        assert all(int(row.tokens.min()) >= 0 for row in rows)


@pytest.mark.parametrize(("style", "kind"), [("encoder-decoder", "bart"), ("encoder-decoder", "marian"),
                                             ("decoder", "bart"), ("encoder", "bart")])  # fmt: skip
def test_teacher_forcing(style, kind):
    tokenizer = imported(kind)
    both, end = (tokenizer, tokenizer), tokenizer.end
    task = Translate(tokenizer, tokenizer, style)
    rows = [np.array([10, 11, end], np.uint16)], [np.array([20, 21, 22, end], np.uint16)]
    batch = arrange(both, style, *rows, CPU)
    store = type("Store", (), {"lengths": [np.array([3]), np.array([4])]})
    sizes = [int(side[0]) for side in task.sizes(store)]
    labels = [20, 21, 22, 2]
    if style == "encoder-decoder":
        begin, forced = ([0], [0]) if kind == "bart" else ([], [])
        assert batch.source.tokens.tolist() == [*begin, 10, 11, 2]
        assert batch.target.tokens.tolist() == [tokenizer.bos, *forced, 20, 21, 22]
        assert batch.labels.tolist() == [*forced, *labels]
        assert sizes == [len(batch.source.tokens), len(batch.target.tokens)]
        return
    row = batch.target if style == "decoder" else batch.source
    read = request(both, style, [10, 11]).source
    assert row.tokens.tolist()[: len(read)] == read[: len(row.tokens)]
    assert row.tokens.tolist()[:4] == [0, 10, 11, 5]
    assert batch.labels.tolist() == labels
    assert batch.where.tolist() == [i + (3 if style == "decoder" else 4) for i in range(4)]
    assert sizes == [len(row.tokens)]


def test_a_forced_prefix_begins_every_output_and_is_not_text():
    model, bart = trained("translate", "encoder-decoder", "bart"), imported("bart")
    options, texts = model.decoding({}), [TEXT, "A dog."]
    for prediction in model.task.translate(model.transformer, texts, options, 96, prefix="the"):
        assert prediction.token_ids[0] == 0
        assert prediction.token_ids[1 : 1 + len(bart.encode("the"))] == bart.encode("the")
        assert prediction.text.startswith("the")
        assert prediction.source_ids[0] == 0
        assert prediction.source_ids[-1] == 2
        assert len(prediction.logprobs) == len(prediction.token_ids)
    scored = model.task.score(model.transformer, [(TEXT, "the dog")])[0]
    assert scored.token_ids == [0, *bart.encode("the dog"), 2]
    question = QuestionInput("Mary slept.", "Who?")
    [[made]] = Questions(bart, bart).requests([question], 96, 8)
    assert (made.prefix, made.limit) == ([0], 9)
    assert made.source == [0, *bart.encode("Mary slept."), 5, *bart.encode("Who?"), 2]


def test_requests_use_the_tokens_of_the_model():
    bart, gpt2 = imported("bart"), imported("gpt2")
    made = request((bart, bart), "encoder-decoder", [7, 8], prefix=[9], limit=5)
    assert made == Request([0, 7, 8, 2], [0, 9], 6, 2, 2, 4)
    task = Generate(gpt2, "decoder", 10)
    assert task.request_of([7, 8], 10) == Request([7, 8], (), None, 0, 0)
    assert task.request_of([], 10) == Request([0], (), None, 0, 0)


# ---- tokens that a model does not have --------------------------------------------------


def test_a_task_that_needs_a_missing_token_is_refused():
    with pytest.raises(InputError, match="fill needs a mask token"):
        Fill(imported("gpt2"), "encoder", 64)
    with pytest.raises(InputError, match="answer needs a token that separates"):
        Questions(imported("marian"), imported("marian"))
    with pytest.raises(InputError, match="translate needs a token that separates"):
        Translate(imported("gpt2"), imported("gpt2"), "decoder")
    with pytest.raises(InputError, match="translate needs a token that begins"):
        Translate(imported("bert"), imported("bert"))
    with pytest.raises(InputError, match="generate needs a token that ends"):
        train("generate", "decoder", imported("bert"))


# ---- fill -------------------------------------------------------------------------------


def test_hidden_words_are_whole_words_and_never_special_tokens():
    task, bert = trained("fill", "encoder", "bert").task, imported("bert")
    rows = [np.array(bert.frame(bert.encode(text), "encoder")) for text in sentences(20)]
    tokens = np.concatenate(rows)
    starts = bert.word_starts(tokens)
    for seed in range(1, 20):
        batch = task.hide(rows, CPU, seed)
        where = set(batch.where.tolist())
        assert not {bert.cls, bert.sep}.intersection(batch.labels.tolist())
        for place in where:
            assert {i for i in range(len(tokens)) if starts[i] == starts[place]} <= where
        changed = batch.source.tokens.numpy()
        assert np.isin(changed[list(where)], [bert.mask, *bert.text_ids]).all()


def test_filled_words_have_the_spaces_of_the_text():
    filled = trained("fill", "encoder", "bert").fill(
        "The old <mask> slept in the (<mask>).", top=400
    )
    assert len(filled.gaps[0].candidates) == len(imported("bert").text_ids)
    words = [gap.candidates[0][0] for gap in filled.gaps]
    assert filled.text == f"The old {words[0]} slept in the ({words[1]})."
    model = trained("fill", "encoder", "bart")
    filled = model.fill("the <mask> slept", top=3)
    word = filled.gaps[0].candidates[0][0]
    assert filled.text == ("the" if word.startswith(" ") else "the ") + word + " slept"


# ---- generate ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_streams_and_completions_are_equal(kind):
    model = trained("generate", "decoder", kind)
    for prompt in ("the cat", "", TEXT):
        whole = model.generate(prompt, temperature=1.0, max_length=20)
        assert "".join(model.stream(prompt, temperature=1.0, max_length=20)) == whole
    with pytest.warns(RegardWarning, match="only its end was read"):
        model.generate("the cat " * 200, temperature=0.0, max_length=2)


def test_bits_per_byte_count_the_bytes_of_the_text():
    scores = trained("generate", "decoder", "gpt2").evaluate(ROWS["generate"][:3]).scores
    assert scores["bytes"] == sum(len(text.encode()) for text in ROWS["generate"][:3])
    gpt2 = imported("gpt2")
    assert scores["tokens"] == sum(len(gpt2.encode(text)) + 1 for text in ROWS["generate"][:3])


def test_an_output_ends_at_the_token_of_the_model():
    model = trained("generate", "decoder", "gpt2")
    network = model.transformer
    options = model.decoding({"temperature": 0.0, "max_length": 30})
    [without] = decode(network, [Request([5, 6], eos=-1)], options)
    assert len(without.token_ids) == 30
    end = without.token_ids[3]
    [ended] = decode(network, [Request([5, 6], eos=end)], options)
    first = without.token_ids.index(end)
    assert ended.token_ids == without.token_ids[: first + 1]
    assert ended.stopped == "end"
