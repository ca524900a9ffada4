"""`regard evaluate`: the metrics of every task, their confidence intervals, and the comparison of two models."""

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
    """evaluate("fill", folder, ...): the parsed JSON that the command prints."""

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
def test_each_task_reports_its_metrics_with_confidence_intervals(name, trained, evaluate):
    scores = evaluate(name, trained(name))
    assert scores["task"] == ("embed" if name == "scored" else name)
    assert list(scores)[1] == METRICS[name][0]  # the main metric comes first
    assert list(scores["intervals"]) == METRICS[name]
    for metric in METRICS[name]:
        low, high = scores["intervals"][metric]
        assert low <= high
        if (
            name != "translate"
        ):  # sacreBLEU's interval is centred on the mean of the resampled test sets
            assert low - 1e-4 <= scores[metric] <= high + 1e-4
    assert scores["examples"] > 2
    again = evaluate(name, trained(name))
    assert again == scores


def test_examples_of_a_text_are_its_windows(trained, evaluate, loaded, data):
    tokenizer = loaded("generate").task.tokenizer
    texts = [text for _, text in read_documents(data["generate"][1][0])]
    for name, size, end in (("generate", 64, 1), ("fill", 63, 0)):
        windows = sum(math.ceil((len(tokenizer.encode(text)) + end) / size) for text in texts)
        assert evaluate(name, trained(name))["examples"] == windows


@pytest.mark.parametrize("name", METRICS)
def test_comparison_of_a_model_with_itself_has_no_difference(name, trained, evaluate):
    folder = trained(name)
    scores = evaluate(name, folder, "--against", folder)
    against = scores["against"]
    assert against["model"] == str(folder)
    assert list(against["difference"]) == METRICS[name]
    for metric in METRICS[name]:
        assert against[metric] == scores[metric]
        assert against["difference"][metric]["difference"] == 0
        assert against["difference"][metric]["p"] == 1


@pytest.mark.parametrize("name", METRICS)
def test_comparison_of_two_models_reports_finite_differences(name, trained, evaluate):
    ours, theirs = trained(name), trained(name, None, 2)
    scores = evaluate(name, ours, "--against", theirs)
    alone = evaluate(name, theirs)
    back = evaluate(name, theirs, "--against", ours)
    different = False
    for metric in METRICS[name]:
        comparison = scores["against"]["difference"][metric]
        assert scores["against"][metric] == alone[metric]
        assert comparison["difference"] == pytest.approx(scores[metric] - alone[metric], abs=0.011)
        assert 0 < comparison["p"] <= 1
        opposite = back["against"]["difference"][metric]
        assert opposite["difference"] == pytest.approx(-comparison["difference"], abs=1e-9)
        if name != "translate":
            assert comparison["low"] <= comparison["difference"] + 1e-9
            assert comparison["difference"] <= comparison["high"] + 1e-9
            assert opposite["p"] == pytest.approx(comparison["p"])
        different = different or comparison["difference"] != 0
    assert different or name in ("answer", "classify", "translate")


def test_text_table_has_the_same_numbers_as_json(trained, evaluate, call, data):
    ours, theirs = trained("classify"), trained("classify", None, 2)
    scores = evaluate("classify", ours, "--against", theirs)
    code, out, err = call("evaluate", "-m", ours, "--data", *data["classify"][1], "--against", theirs,
                          "--samples", 100)  # fmt: skip
    assert (code, err) == (0, "")
    assert out.startswith("metric")
    assert f"against {theirs.name}" in out.splitlines()[0]
    for metric in METRICS["classify"]:
        [line] = [line for line in out.splitlines() if line.startswith(metric)]
        assert str(scores[metric]) in line
        assert line.rstrip().endswith("significant")
    assert "confusion" in out
    assert "examples" in out


def test_confusion_matrix_counts_each_example_once(trained, evaluate, loaded, data):
    scores = evaluate("classify", trained("classify"))
    rows = list(read_classified(data["classify"][1][0]))
    table = np.array(scores["confusion"])
    assert scores["labels"] == ["de", "en", "number"]
    assert table.shape == (3, 3)
    assert table.sum() == scores["examples"] == len(rows)
    expected = [sum(row.label == label for row in rows) for label in scores["labels"]]
    assert table.sum(1).tolist() == expected
    predicted = [label.label for label in loaded("classify").classify([row.text for row in rows])]
    assert table.sum(0).tolist() == [predicted.count(label) for label in scores["labels"]]
    assert np.trace(table) / len(rows) == pytest.approx(scores["accuracy"], abs=1e-4)


