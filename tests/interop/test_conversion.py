"""Imports and exports as a whole: the comparison, its limits, receipts and model cards."""

import json
import os

import numpy as np
import pytest

import regard
from interop.tiny_models import BPE, BYTE, tiny_model
from regard.errors import ConversionFailed, InputError
from regard.interop import conversion
from regard.interop.conversion import export_model, import_model
from regard.interop.engines import EngineFailed, NotCompared
from regard.interop.formats import Reader, Writer
from regard.interop.proof import Receipt, choose_texts, compare, default_texts, greedy, output
from tests.interop.gguf_files import write

TEXTS = ["the dog sleeps", "a cat", "two birds sing in a tree"]


class FakeEngine:
    """An engine that computes what regard computes, with changes.

    Args:
        model: the model.
        shift: a number that is added to all outputs.
        changed: whether every greedy token differs.
        tokens: a function that changes the token ids of a text.
    """

    name, version, tolerance = "fake", "1.2", 1e-3

    def __init__(self, model, shift=0.0, changed=False, tokens=lambda text, ids: ids):
        self.model, self.shift, self.changed, self.tokens = model, shift, changed, tokens

    def tokenize(self, texts):
        tokenizer, style = self.model.source_tokenizer, self.model.config.model.style
        return [self.tokens(text, tokenizer.frame(tokenizer.encode(text), style)) for text in texts]

    def tokenize_target(self, texts):
        return [self.tokens(text, self.model.target_tokenizer.encode(text)) for text in texts]

    def outputs(self, rows):
        return [output(self.model, row) + self.shift for row in rows]

    def generate(self, rows, steps):
        rows = greedy(self.model, rows, steps)
        return [[id + 1 for id in row] for row in rows] if self.changed else rows


@pytest.fixture
def folder(tmp_path):
    """The folder of a small translator."""
    return tiny_model().save(tmp_path / "model")


@pytest.fixture
def engine(monkeypatch):
    """Sets the engine that verifies imports and exports."""

    def choose(make):
        def load(path, model):
            return make(conversion.make_model(model, path) if hasattr(model, "tensors") else model)

        reader, writer = conversion.find_reader, conversion.find_writer
        monkeypatch.setattr(conversion, "find_reader", lambda name: Reader(reader(name).read, load))
        monkeypatch.setattr(
            conversion, "find_writer", lambda name: Writer(writer(name).write, load)
        )

    return choose


def export(folder, tmp_path, **options):
    return export_model(folder, "onnx", tmp_path / "out", texts=TEXTS, **options)


def test_an_export_writes_its_receipt_into_the_folder_and_the_model_card(folder, tmp_path, engine):
    engine(FakeEngine)
    receipt = export(folder, tmp_path)
    assert receipt.passed
    assert receipt.engines["fake"] == "1.2"
    assert (receipt.texts, receipt.same_tokenization, receipt.largest_difference) == (3, 1, 0)
    stored = json.loads((tmp_path / "out/conversion.json").read_text())
    assert stored["passed"] is True
    assert stored["files"].keys() >= {"README.md", "encoder.onnx", "tokenizer.json"}
    assert stored["files"] == conversion.checksums(
        [tmp_path / "out" / name for name in stored["files"]], tmp_path / "out"
    )
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith("# ONNX graphs")  # of the writer
    assert card.count("## Verification") == 1
    assert " ".join(receipt.sentences()) in card


@pytest.mark.parametrize(
    ("style", "task", "target", "start"),
    [
        ("decoder", None, "hf", "---\nlibrary_name: transformers\n---\n\n# Hugging Face model"),
        ("encoder", "embed", "hf", "---\nlibrary_name: sentence-transformers\n---\n\n# Hugging"),
        ("decoder", None, "gguf", "# GGUF model for the task generate"),
    ],
)
def test_a_target_without_a_model_card_gets_one(style, task, target, start, tmp_path, engine):
    engine(FakeEngine)
    options = {"positions": "rotary", "norm": "rms", "norm_first": True, "bias": False}
    options |= {"activation": "swiglu", "scale_embeddings": False}
    if task == "embed":
        options = {"head": "pooling", "embedding_norm": True, "activation": "gelu"}
    tiny_model(style, task, **options).save(tmp_path / "my model")
    receipt = export_model(tmp_path / "my model", target, tmp_path / "out", texts=TEXTS)
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith(start)
    assert "from my model\n" in card
    assert "- longest input: 256 tokens\n" in card
    assert " ".join(receipt.sentences()) in card


