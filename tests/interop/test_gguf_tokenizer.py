"""Tokenizers of GGUF files: compared with SentencePiece, and written and read again."""

import io

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import pre_tokenizers

from regard.errors import InputError
from regard.interop.gguf.file import read_file, write_file
from regard.interop.gguf.tokenizer import PRE, read_tokenizer, splitter, write_tokenizer
from regard.text.builtin import builtin_corpus
from regard.text.imported import ImportedTokenizer, SpecialTokens
from regard.text.tokenizer import SIGNS, Tokenizer

LINES = [
    *[english for english, _ in builtin_corpus("train")][:300],
    " leading and  double spaces ", "3 x 1,000 = 3000", "naïve Größe 數字 🙂", "", " ", "\n\n1.\tx",
    "it's <eos> <unk> </s> <0x41> [UNUSED3]", "▁", "a\u2581b",
]  # fmt: skip


def through_a_file(tokenizer, tmp_path):
    """The tokenizer after it was written to a file and read again."""
    path = tmp_path / "tokenizer.gguf"
    write_file(path, write_tokenizer(tokenizer), {})
    return read_tokenizer(read_file(path).metadata, tokenizer.size, path)


@pytest.fixture(scope="module")
def learned():
    return Tokenizer.learn(LINES, "bpe", 500, quiet=True)


def test_a_vocabulary_of_regard_keeps_its_ids(learned, tmp_path):
    for tokenizer in (learned, Tokenizer("byte")):
        copy = through_a_file(tokenizer, tmp_path)
        assert copy.size == tokenizer.size
        assert copy.encode_batch(LINES) == tokenizer.encode_batch(LINES)
        assert [copy.decode(ids) for ids in copy.encode_batch(LINES)] == LINES
        assert copy.frame([9], "decoder") == tokenizer.frame([9], "decoder") == [1, 9]
        specials = ("unk", "bos", "eos", "cls", "sep", "mask")
        assert [getattr(copy, name) for name in specials] == list(range(6))


def test_a_token_with_the_spelling_of_a_special_token_stays_text(tmp_path):
    tokenizer = Tokenizer("bpe", ["< e", "o s", "<e os", "<eos >"])
    copy = through_a_file(tokenizer, tmp_path)
    assert copy.encode("<eos>") == tokenizer.encode("<eos>")
    assert 2 not in copy.encode("<eos>")
    assert copy.eos == 2
    assert copy.decode([2]) == ""


@pytest.mark.parametrize("pre", PRE)
def test_an_imported_vocabulary_is_written_and_read(pre, learned, tmp_path):
    metadata = write_tokenizer(learned) | {"tokenizer.ggml.pre": pre}
    path = tmp_path / "a.gguf"
    write_file(path, metadata, {})
    imported = read_tokenizer(read_file(path).metadata, learned.size + 5, path)
    copy = through_a_file(imported, tmp_path)
    assert copy.encode_batch(LINES) == imported.encode_batch(LINES)
    assert copy.specials == imported.specials
    assert copy.size == learned.size + 5


SPLITS = {
    "gpt-2": ["Ab", "'s", " 12345", " x", ".", "\n", "\n", "6"],
    "smollm": ["Ab", "'s", " ", "1", "2", "3", "4", "5", " x", ".", "\n\n", "6"],
    "llama-bpe": ["Ab", "'s", " ", "123", "45", " x", ".\n\n", "6"],
    "qwen2": ["Ab", "'s", " ", "1", "2", "3", "4", "5", " x", ".\n\n", "6"],
    "default": ["Ab", "'", "s", " ", "123", "45", " x", ".", "\n", "\n", "6"],
}


@pytest.mark.parametrize("pre", PRE)
def test_each_pre_tokenizer_splits_text_in_its_own_way(pre):
    parts = splitter(pre).pre_tokenize_str("Ab's 12345 x.\n\n6")
    signs = {sign: byte for byte, sign in enumerate(SIGNS)}
    assert [bytes(signs[c] for c in part).decode() for part, _ in parts] == SPLITS[pre]


