"""The methods of `Model`: one result for a string, a list for a list, n-best lists, and errors."""

import inspect

import numpy as np
import pytest

import regard
from regard import InputError, Prediction
from regard.config.sections import DecodingConfig
from regard.decoding.predictions import drop_duplicates, scored_prediction, spell
from regard.text.tokenizer import Tokenizer

TEXT, OTHER = "The old dog saw a cat.", "The cat slept."
QUESTION, CONTEXT = "Who is old?", "The dog is old."


@pytest.fixture
def translator(model):
    return model("translate", "encoder-decoder")


# ---- results ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "style", "call"),
    [
        ("translate", "encoder-decoder", lambda m, texts: m.translate(texts)),
        ("translate", "decoder", lambda m, texts: m.translate(texts)),
        ("answer", "encoder-decoder", lambda m, texts: m.answer(texts, CONTEXT)),
        ("generate", "decoder", lambda m, texts: m.generate(texts, seed=3)),
    ],
)
def test_writing_methods_return_a_string_for_a_string_and_a_list_for_a_list(
    model, task, style, call
):
    tested = model(task, style)
    single, several = call(tested, TEXT), call(tested, [TEXT, OTHER])
    assert isinstance(single, str)
    assert isinstance(several, list)
    assert len(several) == 2
    assert several[0] == single
    assert call(tested, (TEXT, OTHER)) == call(tested, iter([TEXT, OTHER])) == several
    assert call(tested, []) == []


