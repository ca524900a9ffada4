"""`regard evaluate`: the metrics of every task, how sure they are, and whether two models differ."""

import json
import math

import numpy as np
import pytest

from regard.tasks.bootstrap import Comparison
from regard.text.corpus import read_classified, read_documents

METRICS = {
    "translate": ["bleu", "chrf"],
    "answer": ["f1", "exact"],
    "generate": ["loss", "perplexity", "bits_per_byte"],
    "classify": ["accuracy", "macro_f1", "matthews", "calibration_error"],
    "fill": ["perplexity", "accuracy"],
    "embed": ["nearest", "reciprocal_rank"],
    "scored": ["spearman", "pearson"],
}


@pytest.fixture
def evaluate(call, data):
    """evaluate("fill", folder, ...): the parsed JSON, and what was said on standard error."""

    def run(name, folder, *more):
        files = data[name][1]
        code, out, err = call(
            "evaluate", "-m", folder, "--data", *files, "--json", "--samples", 100, *more
        )
        assert code == 0, err
        assert out.count("\n") == 1
        return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    return run


@pytest.mark.parametrize("name", METRICS)
def test_every_task_has_its_metrics_with_intervals_around_them(name, trained, evaluate):
    told = evaluate(name, trained(name))
    assert told["task"] == ("embed" if name == "scored" else name)
    assert list(told)[1] == METRICS[name][0]  # the first is the one that counts
    assert list(told["intervals"]) == METRICS[name]
    for metric in METRICS[name]:
        low, high = told["intervals"][metric]
        assert low <= high
        if name != "translate":  # sacreBLEU's is around the mean of the resampled sets
            assert low - 1e-4 <= told[metric] <= high + 1e-4
    assert told["examples"] > 2
    again = evaluate(name, trained(name))
    assert again == told


def test_windows_are_the_examples_of_a_text(trained, evaluate, loaded, data):
    tokenizer = loaded("generate").task.tokenizer
    texts = [text for _, text in read_documents(data["generate"][1][0])]
    for name, size, end in (("generate", 64, 1), ("fill", 63, 0)):
        windows = sum(math.ceil((len(tokenizer.encode(text)) + end) / size) for text in texts)
        assert evaluate(name, trained(name))["examples"] == windows


@pytest.mark.parametrize("name", METRICS)
def test_a_model_against_itself_makes_no_difference(name, trained, evaluate):
    folder = trained(name)
    told = evaluate(name, folder, "--against", folder)
    against = told["against"]
    assert against["model"] == str(folder)
    assert list(against["difference"]) == METRICS[name]
    for metric in METRICS[name]:
        assert against[metric] == told[metric]
        assert against["difference"][metric]["difference"] == 0
        assert against["difference"][metric]["p"] == 1


@pytest.mark.parametrize("name", METRICS)
def test_another_model_makes_a_difference_that_is_a_number(name, trained, evaluate):
    ours, theirs = trained(name), trained(name, None, 2)
    told = evaluate(name, ours, "--against", theirs)
    alone = evaluate(name, theirs)
    back = evaluate(name, theirs, "--against", ours)
    different = False
    for metric in METRICS[name]:
        found = told["against"]["difference"][metric]
        assert told["against"][metric] == alone[metric]
        assert found["difference"] == pytest.approx(told[metric] - alone[metric], abs=0.011)
        assert 0 < found["p"] <= 1
        opposite = back["against"]["difference"][metric]
        assert opposite["difference"] == pytest.approx(-found["difference"], abs=1e-9)
        if name != "translate":
            assert found["low"] <= found["difference"] + 1e-9
            assert found["difference"] <= found["high"] + 1e-9
            assert opposite["p"] == pytest.approx(found["p"])
        different = different or found["difference"] != 0
    assert different or name in ("answer", "classify", "translate")


def test_a_table_for_people_says_the_same(trained, evaluate, call, data):
    ours, theirs = trained("classify"), trained("classify", None, 2)
    told = evaluate("classify", ours, "--against", theirs)
    code, out, err = call("evaluate", "-m", ours, "--data", *data["classify"][1], "--against", theirs,
                          "--samples", 100)  # fmt: skip
    assert (code, err) == (0, "")
    assert out.startswith("metric")
    assert f"against {theirs.name}" in out.splitlines()[0]
    for metric in METRICS["classify"]:
        [line] = [line for line in out.splitlines() if line.startswith(metric)]
        assert str(told[metric]) in line
        assert line.rstrip().endswith("significant")
    assert "confusion" in out
    assert "examples" in out


def test_the_confusion_matrix_has_every_example_once(trained, evaluate, loaded, data):
    told = evaluate("classify", trained("classify"))
    rows = list(read_classified(data["classify"][1][0]))
    table = np.array(told["confusion"])
    assert told["labels"] == ["de", "en", "number"]
    assert table.shape == (3, 3)
    assert table.sum() == told["examples"] == len(rows)
    wanted = [sum(row.label == label for row in rows) for label in told["labels"]]
    assert table.sum(1).tolist() == wanted
    found = [label.label for label in loaded("classify").classify([row.text for row in rows])]
    assert table.sum(0).tolist() == [found.count(label) for label in told["labels"]]
    assert np.trace(table) / len(rows) == pytest.approx(told["accuracy"], abs=1e-4)