def test_digits_of_the_library_are_the_pre_tokenizer_of_smollm(learned, tmp_path):
    library = tokenizers.Tokenizer.from_str(learned._library.to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    original = ImportedTokenizer(library, SpecialTokens(), learned.size)
    assert write_tokenizer(original)["tokenizer.ggml.pre"] == "smollm"
    copy = through_a_file(original, tmp_path)
    assert copy.encode_batch(LINES) == original.encode_batch(LINES)


@pytest.fixture(scope="module")
def spm():
    """A small SentencePiece model with byte fallback, as that of Llama."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES[:300]), model_writer=content, vocab_size=500, num_threads=1,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True,
        minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())


def spm_metadata(spm):
    ids = range(len(spm))
    types = [
        2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1
        for i in ids
    ]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [spm.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [spm.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.unknown_token_id": spm.unk_id(),
        "tokenizer.ggml.bos_token_id": spm.bos_id(), "tokenizer.ggml.eos_token_id": spm.eos_id(),
    }  # fmt: skip


def test_sentencepiece_gives_the_same_tokens(spm, tmp_path):
    path = tmp_path / "a.gguf"
    write_file(path, spm_metadata(spm), {})
    tokenizer = read_tokenizer(read_file(path).metadata, len(spm), path)
    expected = [spm.encode(line) for line in LINES]
    assert tokenizer.encode_batch(LINES) == expected
    assert [tokenizer.decode(ids) for ids in expected] == [spm.decode(ids) for ids in expected]
    assert tokenizer.frame([7], "decoder") == [spm.bos_id(), 7]
    copy = through_a_file(tokenizer, tmp_path)
    assert copy.encode_batch(LINES) == expected
    assert copy.specials == tokenizer.specials


def test_tokenizers_that_gguf_cannot_express_are_refused(learned, spm, tmp_path):
    characters = Tokenizer.learn(LINES, "character", 100, quiet=True)
    with pytest.raises(InputError, match="data.vocabulary=character: GGUF has no such tokenizer"):
        write_tokenizer(characters)
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0}, unk_token="a"))
    with pytest.raises(InputError, match="no tokenizer of the kind WordPiece"):
        write_tokenizer(ImportedTokenizer(words, SpecialTokens(), 5))
    library = tokenizers.Tokenizer.from_str(learned._library.to_str())
    specials = SpecialTokens(bos=3, begin=(3, 4))
    with pytest.raises(InputError, match=r"cannot express the special tokens \[3, 4\] around"):
        write_tokenizer(ImportedTokenizer(library, specials, learned.size))
    library.normalizer = tokenizers.normalizers.NFC()
    with pytest.raises(InputError, match="cannot express the normalizer NFC"):
        write_tokenizer(ImportedTokenizer(library, SpecialTokens(), learned.size))
    library.normalizer, library.pre_tokenizer = None, pre_tokenizers.Whitespace()
    with pytest.raises(InputError, match="no name for the pre-tokenizer"):
        write_tokenizer(ImportedTokenizer(library, SpecialTokens(), learned.size))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.precompiled_charsmap": [1]}, "precompiled_charsmap: this normalisation"),
        ({"tokenizer.ggml.scores": [1.0]}, "scores must have one number for each token"),
        ({"tokenizer.ggml.scores": [1] * 500}, "scores must have numbers of type float"),
        ({"tokenizer.ggml.tokens": ["a", ""]}, "a token is empty or has more than"),
        ({"tokenizer.ggml.tokens": ["a", "b" * 5000]}, "a token is empty or has more than"),
        ({"tokenizer.ggml.tokens": 5}, "tokens is 5, not of type list"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is 1, not of type bool"),
    ],
)
def test_damaged_vocabularies_are_refused(spm, change, message, tmp_path):
    path = tmp_path / "a.gguf"
    write_file(path, spm_metadata(spm) | change, {})
    with pytest.raises(InputError, match=message):
        read_tokenizer(read_file(path).metadata, len(spm), path)


def test_a_vocabulary_with_too_many_merges_is_refused():
    tokens = ["a" * length for length in range(1, 1_025)]
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens}
    with pytest.raises(InputError, match="have over 60,000,000 characters"):
        read_tokenizer(metadata, len(tokens), "a.gguf")


def test_a_vocabulary_without_tokens_is_refused():
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.scores": np.zeros(3)}
    with pytest.raises(InputError, match=r"a\.gguf: tokenizer\.ggml\.tokens is missing"):
        read_tokenizer(metadata, 10, "a.gguf")
    with pytest.raises(InputError, match="unknown tokenizer.ggml.model 'None'"):
        read_tokenizer({}, 10, "a.gguf")


def test_the_name_of_an_unknown_pre_tokenizer_is_shortened():
    pre = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "x" * 10_000}
    with pytest.raises(InputError, match="unknown tokenizer.ggml.pre 'x{60}'"):
        read_tokenizer(pre | {"tokenizer.ggml.tokens": ["a"]}, 10, "a.gguf")
