"""Imported tokenizers: special tokens, pieces, words, streams, and their files."""

import hashlib
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from learned import BYTE
from regard import InputError
from regard.text.imported import MOST_ADDED, ImportedTokenizer, SpecialTokens
from regard.text.loading import load_tokenizer
from regard.text.stream import TextStream
from regard.text.token_pieces import Spelling
from tests.imported import KINDS, corpus, damaged, imported, word_piece

TEXTS = [*corpus(3), "", " ", "the cat", "Zoë 数 \N{PILE OF POO}", "a  b\n\tc", "don't stop ."]
NAMES = [
    "[CLS]",
    "[MASK]",
    "a [SEP] b",
    "<|endoftext|>",
    "</s>",
    "x</s><s>y",
    "<mask> <pad>",
    "<s>",
]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library_and_texts_are_equal(kind):
    tokenizer = imported(kind)
    assert tokenizer.fast.encode_special_tokens
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == tokenizer.fast.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == tokenizer.fast.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_becomes_a_special_token(kind):
    tokenizer = imported(kind)
    for text in [*NAMES, *(token for token in tokenizer.tokens(range(6)) if token)]:
        ids = tokenizer.encode(f"a {text}{text} b")
        assert not (tokenizer.special_ids - {tokenizer.unk}).intersection(ids), text
        assert ids


def test_names_of_special_tokens_are_read_as_text():
    tokenizer = imported("llama")
    assert tokenizer.decode(tokenizer.encode("</s> the <unk>")) == "</s> the <unk>"
    for kind in ("gpt2", "marian", "bart"):
        tokenizer = imported(kind)
        ids = tokenizer.encode("a </s> <|endoftext|> b")
        known = "a </s> <|endoftext|> b" if kind == "gpt2" else "s"
        assert known in tokenizer.decode(ids)


def test_frames():
    bert, gpt2, llama, marian, bart = map(imported, KINDS)
    assert bert.frame([9], "encoder") == [2, 9, 3]
    assert bert.frame_size("encoder") == len(bert.frame([], "encoder")) == 2
    assert gpt2.frame([9], "decoder") == [9]
    assert gpt2.frame_size("decoder") == 0
    assert gpt2.frame([], "decoder") == gpt2.prompt([], 5) == [0]  # an empty text is <|endoftext|>
    assert gpt2.prompt([7, 8, 9], 2) == [8, 9]
    assert llama.prompt([7, 8, 9], 3) == [1, 8, 9]
    assert llama.prompt([7, 8], 3) == [1, 7, 8]
    assert marian.frame([9], "encoder-decoder") == [9, 2]
    assert marian.frame_pooled([9], "encoder") == [9, 2]
    assert bart.frame([9], "encoder-decoder") == [0, 9, 2]
    assert (bart.target_prefix, marian.target_prefix) == ((0,), ())
    assert bert.end == bert.sep


@pytest.mark.parametrize("kind", KINDS)
def test_text_ids_are_all_tokens_that_are_not_special(kind):
    tokenizer = imported(kind)
    known = set(tokenizer.fast.get_vocab().values())
    assert set(tokenizer.text_ids) == known - tokenizer.special_ids
    assert tokenizer.special_ids >= {id for id in (tokenizer.eos, tokenizer.mask) if id >= 0}


def test_missing_special_tokens_are_refused_by_name():
    with pytest.raises(InputError, match=r"fill needs a mask token \(mask\).*has none"):
        imported("gpt2").require("fill", "mask")
    imported("bert").require("fill", "mask", "sep")
    none = ImportedTokenizer(word_piece(), SpecialTokens(), 404)
    with pytest.raises(InputError, match="the text is empty, and this model has no start token"):
        none.frame([], "encoder")
    assert none.frame([7], "encoder") == [7]


# ---- pieces and words -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_add_up_to_the_text(kind):
    tokenizer = imported(kind)
    for text in (text.replace("'", "") for text in corpus(10)):
        ids = tokenizer.encode(text)
        joined = b"".join(tokenizer.pieces[id] for id in ids).decode()
        assert joined.lstrip() == (text.lower() if kind == "bert" else text).lstrip()
        if tokenizer.exact:
            assert joined == text
            assert tokenizer.sizes[ids].sum() == len(text.encode())