def test_models_with_different_windows_are_not_compared(trained, call, data):
    code, out, err = call("evaluate", "-m", trained("generate"), "--data", *data["generate"][1],
                          "--against", trained("generate", None, vocabulary="byte"))  # fmt: skip
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "evaluate them separately, and compare bits_per_byte" in err


def test_models_with_different_masking_are_not_compared(trained, call, data):
    code, out, err = call("evaluate", "-m", trained("fill"), "--data", *data["fill"][1],
                          "--against", trained("fill", None, whole_words=True))  # fmt: skip
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the two models hide different words" in err


@pytest.mark.parametrize(
    ("ours", "theirs"), [("fill", "generate"), ("classify", "fill"), ("translate", "answer")]
)
def test_models_of_different_tasks_are_not_compared(ours, theirs, trained, call, data):
    code, out, err = call(
        "evaluate", "-m", trained(ours), "--data", *data[ours][1], "--against", trained(theirs)
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{trained(theirs)} was trained to {theirs}, but {trained(ours)} to {ours}" in err


def test_label_unknown_to_the_other_model_is_named(trained, configure, call, tmp_path, data):
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
def test_all_styles_have_the_same_metrics(name, style, trained, evaluate):
    scores = evaluate(name, trained(name, style), "--against", trained(name))
    assert list(scores["intervals"]) == METRICS[name]
    assert all(
        math.isfinite(comparison["p"]) for comparison in scores["against"]["difference"].values()
    )


def test_sacrebleu_difference_has_no_interval(trained, evaluate):
    scores = evaluate("translate", trained("translate"), "--against", trained("translate", None, 2))
    for comparison in scores["against"]["difference"].values():
        assert comparison.keys() == vars(Comparison(0.0, None, None, 1.0)).keys()
        assert (comparison["low"], comparison["high"]) == (None, None)


def test_zero_samples_and_empty_data_are_refused(trained, call, tmp_path, data):
    folder = trained("classify")
    code, out, err = call("evaluate", "-m", folder, "--data", *data["classify"][1], "--samples", 0)
    assert (code, out, err) == (2, "", "regard: --samples must be at least 1, not 0\n")
    for name in ("classify", "fill", "embed", "answer", "generate"):
        (tmp_path / "empty").write_text("")
        code, out, err = call("evaluate", "-m", trained(name), "--data", tmp_path / "empty")
        assert (code, out) == (2, "")
        assert err == f"regard: {tmp_path / 'empty'} is empty: there is nothing to evaluate\n"


@pytest.mark.parametrize("name", ["classify", "embed"])
def test_truncated_texts_are_counted_in_one_warning(name, trained, call, tmp_path):
    long = "The dog slept in the garden. " * 40
    rows = {
        "classify": f"en\t{long}\nde\tDer Hund.\n",
        "embed": json.dumps({"a": long, "b": long}) + '\n{"a": "A dog.", "b": "Ein Hund."}\n',
    }[name]
    file = tmp_path / "rows"
    file.write_text(rows)
    code, _, err = call("evaluate", "-m", trained(name), "--data", file, "--samples", 100)
    number = {"classify": "1 text is", "embed": "2 texts are"}[name]
    limit = "longer than the 64 tokens that the model was trained on: only the beginning is read"
    assert (code, err) == (0, f"regard: {file}: {number} {limit}\n")


def test_truncated_search_lines_are_reported_for_new_and_cached_index(trained, call, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("A dog.\n" + "The dog slept in the garden. " * 40 + "\n")
    for _ in range(2):  # the first call builds the index, the second one loads it
        code, _, err = call("search", "-m", trained("embed"), "--documents", file, "a dog")
        assert code == 0
        assert err == (
            f"regard: {file}: 1 line is longer than the 64 tokens that the model was trained on: "
            "only the beginning is read\n"
        )
