"""Tasks read tables, hold out a percentage of their data, and report overlap."""

import csv
import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks import registry
from regard.tasks.classify import Classify
from regard.tasks.configuration import make_config
from regard.tasks.evaluation import read_examples
from regard.tasks.registry import find_task
from regard.text.corpus import Classified

SMALL = [
    "--preset", "tiny", "--device", "cpu", "--quiet", "--set", "model.d_model=16", "--set",
    "model.heads=2", "--set", "model.d_ff=32", "--set", "training.average=1",
    "--set", "training.batch_tokens=300", "--set", "training.warmup=1",
    "--set", "data.vocabulary_size=300",
]  # fmt: skip


@pytest.fixture
def reviews(tmp_path):
    """A CSV file with columns that have no usual name for the label."""
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "review", "stars"])
        for n in range(120):
            word = "good" if n % 2 else "bad"
            writer.writerow([n, f"a {word} film,\nnumber {n}", 5 if n % 2 else 1])
    return path


def config_of(task, train, **data):
    return make_config(task, "tiny", {"data": {"train": [str(file) for file in train], **data}})


def texts_of(task, files, config):
    return [
        next(iter(find_task(task).texts(example)))
        for example in find_task(task).read(files, config)
    ]


# ---- columns ----------------------------------------------------------------------------


def test_columns_can_be_set_by_option_setting_and_configuration(reviews, tmp_path, call):
    options = [
        "train",
        "--task",
        "classify",
        "--train",
        reviews,
        *SMALL,
        "--set",
        "training.steps=2",
    ]
    code, _, err = call(*options, "--out", tmp_path / "a", "--columns", "label=stars, text=review")
    assert (code, err) == (0, "")
    written = Config.load(tmp_path / "a" / "config.yaml").data.columns
    assert written == {"label": "stars", "text": "review"}
    code, _, err = call(*options, "--out", tmp_path / "b", "--set", "data.columns=label=stars")
    assert (code, err) == (0, "")
    labels = json.loads((tmp_path / "b" / "labels.json").read_text())["labels"]
    assert labels == ["1", "5"]
    # The columns of the model's configuration, and different ones.
    code, out, err = call("evaluate", "-m", tmp_path / "b", "--data", reviews, "--json")
    assert (code, json.loads(out)["examples"]) == (0, 120), err
    code, out, err = call(
        "evaluate", "-m", tmp_path / "b", "--data", reviews, "--columns", "text=id,label=stars"
    )
    assert code == 0, err
    code, out, err = call(
        "evaluate", "-m", tmp_path / "b", "--data", reviews, "--columns", "text=x"
    )
    assert (code, err) == (
        2,
        f"regard: {reviews}:1: no column 'x'; the columns are id, review, stars\n",
    )


def test_wrong_columns_are_refused(reviews, tmp_path, call):
    options = ["train", "--task", "classify", "--train", reviews, "--out", tmp_path / "a"]
    code, _, err = call(*options)
    assert code == 2
    assert err.endswith(
        'reviews.csv:1: no "label" (expected {"text", "label"}); the columns are id, review, stars: '
        "name the missing ones, for example with columns label=id\n"
    )
    code, _, err = call(*options, "--columns", "lable=stars")
    assert (code, err) == (2, "regard: unknown field in columns 'lable'; did you mean 'label'?\n")
    code, _, err = call(*options, "--columns", "stars")
    assert code == 2
    assert "--columns must be field=column,field=column, not 'stars'" in err
    with pytest.raises(InputError, match="data.columns='stars': write it as field=column"):
        config_of("classify", [reviews], columns="stars")
    with pytest.raises(InputError, match="data.columns must map strings to strings, not "):
        config_of("classify", [reviews], columns={"label": 5})


def test_task_with_its_own_read_file_does_not_read_columns(reviews, tmp_path, monkeypatch):
    class Lines(Classify):
        name = "lines"
        row_format = None

        @staticmethod
        def read_file(path):
            for number, line in enumerate(Path(path).read_text().splitlines(), 1):
                yield Classified(number, line, "x")

    monkeypatch.setattr(registry, "_TASKS", {**registry._TASKS, "lines": Lines})
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    assert texts_of("lines", [path], config_of("lines", [path])) == ["one", "two"]
    with pytest.raises(InputError, match="the task lines does not read columns by name"):
        config_of("lines", [path], columns={"text": "a"})


# ---- translation from one file ----------------------------------------------------------


def test_a_translation_model_learns_from_one_table(tmp_path, call):
    pairs = [{"en": f"we see {n} trees", "de": f"wir sehen {n} Bäume"} for n in range(60)]
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(pairs, indent=1))
    out = tmp_path / "model"
    code, _, err = call(
        "train", "--task", "translate", "--train", path, "--valid", "10%", "--columns",
        "source=en,target=de", "--out", out, *SMALL, "--set", "training.steps=2",
    )  # fmt: skip
    assert (code, err) == (0, "")
    code, text, err = call("evaluate", "-m", out, "--data", path, "--json", "--max-length", "2")
    assert (code, json.loads(text)["examples"]) == (0, 60), err


