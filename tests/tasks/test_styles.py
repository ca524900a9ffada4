"""Translation and question answering in three styles: batches, loss and decoding."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError, Packed
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.tasks import sequences
from regard.tasks.answer import QuestionInput, Questions
from regard.tasks.configuration import make_config
from regard.tasks.sequences import slots
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer
from regard.training.losses import token_loss

BOS, EOS, SEP, MASK = Tokenizer.bos, Tokenizer.eos, Tokenizer.sep, Tokenizer.mask
CPU = torch.device("cpu")
STYLES = ("encoder-decoder", "encoder", "decoder")
TOKENIZER = Tokenizer("byte")
arrange = partial(sequences.arrange, (TOKENIZER, TOKENIZER))
input_ids = partial(sequences.input_ids, TOKENIZER)


def ids(*rows):
    """Token ids that end with <eos>, as in a store."""
    return [np.array([*row, EOS], np.uint16) for row in rows]


SOURCES, TARGETS = ids([10, 11, 12], [13]), ids([20, 21], [22, 23, 24])


def rows_of(packed):
    return [] if packed is None else [row.tolist() for row in packed.split(packed.tokens)]


def test_encoder_decoder_input_is_bos_and_the_shifted_target():
    batch = arrange("encoder-decoder", SOURCES, TARGETS, CPU)
    assert rows_of(batch.source) == [[10, 11, 12, EOS], [13, EOS]]
    assert rows_of(batch.target) == [[BOS, 20, 21], [BOS, 22, 23, 24]]
    assert batch.labels.tolist() == [20, 21, EOS, 22, 23, 24, EOS]
    assert batch.where is None


def test_decoder_has_one_row_and_labels_for_the_target_only():
    batch = arrange("decoder", SOURCES, TARGETS, CPU)
    assert batch.source is None
    assert rows_of(batch.target) == [[10, 11, 12, SEP, 20, 21], [13, SEP, 22, 23, 24]]
    assert batch.labels.tolist() == [20, 21, EOS, 22, 23, 24, EOS]
    assert batch.where.tolist() == [3, 4, 5, 6 + 1, 6 + 2, 6 + 3, 6 + 4]


def test_encoder_has_slots_and_labels_up_to_eos():
    batch = arrange("encoder", SOURCES, TARGETS, CPU)
    assert batch.target is None
    assert rows_of(batch.source) == [
        [10, 11, 12, SEP, *[MASK] * slots(3)],
        [13, SEP, *[MASK] * slots(1)],
    ]
    assert batch.labels.tolist() == [20, 21, EOS, 22, 23, 24, EOS]
    second = 4 + slots(3)
    assert batch.where.tolist() == [4, 5, 6, *(second + 2 + i for i in range(4))]


def test_long_target_gets_enough_slots():
    target = ids(range(20, 20 + slots(1) + 4))
    batch = arrange("encoder", ids([13]), target, CPU)
    assert rows_of(batch.source) == [[13, SEP, *[MASK] * len(target[0])]]
    assert batch.where.tolist() == list(range(2, 2 + len(target[0])))


lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 25)), min_size=1, max_size=6)


@given(sizes=lengths, style=st.sampled_from(STYLES), seed=st.integers(0, 99))
def test_batches_of_all_lengths_match_labels_and_sizes(sizes, style, seed):
    random = np.random.default_rng(seed)
    sources, targets = (
        ids(*(random.integers(6, 50, n) for n in side)) for side in zip(*sizes, strict=True)
    )
    batch = arrange(style, sources, targets, CPU)
    row = batch.target if batch.target is not None else batch.source

    stored = [np.array([len(row) for row in side], np.int32) for side in (sources, targets)]
    sizes_of_task = Translate(TOKENIZER, TOKENIZER, style).sizes(SimpleNamespace(lengths=stored))
    actual = [[len(r) for r in rows_of(side)] for side in (batch.source, batch.target) if side]
    assert [side.tolist() for side in sizes_of_task] == actual
    assert batch.labels.tolist() == np.concatenate(targets).tolist()
    assert batch.tokens == len(batch.labels)
    if style == "encoder-decoder":
        return
    owner = np.repeat(np.arange(len(targets)), [len(target) for target in targets])
    bounds = row.offsets.tolist()
    for place, label, b in zip(batch.where.tolist(), batch.labels.tolist(), owner, strict=True):
        assert bounds[b] + len(sources[b]) - 1 <= place < bounds[b + 1]
        if style == "encoder":
            assert row.tokens[place] == MASK
        elif label != EOS:
            assert row.tokens[place + 1] == label
        else:
            assert place == bounds[b + 1] - 1


@pytest.mark.parametrize("style", STYLES)
def test_request_is_the_beginning_of_the_training_row(style):
    for source, target in zip(SOURCES, TARGETS, strict=True):
        batch = arrange(style, [source], [target], CPU)
        row = rows_of(batch.target if style == "decoder" else batch.source)[0]
        request = input_ids(style, source[:-1].tolist())
        assert row[: len(request)] == request
        if style != "decoder":
            assert row == request


# ---- the loss ---------------------------------------------------------------------------


def log_probabilities(model, style, source, target):
    """[n]: the log-probability of each token of one target, from the logits of the model."""
    source, target = source.tolist(), target.tolist()
    if style == "encoder-decoder":
        logits = model(Packed.of([source]), Packed.of([[BOS, *target[:-1]]]))
    elif style == "decoder":
        logits = model(None, Packed.of([[*source[:-1], SEP, *target[:-1]]]))[len(source) - 1 :]
    else:
        row = [*source[:-1], SEP, *[MASK] * max(slots(len(source) - 1), len(target))]
        logits = model(Packed.of([row]))[len(source) :][: len(target)]
    assert len(logits) == len(target)
    return torch.log_softmax(logits, -1)[range(len(target)), target]


@pytest.mark.parametrize("style", STYLES)
@torch.no_grad()
def test_loss_is_the_sum_over_separate_examples(style, network):
    model = network(style)
    sources, targets = ids([10, 11, 12], [13], [], [9] * 7), ids([20, 21], [22] * 9, [7], [])
    expected = [
        -log_probabilities(model, style, source, target).sum().item()
        for source, target in zip(sources, targets, strict=True)
    ]
    alone = [
        token_loss(model, arrange(style, [source], [target], CPU), 0.0, 0.0)
        for source, target in zip(sources, targets, strict=True)
    ]
    assert [float(loss) for loss, _ in alone] == pytest.approx(expected, rel=1e-5)
    assert [float(likelihood) for _, likelihood in alone] == pytest.approx(expected, rel=1e-5)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 2, 0]):  # independent of the other examples
        batch = arrange(style, [sources[i] for i in order], [targets[i] for i in order], CPU)
        loss, likelihood = token_loss(model, batch, 0.0, 0.0)
        assert float(loss) == pytest.approx(sum(expected[i] for i in order), rel=1e-5)
        assert float(likelihood) == pytest.approx(float(loss), rel=1e-6)


@torch.no_grad()
def test_decoder_target_tokens_do_not_see_later_tokens(network):
    model = network("decoder")

    def label_log_probabilities(target):
        batch = arrange("decoder", ids([10, 11, 12]), ids(target), CPU)
        logits = model(None, batch.target)[batch.where]
        return logits.log_softmax(-1)[range(len(batch.labels)), batch.labels]

    before, after = (label_log_probabilities([20, 21, last]) for last in (22, 30))
    assert torch.equal(before[:2], after[:2])
    assert not torch.isclose(before[2], after[2])  # a different label
    assert not torch.isclose(before[3], after[3])  # a different input


@torch.no_grad()
def test_encoder_input_does_not_contain_the_target(network):
    model = network("encoder")
    rows = [
        model(arrange("encoder", ids([10, 11]), ids(target), CPU).source)
        for target in ([20, 21, 22], [30, 31])
    ]
    assert torch.equal(*rows)


@pytest.mark.parametrize("style", STYLES)
def test_loss_has_no_gradient_for_predictions_of_input_tokens(style, network, monkeypatch):
    model = network(style, seed=5)
    batch = arrange(style, ids([10, 11, 12]), ids([20]), CPU)
    hidden = model.hidden(batch.source, batch.target).detach().requires_grad_()
    monkeypatch.setattr(model, "hidden", lambda source, target, plans: hidden)
    token_loss(model, batch, 0.0, 0.0)[0].backward()
    rows = hidden.grad.abs().sum(1) > 0
    where = range(len(hidden)) if batch.where is None else batch.where.tolist()
    assert rows.nonzero()[:, 0].tolist() == list(where)
    assert len(where) == 2


# ---- overfitted models ------------------------------------------------------------------

LINES = [
    ("The dog slept.", "Der Hund schlief."),
    ("A small cat!", "Eine Katze, und sie ist alt."),
    ("The old man saw the house.", "Haus"),
]
QUESTIONS = [
    QuestionInput("Mary is in the garden. John is here.", "Where is Mary?"),
    QuestionInput("John is here.", "Where is Mary?"),
    QuestionInput("", "Why?"),
]
ANSWERS = ["garden", "nobody knows", "so"]


@pytest.fixture(scope="module")
def overfitted(bpe):
    """overfitted("decoder", "translate"): a task, and a model that is overfitted to three examples."""

    @cache
    def make(style, name):
        from regard import ModelConfig, Transformer

        if name == "translate":
            task = Translate(bpe, bpe, style)
            sources = [bpe.encode(source) for source, _ in LINES]
            targets = [bpe.encode(target) for _, target in LINES]
        else:
            task = Questions(bpe, bpe, style)
            sources = [[*bpe.encode(c), SEP, *bpe.encode(q)] for c, q in QUESTIONS]
            targets = [bpe.encode(answer) for answer in ANSWERS]
        torch.manual_seed(1)
        layers = {f"{stack}_layers": 1 for stack in style.split("-")}
        config = ModelConfig(
            style=style, vocabulary_size=bpe.size, d_model=32, heads=2, d_ff=64, dropout=0.0,
            norm_first=True, **layers,
        )  # fmt: skip
        model = Transformer(config)
        optimiser = torch.optim.Adam(model.parameters(), 5e-3)
        batch = arrange(style, ids(*sources), ids(*targets), CPU)
        for _ in range(400):
            optimiser.zero_grad()
            loss, _ = task.loss(
                model, batch, 0.0
            )  # a sum: below log 2, each token has the highest probability
            (loss / batch.tokens).backward()
            optimiser.step()
            if loss < 0.3:
                break
        assert loss < 0.3
        return task, model.eval()

    return make


GREEDY = DecodingConfig(beam=1, max_length=30)


@pytest.mark.parametrize("style", STYLES)
def test_overfitted_model_translates_its_training_examples(style, overfitted):
    task, model = overfitted(style, "translate")
    sources, targets = zip(*LINES, strict=True)
    results = task.translate(model, sources, GREEDY, 100)
    assert [result.text for result in results] == list(targets)
    assert {result.stopped for result in results} == {"end"}
    assert all(result.token_ids[-1] == EOS for result in results)
    assert [r.text for r in task.translate(model, ["", sources[2]], GREEDY, 100)] == [
        "",
        targets[2],
    ]


@pytest.mark.parametrize("style", STYLES)
def test_overfitted_model_answers_its_training_questions(style, overfitted):
    task, model = overfitted(style, "answer")
    answers = task.plan_answers(QUESTIONS, GREEDY, 100).run(model)
    assert [answer.text for answer in answers] == ANSWERS
    assert not any(answer.pieces for answer in answers)


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_scores_sum_to_the_negative_loss(style, overfitted):
    task, model = overfitted(style, "translate")
    with torch.no_grad():
        sources, targets = (
            ids(*(task.target.encode(text) for text in side)) for side in zip(*LINES, strict=True)
        )
        loss, _ = task.loss(model, arrange(style, sources, targets, CPU), 0.0)
    assert sum(score.logprob for score in task.score(model, LINES)) == pytest.approx(
        -float(loss), rel=1e-3
    )


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_translation_begins_with_the_prefix(style, overfitted):
    task, model = overfitted(style, "translate")
    source, target = LINES[1]
    [answer] = task.translate(model, [source], GREEDY, 100, prefix="Eine Katze")
    assert answer.text == target
    [answer] = task.translate(model, [source], GREEDY, 100, prefix="Der Hund")
    assert answer.text.startswith("Der Hund")
    [request] = task.requests([source], 100, "Der Hund")[0]
    assert "".join(task.stream(model, [request], GREEDY)) == answer.text


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_max_length_limits_the_tokens_beyond_the_source_length(style, overfitted):
    task, model = overfitted(style, "translate")
    source = "The dog saw the old house in the garden."
    size = len(task.source.encode(source)) + 1  # <eos> or <sep>
    for more in (1, 5):
        options = DecodingConfig(beam=1, max_length=more, min_length=90)
        [answer] = task.translate(model, [source], options, 100)
        assert (len(answer.token_ids), answer.stopped) == (size + more, "length")
        assert task.target.decode(answer.token_ids) == "".join(
            task.stream(model, task.requests([source])[0], options)
        )


@pytest.mark.parametrize("style", STYLES)
def test_max_length_limits_answers_independently_of_the_context(style, overfitted):
    """An encoder always has as many slots as in training."""
    task, model = overfitted(style, "answer")
    for group in task.requests([*QUESTIONS, QuestionInput("a long context " * 9, "Why?")], 100, 7):
        assert {request.limit for request in group} == {7}
    if style != "encoder":
        options = DecodingConfig(beam=1, max_length=3, min_length=90)
        assert {
            len(a.token_ids) for a in task.plan_answers(QUESTIONS, options, 100).run(model)
        } == {3}


def test_encoder_refuses_options_that_it_does_not_support(overfitted):
    task, model = overfitted("encoder", "translate")
    for options in ({"temperature": 1.0, "beam": 1}, {"n_best": 2, "beam": 2}):
        with pytest.raises(InputError, match="model.style=encoder fills all places"):
            task.translate(model, ["The dog slept."], DecodingConfig(**options), 100)
    with pytest.raises(InputError, match="model.style=encoder fills all places"):
        task.translate(model, ["The dog slept."], GREEDY, 100, prefix="Der")
    with pytest.raises(
        InputError, match="a model with model.style=encoder predicts all tokens at once: it cannot"
    ):
        task.score(model, LINES)
    for options in ({"min_length": 3}, {"no_repeat": 2}):
        with pytest.raises(InputError, match="does not support sampling"):
            task.translate(model, ["The dog slept."], DecodingConfig(beam=1, **options), 100)


def test_encoder_streams_one_piece_and_respects_the_limit(overfitted):
    task, model = overfitted("encoder", "translate")
    [answer] = task.translate(model, ["The dog slept."], GREEDY, 100)
    assert list(task.stream(model, task.requests(["The dog slept."])[0], GREEDY)) == [answer.text]
    request = replace(task.requests(["The dog slept."])[0][0], limit=2)
    short = task.decode(model, request, GREEDY)
    assert short.token_ids == answer.token_ids[:2]
    assert short.stopped == ("end" if answer.token_ids[1] == Tokenizer.eos else "length")


def test_slots_after_the_first_eos_are_ignored(overfitted, network):
    from regard.decoding.slots import read

    answer = read(
        [7, 8, EOS, 9, EOS],
        [-0.5, -1.0, -0.25, -9.0, -9.0],
        Request([5]),
        DecodingConfig(length_penalty=0),
    )
    assert (answer.token_ids, answer.logprobs) == ([7, 8, EOS], [-0.5, -1.0, -0.25])
    assert (answer.score, answer.stopped) == (-1.75, "end")
    answer = read([7, 8], [-0.5, -1.0], Request([5]), DecodingConfig())
    assert (answer.token_ids, answer.stopped) == ([7, 8], "length")


# ---- rows and positions -----------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["translate", "answer"])
def test_learned_positions_must_cover_the_longest_row(name, style):
    longest, writes = 16, 5
    need = {
        "encoder-decoder": longest + writes, "decoder": 2 * longest,
        "encoder": longest + slots(longest),
    }[style]  # fmt: skip

    def config(rows):
        layers = {f"{stack}_layers": 1 for stack in style.split("-")}
        return make_config(name, "tiny", {
            "model": {"style": style, "d_model": 16, "heads": 2, "d_ff": 16, "positions": "learned",
                      "max_length": rows, **layers},
            "data": {"max_length": longest, "vocabulary_size": 400},
            "decoding": {"max_length": writes},
        })  # fmt: skip

    with pytest.raises(
        InputError, match=rf"model.max_length={need - 1} .* is less than the {need}"
    ):
        config(need - 1)
    from regard import Transformer

    model = Transformer(config(need).model)
    longest_rows = ids([9] * (longest - 1))  # <eos> is the last of them
    batch = arrange(style, longest_rows, longest_rows, CPU)
    assert token_loss(model, batch, 0.0, 0.0)[0].isfinite()


@pytest.mark.parametrize("name", ["translate", "answer"])
def test_bpe_dropout_changes_tokens_but_not_text(name, bpe):
    task = (Translate if name == "translate" else Questions)(bpe, bpe, bpe_dropout=0.3)
    parts = ["The old man saw the beautiful house.", "Where is the queen?"]
    row = [*bpe.encode(parts[0]), *([SEP, *bpe.encode(parts[1])] if name == "answer" else [])]
    whole = np.array([*row, EOS])
    variants = [task.dropouts[0]([whole], np.array([7]), i % 3)[0] for i in range(6)]
    for variant in variants:
        assert variant[-1] == EOS
        assert bpe.decode(variant.tolist()) == bpe.decode(row)
        texts = [
            bpe.decode(part.tolist()) for part in np.split(variant, np.flatnonzero(variant == SEP))
        ]
        assert texts == parts[: len(texts)]
        assert len(texts) == (2 if name == "answer" else 1)
        assert len(variant) > len(whole)
    assert all(np.array_equal(variants[i], variants[i + 3]) for i in range(3))  # pure functions
    assert len({variant.tobytes() for variant in variants}) == 3


def test_bpe_dropout_applies_only_to_batches_with_a_seed(configure, bpe, data, tmp_path):
    task = Translate(bpe, bpe, bpe_dropout=0.3)
    files = [Path(file) for file in data["translate"][1]]
    store, _ = task.build(files, tmp_path, configure("translate"), True)
    plain, first, repeated, different = (
        task.batch(store, np.arange(6), CPU, seed) for seed in (0, 5, 5, 6)
    )
    assert plain.labels.tolist() == [t for i in range(6) for t in store.tokens(1, i).tolist()]
    assert torch.equal(first.labels, repeated.labels)
    assert torch.equal(first.source.tokens, repeated.source.tokens)
    assert not torch.equal(first.labels, different.labels)
    assert len(first.labels) > len(plain.labels)
    assert bpe.decode(first.labels.tolist()) == bpe.decode(plain.labels.tolist())
