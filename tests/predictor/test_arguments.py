"""Arguments of public functions and classes that are easily confused."""

import numpy as np
import pytest
import torch

import regard
from regard import InputError, ModelConfig, Packed, Tokenizer, Transformer
from regard.errors import RegardWarning
from regard.model.block import same_shape
from regard.tasks.configuration import make_config
from regard.tasks.planning import RunPlan
from regard.tasks.rows import rows_to_file
from regard.text.external import as_tokenizers
from regard.training.callbacks import Callbacks, RunInfo

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16}


def test_padding_on_the_left_is_no_padding_id():
    with pytest.raises(InputError, match=r"row 1 begins with the padding id 0.*use mask"):
        Packed.from_padded(torch.tensor([[3, 4, 0], [0, 0, 5]]), padding=0)
    packed = Packed.from_padded(torch.tensor([[3, 4, 0], [6, 0, 5]]), padding=0)
    assert [row.tolist() for row in packed.split(packed.tokens)] == [[3, 4], [6, 0, 5]]


@pytest.mark.parametrize("lines", ["a long text", b"bytes", 3, [3]])
def test_a_vocabulary_is_learned_from_several_strings(lines):
    with pytest.raises(InputError, match="must be (several strings|a string)"):
        Tokenizer.learn(lines, size=300, quiet=True)


def test_a_prompt_that_begins_with_bos():
    model = Transformer(ModelConfig(vocabulary_size=10, **SIZES)).eval()
    with pytest.warns(RegardWarning, match="the prompt begins with bos=1"):
        regard.generate(model, [[3, 4]], [[1, 5]], max_length=2)


def test_the_text_of_a_number_is_no_hard_negative(tmp_path):
    with pytest.raises(InputError, match=r'row 1: "negative" is the text of a number'):
        rows_to_file("embed", [("a", "b", "0.8")], tmp_path / "rows.jsonl")
    path = rows_to_file("embed", [("a", "b", "c")], tmp_path / "rows.jsonl")
    assert '"negative": "c"' in path.read_text()


def test_the_output_of_a_mixer_has_the_shape_of_its_input():
    x = torch.zeros(3, 4)
    assert same_shape(x, x) is x
    with pytest.raises(InputError, match=r"shape \[3, 4\] of its input, not \[1, 4\]"):
        same_shape(x, torch.zeros(1, 4))


@pytest.mark.parametrize("epochs", [1.0, 0.0])
def test_a_warm_up_that_is_longer_than_the_epochs(epochs, tmp_path, recwarn):
    training = {"epochs": epochs, "warmup": 500} if epochs else {"warmup": 500}
    config = make_config("translate", "tiny", {"training": training, "data": {"train": ["a"]}})
    run = RunInfo(tmp_path, config, None, 0, 2)
    RunPlan(config, print).on_start(run)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == bool(epochs)
    if epochs:
        assert "training.warmup=500 is more than the steps of training.epochs=1: 2" in messages[0]


@pytest.mark.parametrize("callbacks", [3, print, RunPlan, "on_step"])
def test_callbacks_are_a_list(callbacks):
    with pytest.raises(InputError, match="callbacks must be a list"):
        Callbacks(callbacks)


def test_a_configuration_needs_no_values_and_accepts_flat_ones():
    assert make_config("translate", "tiny") == make_config("translate", "tiny", {})
    flat = make_config("translate", values={"training.steps": 3, "training": {"warmup": 2}})
    assert (flat.training.steps, flat.training.warmup) == (3, 2)


def test_parts_with_another_signature_are_refused():
    for register in (regard.register_attention, regard.register_positions, regard.register_mixer):
        with pytest.raises(InputError, match=r"Linear.* cannot be called with \(config"):
            register("own", torch.nn.Linear if register is not regard.register_mixer else Linear)


class Linear(torch.nn.Linear):
    def __init__(self, config):
        super().__init__(config.d_model, config.d_model)


def test_a_transformer_needs_a_configuration():
    with pytest.raises(InputError, match="config must be a ModelConfig, not dict"):
        Transformer({"vocabulary_size": 10})


def test_a_tokenizer_is_an_instance():
    with pytest.raises(InputError, match="not the class Tokenizer"):
        as_tokenizers(Tokenizer)


def test_whole_numbers_are_labels(tmp_path):
    path = rows_to_file("classify", [("a", 1.0), ("b", np.float64(2))], tmp_path / "rows.jsonl")
    assert [line.split('"label": ')[1] for line in path.read_text().splitlines()] == [
        '"1"}',
        '"2"}',
    ]


@pytest.mark.parametrize("name", ["classify", "Box:classify"])
def test_the_model_in_the_box_without_its_prefix(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r'no such folder; "box:classify" is the model in the box'):
        regard.load(name)


def test_search_in_a_list_of_texts(model):
    model = model("embed", "encoder")
    texts = ["the cat", "a house", "the cat"]
    hits = model.search("the cat", texts, top=2)
    assert [(hit.line, hit.text) for hit in hits] == [(1, "the cat"), (3, "the cat")]
    assert hits[0].score == pytest.approx(1, abs=1e-6)
    assert [len(hits) for hits in model.search(["a", "b"], texts)] == [3, 3]
    with pytest.raises(InputError, match="documents are empty"):
        model.search("a", [])


def test_the_labels_and_the_device(model):
    classifier = model("classify", "encoder")
    assert classifier.labels == list(classifier.classify("a").probabilities)
    assert classifier.device == torch.device("cpu")
    with pytest.raises(InputError, match="classify"):
        model("embed", "encoder").labels  # noqa: B018


def test_attention_reads_one_sentence(model):
    translator = model("translate", "encoder-decoder")
    with pytest.warns(RegardWarning, match="the text has 2 sentences"):
        translator.attention("The cat slept. The dog ran.")


def test_texts_and_ids_are_not_confused():
    tokenizer = Tokenizer("byte")
    assert tokenizer.decode(tokenizer.encode("x")) == "x"
    with pytest.raises(InputError, match="a text is a string, not 3"):
        tokenizer.encode(3)
    with pytest.raises(InputError, match="ids are several token ids, not 'x'"):
        tokenizer.decode("x")


def test_a_model_with_other_modules_is_not_saved(model, tmp_path):
    model = regard.load(model("classify", "encoder").folder, "cpu")
    assert repr(model.task).startswith("Classify(style='encoder'")
    first = model.transformer.encoder.layers[0].feed_forward
    first.inner = torch.nn.Linear(first.inner.in_features, 3)
    with pytest.raises(InputError, match="undo replacements and parametrizations before saving"):
        model.save(tmp_path / "saved")