def test_the_files_of_translate_are_checked(tmp_path):
    task = find_task("translate")
    with pytest.raises(InputError, match="b.tsv is a table: translate takes two text files"):
        task.check_files([Path("a.en"), Path("b.tsv")])
    task.check_files([Path("a.tsv.gz")])
    config = config_of("translate", ["a.en", "a.de"], columns={"source": "x"})
    with pytest.raises(InputError, match="a.en: a text file has no columns"):
        task.read_all([Path("a.en"), Path("a.de")], config)


# ---- a percentage as validation data ----------------------------------------------------


@pytest.mark.parametrize("task", ["translate", "answer", "generate", "fill", "classify", "embed"])
def test_held_out_part_and_rest_contain_all_examples(task, data):
    files = [Path(file) for file in data[task][0]]
    config = config_of(task, files, valid="20%")
    every = texts_of(task, files, config_of(task, files))
    rest = texts_of(task, files, config)
    held_out = texts_of(task, [Path("20%")], config)
    assert sorted(rest + held_out) == sorted(every)
    assert held_out
    assert rest
    assert set(rest).isdisjoint(held_out)


def test_each_part_has_its_own_store(data, tmp_path, bpe):
    files = [Path(file) for file in data["generate"][0]]
    config = config_of("generate", files, valid="30%")
    task = find_task("generate")(bpe, "decoder")
    sizes = [
        len(task.build(names, tmp_path, settings, True)[0])
        for names, settings in (
            (files, config_of("generate", files)),
            (files, config),
            ([Path("30%")], config),
        )
    ]
    assert sizes[0] == sizes[1] + sizes[2]
    assert min(sizes[1:]) > 0


def test_a_run_with_held_out_data_resumes_exactly(reviews, tmp_path, call):
    def run(out, steps, *more):
        code, _, err = call(
            "train", "--task", "classify", "--train", reviews, "--valid", "25%", "--columns",
            "label=stars", "--out", out, *SMALL, "--set", f"training.steps={steps}",
            "--set", "training.validate_every=2", "--set", "training.checkpoint_every=2", *more,
        )  # fmt: skip
        assert code == 0, err

    run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 2)
    run(tmp_path / "parts", 6, "--resume")
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all((whole[name] == parts[name]).all() for name in whole)
    assert Config.load(tmp_path / "whole" / "config.yaml").data.valid == ["25%"]
    code, out, err = call("evaluate", "-m", tmp_path / "whole", "--data", "25%", "--json")
    assert code == 0, err
    metrics = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(out)["accuracy"] == json.loads(metrics[-1])["accuracy"]
    code, _, err = call("evaluate", "-m", tmp_path / "whole", "--data", "5%")
    assert code == 2
    assert err.startswith("regard: 5%: the model was not trained with data.valid=5%")


def test_evaluation_reads_all_examples_of_the_training_files(data, bpe):
    files = [Path(file) for file in data["classify"][0]]
    config = config_of("classify", files, valid="20%")
    task = Classify(bpe, labels=["de", "en", "number"])
    assert len(read_examples(task, files, config)) == 90


def test_too_few_examples_for_a_percentage_are_refused(tmp_path, call):
    path = tmp_path / "small.tsv"
    path.write_text("a\tone\n")
    code, _, err = call(
        "train", "--task", "classify", "--train", path, "--valid", "5%", "--out", tmp_path / "m"
    )
    assert (code, err) == (2, f"regard: {path}: too few examples to hold out 5% of them\n")


def test_percentage_is_refused_for_a_task_with_its_own_read(data, bpe, monkeypatch):
    class Other(Classify):
        name = "other"

        @classmethod
        def read(cls, files, config, say=None):
            return super().read(files, config, say)

    monkeypatch.setattr(registry, "_TASKS", {**registry._TASKS, "other": Other})
    config = config_of("other", data["classify"][0], valid="5%")
    with pytest.raises(InputError, match="data.valid=5% is not possible with the task other"):
        Other.learn(config, (bpe, bpe), print, True)


# ---- overlap ----------------------------------------------------------------------------


def test_overlap_of_validation_and_training_data_is_reported(tmp_path, bpe, capsys):
    train, valid = tmp_path / "train.tsv", tmp_path / "valid.tsv"
    train.write_text("".join(f"{n % 2}\ttext {n}\n" for n in range(50)))
    valid.write_text("".join(f"{n % 2}\ttext  {n}\n" for n in range(47, 57)))
    config = config_of("classify", [train], valid=[str(valid)])
    Classify.learn(config, (bpe, bpe), print, False)
    assert capsys.readouterr().err == (
        "regard: 3 of 10 validation examples (30.0%) are also in the training data, which makes "
        "validation scores too high: remove them from the training data\n"
    )
    Classify.learn(config, (bpe, bpe), print, True)  # quiet
    assert capsys.readouterr().err == ""
    valid.write_text("1\tanother text\n")
    Classify.learn(config, (bpe, bpe), print, False)
    assert capsys.readouterr().err == ""
