"""Export to ONNX: ONNX Runtime computes the same outputs and greedy tokens as regard, in float32."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import onnx
import onnxruntime
import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel

import regard
from interop.tiny_models import BPE, BYTE, OPTIONS, SENTENCES, rows_of, tiny_model
from regard import InputError, ModelConfig
from regard.config.model import CHOICES
from regard.interop.expressible import misfits
from regard.interop.onnx import graph as onnx_graph
from regard.interop.onnx.oracle import pad
from regard.interop.onnx.write import VALUES, oracle, write
from regard.interop.proof import greedy, output
from regard.model.positions import sinusoids
from regard.text.chat import ChatTemplate
from regard.text.external import ExternalTokenizer
from regard.text.imported import ImportedTokenizer, SpecialTokens

STEPS = 8
LABELS = {"labels": ["a", "b", "c"]}
CLASSIFIER = {"task": "classify", "learned": LABELS, "head": "classifier", "classes": 3}


def export(model, folder):
    folder.mkdir(exist_ok=True)
    write(model, folder)
    return oracle(folder, model)


def check(model, folder, lengths=(5, 9, 1, 12)):
    """The outputs of padded rows, and greedy decoding with the cache."""
    engine = export(model, folder)
    rows = rows_of(model, lengths)
    for actual, row in zip(engine.outputs(rows), rows, strict=True):
        np.testing.assert_allclose(actual, output(model, row), atol=1e-5)
    if model.config.model.head == "language-model":
        assert engine.generate(rows, STEPS) == greedy(model, rows, STEPS)
    else:
        assert engine.generate(rows, STEPS) is None
    return engine


def pad_on(rows, left):
    """Token ids with padding on one side, and their mask."""
    ids, mask = pad(rows)
    if left:
        for i, row in enumerate(rows):
            shift = ids.shape[1] - len(row)
            ids[i], mask[i] = np.roll(ids[i], shift), np.roll(mask[i], shift)
    return ids, mask


WINDOWS = [{"window": 2}, {"window": 3, "positions": "rotary", "norm_first": True}]


@pytest.mark.parametrize("options", [{}, *OPTIONS, *WINDOWS], ids=str)
def test_every_option(options, tmp_path):
    """Both stacks; the tests below have one stack."""
    check(tiny_model(**options), tmp_path)


ROTARY = {"positions": "rotary", "key_value_heads": 2, "norm": "rms", "activation": "swiglu"}


@pytest.mark.parametrize("style", ["encoder", "decoder"])
@pytest.mark.parametrize(
    "options", [{}, ROTARY, {"window": 3, "norm_first": True}], ids=["plain", "rotary", "window"]
)
def test_models_with_one_stack(style, options, tmp_path):
    check(tiny_model(style, **options), tmp_path)
    for path in tmp_path.glob("*.onnx"):
        onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize(
    "options",
    [
        {"output_bias": True},
        {"style": "decoder", "output_bias": True, "tie_embeddings": "none"},
        {"tie_embeddings": "source-target"},
        {"tie_embeddings": "target-output"},
        {"encoder_layers": 1, "decoder_layers": 3},
        {"tokenizers": (BPE, BYTE)},
        {"style": "encoder", **CLASSIFIER},
        {"style": "encoder", **CLASSIFIER, "classifier_activation": "relu"},
        {"style": "encoder", "task": "embed", "head": "pooling"},
        {"style": "encoder", "task": "embed", "head": "pooling", "pooling": "cls"},
        {"style": "encoder", "task": "embed", "head": "pooling", "pooling": "last"},
        {"style": "decoder", "task": "embed", "head": "pooling", "pooling": "last"},
        {"style": "decoder", "task": "embed", "head": "pooling", "window": 2},
    ],
    ids=lambda options: " ".join(map(str, options.values()))[:40],
)
def test_options_of_one_style(options, tmp_path):
    check(tiny_model(**options), tmp_path)


def test_the_softmax_of_a_classifier_is_its_probability(tmp_path):
    """The logits include the temperature."""
    model = tiny_model("encoder", **CLASSIFIER | {"learned": LABELS | {"temperature": 2.5}})
    assert model.task.temperature == 2.5
    engine = check(model, tmp_path)
    logits = engine.run("encoder", *pad(engine.tokenize(["a dog"])))[0][0]
    expected = model.classify("a dog").probabilities
    exponentials = np.exp(logits - logits.max())
    for label, actual in zip("abc", exponentials / exponentials.sum(), strict=True):
        assert abs(actual - expected[label]) < 1e-6
    assert "regard.temperature" not in properties(tmp_path / "encoder.onnx")


def test_a_tied_matrix_is_stored_once(tmp_path):
    write(tiny_model("decoder", positions="none"), tmp_path)
    graph = onnx.load(str(tmp_path / "decoder_step.onnx")).graph
    shapes = [tuple(tensor.dims) for tensor in graph.initializer]
    assert shapes.count((262, 16)) == 1
    assert (16, 262) not in shapes
    model = tiny_model("decoder", positions="none")
    size = sum(parameter.nbytes for parameter in model.transformer.parameters())
    assert sum(len(tensor.raw_data) for tensor in graph.initializer) < size + 1000


@pytest.mark.parametrize("head", ["masked-language-model", "classifier", "pooling"])
@pytest.mark.parametrize("left", [False, True])
def test_padding_has_no_effect(left, head, tmp_path):
    options = {"masked-language-model": {}, "classifier": CLASSIFIER, "pooling": {"task": "embed"}}
    model = tiny_model("encoder", **options[head] | {"head": head}, positions="rotary", window=3)
    engine = export(model, tmp_path)
    rows = rows_of(model, (9, 4))
    ids, mask = pad_on(rows, left)
    hidden = engine.sessions["encoder"].run(None, {"input_ids": ids, "attention_mask": mask})
    for i, row in enumerate(rows):
        alone = engine.run("encoder", *pad([row]))
        for padded, expected in zip(hidden, alone, strict=True):
            actual = padded[i][mask[i] == 1] if padded.ndim == 3 else padded[i]
            np.testing.assert_allclose(actual, expected[0], atol=2e-6)


@pytest.mark.parametrize("left", [False, True])
def test_a_prompt_in_parts_equals_a_prompt_at_once(left, tmp_path):
    model = tiny_model("decoder", positions="rotary", key_value_heads=2, window=4)
    engine = export(model, tmp_path)
    rows = rows_of(model, (9, 6))
    ids, mask = pad_on(rows, left)
    whole, _ = engine.step(ids, mask, engine.empty(2))
    cache, parts = engine.empty(2), []
    for start, end in ((0, 4), (4, 5), (5, 9)):
        logits, cache = engine.step(ids[:, start:end], mask[:, :end], cache)
        parts.append(logits)
    real = mask == 1
    np.testing.assert_allclose(np.concatenate(parts, axis=1)[real], whole[real], atol=2e-6)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(whole[i][real[i]], output(model, row), atol=1e-5)


def test_large_positions_are_exact(tmp_path):
    """float32 angles would be wrong by 0.004 at position 65,535."""
    graph = onnx_graph.Graph("angles")
    places = graph.input("positions", "int64", "B", "T")
    for name, value in zip(("sine", "cosine"), graph.angles(places, 32, 10_000.0), strict=True):
        graph.output(name, value, "float32", "B", "T", 16)
    graph.save(tmp_path / "angles.onnx", {})
    positions = np.array([[0, 1, 255, 256, 4097, 65_535]])
    session = onnxruntime.InferenceSession(str(tmp_path / "angles.onnx"))
    sine, cosine = session.run(None, {"positions": positions})
    expected = sinusoids(torch.from_numpy(positions[0]), 32).numpy()
    np.testing.assert_allclose(sine[0], expected[:, 0::2], atol=2e-7)
    np.testing.assert_allclose(cosine[0], expected[:, 1::2], atol=2e-7)
    with pytest.raises(Exception, match="out of"):
        session.run(None, {"positions": np.array([[65_536]])})


def test_weights_above_the_limit_go_to_a_second_file(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "LARGEST_FILE", 1000)
    check(tiny_model("decoder"), tmp_path)
    assert (tmp_path / "decoder_step.onnx.data").stat().st_size > 20_000
    assert (tmp_path / "decoder_step.onnx").stat().st_size < 60_000


# ---- refused options ----------------------------------------------------------------------------

REFUSED = {
    "mixer": {"mixer": "convolution"},
    "decoder_mixer": {"decoder_mixer": "ssru", "style": "decoder"},
}


def test_every_field_has_a_rule():
    assert VALUES.keys() == {field.name for field in fields(ModelConfig)}
    for field in fields(ModelConfig):
        for value in CHOICES.get(field.name, ()):
            if field.name in ("style", "head", "pooling", "classifier_activation", *REFUSED):
                continue  # tested above with a model, or below
            config = ModelConfig(**({"vocabulary_size": 300} | {field.name: value}))
            assert not misfits(VALUES, config), field.name


@pytest.mark.parametrize("field", REFUSED)
def test_refused_options_are_named(field, tmp_path):
    model = tiny_model()
    object.__setattr__(model.config, "model", ModelConfig(vocabulary_size=262, **REFUSED[field]))
    with pytest.raises(InputError, match=rf"onnx cannot express model\.{field}="):
        write(model, tmp_path)
    assert not list(tmp_path.iterdir())


# ---- tokenizers and metadata --------------------------------------------------------------------


def properties(path):
    model = onnx.load(str(path), load_external_data=False)
    return {entry.key: json.loads(entry.value) for entry in model.metadata_props}


def test_metadata(tmp_path):
    write(tiny_model("encoder", **CLASSIFIER), tmp_path)
    values = properties(tmp_path / "encoder.onnx")
    assert values["regard.labels"] == ["a", "b", "c"]
    assert (values["regard.begin"], values["regard.end"]) == ([3], [])
    assert values["regard.special_tokens"]["mask"] == 5
    assert values["regard.max_positions"] == 65_536


def test_other_tokenizers(tmp_path):
    library = tokenizers.Tokenizer(WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="b"))
    specials = SpecialTokens(bos=0, eos=0, end=(0,), target=(2,))
    imported = ImportedTokenizer(library, specials, size=5)
    model = tiny_model(tokenizers=(imported, imported))
    engine = check_rows(model, tmp_path / "imported", [[1, 0], [2, 1, 1, 0]])
    assert engine.tokenize(["a"]) == [[1, 0]]
    external = ExternalTokenizer(library)
    engine = export(tiny_model("decoder", tokenizers=(external, external)), tmp_path / "external")
    assert engine.tokenize(["a"]) == [[1, 7]]
    assert properties(tmp_path / "external/decoder_step.onnx")["regard.tokenizer_offset"] == 6


def test_the_chat_template_is_copied(tmp_path):
    model = tiny_model("decoder")
    model.task.template = ChatTemplate("{{ messages }}")
    export(model, tmp_path / "exported")
    assert (tmp_path / "exported/chat_template.jinja").read_text() == "{{ messages }}"


def check_rows(model, folder, rows):
    engine = export(model, folder)
    for actual, row in zip(engine.outputs(rows), rows, strict=True):
        np.testing.assert_allclose(actual, output(model, row), atol=1e-5)
    assert engine.generate(rows, STEPS) == greedy(model, rows, STEPS)
    return engine


# ---- the shipped models -------------------------------------------------------------------------


def example(folder):
    """The output of the program in README.md."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TEXT = "A dog runs across the field."


