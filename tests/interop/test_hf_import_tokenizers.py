"""Vocabularies of Hugging Face folders without tokenizer.json, compared with `transformers`."""

import io
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import regard
from interop.hf_models import FAIRSEQ_TOKENS, LINES, byte_level, text_lines, wordpiece
from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop.hf.common import Recipe, Source
from regard.interop.hf.folder import Folder
from regard.interop.hf.tokenizer import read_chat_template, read_tokenizers
from regard.interop.proof import default_texts

transformers = pytest.importorskip("transformers")
TEXTS = [*LINES[:6], "Ça va? Ünïcode   spaces", "x", "1,000 dogs don't run.", "A  \n B"]


def imported(folder, style, size, config, start=-1, target=()):
    """The tokenizers of a folder for a model of a vocabulary size."""
    stacks = {f"{stack}_layers": 1 for stack in style.split("-")}
    model = ModelConfig(style=style, vocabulary_size=size, d_model=8, heads=2, d_ff=8, **stacks)
    (folder / "config.json").write_text(json.dumps(config))
    recipe = Recipe("embed", model, dict, 512, start=start, target=target)
    return read_tokenizers(Folder(folder), Source(folder / "config.json", config), recipe)


def agree(folder, tokenizer, style, lines, **options):
    """Whether a tokenizer and `AutoTokenizer` give the same ids for all lines."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    ours = [tokenizer.frame(ids, style) for ids in tokenizer.encode_batch(lines)]
    expected = [theirs(line)["input_ids"] for line in lines]
    assert ours == expected
    for ids in expected[:20]:
        assert tokenizer.decode(ids).split() == theirs.decode(ids, skip_special_tokens=True).split()
    return theirs


@pytest.mark.parametrize("changes", [
    {}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False},
])  # fmt: skip
def test_vocab_txt(changes, tmp_path):
    vocabulary = wordpiece().get_vocab()
    lines = sorted(vocabulary, key=vocabulary.get)
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(changes))
    tokenizer, _ = imported(tmp_path, "encoder", 400, {"model_type": "bert"})
    agree(tmp_path, tokenizer, "encoder", TEXTS + text_lines(200))
    assert (tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.unk) == (2, 3, 4, 1)


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "qwen2"])
def test_merges_txt(kind, tmp_path):
    from regard.interop.hf.vocabulary import QWEN2

    if kind == "roberta":
        library = byte_level(FAIRSEQ_TOKENS)
    else:
        library = byte_level(["<|endoftext|>"], QWEN2 if kind == "qwen2" else None)
    content = json.loads(library.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in content["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    names = {"eos_token": "<|endoftext|>"} if kind == "qwen2" else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    style = "encoder" if kind == "roberta" else "decoder"
    tokenizer, _ = imported(tmp_path, style, 400, {"model_type": kind})
    agree(tmp_path, tokenizer, style, TEXTS + text_lines(200))
    assert tokenizer.eos == (2 if kind == "roberta" else 0)


@pytest.fixture(scope="module")
def piece_models(tmp_path_factory):
    """SentencePiece models: Unigram as fairseq and Marian use it, BPE as Llama does."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("pieces")
    lines = text_lines(400) + LINES
    for name, options in {
        "unigram": {"model_type": "unigram"},
        "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                "remove_extra_whitespaces": False},
    }.items():  # fmt: skip
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(folder / name), vocab_size=500,
            character_coverage=1.0, minloglevel=2, unk_id=0, bos_id=1, eos_id=2, **options,
        )  # fmt: skip
    return folder


def test_llama_sentencepiece(tmp_path, piece_models):
    (tmp_path / "tokenizer.model").write_bytes((piece_models / "bpe.model").read_bytes())
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, _ = imported(tmp_path, "decoder", 500, {"model_type": "llama", "eos_token_id": 2})
    theirs = agree(tmp_path, tokenizer, "decoder", text_lines(100))
    assert tokenizer.specials.begin == (1,) == (theirs.bos_token_id,)


def chatml(folder, piece_models, ids, **config):
    """The tokenizer of a Llama with the tokens of ChatML in addition to its SentencePiece model."""
    (folder / "tokenizer.model").write_bytes((piece_models / "bpe.model").read_bytes())
    if ids:
        (folder / "added_tokens.json").write_text(json.dumps(ids))
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>",
              "eos_token": "<|im_end|>", **config}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return imported(folder, "decoder", 502, {"model_type": "llama", "eos_token_id": 501})[0]


def test_a_llama_with_a_sentencepiece_model_passes_its_comparison(tmp_path, piece_models):
    folder = tmp_path / "llama"
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=500, **shape, **heads)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes((piece_models / "bpe.model").read_bytes())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    options = {"tokenizer_class": "LlamaTokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    receipt = regard.import_model(folder, tmp_path / "model")
    assert any(text.startswith(" ") for text in default_texts(200))
    assert (receipt.passed, receipt.same_tokenization) == (True, 1)


@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_of_a_sentencepiece_model(special, tmp_path, piece_models):
    ids = {"<|im_start|>": 500, "<|im_end|>": 501}
    if special:
        table = {"<unk>": 0, "<s>": 1, "</s>": 2, **ids}
        decoder = {str(id): {"content": text, "special": True} for text, id in table.items()}
        tokenizer = chatml(tmp_path, piece_models, None, added_tokens_decoder=decoder)
    else:  # the names of special tokens are in another list
        names = {"additional_special_tokens": ["<|im_start|>"]}
        tokenizer = chatml(tmp_path, piece_models, ids, **names)
    assert tokenizer.fast.token_to_id("<|im_start|>") == 500
    assert tokenizer.eos == 501
    lines = [*text_lines(50), "<|im_start|>user", "Hi <|im_start|> you<|im_end|>\n"]
    agree(tmp_path, tokenizer, "decoder", lines, split_special_tokens=True)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"<|im_end|>": 600}, "must have the id 600, but got 500: added ids must follow"),
        ({"word": 500, "<|im_end|>": 501}, "is not special"),
    ],
)
def test_added_tokens_of_a_sentencepiece_model_refused(ids, message, tmp_path, piece_models):
    with pytest.raises(InputError, match=message):
        chatml(tmp_path, piece_models, ids)


