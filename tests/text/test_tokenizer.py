"""Encoding and decoding restore a text, and no text is encoded as a special token."""

import hashlib
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learned import BPE, BYTE, LINES
from regard.errors import InputError
from regard.text.byte_level import LONGEST_TOKEN, SIGNS
from regard.text.tokenizer import SPECIALS, Tokenizer

CHARACTER = Tokenizer.learn(LINES, "character", 100)

any_text = st.text(st.characters(exclude_categories=["Cs"]))
words = st.sampled_from(
    [*" ".join(LINES).split(), "running", "Wiesen", "übergrün", "  ", "\n", "'s"]
)
sentences = st.lists(words | any_text).map(" ".join)


@given(any_text)
@example("")
@example("<eos><unk> <bos>")
@example("  leading, trailing   and\t\tmany \n\n spaces  ")
@example("\x00\x1b\x85\u2028\r\n\ufeff\ufffd")
@example("🙂👩‍👩‍👧 ä\u0308 日本語 " + "x" * 3000)
def test_bpe_and_byte_decoding_restore_every_text(text):
    for tokenizer in (BPE, BYTE):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(len(SPECIALS) <= id < tokenizer.size for id in ids)


@given(st.lists(sentences))
def test_encode_batch_equals_encode_for_each_text(texts):
    for tokenizer in (BPE, BYTE, CHARACTER):
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_special_tokens_have_fixed_ids_without_padding():
    assert SPECIALS == ("<unk>", "<bos>", "<eos>", "<cls>", "<sep>", "<mask>")
    for t in (BPE, BYTE, CHARACTER):
        assert (t.unk, t.bos, t.eos, t.cls, t.sep, t.mask) == (0, 1, 2, 3, 4, 5)
        assert t.tokens(range(6)) == list(SPECIALS)


def test_decoding_skips_special_tokens():
    ids = [BPE.bos, *BPE.encode("A dog"), BPE.mask, BPE.unk, *BPE.encode(" runs"), BPE.eos]
    assert BPE.decode(ids) == "A dog runs"


def test_unknown_character_is_encoded_as_unk():
    ids = CHARACTER.encode("Hund日")
    assert ids[-1] == CHARACTER.unk
    assert CHARACTER.decode(ids) == "Hund\ufffd"


@given(st.text(st.sampled_from(sorted(set("".join(LINES))))))
def test_learned_characters_are_restored(text):
    assert CHARACTER.decode(CHARACTER.encode(text)) == text


def test_most_frequent_characters_are_learned_with_ties_by_code_point():
    tokenizer = Tokenizer.learn(["cba", "cbx", "c"], "character", 6 + 3)
    assert tokenizer.tokens(range(6, 9)) == ["c", "b", "a"]
    assert tokenizer.size == 9


def test_sizes_include_special_tokens():
    assert BYTE.size == 256 + 6
    assert BPE.size == 350
    assert CHARACTER.size == len(set("".join(LINES))) + 6
    assert max(BPE.encode(" ".join(LINES))) < BPE.size


def test_invalid_utf8_decodes_to_the_replacement_character():
    assert BYTE.decode([6 + 0xC3, 6 + 0x41]) == "\ufffdA"


def test_tokens_are_readable():
    assert BYTE.tokens(BYTE.encode("a \n\x1bü")) == ["a", "▁", "\\n", "\\x1b", "\\xc3", "\\xbc"]
    assert "".join(BPE.tokens(BPE.encode("grüne Wiese"))) == "grüne▁Wiese"


@pytest.mark.parametrize("id", [-1, 262])
def test_an_id_outside_the_vocabulary_is_refused(id):
    for read in (BYTE.decode, BYTE.tokens):
        with pytest.raises(
            InputError, match=rf"token id {id} is outside the vocabulary of 262 \(0 to 261\)"
        ):
            read([id])


@pytest.mark.parametrize("tokenizer", [BPE, BYTE, CHARACTER])
def test_a_lone_surrogate_is_refused_everywhere(tokenizer):
    text = "ab\ud800"
    for refuse in (
        lambda: tokenizer.encode(text),
        lambda: tokenizer.encode_batch(["fine", text]),
    ):
        with pytest.raises(InputError, match=r"lone surrogate \(U\+D800 at position 2\)"):
            refuse()


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_learning_refuses_lone_surrogates_and_empty_text(kind):
    with pytest.raises(InputError, match="lone surrogate"):
        Tokenizer.learn(["a\udfff"], kind, 300)
    for empty in ([], ["", ""]):
        with pytest.raises(InputError, match="no text to learn a vocabulary from"):
            Tokenizer.learn(empty, kind, 300)


def test_error_while_reading_lines_is_raised_unchanged():
    def lines():
        yield "fine"
        raise InputError("train.en:2: not UTF-8")

    with pytest.raises(InputError, match="^train.en:2: not UTF-8$"):
        Tokenizer.learn(lines(), "bpe", 300)


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("bpe", 262, "data.vocabulary_size is 262 but bpe needs at least 263"),
        ("character", 6, "data.vocabulary_size is 6 but character needs at least 7"),
        ("bep", 300, "unknown data.vocabulary 'bep'; did you mean 'bpe'?"),
    ],
)
def test_invalid_vocabulary_kind_or_size_is_refused(kind, size, message):
    with pytest.raises(InputError) as caught:
        Tokenizer.learn(LINES, kind, size)
    assert message in str(caught.value)


def test_the_smallest_bpe_has_one_merge():
    assert Tokenizer.learn(LINES, "bpe", 263).size == 263