def test_pieces_of_bytes_and_unused_ids():
    llama = imported("llama")
    assert llama.pieces[3 + 0xC3] == b"\xc3"
    assert llama.pieces[1] == b""
    assert len(llama.pieces) == llama.size == 280
    assert llama.tokens([1, 3 + 0xC3, 279]) == ["<s>", "\\xc3", "<279>"]
    assert llama.decode([279]) == ""


def test_tokens_are_readable():
    assert imported("gpt2").tokens(imported("gpt2").encode("a é"))[:2] == ["a", "▁"]
    assert imported("bert").tokens([2, 3]) == ["[CLS]", "[SEP]"]
    words = imported("bert").tokens(imported("bert").encode("the wolfish"))
    assert words[0] == "the"
    assert any(word.startswith("##") for word in words)
    with pytest.raises(InputError, match="outside the vocabulary"):
        imported("bert").tokens([404])


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "marian"])
def test_words_begin_at_spaces_and_punctuation(kind):
    tokenizer = imported(kind)
    text = "the cats slept. the wolfish zebra"
    ids = np.array(tokenizer.frame(tokenizer.encode(text), "encoder"))
    starts = tokenizer.word_starts(ids)
    words = ["".join(tokenizer.pieces[ids[i]].decode() for i in np.flatnonzero(starts == start))
             for start in np.unique(starts)]  # fmt: skip
    assert [word.strip() for word in words if word.strip()] == [
        "the", "cats", "slept", ".", "the", "wolfish", "zebra"
    ]  # fmt: skip
    special = [i for i, id in enumerate(ids) if id in tokenizer.special_ids]
    assert all(starts[i] == i for i in special)


def test_spelling_of_decoders_without_a_known_form():
    from tokenizers import Tokenizer, decoders, models

    library = Tokenizer(models.WordLevel({"the": 0, ".": 1}, unk_token="the"))
    assert Spelling.of(library) == Spelling("words")
    assert Spelling.of(library).piece("the") == b" the"
    assert Spelling.of(library).piece(".") == b"."
    library.decoder = decoders.BPEDecoder(suffix="</w>")
    assert Spelling.of(library).piece("the</w>") == b"the "
    library.decoder = decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()])
    assert not Spelling.of(library).exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("ids", [[], [5, 6, 7]])
def test_arrays_have_the_same_special_tokens(kind, style, ids):
    for tokenizer in (imported(kind), BYTE):
        row = tokenizer.frame_array(np.array(ids, dtype=np.uint16), style)
        assert row.tolist() == tokenizer.frame(ids, style)
        assert row.dtype == np.int64


# ---- streams ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_streams_give_the_text_of_all_tokens(kind, data):
    tokenizer = imported(kind)
    ids = st.lists(st.integers(0, tokenizer.size - 1), max_size=40)
    before, after = data.draw(ids), data.draw(ids)
    stream = TextStream(tokenizer, before)
    parts = [stream.add(token) for token in after] + [stream.end()]
    assert "".join(parts) == tokenizer.decode_after(before, after)
    stream = TextStream(tokenizer)
    assert "".join([stream.add(token) for token in after] + [stream.end()]) == tokenizer.decode(
        after
    )


@pytest.mark.parametrize("kind", ["llama", "marian", "bert", "gpt2"])
def test_a_continuation_keeps_its_space(kind):
    tokenizer = imported(kind)
    ids = tokenizer.encode("the cat the cat")
    before = tokenizer.frame([], "encoder")
    for cut in range(1, len(ids)):
        first = tokenizer.decode(ids[:cut])
        assert first + tokenizer.decode_after(ids[:cut], ids[cut:]) == "the cat the cat"
        stream = TextStream(tokenizer, ids[:cut])
        assert first + "".join(map(stream.add, ids[cut:])) + stream.end() == "the cat the cat"
    assert tokenizer.decode_after(before, ids) == "the cat the cat"