def test_two_vocabularies_that_cut_a_text_into_other_windows_are_not_paired(trained, call, data):
    code, out, err = call("evaluate", "-m", trained("generate"), "--data", *data["generate"][1],
                          "--against", trained("generate", None, vocabulary="byte"))  # fmt: skip
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "evaluate them separately, and compare bits_per_byte" in err


def test_models_that_hide_other_words_are_not_compared(trained, call, data):
    code, out, err = call("evaluate", "-m", trained("fill"), "--data", *data["fill"][1],
                          "--against", trained("fill", None, whole_words=True))  # fmt: skip
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the two models hide different words" in err


@pytest.mark.parametrize(
    ("ours", "theirs"), [("fill", "generate"), ("classify", "fill"), ("translate", "answer")]
)
def test_models_of_two_tasks_are_not_compared(ours, theirs, trained, call, data):
    code, out, err = call(
        "evaluate", "-m", trained(ours), "--data", *data[ours][1], "--against", trained(theirs)
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{trained(theirs)} was trained to {theirs}, but {trained(ours)} to {ours}" in err


def test_a_label_that_only_the_other_model_does_not_know_is_named(
    trained, configure, call, tmp_path, data
):
    from regard.tasks.train import train_config as train

    rows = "".join(f"{label}\tThe dog {i} slept.\n" for i in range(6) for label in ("de", "en"))
    (tmp_path / "rows.tsv").write_text(rows)
    config = configure(
        "classify", data={"train": [str(tmp_path / "rows.tsv")], "valid": []}, training={"steps": 1}
    )
    train(config, tmp_path / "two", quiet=True)
    code, out, err = call("evaluate", "-m", trained("classify"), "--data", *data["classify"][1],
                          "--against", tmp_path / "two")  # fmt: skip
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        f"{data['classify'][1][0]}:1: the label 'number' was never seen in training (known: de, en)"
        in err
    )


@pytest.mark.parametrize("style", ["decoder", "encoder"])
@pytest.mark.parametrize("name", ["translate", "answer"])
def test_styles_are_judged_by_the_same_measure(name, style, trained, evaluate):
    told = evaluate(name, trained(name, style), "--against", trained(name))
    assert list(told["intervals"]) == METRICS[name]
    assert all(math.isfinite(one["p"]) for one in told["against"]["difference"].values())


def test_where_sacrebleu_knows_no_interval_of_the_difference_there_is_none(trained, evaluate):
    told = evaluate("translate", trained("translate"), "--against", trained("translate", None, 2))
    for one in told["against"]["difference"].values():
        assert one.keys() == vars(Comparison(0.0, None, None, 1.0)).keys()
        assert (one["low"], one["high"]) == (None, None)


def test_too_few_samples_and_no_data_are_one_line(trained, call, tmp_path, data):
    folder = trained("classify")
    code, out, err = call("evaluate", "-m", folder, "--data", *data["classify"][1], "--samples", 0)
    assert (code, out, err) == (2, "", "regard: --samples must be at least 1, not 0\n")
    for name in ("classify", "fill", "embed", "answer", "generate"):
        (tmp_path / "empty").write_text("")
        code, out, err = call("evaluate", "-m", trained(name), "--data", tmp_path / "empty")
        assert (code, out) == (2, "")
        assert err == f"regard: {tmp_path / 'empty'} is empty: there is nothing to evaluate\n"


@pytest.mark.parametrize("name", ["classify", "embed"])
def test_texts_that_are_cut_are_counted_in_one_line(name, trained, call, tmp_path):
    long = "The dog slept in the garden. " * 40
    rows = {
        "classify": f"en\t{long}\nde\tDer Hund.\n",
        "embed": json.dumps({"a": long, "b": long}) + '\n{"a": "A dog.", "b": "Ein Hund."}\n',
    }[name]
    file = tmp_path / "rows"
    file.write_text(rows)
    code, _, err = call("evaluate", "-m", trained(name), "--data", file, "--samples", 10)
    number = {"classify": "1 text is", "embed": "2 texts are"}[name]
    limit = "longer than the 64 tokens that the model was trained on: only the beginning is read"
    assert (code, err) == (0, f"regard: {file}: {number} {limit}\n")


def test_lines_to_search_that_are_cut_are_counted_each_time(trained, call, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("A dog.\n" + "The dog slept in the garden. " * 40 + "\n")
    for _ in range(2):  # the index is built, and then found
        code, _, err = call("search", "-m", trained("embed"), "--documents", file, "a dog")
        assert code == 0
        assert err == (
            f"regard: {file}: 1 line is longer than the 64 tokens that the model was trained on: "
            "only the beginning is read\n"
        )