def test_outputs_that_differ_fail_and_write_nothing(folder, tmp_path, engine):
    engine(lambda model: FakeEngine(model, shift=0.01))
    message = r"the outputs differ by 0\.01, more than 0\.001 \(--tolerance changes this limit\)"
    with pytest.raises(ConversionFailed, match=f"{message}: nothing was written") as error:
        export(folder, tmp_path)
    assert "--agreement" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert export(folder, tmp_path, tolerance=0.02).tolerance == 0.02


def test_greedy_tokens_that_differ_fail_and_write_nothing(folder, tmp_path, engine):
    engine(lambda model: FakeEngine(model, changed=True))
    message = r"of the greedy tokens agree, less than 99\.00% \(--agreement changes this limit\)"
    with pytest.raises(ConversionFailed, match=message) as error:
        export(folder, tmp_path)
    assert "--tolerance" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert export(folder, tmp_path, agreement=0).required_agreement == 0


def test_a_text_with_different_token_ids_is_shown(folder, tmp_path, engine):
    engine(lambda model: FakeEngine(model, tokens=lambda text, ids: ids[len(text) > 50 :]))
    texts = ["fine", "x" * 100, "y" * 100]
    with pytest.raises(ConversionFailed) as error:
        export_model(folder, "onnx", tmp_path / "out", texts=texts)
    assert f"2 of 3 texts have different token ids, for example '{'x' * 60}…'" in str(error.value)
    assert "--" not in str(error.value)  # no option changes this
    assert not (tmp_path / "out").exists()


class NoTokens(FakeEngine):
    """An engine that computes outputs, but no token ids."""

    def tokenize(self, texts):
        raise NotCompared("a package is missing")


def test_token_ids_that_the_engine_cannot_compute_are_not_compared(folder, tmp_path, engine):
    engine(NoTokens)
    receipt = export(folder, tmp_path)
    assert (receipt.same_tokenization, receipt.passed) == (None, None)
    assert receipt.compared_outputs > 0
    assert receipt.note == "Token ids were not compared: a package is missing."
    assert receipt.note in (tmp_path / "out/README.md").read_text()
    assert not any("identical for" in sentence for sentence in receipt.sentences())


def test_the_target_vocabulary_is_compared_if_it_is_a_different_one():
    model = tiny_model(tokenizers=(BPE, BYTE))
    receipt = compare(model, FakeEngine(model), TEXTS, Receipt("", {}))
    assert (receipt.same_tokenization, receipt.same_target_tokenization) == (1, 1)
    other = FakeEngine(model)
    other.tokenize_target = lambda texts: [[0] for _ in texts]
    receipt = compare(model, other, TEXTS, Receipt("", {}))
    assert (receipt.same_tokenization, receipt.same_target_tokenization) == (1, 0)
    assert "in the target vocabulary, for example 'the dog sleeps'" in receipt.failures[0]
    shared = tiny_model()
    receipt = compare(shared, FakeEngine(shared), TEXTS, Receipt("", {}))
    assert receipt.same_target_tokenization is None


@pytest.mark.parametrize("target", ["onnx", "ctranslate2", "hf"])
def test_real_engines_read_both_vocabularies_of_an_export(target, tmp_path):
    tiny_model(tokenizers=(BPE, BYTE)).save(tmp_path / "model")
    receipt = export_model(tmp_path / "model", target, tmp_path / "out", texts=TEXTS)
    assert receipt.passed
    if target != "hf":
        assert receipt.same_target_tokenization == 1


