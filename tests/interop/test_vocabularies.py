"""Vocabularies without a model: compared with the tokenizer that they come from."""

import json
import os

import pytest
import tokenizers

from interop.hf_models import LINES, byte_level, wordpiece
from regard.errors import ConversionFailed, InputError
from regard.interop import vocabularies
from regard.interop.conversion import import_model
from tests.interop.spm_file import letters, message, piece

TEXTS = [*LINES[:6], "abc d", "[UNK] and </s> are text", ""]
NESTED = b"".join(piece("a" * length, -length) for length in range(1, 5))
BPE = message(2, b"\x18\x02") + piece("<unk>", 0.0, 2) + piece("▁") + piece("b") + NESTED


def write_wordpiece(folder, unknown="[UNK]", **config):
    """vocab.txt and tokenizer_config.json."""
    vocabulary = wordpiece().get_vocab()
    names = [name.replace("[UNK]", unknown) for name in sorted(vocabulary, key=vocabulary.get)]
    (folder / "vocab.txt").write_text("\n".join(names) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "vocab.txt"


def write_merges(folder):
    """vocab.json and merges.txt."""
    content = json.loads(byte_level(["<|endoftext|>"]).to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in content["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    return folder / "merges.txt"


def write_sentencepiece(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


KINDS = {
    "WordPiece": write_wordpiece,
    "byte-level BPE": write_merges,
    "SentencePiece (.spm)": lambda folder: write_sentencepiece(folder, "a.spm", letters(20)),
    "SentencePiece (.model)": lambda folder: write_sentencepiece(folder, "a.model", BPE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_becomes_a_tokenizer_file_with_a_receipt(kind, tmp_path):
    if kind.startswith("SentencePiece"):
        pytest.importorskip("sentencepiece")
    path = KINDS[kind](tmp_path)
    receipt = import_model(path, tmp_path / "out", texts=TEXTS)
    assert receipt.conversion.startswith(f"Import of a vocabulary ({kind.split(' (')[0]}, ")
    assert (receipt.texts, receipt.same_tokenization, receipt.passed) == (len(TEXTS), 1, True)
    assert path.name in receipt.files
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "conversion.json", "tokenizer.json",
    ]  # fmt: skip
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert library.encode("aa b").ids
    stored = json.loads((tmp_path / "out/conversion.json").read_text())
    assert stored["passed"] is True


def test_the_unknown_token_can_have_a_different_name(tmp_path):
    path = write_wordpiece(tmp_path, unknown="<oov>", unk_token="<oov>")
    assert import_model(path, tmp_path / "out", texts=["Ωψ a"]).passed


def test_a_vocabulary_without_its_unknown_token_is_refused(tmp_path):
    path = write_wordpiece(tmp_path, unknown="oov")
    with pytest.raises(InputError, match=r"vocab\.txt: the token \[UNK\] for unknown words is mis"):
        import_model(path, tmp_path / "out", texts=TEXTS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "merges.txt",
            "#version: 0.2\na b\na b c\n",
            r"merges\.txt:3: each line must .*: 'a b c'$",
        ),
        ("vocab.json", '{"a": 0, "b": 0}', r"vocab\.json: each token needs its own id from 0 to "),
    ],
)
def test_damaged_files_of_a_byte_level_vocabulary(name, content, message, tmp_path):
    path = write_merges(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        import_model(path, tmp_path / "out", texts=TEXTS)


def test_different_token_ids_fail_and_write_nothing(tmp_path, monkeypatch):
    path = write_merges(tmp_path)
    monkeypatch.setattr(
        vocabularies, "byte_level_encoder", lambda path, config: lambda texts: [[0]] * len(texts)
    )
    with pytest.raises(ConversionFailed, match="3 of 3 texts .* for example 'Two young, white"):
        import_model(path, tmp_path / "out", texts=TEXTS[:3])
    assert not (tmp_path / "out").exists()


def test_without_the_package_nothing_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabularies, "find_spec", lambda name: None)
    receipt = import_model(write_merges(tmp_path), tmp_path / "out")
    assert receipt.passed is None
    assert receipt.note == (
        "The tokenizers were not compared: transformers must be installed for this (pip install "
        "transformers)."
    )


def test_an_error_of_the_package_is_a_note(tmp_path, monkeypatch):
    def broken(path, config):
        raise RuntimeError("a bug")

    monkeypatch.setattr(vocabularies, "byte_level_encoder", broken)
    receipt = import_model(write_merges(tmp_path), tmp_path / "out", texts=TEXTS)
    assert receipt.passed is None
    assert receipt.note.endswith(" failed (RuntimeError: a bug).")


@pytest.mark.parametrize("option", ["tolerance", "agreement"])
def test_limits_of_models_are_refused(option, tmp_path):
    with pytest.raises(InputError, match="is a vocabulary: .* tolerance and agreement cannot be"):
        import_model(write_merges(tmp_path), tmp_path / "out", **{option: 0.5})


def test_a_pipe_is_not_a_vocabulary(tmp_path):
    os.mkfifo(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match="a pipe or a device"):
        import_model(tmp_path / "vocab.txt", tmp_path / "out")
