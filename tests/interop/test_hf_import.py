"""Imported models of Hugging Face compute what `transformers` computes, in float64."""

import json

import pytest
import torch

from interop.hf_models import (
    BERT_NAMES,
    FAIRSEQ_NAMES,
    FAIRSEQ_TOKENS,
    LINES,
    SIZE,
    byte_level,
    float64,
    in_float64,
    save_model,
    save_tokenizer,
    text_lines,
    wordpiece,
)
from regard import Packed, Transformer
from regard.interop.folder import make_model
from regard.interop.hf.read import oracle, read
from regard.interop.hf.vocabulary import QWEN2
from regard.interop.proof import Receipt, compare, default_texts

BERT = {
    "vocab_size": SIZE, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 200,
}  # fmt: skip
DISTIL = {"vocab_size": SIZE, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40,
          "max_position_embeddings": 200}  # fmt: skip
LLAMA = {
    "vocab_size": SIZE, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 200,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": SIZE, "d_model": 24, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "max_position_embeddings": 200, "pad_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
ENCODERS = {
    "bert fill": ("Bert", "ForMaskedLM", BERT, {}),
    "bert fill untied": ("Bert", "ForMaskedLM", BERT, {"tie_word_embeddings": False}),
    "bert pretraining": ("Bert", "ForPreTraining", BERT, {"layer_norm_eps": 1e-3}),
    "bert classify": ("Bert", "ForSequenceClassification", BERT, {"hidden_act": "gelu_new", "num_labels": 3}),
    "bert embed": ("Bert", "Model", BERT, {"hidden_act": "relu"}),
    "bert silu": ("Bert", "Model", BERT, {"hidden_act": "silu"}),
    "roberta fill": ("Roberta", "ForMaskedLM", BERT, {"pad_token_id": 1, "type_vocab_size": 1}),
    "roberta classify": ("Roberta", "ForSequenceClassification", BERT, {"pad_token_id": 1}),
    "xlm-roberta embed": ("XLMRoberta", "Model", BERT, {"pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert fill": ("DistilBert", "ForMaskedLM", DISTIL, {}),
    "distilbert classify": ("DistilBert", "ForSequenceClassification", DISTIL, {}),
    "distilbert embed": ("DistilBert", "Model", DISTIL, {}),
}  # fmt: skip
DECODERS = {
    "gpt2": ("GPT2", "LMHeadModel", {"vocab_size": SIZE, "n_embd": 24, "n_layer": 2, "n_head": 3,
             "n_positions": 200, "n_inner": 40, "bos_token_id": 0, "eos_token_id": 1}, {}),
    "gpt2 untied": ("GPT2", "LMHeadModel", {"vocab_size": SIZE, "n_embd": 24, "n_layer": 1, "n_head": 3,
                    "n_positions": 200, "bos_token_id": 0, "eos_token_id": 1},
                    {"tie_word_embeddings": False, "activation_function": "relu"}),
    "llama": ("Llama", "ForCausalLM", LLAMA, {"rms_norm_eps": 1e-3}),
    "llama tied": ("Llama", "ForCausalLM", LLAMA, {"tie_word_embeddings": True, "head_dim": 8}),
    "llama biases": ("Llama", "ForCausalLM", LLAMA, {"attention_bias": True, "mlp_bias": True}),
    "llama attention bias": ("Llama", "ForCausalLM", LLAMA, {"attention_bias": True}),
    "llama mlp bias": ("Llama", "ForCausalLM", LLAMA, {"mlp_bias": True, "num_key_value_heads": 4}),
    "llama base": ("Llama", "ForCausalLM", LLAMA,
                   {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "qwen2": ("Qwen2", "ForCausalLM", LLAMA, {"tie_word_embeddings": True}),
    "qwen2 window": ("Qwen2", "ForCausalLM", LLAMA,
                     {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
    "mistral": ("Mistral", "ForCausalLM", LLAMA, {"sliding_window": 4}),
    "mistral without window": ("Mistral", "ForCausalLM", LLAMA, {"sliding_window": None}),
}  # fmt: skip
TRANSLATORS = {
    "marian": ("Marian", "MTModel", SEQ2SEQ,
               {"scale_embedding": True, "activation_function": "swish", "decoder_start_token_id": 1}),
    "marian untied": ("Marian", "MTModel", SEQ2SEQ, {"tie_word_embeddings": False}),
    "marian two tables": ("Marian", "MTModel", SEQ2SEQ,
                          {"share_encoder_decoder_embeddings": False, "scale_embedding": True}),
    "bart": ("Bart", "ForConditionalGeneration", SEQ2SEQ, {"forced_bos_token_id": 0}),
    "bart untied": ("Bart", "ForConditionalGeneration", SEQ2SEQ,
                    {"tie_word_embeddings": False, "scale_embedding": True}),
    "mbart": ("MBart", "ForConditionalGeneration", SEQ2SEQ,
              {"scale_embedding": True, "forced_bos_token_id": 4}),
}  # fmt: skip


@pytest.fixture(scope="module")
def libraries():
    """A tokenizer for each family, and the names of its special tokens."""
    qwen2 = ["<|endoftext|>", "<|im_end|>"]
    return {
        "Bert": (wordpiece(), BERT_NAMES),
        "Decoder": (byte_level(["<s>", "</s>"]), {"bos_token": "<s>", "eos_token": "</s>"}),
        "Qwen2": (byte_level(qwen2, QWEN2), {"eos_token": qwen2[1], "pad_token": qwen2[0]}),
        "Seq": (byte_level(FAIRSEQ_TOKENS), FAIRSEQ_NAMES),
    }


def make(folder, libraries, family, head, sizes, changes, **save):
    """Write a model folder; returns the model of `transformers` and the imported one."""
    names = f"{family}Config", f"{family}{head}"
    model = save_model(folder, names, {**sizes, **changes}, **save)
    if "forced_bos_token_id" in changes:
        path = folder / "generation_config.json"
        values = json.loads(path.read_text()) | {
            "forced_bos_token_id": changes["forced_bos_token_id"]
        }
        path.write_text(json.dumps(values))
    fairseq = family in ("Roberta", "XLMRoberta", "Marian", "Bart", "MBart")
    decoder = family in ("GPT2", "Llama", "Qwen2", "Mistral")
    kind = "Seq" if fairseq else "Decoder" if decoder else "Bert"
    library, tokens = libraries["Qwen2" if family == "Qwen2" else kind]
    save_tokenizer(folder, library, **tokens)
    return model, read(folder)


def loaded(imported):
    """The imported model in float64; loading is strict about names and shapes."""
    model = Transformer(imported.config).eval()
    model.load_state_dict(imported.tensors)
    return model.double()


def rows(number=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, SIZE, (n,), generator=generator) for n in (7, 1, 12)[:number]]


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(name, tmp_path, libraries):
    theirs, imported = make(tmp_path, libraries, *ENCODERS[name])
    assert imported.task == (name.split()[1] if name.split()[1] in ("fill", "classify") else
                             "fill" if "pretraining" in name else "embed")  # fmt: skip
    sequences = rows()
    with torch.no_grad():
        ours = loaded(imported)(Packed.of(sequences))
        theirs = in_float64(theirs)
        for i, row in enumerate(sequences):
            with float64():
                output = theirs(input_ids=row[None])
            if imported.task == "embed":
                own, expected = ours[i], output.last_hidden_state[0].mean(0)
            elif imported.task == "classify":
                own, expected = ours[i], output.logits[0]
            else:
                start = sum(map(len, sequences[:i]))
                own = ours[start : start + len(row)]
                expected = getattr(output, "logits", getattr(output, "prediction_logits", None))[0]
            assert expected.abs().max() > 0.1
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", DECODERS)
def test_decoder(name, tmp_path, libraries):
    theirs, imported = make(tmp_path, libraries, *DECODERS[name])
    assert imported.task == "generate"
    assert imported.max_length == 200
    sequences, model, theirs = rows(), loaded(imported), in_float64(theirs)
    with torch.no_grad():
        ours = model(target=Packed.of(sequences)).split([len(row) for row in sequences])
        for row, own in zip(sequences, ours, strict=True):
            with float64():
                expected = theirs(input_ids=row[None]).logits[0]
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translator(name, tmp_path, libraries):
    theirs, imported = make(tmp_path, libraries, *TRANSLATORS[name])
    assert imported.task == "translate"
    specials = imported.tokenizers[1].specials
    assert specials.bos == theirs.config.decoder_start_token_id
    forced = TRANSLATORS[name][3].get("forced_bos_token_id")
    assert specials.target == (() if forced is None else (forced,))
    sources, targets = rows(), rows()[::-1]
    theirs = in_float64(theirs)
    with torch.no_grad():
        ours = loaded(imported)(Packed.of(sources), Packed.of(targets))
        for source, target, own in zip(
            sources, targets, ours.split([len(row) for row in targets]), strict=True
        ):
            with float64():
                expected = theirs(input_ids=source[None], decoder_input_ids=target[None]).logits[0]
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-9)


PROVED = {name: {**DECODERS, **TRANSLATORS, **ENCODERS}[name] for name in (
    "gpt2", "llama tied", "qwen2", "mistral", "marian", "bart", "mbart", "roberta fill",
    "distilbert classify", "bert embed")}  # fmt: skip


@pytest.mark.parametrize("name", PROVED)
def test_proof(name, tmp_path, libraries):
    """Tokenization and greedy decoding agree with `transformers`, in float32."""
    _, imported = make(tmp_path, libraries, *PROVED[name])
    theirs = oracle(tmp_path, imported)
    receipt = Receipt("import", {})
    compare(make_model(imported, tmp_path), theirs, LINES[:2], receipt)
    assert receipt.largest_difference < 1e-4
    if imported.config.has_decoder:
        assert receipt.greedy_tokens > 10
        assert receipt.same_greedy_tokens == 1
    lines, tokenizer = [*default_texts(9), *LINES[:6], *text_lines(300)], imported.tokenizers[0]
    ours = [tokenizer.frame(ids, imported.config.style) for ids in tokenizer.encode_batch(lines)]
    assert ours == theirs.tokenize(lines)
