"""Export to CTranslate2: the same logits, scores and greedy tokens as regard, in float32."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel

import regard
from interop.tiny_models import BPE, BYTE, OPTIONS, SENTENCES, rows_of, tiny_model
from regard import InputError, ModelConfig, Packed, Tokenizer
from regard.config.model import CHOICES
from regard.decoding.generate import generate
from regard.interop.ctranslate2 import VALUES, oracle, write
from regard.interop.engines import NotCompared
from regard.interop.expressible import misfits
from regard.interop.runtime_files import token_names
from regard.text.external import ExternalTokenizer
from regard.text.imported import ImportedTokenizer, SpecialTokens

STEPS = 12


def export(model, folder):
    folder.mkdir(exist_ok=True)
    write(model, folder)
    return oracle(folder, model)


def check_decoder(model, folder):
    engine = export(model, folder)
    rows = rows_of(model, (5, 9, 1))
    with torch.no_grad():
        expected = Packed.of(rows).split(model.transformer(None, Packed.of(rows)))
    for actual, logits in zip(engine.outputs(rows), expected, strict=True):
        np.testing.assert_allclose(actual, logits.numpy(), atol=2e-5)
    tokens = generate(model.transformer, None, rows, max_length=STEPS)
    assert engine.generate(rows, STEPS) == tokens


def check_translator(model, folder):
    engine = export(model, folder)
    sources, targets = rows_of(model, (7, 3, 12)), rows_of(model, (5, 9, 2), seed=1)
    begun = Packed.of([[BYTE.bos, *row] for row in targets])
    with torch.no_grad():
        logits = model.transformer(Packed.of(sources), begun)
    first = [part[:1].numpy() for part in begun.split(logits)]
    for actual, expected in zip(engine.outputs(sources), first, strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)
    names = engine.target
    scores = engine.engine.score_batch(
        engine._names(sources), [[names[id] for id in row] for row in targets]
    )
    for part, row, score in zip(begun.split(logits.log_softmax(-1)), targets, scores, strict=True):
        expected = part.gather(1, torch.tensor([*row, BYTE.eos])[:, None])[:, 0]
        np.testing.assert_allclose(score.log_probs, expected.numpy(), atol=2e-5)
    tokens = generate(model.transformer, sources, max_length=STEPS)
    assert engine.generate(sources, STEPS) == tokens


@pytest.mark.parametrize("options", [{}, *OPTIONS, {"output_bias": True}], ids=str)
def test_every_option_gives_the_same_logits_and_tokens(options, tmp_path):
    check_decoder(tiny_model("decoder", **options), tmp_path / "decoder")
    check_translator(tiny_model(**options), tmp_path / "translator")


@pytest.mark.parametrize(
    "options",
    [
        {"tie_embeddings": "source-target"},
        {"tie_embeddings": "target-output"},
        {"encoder_layers": 1, "decoder_layers": 3},
        {"tokenizers": (BPE, BYTE)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_an_encoder_decoder(options, tmp_path):
    check_translator(tiny_model(**options), tmp_path)


def test_every_field_has_a_rule():
    assert VALUES.keys() == {field.name for field in fields(ModelConfig)}
    assert not misfits(VALUES, ModelConfig(vocabulary_size=300))


# A value that the target cannot express for each field that has one, and the rest is expressed.
REFUSED = {
    "style": {"style": "encoder"}, "head": {"style": "decoder", "head": "pooling"},
    "window": {"window": 4}, "mixer": {"mixer": "lstm"},
    "decoder_mixer": {"decoder_mixer": "ssru", "style": "decoder"},
    "heads": {"heads": 65_536, "head_size": 1},
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(field.name for field in fields(ModelConfig)))
def test_refused_options_are_named(field, tmp_path):
    values = {"vocabulary_size": 300, "d_model": 16, "heads": 4} | REFUSED.get(field, {})
    actual = misfits(VALUES, ModelConfig(**values))
    assert (field in actual) == (field in REFUSED)
    if field in REFUSED:
        config = replace(tiny_model().config, model=ModelConfig(**values))
        model = tiny_model()
        model.config = config
        with pytest.raises(InputError, match=rf"ctranslate2 cannot express .*model\.{field}="):
            write(model, tmp_path)
        assert not list(tmp_path.iterdir())


def test_every_choice_is_expressed_or_refused():
    for field, choices in CHOICES.items():
        if field in ("style", "head", "mixer", "decoder_mixer", "pooling", "classifier_activation"):
            continue  # the test above, or without effect on a decoder
        for value in choices:
            config = ModelConfig(**({"vocabulary_size": 300} | {field: value}))
            assert not misfits(VALUES, config), (field, value)


def test_a_changed_module_is_refused(tmp_path):
    model = tiny_model()
    model.transformer.decoder.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="cannot be exported"):
        write(model, tmp_path)


# ---- vocabularies and tokenizers ----------------------------------------------------------------


def test_token_names_are_unique_and_special_tokens_are_renamed():
    spelled = [" ".join(pair) for pair in [("<", "e"), ("<e", "o"), ("<eo", "s"), ("<eos", ">")]]
    tokenizer = Tokenizer("bpe", spelled)
    names = token_names(tokenizer)
    assert len(set(names)) == len(names) == tokenizer.size
    assert names[-1] == "<eos>"
    assert names[tokenizer.eos] == "<<eos>>"
    assert token_names(BYTE)[:6] == ["<unk>", "<bos>", "<eos>", "<cls>", "<sep>", "<mask>"]


class Words:
    """A tokenizer that is a Python object; two of its tokens look the same."""

    vocab_size = 4

    def encode(self, text):
        return [len(word) % 4 for word in text.split()]

    def decode(self, ids):
        return " ".join("aabc"[id] for id in ids)


def test_other_tokenizers(tmp_path):
    library = tokenizers.Tokenizer(WordLevel({"<eos>": 0, "a": 1, "b": 2}, unk_token="b"))
    for tokenizer in (ExternalTokenizer(library), ExternalTokenizer(Words())):
        names = token_names(tokenizer)
        assert len(set(names)) == len(names) == tokenizer.size
    assert token_names(ExternalTokenizer(library))[2] == "<eos>#2"
    specials = SpecialTokens(bos=0, eos=0, begin=(0,), end=(0,), target=(2,))
    imported = ImportedTokenizer(library, specials, size=5)
    assert token_names(imported) == ["<eos>", "a", "b", "<unused>", "<unused>#2"]
    model = tiny_model(tokenizers=(imported, imported))
    engine = export(model, tmp_path / "imported")
    settings = json.loads((tmp_path / "imported/config.json").read_text())
    assert settings["decoder_start_token"] == settings["unk_token"] == "<eos>"
    assert engine.tokenize(["a", "b"]) == [[0, 1, 0], [0, 2, 0]]
    [actual] = generate(
        model.transformer, [[0, 1, 0]], [list(imported.target_prefix)], max_length=6, bos=0, eos=0
    )
    assert engine.generate([[0, 1, 0]], 6) == [actual]
    model = tiny_model("decoder", tokenizers=(ExternalTokenizer(Words()),) * 2)
    engine = export(model, tmp_path / "words")
    with pytest.raises(NotCompared, match="the tokenizer is a Python object"):
        engine.tokenize(["a"])
    assert not (tmp_path / "words/tokenizer.json").exists()
    assert "Python object" in (tmp_path / "words/README.md").read_text()


@pytest.mark.parametrize(
    "tokenizer", [BPE, BYTE, Tokenizer.learn(SENTENCES, "character", 40)], ids=["bpe", "byte", "c"]
)
def test_the_tokenizer_file_gives_the_same_ids(tokenizer, tmp_path):
    engine = export(tiny_model("decoder", tokenizers=(tokenizer,) * 2), tmp_path)
    texts = [*SENTENCES, "Größe  数\n\tx", ""]
    assert engine.tokenize(texts) == [[1, *ids] for ids in tokenizer.encode_batch(texts)]


# ---- a real translator --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    model, folder = regard.load("box:translate", device="cpu"), tmp_path_factory.mktemp("exported")
    write(model, folder)
    return model, folder, oracle(folder, model)


def test_a_translator_gives_the_same_greedy_tokens(translator):
    model, _, engine = translator
    rows = engine.tokenize(SENTENCES)
    assert rows == [[*ids, 2] for ids in model.tokenizer.encode_batch(SENTENCES)]
    expected = generate(model.transformer, rows, max_length=60)
    assert engine.generate(rows, 60) == expected
    begun = Packed.of([[1]] * len(rows))
    with torch.no_grad():
        logits = model.transformer(Packed.of(rows), begun).numpy()
    np.testing.assert_allclose(np.concatenate(engine.outputs(rows)), logits, atol=1e-4)


def test_beam_search_finds_translations_with_the_same_score(translator):
    """Without a length penalty, whose definition differs. The two searches stop at different times,
    so a few translations differ."""
    model, _, engine = translator
    rows = engine.tokenize(SENTENCES[:24])
    tokens = generate(model.transformer, rows, max_length=60, beam=4, length_penalty=0.0)
    results = engine.engine.translate_batch(
        engine._names(rows), beam_size=4, length_penalty=0, return_scores=True
    )
    outputs = [[engine.ids[name] for name in result.hypotheses[0]] for result in results]
    assert sum(a == b for a, b in zip(outputs, tokens, strict=True)) >= 23
    begun = Packed.of([[1, *output] for output in outputs])
    with torch.no_grad():
        logarithms = model.transformer(Packed.of(rows), begun).log_softmax(-1)
    ends = torch.tensor([id for output in outputs for id in (*output, 2)])
    scores = [part.sum() for part in begun.split(logarithms.gather(1, ends[:, None]))]
    np.testing.assert_allclose([result.scores[0] for result in results], scores, atol=1e-3)


def test_the_example_of_the_readme_runs(translator):
    model, folder, _ = translator
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    text = "A dog runs across the field."
    assert done.stdout.strip() == model.translate(text, beam=1), done.stderr
