"""regard -> Hugging Face -> regard and back again."""

import json
from resource import RUSAGE_SELF, getrusage

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from regard.errors import InputError
from regard.interop.folder import make_model
from regard.interop.hf.read import oracle as reading_oracle
from regard.interop.hf.read import read
from regard.interop.hf.restore import restore, unscaled
from regard.interop.hf.write import architecture_of, oracle
from regard.interop.proof import Receipt, compare
from tests.interop.hf_export_models import exported, learned, make
from tests.interop.test_hf_export import LEARNED, LLAMA, NORMED, PRE


def plain(folder):
    """The folder as if another program had written it."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values["regard"]
    path.write_text(json.dumps(values))
    return folder


def test_two_vocabularies_of_other_kinds_are_restored(tmp_path):
    pair = learned("character"), learned("byte")
    model = make("encoder-decoder", tokenizers=pair, tie_embeddings="none")
    imported = read(exported(model, tmp_path))
    assert [t.fingerprint for t in imported.tokenizers] == [t.fingerprint for t in pair]


def test_a_scale_that_is_not_a_power_of_two_is_undone(tmp_path):
    """The output of the restored model is the same bit for bit, even where the table differs in the
    last bit."""
    x = torch.randn(100_000) * 10.0 ** torch.randint(-5, 5, (100_000,))
    assert torch.equal(unscaled(x * 160**0.5, 160**0.5) * 160**0.5, x * 160**0.5)
    words = make("encoder", d_model=20, activation="gelu", **PRE)
    imported = read(exported(words, tmp_path))
    state = words.transformer.state_dict()
    assert all(torch.equal(imported.tensors[key], state[key]) for key in state)


STANDARD = [
    ("encoder-decoder", {"output_bias": True}),
    ("encoder-decoder", {**LEARNED, **NORMED, "output_bias": True, "tie_embeddings": "none"}),
    ("encoder-decoder", {**PRE, **LEARNED, **NORMED, "output_bias": True, "scale_embeddings": False}),
    ("encoder", {**LEARNED, **NORMED, "activation": "gelu", "scale_embeddings": False}),
    ("encoder", {**LEARNED, **NORMED, "head": "classifier", "classes": 2, "scale_embeddings": False}),
    ("encoder", {**LEARNED, **NORMED, "head": "pooling", "scale_embeddings": False}),
    ("decoder", {**PRE, **LEARNED, "scale_embeddings": False}),
    ("decoder", {**LLAMA, "key_value_heads": 1, "scale_embeddings": False, "dropout": 0.0}),
    ("decoder", {**LLAMA, "window": 5, "scale_embeddings": False, "dropout": 0.0,
                 "tie_embeddings": "none"}),
]  # fmt: skip


@pytest.mark.parametrize(("style", "options"), STANDARD)
def test_weights_are_restored_without_the_section_regard(style, options, tmp_path):
    """Another program would write such a folder: hugging_face.read recognises the options."""
    model = make(style, **options)
    imported = read(plain(exported(model, tmp_path)))
    expected = model.config.model.to_dict()
    values = imported.config.to_dict()
    ignored = set() if expected["positions"] == "learned" else {"max_length"}
    assert {k for k in expected if expected[k] != values[k]} <= ignored
    state = model.transformer.state_dict()
    assert all(torch.equal(imported.tensors[key], state[key]) for key in state)
    tokenizer, own = imported.tokenizers[0], model.source_tokenizer
    text = "A dog <eos> runs."
    assert tokenizer.frame(tokenizer.encode(text), style) == own.frame(own.encode(text), style)
    # ... and to Hugging Face again, with the same weights.
    (tmp_path / "second").mkdir()
    second = exported(make_model(imported, tmp_path), tmp_path / "second")
    first = tmp_path / "exported"
    name = "model.safetensors"
    if style != "encoder-decoder" or expected["positions"] == "learned":
        assert (second / name).read_bytes() == (first / name).read_bytes()
    assert (
        architecture_of(model).name
        == json.loads((second / "config.json").read_text())["model_type"]
    )


def test_a_folder_that_transformers_saved_again(tmp_path):
    model = make("decoder", positions="rotary", activation="gelu", key_value_heads=1, **PRE)
    folder = exported(model, tmp_path)
    saved = tmp_path / "saved"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(saved)
    (saved / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    imported = read(saved)
    state = model.transformer.state_dict()
    assert imported.config == model.config.model
    assert all(torch.equal(imported.tensors[key], state[key]) for key in state)


def test_weights_that_the_configuration_cannot_express_are_not_restored(tmp_path):
    model = make("encoder", bias=False, activation="gelu", **PRE)
    folder = exported(model, tmp_path)
    assert restore(folder) is not None
    trained = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        trained.bert.encoder.layer[0].output.dense.bias += 1  # regard has no bias here
    trained.save_pretrained(folder)
    assert restore(folder) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own.update(model={}),
        lambda own: own["model"].update(d_ff="x"),
        lambda own: own.update(max_length=None),
        lambda own: own.update(tokenizers={"../x": "bpe"}),
        lambda own: own.update(tokenizers={"": "word"}),
        lambda own: own["tokenizers"].update({"": {"specials": {}, "size": 3}}),
    ],
)
def test_a_damaged_section_gives_one_clear_error(change, tmp_path):
    folder = exported(make("decoder", **PRE), tmp_path)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    change(values["regard"])
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="damaged"):
        restore(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own["model"].update(vocabulary_size=10**7, source_vocabulary_size=10**7),
        lambda own: own["model"].update(d_ff=10**7),
        lambda own: own.update(positions=9_999_999),
        lambda own: own.update(positions=10**12),
        lambda own: own.update(positions=-1),
    ],
)
def test_absurd_sizes_take_no_memory(change, tmp_path):
    folder = exported(make("decoder", **PRE), tmp_path)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    change(values["regard"])
    path.write_text(json.dumps(values))
    before = getrusage(RUSAGE_SELF).ru_maxrss
    assert restore(folder) is None
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize(
    ("style", "options"),
    [("encoder-decoder", PRE), ("encoder", {**PRE, "head": "classifier", "classes": 2}),
     ("encoder", {**NORMED, "head": "pooling"}), ("decoder", {**PRE, "head": "pooling"}),
     ("decoder", {**PRE, "task": "translate"}), ("decoder", PRE)],
)  # fmt: skip
def test_the_proof_of_an_export_and_of_its_import(style, options, tmp_path):
    model = make(style, **options)
    if options.get("head") == "classifier":
        model.task.temperature = 2.5
    folder = exported(model, tmp_path)
    imported = read(folder)
    back = make_model(imported, folder)
    texts = ["A dog.", "Two <eos> men [CLS] are here.", "ü"]
    for one, engine in (
        (model, oracle(folder, model)), (back, reading_oracle(folder, imported)),
    ):  # fmt: skip
        receipt = compare(one, engine, texts, Receipt("test", {}))
        assert not receipt.failures
        assert receipt.same_tokenization == 1
        assert receipt.largest_difference < 1e-4
        writes = style != "encoder" and options.get("head") != "pooling"
        assert (receipt.same_greedy_tokens == 1) == writes
    if options.get("head") == "classifier":
        assert back.predict("A dog.").probabilities == pytest.approx(
            model.predict("A dog.").probabilities, abs=1e-6
        )