def test_short_text_gives_a_smaller_vocabulary():
    assert Tokenizer.learn(["ab ab"], "bpe", 9000).size < 280


def test_tokens_have_a_bounded_length():
    assert Tokenizer.learn(["x" * 5000] * 4, "bpe", 9000).longest <= LONGEST_TOKEN


def test_the_same_lines_give_the_same_vocabulary_in_another_process():
    program = (
        "import json, sys; from regard.text.tokenizer import Tokenizer; "
        "print(Tokenizer.learn(json.load(sys.stdin), 'bpe', 350).fingerprint)"
    )
    for threads in ("1", "3"):
        process = subprocess.run(
            [sys.executable, "-c", program], input=json.dumps(LINES), text=True,
            capture_output=True, check=True, env={**os.environ, "RAYON_NUM_THREADS": threads},
        )  # fmt: skip
        assert process.stdout.strip() == BPE.fingerprint


@pytest.mark.parametrize("tokenizer", [BPE, BYTE, CHARACTER])
def test_loaded_tokenizer_equals_the_saved_one(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = Tokenizer.load(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    assert (again.kind, again.size, again.fingerprint) == (
        tokenizer.kind,
        tokenizer.size,
        tokenizer.fingerprint,
    )
    for line in [*LINES, "日本 <eos>"]:
        assert again.encode(line) == tokenizer.encode(line)


def test_fingerprint_is_the_sha256_of_the_file(tmp_path):
    BPE.save(tmp_path / "t.json")
    assert hashlib.sha256((tmp_path / "t.json").read_bytes()).hexdigest() == BPE.fingerprint
    assert len({BPE.fingerprint, BYTE.fingerprint, CHARACTER.fingerprint}) == 3


def test_crash_while_saving_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    BYTE.save(path)

    def crash(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(
        InputError, match=r"tokenizer.json: cannot be written \(No space left on device\)"
    ):
        BPE.save(path)
    assert Tokenizer.load(path).kind == "byte"
    assert len(list(tmp_path.iterdir())) == 1


def test_saving_to_a_missing_folder_names_the_file(tmp_path):
    with pytest.raises(
        InputError, match=r"t.json: cannot be written \(No such file or directory\)"
    ):
        BPE.save(tmp_path / "missing" / "t.json")


GOOD = {
    "format": "regard tokenizer",
    "version": 1,
    "kind": "bpe",
    "specials": list(SPECIALS),
    "entries": ["a b"],
}
BOMB = [f"{SIGNS[97] * 2**n} {SIGNS[97] * 2**n}" for n in range(12)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a regard tokenizer (not JSON: Expecting value at line 1)"),
        (b"\x80\x04\x95", "not a regard tokenizer (byte 0 is not UTF-8)"),
        (b"[" * 200_000, "not a regard tokenizer (its values are nested too deeply)"),
        (b"[1]", 'not a regard tokenizer (no "format": "regard tokenizer")'),
        (b'{"version": "1.0", "model": {}}', "not a regard tokenizer"),
        ({**GOOD, "version": 2}, "tokenizer version 2, but this regard reads version 1"),
        ({**GOOD, "kind": "word"}, "damaged tokenizer"),
        ({**GOOD, "kind": ["bpe"]}, "damaged tokenizer"),
        ({**GOOD, "kind": "byte"}, "damaged tokenizer"),
        ({**GOOD, "specials": ["<pad>"]}, "damaged tokenizer"),
        ({**GOOD, "entries": None}, "damaged tokenizer"),
        ({**GOOD, "entries": [1]}, "damaged tokenizer"),
        ({**GOOD, "entries": ["ab"]}, "damaged tokenizer (merge 1 ('ab') joins unknown tokens)"),
        ({**GOOD, "entries": ["a b", "bc d"]}, "merge 2 ('bc d') joins unknown tokens"),
        ({**GOOD, "entries": ["a b", "a b"]}, "merge 2 ('a b') is duplicated"),
        ({**GOOD, "entries": BOMB}, "merge 8 makes a token of over 128 bytes"),
        ({**GOOD, "kind": "character", "entries": ["a", "bc"]}, "not one character"),
        ({**GOOD, "kind": "character", "entries": ["a", "a"]}, "is duplicated"),
        ({**GOOD, "kind": "character", "entries": ["\ud800"]}, "lone surrogate"),
    ],
)  # fmt: skip
def test_invalid_tokenizer_file_is_refused(content, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(InputError) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_missing_and_a_huge_file_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"gone.json: cannot be read \(No such file or directory\)"
    ):
        Tokenizer.load(tmp_path / "gone.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(InputError, match="huge.json: too large for a regard tokenizer"):
        Tokenizer.load(tmp_path / "huge.json")


def test_multi30k_is_restored():
    if "REGARD_DATA" not in os.environ:
        pytest.skip("REGARD_DATA is not set")
    folder = Path(os.environ["REGARD_DATA"]) / "multi30k"

    def lines(part):
        for language in ("en", "de"):
            with lzma.open(
                folder / f"{part}.{language}.xz", "rt", encoding="utf-8", newline="\n"
            ) as file:
                yield from (line.rstrip("\n") for line in file)

    tokenizer = Tokenizer.learn(lines("train"), "bpe", 8000)
    assert tokenizer.size == 8000
    texts = list(lines("val"))
    encoded = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    assert sum(map(len, encoded)) / sum(len(text.split()) for text in texts) < 1.35
