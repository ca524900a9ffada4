"""regard -> Hugging Face -> regard and back again."""

import json
from resource import RUSAGE_SELF, getrusage

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from regard.errors import InputError
from regard.interop.folder import make_model
from regard.interop.hf.read import oracle as reading_oracle
from regard.interop.hf.read import read
from regard.interop.hf.restore import EXACT, restore
from regard.interop.hf.write import architecture_of, oracle
from regard.interop.proof import Receipt, compare
from tests.interop.hf_export_models import exported, learned, loaded, make
from tests.interop.test_hf_export import LEARNED, LLAMA, NORMED, PRE, check_return


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


@pytest.mark.parametrize(
    ("style", "options", "names"),
    [
        ("encoder", {"head": "classifier", "classes": 2}, ["embeddings.shared.weight"]),
        ("decoder", {"head": "pooling"}, ["embeddings.shared.weight"]),
        ("encoder", {"activation": "gelu", "tie_embeddings": "none"}, ["embeddings.shared.weight"]),
        ("encoder", {"activation": "gelu"}, []),  # the output matrix is the original table
        ("decoder", {"scale_embeddings": False}, []),
    ],
)
def test_tensors_that_the_export_rounds_are_restored(style, options, names, tmp_path):
    """sqrt(160) is not a power of two, so some products in float32 have several possible factors."""
    model = make(style, d_model=160, **PRE, **options)
    folder = exported(model, tmp_path)
    assert (folder / EXACT).is_file() == bool(names)
    if names:
        assert sorted(load_file(folder / EXACT)) == names
        _, unmatched = loaded(folder, model.config.model)
        assert not unmatched
    check_return(model, restore(folder))


@pytest.mark.parametrize("temperature", [0.7, 3.0])
def test_the_temperature_of_a_classifier_is_restored(temperature, tmp_path):
    """transformers has no temperature, so its weights are divided by it."""
    model = make("encoder", d_model=160, head="classifier", classes=2, **PRE)
    model.task.temperature = temperature
    folder = exported(model, tmp_path)
    imported = restore(folder)
    check_return(model, imported)
    assert make_model(imported, folder).task.temperature == temperature
    hf, _ = loaded(folder, model.config.model)
    torch.testing.assert_close(
        hf.classifier.weight * temperature, model.transformer.head.classes.weight.double()
    )


def test_a_decoder_that_classifies_keeps_its_labels_and_temperature(tmp_path):
    model = make("decoder", task="classify", **PRE)
    model.task.temperature = 3.0
    folder = exported(model, tmp_path)
    imported = restore(folder)
    check_return(model, imported)
    again = make_model(imported, folder)
    assert (again.labels, again.task.temperature) == (model.labels, 3.0)
    assert again.predict("A dog.") == model.predict("A dog.")
    receipt = compare(model, oracle(folder, model), ["A dog."], Receipt("test", {}))
    assert receipt.largest_difference < 1e-4


@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_without_the_original_tensors_is_not_restored(missing, tmp_path):
    folder = exported(make("encoder", d_model=160, head="pooling", **PRE), tmp_path)
    if missing:
        (folder / EXACT).unlink()
    else:
        save_file({"embeddings.shared.weight": torch.zeros(3, 160)}, folder / EXACT)
    assert restore(folder) is None
    with pytest.raises(InputError, match="changed after regard exported it"):
        read(folder)


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
    """Another program would write such a folder: the ordinary import recognises the options."""
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


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("change", ["values", "rows", "missing"])
def test_changed_position_tables_are_not_ignored(positions, change, tmp_path):
    """BART stores sinusoids as a table, which transformers can train."""
    folder = exported(make("encoder-decoder", **NORMED, positions=positions), tmp_path)
    path, name = folder / "model.safetensors", "model.decoder.embed_positions.weight"
    tensors = load_file(path)
    before = restore(folder).tensors
    if change == "missing":
        del tensors[name]
    else:
        tensors[name][2:] += 1  # the first two rows are not used
        tensors[name] = tensors[name][:-1] if change == "rows" else tensors[name]
    save_file(tensors, path)
    imported = restore(folder)
    if positions == "learned" and change == "values":
        key = "decoder.positions.weight"
        torch.testing.assert_close(imported.tensors[key], before[key] + 1)
    else:
        assert imported is None


@pytest.mark.parametrize(
    ("style", "options", "changes"),
    [
        ("encoder", {"head": "classifier", "classes": 2}, {"id2label": {"0": "yes", "1": "no"}}),
        ("encoder", {"head": "classifier", "classes": 2}, {"layer_norm_eps": 0.1}),
        ("encoder", {"activation": "gelu"}, {"hidden_act": "relu"}),
        ("decoder", LLAMA, {"rope_theta": 500.0}),
        ("decoder", LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("decoder", LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("decoder", LLAMA, {"tie_word_embeddings": True}),
        ("decoder", LLAMA, {"eos_token_id": 5}),
    ],
)
def test_later_changes_of_the_options_are_not_ignored(style, options, changes, tmp_path):
    folder = exported(make(style, **options, **({} if options is LLAMA else PRE)), tmp_path)
    assert restore(folder) is not None
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert restore(folder) is None


@pytest.mark.parametrize(
    ("file", "changes", "expected"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 16}, (16, "mean")),
        ("1_Pooling/config.json",
         {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, (40, "cls")),
    ],
)  # fmt: skip
def test_later_changes_of_the_sentence_files_are_not_ignored(file, changes, expected, tmp_path):
    options = {**LEARNED, **NORMED, "head": "pooling", "scale_embeddings": False}
    folder = exported(make("encoder", **options), tmp_path)
    assert restore(folder) is not None
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))
    imported = read(folder)
    assert (imported.max_length, imported.config.pooling) == expected


def test_the_ordinary_import_reads_the_changed_options(tmp_path):
    options = {**LEARNED, **NORMED, "head": "classifier", "classes": 2, "scale_embeddings": False}
    folder = exported(make("encoder", **options), tmp_path)
    path = folder / "config.json"
    values = json.loads(path.read_text()) | {"id2label": {"0": "yes", "1": "no"}}
    path.write_text(json.dumps(values))
    assert read(folder).labels == ["yes", "no"]


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own.update(model={}),
        lambda own: own.update(model=[["x"]]),
        lambda own: own.update(model={"vocabulary_size": 9, "style": ["x"]}),
        lambda own: own.update(task=["x"]),
        lambda own: own.update(labels="ab"),
        lambda own: own.update(labels=[["x"]]),
        lambda own: own.update(decoding=[["a", "b"]]),
        lambda own: own.update(temperature=0.0),
        lambda own: own.update(positions="9"),
        lambda own: own.update(tokenizers=[["x"]]),
        lambda own: own.update(tokenizers={"": ["x"]}),
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
