"""`regard pack`: a model of a quarter of the size that works like the original."""

import json
import shlex
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

import regard
from regard import Config, InputError
from regard.box.pack import NOTE, portable
from regard.ops.cpu import build as native
from regard.training.checkpoint import to_bytes

FILES = ["README.md", "config.yaml", "metrics.jsonl", "model.safetensors", "tokenizer.json"]
TEXTS = ["The dog slept.", "", "The old man saw the small dog in front of the beautiful house."]


@pytest.fixture(scope="module")
def run(make):
    return make("translate")


@pytest.fixture(scope="module")
def small(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "small"
    regard.pack(run, out)
    return out


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_packed_folder_has_the_files_of_a_model_only(run, small):
    assert sorted(content(small)) == FILES
    assert content(small)["metrics.jsonl"] == content(run)["metrics.jsonl"]
    assert content(small)["tokenizer.json"] == content(run)["tokenizer.json"]
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (run, small)]
    assert sizes[1] < 0.4 * sizes[0]  # with larger matrices: a quarter
    with safe_open(small / "model.safetensors", framework="pt") as file:
        types = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert types == {torch.int8, torch.float32}


def test_quantisation_error_is_at_most_half_a_step(run, small):
    before, after = (regard.load(folder, "cpu").transformer.state_dict() for folder in (run, small))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        if weight.dim() == 2:
            step = weight.abs().amax(1, keepdim=True) / 127
            assert ((after[name] - weight).abs() <= step * 0.501).all(), name
        else:
            assert torch.equal(after[name], weight), name