@pytest.mark.parametrize("target", ["onnx", "ctranslate2", "hf"])
def test_a_decoder_that_translates_is_compared_with_its_separator(target, tmp_path):
    """Without it, the engines would continue the input."""
    model = tiny_model("decoder", "translate", positions="learned", norm_first=True,
                       activation="gelu-tanh", scale_embeddings=False)  # fmt: skip
    model.save(tmp_path / "model")
    receipt = export_model(tmp_path / "model", target, tmp_path / "out", texts=TEXTS)
    assert receipt.passed
    with pytest.raises(InputError, match="GGUF cannot express the task translate: .* a separator"):
        export_model(tmp_path / "model", "gguf", tmp_path / "gguf")


# ---- engines that cannot run ------------------------------------------------------------------


def broken(model):
    raise RuntimeError("two\nlines")


class BreaksLater(FakeEngine):
    def outputs(self, rows):
        raise OSError("no such operation")


def test_an_engine_that_cannot_load_an_export_stops_it(folder, tmp_path, engine):
    engine(broken)
    message = r"not verified, so nothing was written: onnxruntime [\d.]+ failed \(RuntimeError: two lines\)$"
    with pytest.raises(ConversionFailed, match=message):
        export(folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_engine_that_cannot_load_the_source_does_not_stop_an_import(tmp_path, engine):
    engine(broken)
    receipt = import_model(write(tmp_path / "m.gguf"), tmp_path / "model", texts=TEXTS)
    assert receipt.passed is None
    assert receipt.note.startswith("The runtimes were not compared: transformers ")
    assert receipt.note.endswith(" failed (RuntimeError: two lines).")
    assert regard.load(tmp_path / "model").generate("the", max_length=2) is not None
    assert receipt.note in (tmp_path / "model/README.md").read_text()
    assert json.loads((tmp_path / "model/conversion.json").read_text())["passed"] is None


def test_an_error_during_the_comparison_names_the_engine(tmp_path, engine):
    model = tiny_model()
    with pytest.raises(EngineFailed, match=r"^fake 1\.2 failed \(OSError: no such oper"):
        compare(model, BreaksLater(model), TEXTS, Receipt("", {}))
    engine(BreaksLater)
    receipt = import_model(write(tmp_path / "m.gguf"), tmp_path / "model", texts=TEXTS)
    assert receipt.note == (
        "The comparison was not completed: fake 1.2 failed (OSError: no such operation)."
    )
    assert (receipt.same_tokenization, receipt.passed) == (1, None)


def test_errors_of_regard_are_not_errors_of_the_engine(monkeypatch):
    model = tiny_model()
    monkeypatch.setattr("regard.interop.proof.greedy", broken)
    with pytest.raises(TypeError):
        compare(model, FakeEngine(model), TEXTS, Receipt("", {}))


def test_nothing_is_compared_without_an_engine(folder, tmp_path, engine):
    engine(lambda model: None)
    receipt = export(folder, tmp_path)
    assert receipt.passed is None
    assert receipt.note == (
        "The runtimes were not compared: onnxruntime must be installed for this (pip install "
        "onnxruntime)."
    )
    assert receipt.note in (tmp_path / "out/README.md").read_text()


def test_an_engine_can_give_the_reason(tmp_path, engine):
    def refuse(model):
        raise NotCompared("it is too old")

    engine(refuse)
    receipt = import_model(write(tmp_path / "m.gguf"), tmp_path / "model", texts=TEXTS)
    assert receipt.note == "The runtimes were not compared: it is too old."


# ---- texts and folders ------------------------------------------------------------------------


def test_all_texts_of_the_user_are_used(folder, tmp_path, engine):
    engine(FakeEngine)
    texts = [f"text {i}" for i in range(300)]
    assert export_model(folder, "onnx", tmp_path / "a", texts=texts).texts == 300
    assert export_model(folder, "onnx", tmp_path / "b", texts=texts, count=2).texts == 2


def test_the_number_of_texts():
    assert choose_texts(None, None, 20) == default_texts(20)
    assert choose_texts(None, 30, 20) == default_texts(30)
    assert choose_texts(["a", "b"], None, 1) == ["a", "b"]
    with pytest.raises(InputError, match="there are no texts to compare"):
        choose_texts([], None, 20)
    with pytest.raises(InputError, match="count is 3, but there are only 2 texts"):
        choose_texts(["a", "b"], 3, 20)
    with pytest.raises(InputError, match="count is 100,000, but there are only 40,009 built-in"):
        choose_texts(None, 100_000, 20)
    with pytest.raises(InputError, match="count is 0, but it must be at least 1"):
        choose_texts(None, 0, 20)


def test_a_folder_that_is_not_empty_is_refused_before_any_work(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").touch()
    for call in (
        lambda: export_model(folder, "onnx", tmp_path / "out"),
        lambda: import_model(tmp_path / "missing", tmp_path / "out"),
    ):
        with pytest.raises(InputError, match="exists and is not empty: choose a different --out"):
            call()
    with pytest.raises(InputError, match="unknown target 'onx'; did you mean 'onnx'"):
        export_model(folder, "onx", tmp_path / "new")


# ---- imports ----------------------------------------------------------------------------------


def test_the_model_card_states_the_limit_of_the_model_folder(tmp_path, engine):
    engine(FakeEngine)
    path = write(tmp_path / "m.gguf", metadata={"llama.context_length": 8_192})
    receipt = import_model(path, tmp_path / "model", texts=TEXTS)
    card = (tmp_path / "model/README.md").read_text()
    limit = regard.load(tmp_path / "model").config.data.max_length
    assert (
        f"- longest input: {limit:,} tokens (data.max_length; the original model reads 8,192)"
        in card
    )
    assert " ".join(receipt.sentences()) in card
    short = write(tmp_path / "short.gguf")
    import_model(short, tmp_path / "short", texts=TEXTS)
    assert "- longest input: 128 tokens\n" in (tmp_path / "short/README.md").read_text()


def test_tensors_that_share_memory_become_separate_parameters(tmp_path):
    reader = conversion.find_reader("gguf")
    imported = reader.read(write(tmp_path / "m.gguf"))
    first = imported.tensors["decoder.layers.0.self_attention_norm.norm.weight"]
    imported.tensors["decoder.layers.1.self_attention_norm.norm.weight"] = first
    table = imported.tensors["embeddings.shared.weight"]
    imported.tensors["embeddings.shared.weight"] = table.repeat(2, 1)[: len(table)]
    model = conversion.make_model(imported, tmp_path)
    places = [x.data_ptr() for x in model.transformer.parameters()]
    assert len(set(places)) == len(places)
    assert all(x.untyped_storage().nbytes() == x.nbytes for x in model.transformer.parameters())
    assert all(x.requires_grad and x.device.type == "cpu" for x in model.transformer.parameters())


def test_weights_with_nan_are_refused(tmp_path):
    imported = conversion.find_reader("gguf").read(write(tmp_path / "m.gguf"))
    imported.tensors["decoder.final_norm.weight"][0] = np.nan
    with pytest.raises(InputError, match=r"final_norm\.weight contains NaN or infinity: the file"):
        conversion.make_model(imported, tmp_path)


def test_an_invalid_chat_template_is_refused(tmp_path):
    imported = conversion.find_reader("gguf").read(write(tmp_path / "m.gguf"))
    for template, message in (
        ("{% if %}", r"is not valid \(line 1\)"),
        ("x" * 200_000, "has more"),
    ):
        imported.chat_template = template
        with pytest.raises(InputError, match=f"^{tmp_path}: the chat template {message}"):
            conversion.make_model(imported, tmp_path)


def test_a_pipe_is_not_a_source(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe or a device, not a regular file"):
        import_model(tmp_path / "pipe", tmp_path / "model")