@pytest.mark.parametrize("kind", ["xlm-roberta", "mbart"])
def test_fairseq_sentencepiece(kind, tmp_path, piece_models):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(
        (piece_models / "unigram.model").read_bytes()
    )
    name = {"xlm-roberta": "XLMRobertaTokenizer", "mbart": "MBartTokenizer"}[kind]
    values = {"tokenizer_class": name} | ({"src_lang": "de_DE"} if kind == "mbart" else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    style = "encoder" if kind == "xlm-roberta" else "encoder-decoder"
    size = 500 + 2 + (25 if kind == "mbart" else 0)
    tokenizer, _ = imported(tmp_path, style, size, {"model_type": kind, "eos_token_id": 2}, start=2)
    theirs = agree(tmp_path, tokenizer, style, text_lines(100))
    assert tokenizer.mask == theirs.mask_token_id
    assert tokenizer.specials.end[-1] == theirs("x")["input_ids"][-1]


def test_mbart_50_needs_tokenizer_json(tmp_path, piece_models):
    content = (piece_models / "unigram.model").read_bytes()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MBart50Tokenizer"}')
    with pytest.raises(InputError, match="mBART-50"):
        imported(tmp_path, "encoder-decoder", 600, {"model_type": "mbart", "eos_token_id": 2}, 2)


@pytest.mark.parametrize("language", ["xx_XX", ["de_DE"], {"a": 1}])
def test_mbart_with_an_unknown_language(language, tmp_path, piece_models):
    content = (piece_models / "unigram.model").read_bytes()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"src_lang": language}))
    with pytest.raises(InputError, match="src_lang=.* is not a language"):
        imported(tmp_path, "encoder-decoder", 600, {"model_type": "mbart", "eos_token_id": 2}, 2)


def test_marian(tmp_path):
    """Two SentencePiece models share the ids of vocab.json; an umlaut, which only the target has,
    is a token of the source as well."""
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = text_lines(600)
    names = {}
    for side, part in (("source", lines[: len(lines) // 2]), ("target", lines[len(lines) // 2 :])):
        content = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(part), model_writer=content, vocab_size=300, minloglevel=2
        )
        (tmp_path / f"{side}.spm").write_bytes(content.getvalue())
        pieces = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
        names |= {pieces.id_to_piece(i): 0 for i in range(3, 300)}
    ids = {
        name: i for i, name in enumerate(["</s>", "<unk>", ">>fra<<", *reversed(names), "<pad>"])
    }
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    config = {"model_type": "marian", "eos_token_id": 0}
    both = imported(tmp_path, "encoder-decoder", len(ids), config, start=ids["<pad>"])
    agree(tmp_path, both[0], "encoder-decoder", [">>fra<< A man sleeps.", *lines, *TEXTS[:6]])
    assert ids["ü"] in both[0].encode("über")
    assert both[1].bos == ids["<pad>"]
    assert both[1].eos == 0
    assert both[1].decode(both[1].encode(lines[-1])) == lines[-1]


def test_chat_template(tmp_path):
    folder, path = Folder(tmp_path), tmp_path / "tokenizer_config.json"
    assert read_chat_template(folder) is None
    path.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert read_chat_template(folder) == "{{ messages }}"
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    path.write_text(json.dumps({"chat_template": templates}))
    assert read_chat_template(folder) == "d"
    (tmp_path / "chat_template.jinja").write_text("j")
    assert read_chat_template(folder) == "j"


def test_added_tokens_and_several_ends(tmp_path):
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    content = json.loads(library.to_str())["model"]
    size = len(content["vocab"])
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in content["merges"]))
    added = {
        str(size + i): {"content": name, "special": True}
        for i, name in enumerate(("<|a|>", "<|b|>"))
    }
    config = {"added_tokens_decoder": added, "eos_token": "<|b|>", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ends = {"model_type": "qwen2", "eos_token_id": [size, size + 1]}
    tokenizer, _ = imported(tmp_path, "decoder", size + 10, ends)
    assert tokenizer.eos == size + 1
    assert size not in tokenizer.encode("<|a|>")
    assert tokenizer.decode([size, *tokenizer.encode("dog")]) == "dog"


@pytest.mark.parametrize(("begins", "ends"), [(True, False), (False, True)])
def test_add_bos_and_eos_token(begins, ends, tmp_path, piece_models):
    """These options count for SentencePiece models; tokenizer.json has its own post-processor."""
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
              "add_bos_token": begins, "add_eos_token": ends}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.model").write_bytes((piece_models / "bpe.model").read_bytes())
    tokenizer, _ = imported(tmp_path, "decoder", 500, {"model_type": "llama"})
    agree(tmp_path, tokenizer, "decoder", text_lines(20))
    assert (tokenizer.specials.begin, tokenizer.specials.end) == ((1,) * begins, (2,) * ends)
    byte_level(["<s>", "</s>"]).save(str(tmp_path / "tokenizer.json"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, _ = imported(tmp_path, "decoder", 500, {"model_type": "llama"})
    agree(tmp_path, tokenizer, "decoder", TEXTS)
    assert (tokenizer.specials.begin, tokenizer.specials.end) == ((0,), ())