def test_the_shipped_translator(tmp_path):
    model = regard.load("box:translate", device="cpu")
    engine = export(model, tmp_path)
    rows = engine.tokenize(SENTENCES[-20:])
    assert rows == [[*ids, 2] for ids in model.tokenizer.encode_batch(SENTENCES[-20:])]
    assert engine.generate(rows, 60) == greedy(model, rows, 60)
    for actual, row in zip(engine.outputs(rows[:4]), rows[:4], strict=True):
        np.testing.assert_allclose(actual, output(model, row), atol=1e-4)
    assert example(tmp_path) == model.translate(TEXT, beam=1)


@pytest.mark.parametrize("name", ["generate", "classify", "embed", "fill"])
def test_other_shipped_models(name, tmp_path):
    model = regard.load(f"box:{name}", device="cpu")
    engine = export(model, tmp_path)
    rows = engine.tokenize(SENTENCES[:6])
    for actual, row in zip(engine.outputs(rows), rows, strict=True):
        np.testing.assert_allclose(actual, output(model, row), atol=1e-4)
    if name == "generate":
        assert engine.generate(rows, 40) == greedy(model, rows, 40)
        text = model.generate(TEXT, temperature=0.0, max_length=40)
        assert example(tmp_path)[:20] == text.strip()[:20]
    elif name == "classify":
        assert model.labels[int(example(tmp_path))] == model.classify(TEXT).label
    elif name == "embed":
        actual = np.array(example(tmp_path).strip("[]").split(), float)
        np.testing.assert_allclose(actual, model.embed(TEXT)[:4], atol=1e-5)
    else:
        assert len(example(tmp_path).strip("[]").split()) == 1 + len(model.tokenizer.encode(TEXT))