def test_reading_methods_return_one_result_for_a_string_and_a_list_for_a_list(
    model, tmp_path, monkeypatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    classifier, filler = model("classify", "encoder"), model("fill", "encoder")
    label, labels = classifier.classify(TEXT), classifier.classify([TEXT, OTHER])
    assert labels[0].label == label.label
    filled, several = filler.fill("The <mask>."), filler.fill(["The <mask>.", "A <mask>."])
    assert several[0].text == filled.text
    embedder = model("embed", "encoder")
    vector, vectors = embedder.embed(TEXT), embedder.embed([TEXT, OTHER])
    assert (vector.shape, vectors.shape) == ((32,), (2, 32))
    np.testing.assert_allclose(vectors[0], vector, atol=1e-6)
    tokens, matrix = embedder.embed_tokens(TEXT)
    assert matrix.shape == (len(tokens), 32)
    assert embedder.embed_tokens([TEXT, OTHER])[0][0] == tokens
    (tmp_path / "lines.txt").write_text(f"{OTHER}\n{TEXT}\n")
    hits = embedder.search(TEXT, str(tmp_path / "lines.txt"), top=1)
    assert (hits[0].line, hits[0].text) == (2, TEXT)
    assert embedder.search([TEXT], tmp_path / "lines.txt", top=1) == [hits]


def test_a_pair_has_one_score_and_a_list_of_pairs_a_list(translator):
    single = translator.score((TEXT, OTHER))
    several = translator.score([(TEXT, OTHER), (OTHER, TEXT)])
    assert isinstance(single, Prediction)
    assert several[0].logprob == pytest.approx(single.logprob, abs=1e-4)
    assert (single.text, single.stopped) == (OTHER, "given")


def test_n_best_returns_predictions_best_first(translator):
    single = translator.translate(TEXT, n_best=3, beam=5)
    several = translator.translate([TEXT, OTHER], n_best=3, beam=5)
    assert all(isinstance(prediction, Prediction) for prediction in single)
    assert [p.token_ids for p in single] == [p.token_ids for p in several[0]]
    assert [p.score for p in single] == sorted((p.score for p in single), reverse=True)
    assert single[0].text == translator.translate(TEXT, beam=5)
    assert single[0].n_best == single
    assert len(translator.translate(TEXT, n_best=1)) == 1
    assert len(translator.predict(TEXT, n_best=2).n_best) == 2


def test_a_prediction_has_token_strings_beside_ids(translator):
    prediction = translator.predict(TEXT, alternatives=2, history=True, attention=True)
    tokenizer = translator.tokenizer
    assert prediction.tokens == tokenizer.tokens(prediction.token_ids)
    assert prediction.source_tokens == [*tokenizer.tokens(tokenizer.encode(TEXT)), "<eos>"]
    assert len(prediction.tokens) == len(prediction.logprobs) == len(prediction.alternatives)
    assert prediction.history
    assert set(prediction.attention) == {"encoder", "decoder", "cross"}
    assert prediction.text == translator.translate(TEXT)


def test_predict_accepts_iterables_and_refuses_other_inputs(translator, model):
    texts = [prediction.text for prediction in translator.predict(iter([TEXT, OTHER]))]
    assert texts == translator.translate([TEXT, OTHER])
    answerer = model("answer", "encoder-decoder")
    answer = answerer.predict(QUESTION, context=CONTEXT)
    assert answer.text == answerer.answer(QUESTION, CONTEXT)
    assert answerer.predict([f"{CONTEXT}\t{QUESTION}"])[0].text == answer.text
    with pytest.raises(InputError, match="inputs are a string or a list, not 3"):
        translator.predict(3)
    with pytest.raises(InputError, match="a text is a string, not 3"):
        translator.predict([3])
    with pytest.raises(InputError, match="a separate context"):
        answerer.predict(QUESTION)


def test_none_means_the_default_of_the_model(translator):
    assert translator.translate(TEXT, beam=None, seed=None) == translator.translate(TEXT)
    assert translator.decoding({}) == translator.config.decoding


def test_tokenizers_of_a_model(model, translator):
    assert translator.tokenizer is translator.source_tokenizer is translator.target_tokenizer
    tokenizer = model("fill", "encoder").tokenizer
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    source = Tokenizer.learn([TEXT], "character", 50, quiet=True)
    task = type(translator.task)(source, translator.tokenizer)
    two = regard.Model(translator.config, translator.transformer, task)
    assert (two.source_tokenizer, two.target_tokenizer) == (source, translator.tokenizer)
    with pytest.raises(InputError, match="use source_tokenizer or target_tokenizer"):
        two.tokenizer  # noqa: B018


# ---- duplicates -------------------------------------------------------------------------


def prediction_of(*outputs):
    """A prediction with an n-best list of (token ids, score)."""
    first, *others = [
        scored_prediction(ids, [score], DecodingConfig(), "end") for ids, score in outputs
    ]
    first.others = others
    return first


def test_texts_of_an_n_best_list_differ_and_the_best_score_remains():
    tokenizer = Tokenizer.learn(["ab ab abab"], "bpe", 270, quiet=True)
    whole, a, b = tokenizer.encode("ab"), *tokenizer.encode("a"), *tokenizer.encode("b")
    assert len(whole) == 1
    prediction = prediction_of((whole, -1.0), ([a, b], -2.0), ([b], -3.0), ([a], -4.0))
    spell(prediction, (tokenizer, tokenizer), n_best=3)
    assert [(p.text, p.score) for p in prediction.n_best] == [("ab", -1), ("b", -3), ("a", -4)]
    assert [p.text for p in drop_duplicates(prediction, 2).n_best] == ["ab", "b"]


@pytest.mark.parametrize("options", [{"beam": 6}, {"temperature": 1.5}], ids=str)
def test_no_n_best_list_has_two_equal_texts(model, options):
    tested = model("translate", "encoder-decoder", vocabulary="byte")
    for predictions in tested.translate([TEXT, OTHER], n_best=4, **options):
        texts = [prediction.text for prediction in predictions]
        assert len(set(texts)) == len(texts) <= 4


# ---- reprs ------------------------------------------------------------------------------


def test_reprs_are_one_short_line(model, translator):
    description = repr(translator)
    for part in ("translate", "encoder-decoder", "2 encoder layers", "d_model=32", "parameters"):
        assert part in description
    assert f"device=cpu, dtype=float32, folder={str(translator.folder)!r}" in description
    assert f"vocabulary of {translator.tokenizer.size}," in description
    classifier = model("classify", "encoder")
    prediction = translator.translate(TEXT, n_best=2)[0]
    items = [
        prediction, classifier.classify(TEXT), model("fill", "encoder").fill("a <mask>"),
        translator.tokenizer, regard.Packed.of([[1, 2]] * 100), DecodingConfig(beam=2),
        translator.attention(TEXT),
    ]  # fmt: skip
    for item in items:
        assert repr(item).startswith(f"{type(item).__name__}(")
        assert len(repr(item)) < 200
    assert repr(DecodingConfig(beam=2)) == "DecodingConfig(beam=2)"
    assert repr(prediction.text) in repr(prediction)


# ---- errors -----------------------------------------------------------------------------


def wrong_uses(model, tmp_path):
    """Calls that are refused, by task."""
    translator, filler = model("translate", "encoder-decoder"), model("fill", "encoder")
    classifier, answerer = model("classify", "encoder"), model("answer", "encoder-decoder")
    generator, slots = model("generate", "decoder"), model("translate", "encoder")
    recurrent = model("classify", "encoder", mixer="gru")
    (tmp_path / "empty").mkdir()
    return [
        lambda: translator.translate(TEXT, num_beams=4),
        lambda: translator.translate(TEXT, baem=4),
        lambda: translator.translate(TEXT, beam=0),
        lambda: translator.translate(TEXT, beam="4"),
        lambda: translator.translate(TEXT, n_best=9),
        lambda: translator.translate(TEXT, top_k=3),
        lambda: translator.translate(TEXT, temperature=1, beam=4),
        lambda: translator.translate(TEXT, max_length=100_000, beam=1000),
        lambda: translator.translate(3),
        lambda: translator.translate([3]),
        lambda: translator.translate(b"bytes"),
        lambda: translator.translate(TEXT, prefix=3),
        lambda: translator.translate("caf\udce9"),
        lambda: translator.predict(TEXT, alternatives=-1),
        lambda: translator.predict(TEXT, histroy=True),
        lambda: translator.predict(TEXT, context=CONTEXT),
        lambda: translator.classify(TEXT),
        lambda: translator.score([TEXT]),
        lambda: translator.attention(" "),
        lambda: translator.attention("a " * 70),
        lambda: translator.attention(3),
        lambda: translator.attention(TEXT, context=CONTEXT),
        lambda: translator.attention(TEXT).plot("map"),
        lambda: translator.attention(TEXT).plot(stack="crosses"),
        lambda: translator.attention(TEXT).plot(layer=9),
        lambda: translator.attention(TEXT).plot("mean", head=1),
        lambda: slots.attention(TEXT, target="b"),
        lambda: slots.translate(TEXT, n_best=2),
        lambda: slots.predict(TEXT, history=True),
        lambda: recurrent.attention(TEXT),
        lambda: classifier.attention(TEXT, target="good"),
        lambda: classifier.predict(TEXT, beam=2),
        lambda: classifier.translate(TEXT),
        lambda: classifier.stream(TEXT),
        lambda: filler.fill("no gap"),
        lambda: filler.fill("a <mask>", top=0),
        lambda: filler.fill("a <mask>" + " a" * 100),
        lambda: filler.embed(TEXT, pooling="sum"),
        lambda: filler.search(TEXT, tmp_path / "missing.txt"),
        lambda: answerer.answer([QUESTION] * 3, [CONTEXT] * 2),
        lambda: answerer.answer("Who? " * 100, CONTEXT),
        lambda: answerer.attention(QUESTION),
        lambda: answerer.embed(TEXT),
        lambda: generator.generate(TEXT, until=3),
        lambda: regard.load(None),
        lambda: regard.load(tmp_path),
        lambda: regard.load(tmp_path / "empty"),
        lambda: regard.load("box:nothing"),
        lambda: regard.load("box:translate", device="tpu"),
        lambda: regard.load("box:translate", dtype="float8"),
        lambda: regard.pack("box:fill", tmp_path),
        lambda: regard.make_config("translte", "tiny", {}),
        lambda: regard.make_config("translate", "tyni", {}),
        lambda: regard.make_config("translate", "tiny", {"modle": {}}),
        lambda: regard.make_config("translate", "tiny", {"model": {"haeds": 3}}),
        lambda: regard.make_config("generate", "tiny", {"model": {"style": "encoder"}}),
        lambda: regard.make_config("fill", "tiny", {"data": {"shared_vocabulary": False}}),
        lambda: regard.make_config("fill", "tiny", {"data": {"bleu": "zh"}}),
        lambda: regard.make_config("fill", "tiny", {"training": {"balance": True}}),
        lambda: regard.make_config("embed", "tiny", {"training": {"r_drop": 1.0}}),
        lambda: regard.ModelConfig(),
        lambda: regard.ModelConfig.preset("tiny"),
        lambda: regard.ModelConfig.preset("tiny", vocabulary_size=10, heads=3),
        lambda: regard.Packed.of([]),
        lambda: regard.Packed.of([[]]),
        lambda: regard.Tokenizer.learn([], "bpe", 300),
        lambda: regard.Tokenizer.learn(["a"], "words", 300),
        lambda: regard.Tokenizer.load(tmp_path / "missing.json"),
    ]


def test_no_error_from_python_mentions_the_command_line(model, tmp_path):
    messages = {}
    for call in wrong_uses(model, tmp_path):
        with pytest.raises((InputError, TypeError)) as error:
            call()
        source = inspect.getsource(call).strip()
        messages[source] = str(error.value)
    wrong = {
        source: message
        for source, message in messages.items()
        if " --" in f" {message}" or "-m " in message or "\n" in message
    }
    assert wrong == {}