@pytest.mark.skipif(native.library("inference") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("changes", [
    {}, {"positions": "learned", "max_length": 70, "activation": "swiglu", "norm": "rms"},
    {"tie_embeddings": "none", "positions": "rotary"},
], ids=["plain", "learned", "untied"])  # fmt: skip
def test_packed_model_in_int8_gives_the_same_output(make, tmp_path, changes):
    folder = make("translate", changes)
    regard.pack(folder, tmp_path / "small")
    models = [regard.load(path, "cpu", "int8") for path in (folder, tmp_path / "small")]
    predictions = [model.predict(TEXTS, beam=2) for model in models]
    for original, packed in zip(*predictions, strict=True):
        assert original.token_ids == packed.token_ids
        assert original.logprobs == packed.logprobs  # bit for bit
    scored = [[a.logprob for a in model.score([(t, t) for t in TEXTS if t])] for model in models]
    assert scored[0] == scored[1]


@pytest.mark.parametrize("task", ["classify", "fill", "embed", "generate"])
def test_every_task_can_be_packed(make, tmp_path, task):
    folder = make(task, labels=["bad", "good"])
    regard.pack(folder, tmp_path / "small")
    before, after = regard.load(folder, "cpu"), regard.load(tmp_path / "small", "cpu")
    vectors = [model.embed(TEXTS) for model in (before, after)]
    assert abs(vectors[0] - vectors[1]).max() < 0.1
    assert (vectors[0] != vectors[1]).any()
    if task == "classify":
        assert after.task.labels == ["bad", "good"]
        assert [label.label for label in after.classify(TEXTS)]


def test_every_verb_accepts_a_packed_model(small, tmp_path, call):
    data = [tmp_path / "data.en", tmp_path / "data.de"]
    for path in data:
        path.write_text("The dog slept.\nThe old man saw it.\n" * 8, encoding="utf-8")
    code, out, err = call("evaluate", "-m", small, "--data", *data, "--samples", 100, "--json")
    assert code == 0, err
    assert json.loads(out)["examples"] == 16
    code, out, err = call("view", "attention", "The dog slept.", "-m", small, "--out",
                          tmp_path / "seen.png", "--json")  # fmt: skip
    assert code == 0, err
    code, out, err = call("info", small, "--json")
    assert code == 0, err
    assert json.loads(out)["scores"]["loss"] == 2.5
    code, out, err = call(
        "train", "--task", "translate", "--from", small, "--train", *data, "--out",
        tmp_path / "tuned", "--set", "training.steps=2", "--set", "training.learning_rate=1e-12",
        "--device", "cpu", "--quiet",
    )  # fmt: skip
    assert code == 0, err
    start, tuned = (regard.load(path, "cpu").transformer for path in (small, tmp_path / "tuned"))
    torch.testing.assert_close(tuned.state_dict(), start.state_dict(), atol=1e-9, rtol=0)


def test_packed_model_does_not_name_folders_of_this_machine(small):
    data = Config.load(small / "config.yaml").data
    assert data.train == ["built-in/train.en", "train.de"]
    assert data.valid == ["valid.en"]
    card = (small / "README.md").read_text(encoding="utf-8")
    assert "/home" not in card
    assert "`regard train --train built-in/train.en`" in card
    assert card.count(NOTE) == 1


@pytest.mark.parametrize(("text", "expected"), [
    ("/data/a/b.txt", "a/b.txt"),
    ("`--train /x/y/z.xz /x/y/w.xz`", "`--train y/z.xz y/w.xz`"),
    ("see https://example.org/some/page/here", "see https://example.org/some/page/here"),
    ("runs/in/a.txt and $REGARD_DATA/a/b/c", "runs/in/a.txt and $REGARD_DATA/a/b/c"),
    ("~/a/b/c and/or ../x/y/z", "~/a/b/c and/or ../x/y/z"),
    ("3 / 4 or 1/2 // no", "3 / 4 or 1/2 // no"),
    ("//server/share/me/x/y.en", "x/y.en"),
    ("(file:///home/me/x/y.en)", "(x/y.en)"),
    ("--train=C:/Users/me/x/y.en", "--train=x/y.en"),
])  # fmt: skip
def test_only_absolute_paths_are_shortened(text, expected):
    assert portable(text) == expected


@pytest.mark.parametrize(("path", "expected"), [
    ("/tmp/x/John Doe/data/train.tsv", "data/train.tsv"),
    ("/home/me/John Doe/train (1).tsv", "John Doe/train (1).tsv"),
    ("/home/o'brien/data/x/train.en", "x/train.en"),
    ("//server/share/me/x.en", "me/x.en"),
    ("file:///home/me/data/x.en", "data/x.en"),
    ("C:/Users/me/x.en", "me/x.en"),
    ("o'brien (1)/x/y/train.en", "o'brien (1)/x/y/train.en"),
    ("/x.en", "x.en"),
    ("my data (1)/sets/x/train.en", "my data (1)/sets/x/train.en"),
    ("../../x/y/train.en", "../../x/y/train.en"),
])  # fmt: skip
def test_paths_of_training_files_are_shortened_to_two_names(run, tmp_path, path, expected):
    shutil.copytree(run, tmp_path / "run")
    config = Config.load(run / "config.yaml")
    config = replace(config, data=replace(config.data, train=[path, f"{path}.de"], valid=[path]))
    (tmp_path / "run/config.yaml").write_text(config.to_yaml(), encoding="utf-8")

    def card(path, out):
        """A card as regard.training.run writes it, with a line that is not about these files."""
        command = shlex.join(["regard", "train", "--train", path, f"{path}.de", "--out", out])
        return f"- data: {path} {path}.de\n- command: `{command}`\n- other: a/x.en\n"

    written = card(path, "/a/b's own/c d")
    (tmp_path / "run/README.md").write_text(written, encoding="utf-8")
    regard.pack(tmp_path / "run", tmp_path / "small")
    data = Config.load(tmp_path / "small/config.yaml").data
    assert (data.train, data.valid) == ([expected, f"{expected}.de"], [expected])
    packed_card = (tmp_path / "small/README.md").read_text(encoding="utf-8")
    assert packed_card == card(expected, "b's own/c d") + f"\n{NOTE}\n"
    regard.pack(tmp_path / "small", tmp_path / "again")
    assert content(tmp_path / "again") == content(tmp_path / "small")


def test_card_or_metrics_in_another_encoding_are_accepted(run, tmp_path, call):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/README.md").write_bytes("Ein schönes Modell".encode("latin-1"))
    regard.pack(tmp_path / "run", tmp_path / "small")
    assert "Ein sch\ufffdnes Modell" in (tmp_path / "small/README.md").read_text(encoding="utf-8")
    for last in (b'{"final": "sch\xf6n"}\n', b"3\n", b'{"fin'):
        (tmp_path / "small/metrics.jsonl").write_bytes(b'{"step": 1}\n' + last)
        code, out, err = call("info", tmp_path / "small", "--json")
        assert (code, err) == (0, "")
        assert "scores" not in json.loads(out)


def test_command_prints_the_new_size(run, tmp_path, call):
    code, out, _ = call("pack", run, "--out", tmp_path / "small")
    assert code == 0
    assert f"{tmp_path / 'small'} is ready" in out
    code, out, _ = call("pack", run, "--out", tmp_path / "other", "--json")
    summary = json.loads(out)
    assert summary["size"] == sum(map(len, content(tmp_path / "other").values()))
    assert summary["parameters"] == sum(
        tensor.numel() for tensor in regard.load(run).transformer.state_dict().values()
    )


def test_invalid_model_is_refused_and_no_file_is_left(run, tmp_path, call):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (tmp_path / "text").mkdir()
    for folder, message in (
        (unfinished, "has no weights yet"),
        (tmp_path / "text", "no config.yaml"),
    ):
        code, out, err = call("pack", folder, "--out", tmp_path / "small")
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
        assert not (tmp_path / "small").exists()


def test_weights_with_nan_or_infinity_are_refused(run, tmp_path):
    for name, file in content(run).items():
        (tmp_path / name).write_bytes(file)
    weights = regard.load(run, "cpu").transformer.state_dict()
    weights["encoder.final_norm.weight"][0] = float("nan")
    (tmp_path / "model.safetensors").write_bytes(to_bytes(weights))
    with pytest.raises(InputError, match=r"encoder\.final_norm\.weight contains NaN or infinity"):
        regard.pack(tmp_path, tmp_path / "small")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_matrix_of_wrong_shape_is_refused_before_quantisation(run, tmp_path, dtype):
    for name, file in content(run).items():
        (tmp_path / name).write_bytes(file)
    weights = regard.load(run, "cpu").transformer.state_dict()
    name = next(name for name, weight in weights.items() if weight.dim() == 2)
    (tmp_path / "model.safetensors").write_bytes(to_bytes(weights | {name: torch.empty(4, 0)}))
    with pytest.raises(InputError, match=r"is \[4, 0\] but the model needs"):
        regard.load(tmp_path, "cpu", dtype)


def test_existing_folder_is_replaced_only_on_request(run, small, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    (old / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists: choose a different folder"):
        regard.pack(run, old)
    assert content(old) == {"mine.txt": b"mine"}
    with pytest.raises(InputError, match="is the model itself"):
        regard.pack(small, small, replace_old=True)
    regard.pack(run, old, replace_old=True)
    assert content(old) == content(small)


def test_model_inside_the_replaced_folder_is_not_deleted(run, tmp_path):
    model = tmp_path / "all" / "model"
    shutil.copytree(run, model)
    (tmp_path / "link").symlink_to("all")
    for out in (tmp_path / "all", tmp_path / "link"):
        with pytest.raises(InputError, match=f"{model} is in {out} and would be deleted with it"):
            regard.pack(model, out, replace_old=True)
    assert content(model) == content(run)


def test_file_is_not_replaced_by_a_folder(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    for replace_old in (False, True):
        with pytest.raises(InputError, match="file cannot be written: it is not a folder"):
            regard.pack(run, tmp_path / "file", replace_old=replace_old)
    assert (tmp_path / "file").read_text() == "mine"


def test_symbolic_link_as_destination_is_followed(run, small, tmp_path, call):
    (tmp_path / "link").symlink_to("disk/models")
    code, out, err = call("pack", run, "--out", tmp_path / "link")
    assert code == 0, err
    assert f"{tmp_path / 'link'} is ready" in out
    assert content(tmp_path / "disk/models") == content(small)
