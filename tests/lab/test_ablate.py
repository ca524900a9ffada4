"""`regard lab ablate`: its variants against the paper's rows, its comparisons, and the command from
end to end with very small models."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from xml.etree import ElementTree

import pytest

import command
from experiments import ablate as experiment
from regard.config.parameters import closed_form
from regard.config.sections import Config
from regard.errors import InputError
from regard.lab.ablate import measure
from regard.lab.ablate.measure import compare, timing_groups
from regard.lab.ablate.report import VariantResult
from regard.lab.ablate.variants import BASE, GROUPS, make_variants
from regard.lab.common import training
from regard.lab.common.significance import pool, t_test
from regard.tasks.configuration import make_config
from regard.text.builtin import builtin_corpus
from tools.results import ablation

# ---- rows -----------------------------------------------------------------------------------


def builder(preset="base", task="translate", **model):
    def build(changes):
        values = {"model": {"vocabulary_size": 37_000, "norm_first": False, **model}}
        for section, keys in changes.items():
            values[section] = {**values.get(section, {}), **keys}
        return make_config(task, preset, values)

    return build


def test_variants_of_the_papers_base_are_the_papers_rows():
    rows, skipped = make_variants([*"ABCDE"], builder())
    changes = {row.name: row.changes for row in rows}
    sizes = [
        (c["model.heads"], c["model.head_size"]) for n, c in changes.items() if n.startswith("A")
    ]
    assert sizes == [(1, 512), (4, 128), (16, 32), (32, 16)]
    assert [c["model.head_size"] for n, c in changes.items() if n.startswith("B")] == [16, 32]
    assert not skipped
    # Table 3: parameters in millions. This vocabulary is slightly smaller: 63 where the paper has 65.
    printed = {"base": 65, "A-heads-1": 65, "A-heads-32": 65, "C-layers-2": 36, "C-layers-4": 50,
               "C-layers-8": 80, "C-width-256": 28, "C-width-1024": 168, "C-ff-1024": 53,
               "C-ff-4096": 90}  # fmt: skip
    assert [name for name in changes if name.startswith("C")] == list(printed)[3:]
    for row in rows:
        millions = sum(part.parameters for part in closed_form(row.config.model).values()) / 1e6
        if row.name in printed:
            assert millions == pytest.approx(printed[row.name], rel=0.08), row.name
    assert changes["C-width-256"]["model.head_size"] == 32
    assert changes["C-width-1024"]["model.head_size"] == 128
    assert [n for n in changes if n.startswith("D")] == [
        "D-dropout-0", "D-dropout-0.2", "D-smoothing-0", "D-smoothing-0.2",
    ]  # fmt: skip
    assert rows[-1].config.model.positions == "learned"


def test_variant_differs_from_the_base_only_in_its_changes():
    rows, _ = make_variants(list(GROUPS), builder("tiny"))
    base = rows[0].config
    for row in rows[1:]:
        for section in ("model", "data", "training", "decoding"):
            before, now = (vars(getattr(config, section)) for config in (base, row.config))
            changed = {f"{section}.{key}" for key in now if now[key] != before[key]}
            derived = {"training.learning_rate"} if "model.d_model" in row.changes else set()
            derived |= {"model.key_value_heads"} if "model.heads" in row.changes else set()
            expected_changes = {key for key in row.changes if key.startswith(section)}
            assert changed - derived <= expected_changes, row.name
        assert row.config != base
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert {"A-heads-1", "C-layers-3", "norm-pre", "tied-none", "mixer-lstm", "mixer-window-8"} < {
        *names
    }


def test_rows_are_chosen_by_group_or_by_name():
    rows, _ = make_variants(["B", "mixer-gru"], builder())
    assert [row.name for row in rows] == [BASE, "B-key-16", "B-key-32", "mixer-gru"]
    assert rows[1].describe() == "d_k=16"
    assert make_variants(["C-layers-2"], builder())[0][1].describe() == "N=2"
    with pytest.raises(InputError, match=r"unknown row 'A-heads-3'; did you mean 'A-heads-32'\?"):
        make_variants(["A-heads-3"], builder())


def test_invalid_row_is_skipped_with_reason():
    rows, skipped = make_variants(list(GROUPS), builder(
        "tiny", heads=1, head_size=6, encoder_layers=1, decoder_layers=1, dropout=0.0,
        positions="rotary", max_length=10,
    ))  # fmt: skip
    why = dict(skipped)
    assert "same as base" in why["A-heads-1"]
    assert "4 heads cannot share 6 features" in why["A-heads-4"]
    assert "no whole part of 1/4" in why["B-key-1"]
    assert "head_size must be even" in why["B-key-3"]
    assert "same as base" in why["C-layers-1"]
    assert "same as base" in why["D-dropout-0"]
    assert "model.max_length=10" in why["E-learned"]
    assert not set(why) & {row.name for row in rows if row.name != BASE}
    with pytest.raises(InputError, match="--rows E-learned: model.max_length=10"):
        make_variants(["E-learned"], builder("tiny", max_length=10))
    _, skipped = make_variants(["tied", "mixer"], builder("tiny", "classify"))
    assert (
        "only an encoder-decoder has a source and a target" in dict(skipped)["tied-source-target"]
    )


# ---- measures -------------------------------------------------------------------------------


def make_results(tmp_path, scores, curves=()):
    """Results of artificial runs: {row: [BLEU of each seed]}, and their validation curves."""
    rows, _ = make_variants([name for name in scores if name != BASE], builder("tiny"))
    outcomes = []
    for row in rows:
        runs = []
        for seed, score in enumerate(scores[row.name]):
            run = tmp_path / f"{row.name}-{seed}"
            run.mkdir()
            lines = [{"step": s, "valid_bleu": v} for s, v in dict(curves).get(row.name, [])]
            lines.append({"step": 9, "final": "last", "bleu": score, "loss": math.log(5.0)})
            (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
            runs.append(run)
        outcomes.append(VariantResult(row, runs))
    return outcomes


def test_differences_are_means_over_seeds_with_students_p_and_holms_correction(tmp_path):
    scores = {
        BASE: [30.0, 31.0, 32.0],
        "A-heads-1": [20.0, 21.0, 20.5],
        "E-learned": [30.5, 31, 31],
    }
    outcomes = make_results(tmp_path, scores)
    compare(outcomes)
    worse, same = outcomes[1].difference, outcomes[2].difference
    assert worse.value == pytest.approx(20.5 - 31)
    assert same.value == pytest.approx(92.5 / 3 - 31)
    pooled = pool(list(scores.values()))
    names = ("A-heads-1", "E-learned")
    alone = [t_test(scores[name], scores[BASE], pooled).p for name in names]
    assert [worse.p, same.p] == alone
    assert worse.adjusted == pytest.approx(2 * alone[0])
    assert (worse.significant, same.significant) == (True, False)
    assert outcomes[0].difference is None
    expected = {"value": 20.5, "seeds": scores["A-heads-1"], "spread": 0.5}
    assert outcomes[1].to_dict()["valid_bleu"] == expected
    assert outcomes[1].to_dict()["perplexity"]["value"] == pytest.approx(5.0)


def test_time_to_quality_is_first_sufficient_validation_times_step_time(tmp_path):
    curves = {BASE: [(3, 10.0), (6, 18.5), (9, 20.0)], "A-heads-1": [(3, 17.9), (6, 18.0), (9, 3)],
              "E-learned": [(9, 17.9)]}  # fmt: skip
    scores = {BASE: [20.0, 20.0], "A-heads-1": [3.0, 3.0], "E-learned": [17.9, 17.9]}
    outcomes = make_results(tmp_path, scores, curves)
    compare(outcomes)
    assert [outcome.reached for outcome in outcomes] == [[6, 6], [6, 6], [None, None]]
    outcomes[0].ms = 500.0
    assert outcomes[0].seconds_to_quality == pytest.approx(3.0)
    assert outcomes[2].seconds_to_quality is None
    outcomes[0].reached = [6, None]
    assert outcomes[0].seconds_to_quality is None, "a mean over those that got there would flatter"


def test_few_variants_are_timed_together_with_the_base_and_each_variant_once(tmp_path):
    variants, _ = make_variants(list(GROUPS), builder("tiny"))
    results = [VariantResult(variant, []) for variant in variants]
    groups = list(timing_groups(results))
    assert all(group[0] is results[0] for group in groups)
    assert [result for group in groups for result in group[1:]] == results[1:]
    assert max(map(len, groups)) <= measure.TOGETHER
    assert list(timing_groups(results[:1])) == [results[:1]]


# ---- the command ----------------------------------------------------------------------------

SMALL = [
    "--steps", "6", "--device", "cpu",
    *(f"--set={setting}" for setting in (
        "model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=16", "model.heads=2",
        "model.d_ff=16", "data.vocabulary_size=400", "training.batch_tokens=300",
        "training.validate_every=3", "training.average=1", "decoding.max_length=1",
    )),
]  # fmt: skip


regard = partial(command.regard, "lab", "ablate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablate")
    for split, size in (("train", 150), ("valid", 20), ("test", 10)):
        pairs = [pair for pair in builtin_corpus(split, 4 * size) if len(pair[0]) < 50][:size]
        for side, name in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{name}").write_text(lines, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        for module, name, value in (
            (measure, "WARM_UP", 1), (measure, "STEPS", 2), (training, "SAMPLES", 100),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        yield folder


def data_options(folder, *splits):
    return [w for s in splits for w in (f"--{s}", folder / f"{s}.en", folder / f"{s}.de")]


@pytest.fixture(scope="module")
def arguments(folder):
    return [*data_options(folder, "train", "valid"), "--out", folder / "lab", *SMALL,
            "--rows", "A-heads-1"]  # fmt: skip


@pytest.fixture(scope="module")
def first(folder, arguments):
    """Two seeds, two rows, and a training that fails: standard output, standard error, exit code."""
    blocked = folder / "lab" / "runs" / "A-heads-1-2"
    blocked.mkdir(parents=True)
    (folder / "lab" / "regard-ablate").touch()
    (blocked / "thesis.txt").write_text("years of work")
    out, err, code = regard(*arguments, "--seed", "1", "2", "--jobs", "2")
    (blocked / "thesis.txt").unlink()
    blocked.rmdir()
    return out, err, code


@pytest.fixture(scope="module")
def second(first, folder, arguments):
    """The same command without the cause of the failure, on test data, as a JSON object."""
    before = weights(folder)
    test = data_options(folder, "test")
    out, err, code = regard(*arguments, *test, "--seed", "1", "2", "--json", "--quiet")
    assert (code, err) == (0, "")
    after = weights(folder)
    assert {path: after[path] for path in before} == before, "finished runs are not trained again"
    return json.loads(out)


def weights(folder):
    return {
        p: os.stat(p).st_mtime_ns for p in (folder / "lab" / "runs").glob("*/model.safetensors")
    }


def test_failed_row_is_reported_with_its_last_log_line_and_others_continue(first, folder):
    out, err, code = first
    assert code == 1
    why = f"{folder}/lab/runs/A-heads-1-2 exists and is not a run: choose a different folder"
    assert f"A-heads-1-2: failed: {why}" in err
    assert f"failed: A-heads-1: seed 2: {why}" in " ".join(out.split())
    assert "4 of 4" in err
    rows = [line.split()[0] for line in out.splitlines()[4:] if line]
    assert rows[0] == "base"
    assert "A-heads-1" not in rows, "no figure of a row that is not whole"


def test_json_object_has_mean_deviation_and_significance_of_every_row(second, folder):
    assert [row["name"] for row in second["rows"]] == [BASE, "A-heads-1"]
    assert (second["counts"], second["examples"], second["seeds"]) == ("test", 10, [1, 2])
    assert second["failed"] == second["skipped"] == {}
    for row in second["rows"]:
        for key in ("valid_bleu", "test_bleu", "perplexity"):
            values = row[key]["seeds"]
            assert row[key]["value"] == pytest.approx(sum(values) / 2)
            assert row[key]["spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        runs = [folder / "lab" / "runs" / f"{row['name']}-{seed}" for seed in (1, 2)]
        finals = [json.loads((r / "metrics.jsonl").read_text().splitlines()[-1]) for r in runs]
        assert row["valid_bleu"]["seeds"] == [final["bleu"] for final in finals]
        assert row["perplexity"]["seeds"] == pytest.approx([math.exp(f["loss"]) for f in finals])
        assert row["ms_per_step"] > 0
    base, other = second["rows"][0], second["rows"][1]
    assert "difference" not in base
    between = other["test_bleu"]["value"] - base["test_bleu"]["value"]
    assert other["difference"]["value"] == pytest.approx(between)
    assert second["rows"][0]["parameters"] == second["rows"][1]["parameters"]
    config = Config.load(folder / "lab" / "runs" / "A-heads-1-2" / "config.yaml")
    assert (config.model.heads, config.model.head_size, config.training.seed) == (1, 16, 2)
    assert any("Student" in note for note in second["notes"])


def test_files_contain_the_same_data_as_the_object(second, folder):
    assert json.loads((folder / "lab" / "ablate.json").read_text()) == second
    lines = list(csv.DictReader((folder / "lab" / "ablate.csv").open(encoding="utf-8")))
    for line, row in zip(lines, second["rows"], strict=True):
        assert line["name"] == row["name"]
        assert float(line["test_bleu"]) == row["test_bleu"]["value"]
        assert float(line["perplexity_spread"]) == row["perplexity"]["spread"]
    assert lines[0]["difference"] == ""
    tree = ElementTree.parse(folder / "lab" / "ablate.svg")
    text = " ".join("".join(node.itertext()) for node in tree.iter() if node.tag.endswith("}text"))
    assert "A-heads-1   h=1 d_k=16" in text
    assert "test BLEU: difference to the base" in text
    assert sorted(second["files"]) == sorted(
        str(folder / "lab" / f"ablate.{end}") for end in ("png", "svg", "json", "csv")
    )


def test_one_seed_is_compared_by_the_bootstrap_over_examples(second, arguments, folder):
    before = weights(folder)
    out, _, code = regard(*arguments, "--seed", "1")
    assert code == 0
    assert weights(folder) == before
    assert "paired bootstrap over 20 examples" in " ".join(out.split())
    outcomes = json.loads((folder / "lab" / "ablate.json").read_text())
    for row, then in zip(outcomes["rows"], second["rows"], strict=True):
        assert row["valid_bleu"]["seeds"] == then["valid_bleu"]["seeds"][:1]
        assert row["interval"][0] <= row["interval"][1]
    assert 0 < outcomes["rows"][1]["difference"]["p"] <= 1


def test_settings_that_differ_from_the_folder_are_refused(second, arguments):
    for change, message in (
        (["--set", "training.learning_rate=0.5"], "training.learning_rate is "),
        (["--steps", "5"], "has training.steps=6 already"),
    ):
        _, err, code = regard(*arguments, *change)
        assert code == 2
        assert message in err


def test_results_page_is_generated_from_a_run_of_the_command(
    second, folder, arguments, monkeypatch
):
    command = ["lab", "ablate", *map(str, arguments[:6]), "--out", "runs/lab", *arguments[8:],
               "--seed", "1", "2"]  # fmt: skip
    monkeypatch.setattr(experiment, "COMMAND", command)
    options = ["--data", str(folder), "--runs", str(folder), "--out", str(folder / "results")]
    experiment.main([*options, "--where", "a machine"])
    stored = json.loads((folder / "results" / "ablate.json").read_text())
    assert stored["rows"][1]["valid_bleu"] == second["rows"][1]["valid_bleu"]
    assert str(folder) not in json.dumps(stored["rows"])
    stored["rows"][1]["difference"] |= {"value": -2.345, "adjusted": 0.01, "significant": True}
    stored["skipped"], stored["failed"] = (
        {"B-key-1": "no sense"},
        {"E-learned": "seed 2: full disk"},
    )
    page = "\n".join(ablation(stored).values())
    row = next(line for line in page.splitlines() if line.startswith("| A-heads-1 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "h=1 d\\_k=16"
    assert cells[5:7] == ["**-2.3**", "0.010"]
    assert page.splitlines().count("|---|---|---|---|---|---|---|---|---|") == 1
    assert "Left out: B-key-1: no sense." in page
    assert "Failed: E-learned: seed 2: full disk." in page
    assert "on a machine" in page
    assert stored["train"].startswith("regard lab ablate --train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--rows", "F"], "unknown row 'F'; known: base, A, B"),
        (["--rows", "mixer-lsmt"], "unknown row 'mixer-lsmt'; did you mean 'mixer-lstm'?"),
        (["--rows", "E-learned", "--set", "model.max_length=9"], "--rows E-learned: model.max_len"),
        (["--task", "embed"], "unknown task 'embed'"),
        (["--task", "classify"], "the built-in corpus is for translate"),
        (["--train", "a", "b"], "--valid is missing"),
        (["--train", "a", "b", "--valid", "c", "d"], "a: no such file"),
        (["--seed", "1", "1"], "--seed 1 1: a value is duplicated"),
        (["--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--set", "training.seed=2"], "use --seed"),
        (["--set", "model.head=8"], "model.head"),
        (["--preset", "tny"], "unknown preset 'tny'; did you mean 'tiny'?"),
    ],
)
def test_invalid_options_are_refused_in_one_line_before_any_file_is_written(
    change, message, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    out, err, code = regard(*change, "--out", "none")
    assert (out, code) == ("", 2)
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (folder / "none").exists()


def test_folder_of_another_program_is_never_changed(folder, arguments):
    thesis = folder / "thesis"
    thesis.mkdir()
    (thesis / "thesis.txt").write_text("years of work")
    _, err, code = regard(*arguments, "--out", thesis)
    assert code == 2
    assert "exists and was not created by regard lab ablate: choose a different --out" in err
    assert [path.name for path in thesis.iterdir()] == ["thesis.txt"]


def test_several_seeds_without_scipy_are_refused_before_the_training(
    second, arguments, folder, monkeypatch
):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    out, err, code = regard(*arguments, "--seed", "1", "2", "--out", folder / "none")
    assert (out, code) == ("", 2)
    assert err == (
        "regard: significance over several seeds needs scipy: pip install 'regard[lab]'\n"
    )
    assert not (folder / "none").exists()
    assert regard(*arguments, "--seed", "1")[2] == 0, "one seed does not need it"


def test_different_training_files_are_refused_before_training(second, arguments, folder):
    files = ["--train", folder / "valid.en", folder / "valid.de"]
    _, err, code = regard(*arguments, *files)
    assert code == 2
    assert "data.train is" in err


def test_ctrl_c_stops_and_saves_every_run_so_that_it_can_continue(folder, arguments):
    out = folder / "stopped"
    command = [sys.executable, "-m", "regard", "lab", "ablate", *map(str, arguments), "--out",
               str(out), "--steps", "100000", "--rows", "base"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = out / "runs" / "base-1" / "metrics.jsonl"
    until = time.monotonic() + 60
    while not metrics.exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped and saved; run the same command again to continue" in err
    log = (out / "logs" / "base-1.log").read_text()
    assert "stopped and saved" in log
    saved = list((out / "runs" / "base-1" / "checkpoints").glob("step-*/state.json"))
    assert len(saved) == 1
    assert json.loads(saved[0].read_text())["step"] > 0
