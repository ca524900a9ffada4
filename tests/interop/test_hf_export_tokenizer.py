"""AutoTokenizer of an exported model returns the ids of regard, and the other files are complete."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken
from tokenizers.models import WordPiece
from transformers import AutoConfig, AutoTokenizer

from regard.errors import InputError
from regard.interop.hf.write_tokenizer import tokenizer_files
from regard.interop.proof import DIFFICULT
from regard.text.imported import ImportedTokenizer, SpecialTokens
from regard.text.tokenizer import Tokenizer
from tests.interop.hf_export_models import exported, learned, lines, make

HOSTILE = (
    "<eos> <bos><cls> a <mask>, <unk> <sep>",
    "",
    " ",
    "x\r\n\u2028y\x00z",
    "ﬁ e\u0301 \u00a0 ",
)
TEXTS = [*DIFFICULT, *HOSTILE, *lines(500)]
PRE = {"norm_first": True}


def automatic(model, folder):
    return AutoTokenizer.from_pretrained(exported(model, folder))


@pytest.mark.parametrize(
    ("style", "kind", "options"),
    [
        ("encoder-decoder", "bpe", {}),
        ("decoder", "bpe", PRE),
        ("decoder", "byte", PRE),
        ("decoder", "character", PRE),
        ("encoder", "bpe", {**PRE, "head": "classifier", "classes": 2}),
    ],
)
def test_ids_and_text_of_1000_lines(style, kind, options, tmp_path):
    own = learned(kind)
    model = make(style, tokenizers=(own, own), longest=300, **options)
    hf = automatic(model, tmp_path)
    expected = [own.frame(ids, style) for ids in own.encode_batch(TEXTS)]
    encoded = hf(TEXTS)["input_ids"]
    assert len(encoded) > 1000
    assert encoded == expected
    assert len(hf) == own.size
    decoded = hf.batch_decode(encoded, skip_special_tokens=True)
    # transformers leaves out unknown characters, regard shows them as U+FFFD
    assert decoded == [own.decode(ids).replace("\ufffd", "") for ids in expected]
    assert kind == "character" or decoded == TEXTS


def test_an_ordinary_token_with_the_name_of_a_special_token_stays_ordinary(tmp_path):
    own = Tokenizer("bpe", ["< e", "<e o", "<eo s", "<eos >"])
    assert b"<eos>" in own.pieces
    hf = automatic(make("decoder", tokenizers=(own, own), **PRE), tmp_path)
    assert hf("<eos>")["input_ids"] == [own.bos, *own.encode("<eos>")]
    assert hf.eos_token_id == own.eos


def test_masks_and_the_space_before_them(tmp_path):
    model = make("encoder", activation="gelu", **PRE)
    text = "A dog <mask> in the<mask>."
    expected = model.task.encode_parts(text.split("<mask>"), 40, "")
    assert automatic(model, tmp_path)(text)["input_ids"] == expected


def test_padding_has_no_effect(tmp_path):
    """The model never reads the padding token."""
    model = make("encoder-decoder")
    hf = automatic(model, tmp_path)
    batch = hf(["A dog.", "Two dogs are in the park."], padding=True)
    assert batch["input_ids"][0][-1] == hf.pad_token_id == model.tokenizer.cls
    assert batch["attention_mask"][0][-1] == 0
    assert hf("A", "B")["input_ids"][1:] == [model.tokenizer.sep, *model.tokenizer.encode("B"), 2]


def test_tasks_with_other_special_tokens():
    own = learned()
    end = json.loads(tokenizer_files(own, "embed", "decoder", 9)["tokenizer.json"])
    assert [list(part) for part in end["post_processor"]["single"]] == [
        ["Sequence"],
        ["SpecialToken"],
    ]
    with pytest.raises(InputError, match="model.style=encoder"):
        tokenizer_files(own, "translate", "encoder", 9)


def test_chat_template(tmp_path):
    template = "{% for m in messages %}<sep>{{ m.content }}<eos>{% endfor %}"
    model = make("decoder", **PRE)
    model.folder = tmp_path
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    hf, own = automatic(model, tmp_path), model.tokenizer
    ids = hf.apply_chat_template([{"role": "user", "content": "Hi."}], return_dict=False)
    assert ids == [own.sep, *own.encode("Hi."), own.eos]
    # Names of special tokens in other texts must be excluded by the caller.
    assert hf("<eos>", split_special_tokens=True)["input_ids"] == [own.bos, *own.encode("<eos>")]


def imported():
    """A tokenizer with the special tokens of BERT."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "##b",
        "dog",
        ".",
        "[",
        "]",
        "C",
        "##L",
        "##S",
    ]
    library = tokenizers.Tokenizer(
        WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.decoder = tokenizers.decoders.WordPiece()
    library.add_special_tokens([AddedToken(word, normalized=False) for word in words[:5]])
    specials = SpecialTokens(unk=1, cls=2, sep=3, mask=4, begin=(2,), end=(3,))
    return ImportedTokenizer(library, specials, 20)


def test_an_imported_tokenizer_keeps_its_ids(tmp_path):
    own = imported()
    model = make("encoder", tokenizers=(own, own), head="classifier", classes=2, **PRE)
    hf = automatic(model, tmp_path)
    for text in ("a dog.", "ab [CLS] a", ""):
        assert hf(text)["input_ids"] == own.frame(own.encode(text), "encoder")
    assert (hf.pad_token_id, hf.cls_token_id, hf.mask_token_id) == (0, 2, 4)
    config = AutoConfig.from_pretrained(tmp_path / "exported")
    assert (config.pad_token_id, config.vocab_size) == (0, 20)
    assert config.id2label == {0: "bad", 1: "good"}


def test_sentence_transformers_files(tmp_path):
    model = make("encoder", head="pooling", pooling="cls", embedding_norm=True)
    folder = exported(model, tmp_path)
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text())
    chosen = [name for name, value in pooling.items() if name.startswith("pooling_mode") and value]
    assert chosen == ["pooling_mode_cls_token"]
    assert pooling["word_embedding_dimension"] == 16
    options = json.loads((folder / "sentence_bert_config.json").read_text())
    assert options["max_seq_length"] == 40