def test_incomplete_characters_wait():
    tokenizer = imported("llama")
    stream = TextStream(tokenizer)
    parts = [stream.add(3 + byte) for byte in "é数".encode()]
    assert parts == [""] * 5
    the = tokenizer.encode("the")
    assert [stream.add(token) for token in the] == ["é数 the"]
    assert stream.add(3 + 0xC3) == ""
    assert stream.end() == "\ufffd"
    assert TextStream(tokenizer, [*the, *(3 + byte for byte in "é".encode())]).add(*the) == " the"
    gpt2 = imported("gpt2")
    stream = TextStream(gpt2)
    assert [stream.add(token) for token in gpt2.encode("数")][-1] == "数"


# ---- files ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind, tmp_path):
    tokenizer, path = imported(kind), tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_tokenizer(path, tokenizer.size)
    assert isinstance(loaded, ImportedTokenizer)
    assert loaded.specials == tokenizer.specials
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert loaded.pieces == tokenizer.pieces
    with pytest.raises(InputError, match="tokens, but the model needs"):
        load_tokenizer(path, tokenizer.size - 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"specials": None}, "specials or size is missing"),
        ({"size": "404"}, "specials or size is missing"),
        ({"size": True}, "specials or size is missing"),
        ({"size": 5}, "but the model has 5: they must belong together"),
        ({"size": 2_000_000}, "the model has 2,000,000 tokens, but at most"),
        ({"specials__mask": None}, "specials.mask is not a token id"),
        ({"specials__mask": 1.5}, "specials.mask is not a token id"),
        ({"specials__eos": -2}, "specials.eos is not a token id"),
        ({"specials__cls": 404}, "special token id 404 is outside the vocabulary of 404"),
        ({"specials__begin": None}, "specials.begin is not a list"),
        ({"specials__begin": [1] * (MOST_ADDED + 1)}, "specials.begin is not a list"),
        ({"specials__end": ["a"]}, "specials.end has an entry"),
        ({"specials__target": [-1]}, "specials.target has an entry"),
        ({"specials__target": [9999]}, "outside the vocabulary"),
        ({"library": None}, "library is missing"),
        ({"library": []}, "library is missing"),
        ({"library": {"model": {"type": "Secret"}}}, "damaged tokenizer"),
        ({"library__model": {"type": "WordPiece"}}, "damaged tokenizer"),
        ({"library__added_tokens": [{"id": 2**32 - 2, "content": "x"}]}, "damaged tokenizer"),
        ({"version": 99}, "version 99"),
        ({"kind": "exported"}, "damaged tokenizer"),
    ],
)
def test_damaged_files_are_refused(changes, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(damaged(imported("bert"), **changes))
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(path, 404)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_huge_list_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(damaged(imported("bert"), specials__begin=[1] * 100_000))
    with pytest.raises(InputError):
        load_tokenizer(path, 404)


def test_errors_of_the_library_are_input_errors(tmp_path):
    content = json.loads(imported("bert")._content)
    content["library"]["model"]["unk_token"] = "[NONE]"
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="cannot encode the text"):
        load_tokenizer(path).encode("\N{PILE OF POO}")
    with pytest.raises(InputError, match="lone surrogate"):
        imported("bert").encode("a\udcff")


def test_wrong_sizes_are_refused():
    with pytest.raises(InputError, match="but the model has 10: they must belong together"):
        ImportedTokenizer(word_piece(), SpecialTokens(), 10)
    with pytest.raises(InputError, match="outside the vocabulary"):
        ImportedTokenizer(word_piece(), SpecialTokens(eos=1000), 404)


def test_stream_continues_after_the_decoder_changed_returned_text():
    words = ["[UNK]", "he", "'", "s", "here", "now"]
    library = tokenizers.Tokenizer(
        models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]")
    )
    library.decoder = decoders.Sequence(
        [decoders.WordPiece(cleanup=False), decoders.Fuse(), decoders.Replace(" ' ", "'")]
    )
    tokenizer = ImportedTokenizer(library, SpecialTokens(unk=0), len(words))
    stream, ids = TextStream(tokenizer), [1, 2, 3, 4, 5]
    assert tokenizer.decode(ids) == "he's here now"
    assert [stream.add(id) for id in ids] == ["he", " '", "", " here", " now"]
    assert stream.end() == ""
