"""`regard import` and `regard export`: receipts, limits, mistakes and exit codes."""

import json

import numpy as np
import pytest

from command import error_of, regard
from interop.tiny_models import tiny_model
from regard.interop import conversion
from regard.interop.formats import Reader, Writer
from tests.interop.gguf_files import write
from tests.interop.spm_file import letters
from tests.interop.test_conversion import FakeEngine


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """The current folder: a GGUF file, a model folder and a vocabulary."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "m.gguf")
    tiny_model().save(tmp_path / "model")
    (tmp_path / "v.spm").write_bytes(letters(20))
    (tmp_path / "lines.txt").write_bytes("a dog\r\n\r\nfirst\u2028second\na cat".encode())
    return tmp_path


@pytest.fixture
def engine(monkeypatch):
    """Sets the options of the engine that verifies conversions; None: it is not installed."""

    def choose(**options):
        def load(path, model):
            model = conversion.make_model(model, path) if hasattr(model, "tensors") else model
            return None if options.get("missing") else FakeEngine(model, **options)

        reader, writer = conversion.find_reader, conversion.find_writer
        monkeypatch.setattr(conversion, "find_reader", lambda name: Reader(reader(name).read, load))
        monkeypatch.setattr(
            conversion, "find_writer", lambda name: Writer(writer(name).write, load)
        )

    return choose


IMPORT = ("import", "m.gguf", "--out", "out")
EXPORT = ("export", "model", "--to", "onnx", "--out", "out")


@pytest.mark.parametrize("command", [IMPORT, EXPORT], ids=["import", "export"])
def test_a_conversion_prints_the_receipt_and_writes_it_into_the_model_card(
    command, sources, engine
):
    engine()
    out, err, code = regard(*command)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith(("Import from GGUF (llama); runtimes: regard ", "Export to ONNX; "))
    assert lines[1] == "Token ids: identical for 100.00% of 200 texts."
    assert lines[2].startswith("Outputs: ")
    assert lines[3].startswith("Greedy decoding: 100.00% of ")
    assert lines[4:] == ["out is ready"]
    assert " ".join(lines[:4]) in (sources / "out/README.md").read_text()
    assert json.loads((sources / "out/conversion.json").read_text())["texts"] == 200


def test_a_file_with_texts_is_divided_at_line_ends_only(sources, engine):
    engine()
    out, _, code = regard(*IMPORT, "--text", "lines.txt", "--json")
    assert code == 0
    receipt = json.loads(out)
    assert receipt["texts"] == 3
    assert receipt["passed"] is True
    assert receipt["failures"] == []
    assert receipt["folder"] == "out"


def test_count_limits_every_comparison(sources, engine):
    engine()
    out, _, code = regard(*IMPORT, "--text", "lines.txt", "--count", 2, "--json")
    assert (code, json.loads(out)["texts"]) == (0, 2)


@pytest.mark.parametrize("command", [IMPORT, EXPORT], ids=["import", "export"])
@pytest.mark.parametrize(
    ("change", "option", "message"),
    [
        ({"shift": 0.01}, ("--tolerance", 0.02), "the outputs differ by 0.01, more than 0.001 (--tolerance changes"),
        ({"changed": True}, ("--agreement", 0), "% of the greedy tokens agree, less than 99.00% (--agreement changes"),
    ],
)  # fmt: skip
def test_an_exceeded_limit_has_exit_code_1_and_writes_nothing(
    change, option, message, command, sources, engine
):
    before = sorted(sources.iterdir())
    engine(**change)
    out, err, code = regard(*command, "--text", "lines.txt")
    assert (out, code) == ("", 1)
    assert message in err
    assert err.endswith("nothing was written\n")
    assert sorted(sources.iterdir()) == before
    assert regard(*command, "--text", "lines.txt", *option)[2] == 0


@pytest.mark.parametrize("command", [IMPORT, EXPORT], ids=["import", "export"])
def test_without_another_engine_a_warning_is_printed(command, sources, engine):
    engine(missing=True)
    out, err, code = regard(*command)
    assert code == 0
    assert out.splitlines()[-1] == "out is ready"
    assert "The runtimes were not compared" in err
    assert "must be installed for this (pip install" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "missing", "--out", "out"), "missing does not exist"),
        (("import", "model", "--out", "out"), "model is already a regard model; pass it with -m"),
        (("import", "m.gguf", "--out", "model"), "model exists and is not empty: choose a different --out"),
        (("export", "model", "--to", "onnx", "--out", "model"), "model exists and is not empty: choose a different --out"),
        (("export", "model", "--to", "gguf", "--out", "out"), "GGUF cannot express the task translate"),
        (("export", "m.gguf", "--to", "onnx", "--out", "out"), "regard import m.gguf --out MODEL"),
        (("export", "model", "--to", "onx", "--out", "out"), "--to must be hf, ctranslate2, onnx or gguf, not 'onx'"),
        ((*IMPORT, "--count", 0), "--count must be"),
        ((*IMPORT, "--count", 50_000), "count is 50,000, but there are only 40,009 built-in texts"),
        ((*IMPORT, "--text", "lines.txt", "--count", 5), "count is 5, but there are only 3 texts"),
        ((*IMPORT, "--text", "none.txt"), "none.txt: cannot be read (No such file or directory)"),
        ((*IMPORT, "--text", "empty.txt"), "empty.txt contains no text"),
        ((*IMPORT, "--text", "m.gguf"), "m.gguf: not UTF-8"),
        ((*IMPORT, "--agreement", 2), "--agreement must be"),
        (("import", "v.spm", "--out", "out", "--tolerance", 1), "v.spm is a vocabulary: its token ids must all be equal"),
    ],
)  # fmt: skip
def test_mistakes_have_exit_code_2(arguments, message, sources):
    (sources / "empty.txt").write_text("\n \n")
    assert message in error_of(*arguments)
    assert not (sources / "out").exists()


def test_a_vocabulary(sources):
    pytest.importorskip("sentencepiece")
    out, err, code = regard("import", "v.spm", "--out", "out", "--text", "lines.txt")
    assert code == 0, err
    assert out.startswith("Import of a vocabulary (SentencePiece, 20 tokens)")
    assert "Token ids: identical for 100.00% of 3 texts." in out
    assert {path.name for path in (sources / "out").iterdir()} == {
        "conversion.json", "tokenizer.json",
    }  # fmt: skip


def test_a_real_engine_verifies_an_export(sources):
    pytest.importorskip("onnxruntime")
    out, err, code = regard(*EXPORT, "--text", "lines.txt", "--json")
    assert code == 0, err
    receipt = json.loads(out)
    assert receipt["passed"] is True
    assert "onnxruntime" in receipt["engines"]
    assert receipt["compared_outputs"] > 0
    assert np.isfinite(receipt["largest_difference"])
