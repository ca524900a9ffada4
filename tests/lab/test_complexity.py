"""`regard lab complexity` (the paper's table 1): the counts of every layer equal their closed forms,
and sizes that do not fit are refused before the measurement."""

import csv
import json
import math
import os
import subprocess
import sys
from functools import partial
from xml.etree import ElementTree

import pytest
import torch

import command
from regard.lab.common import layers, memory
from regard.lab.common.counting import CPU, Counter, count_operations, path_length
from regard.lab.common.fits import find_crossing, fit_power_law
from regard.lab.common.layers import LAYERS, Layer
from regard.lab.common.timing import needed_memory, peak_memory
from regard.lab.complexity.measure import measure_complexity
from regard.lab.complexity.report import NOTES, grows_as, make_report

WINDOW, KERNEL = 16, 3
every_layer = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Run each pass as few times as possible: the tests do not check times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.lab.common.timing.ENOUGH", 0.0)
        yield


regard = partial(command.regard, "lab", "complexity")


def layer(name, d=64, **options):
    return Layer(name, d, WINDOW, KERNEL, CPU, **options)


# ---- counts ------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("d", [64, 128])
def test_parameters_equal_the_closed_form(name, d):
    assert layer(name, d).parameters() == layers.expected_parameters(name, d, KERNEL)[1]


@every_layer
@pytest.mark.parametrize(("n", "d"), [(32, 64), (96, 64), (48, 128)])
def test_operations_equal_the_closed_form(name, n, d):
    needed = layers.expected_operations(name, n, d, WINDOW, KERNEL)[1]
    operations, _ = count_operations(layer(name, d), n)
    if name == "restricted":  # computed in blocks: at least the operations of the definition
        assert (
            needed <= operations <= layers.expected_operations("attention", n, d, WINDOW, KERNEL)[1]
        )
    else:
        assert operations == needed


def test_operations_of_restricted_attention_are_proportional_to_the_length():
    operations = [count_operations(layer("restricted"), n)[0] for n in (512, 1024, 2048)]
    assert fit_power_law((512, 1024, 2048), operations).exponent == pytest.approx(1, abs=0.02)
    assert operations[-1] < 0.2 * count_operations(layer("attention"), 2048)[0]


@pytest.mark.parametrize(("name", "grows"), [("attention", False), ("restricted", False), ("lstm", True), ("gru", True), ("convolution", False), ("dilated", False), ("feed-forward", False)])  # fmt: skip
def test_only_recurrence_has_a_chain_that_grows_with_the_length(name, grows):
    short, long = (count_operations(layer(name), n)[1] for n in (200, 400))
    assert (long > short) == grows
    if grows:
        assert long == pytest.approx(2 * short, rel=0.02)


def test_chain_of_known_operations_has_the_known_length():
    x = torch.ones(3)
    with Counter() as chain:
        y = x + 1  # 1
        z = y.view(3, 1)[1:]  # the same memory
        w = z * 2  # 2
        (x * 3).sum()  # beside it: 2
        w += 1  # 3: in place
        torch.cat([w, w])  # 4
    assert chain.longest == 4


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("n", [2, 3, 17, 40])
def test_path_length_from_gradients_equals_the_closed_form(name, n):
    assert path_length(name, n, WINDOW, KERNEL) == layers.expected_path(name, n, WINDOW, KERNEL)


def test_known_paths_have_the_known_length():
    assert [path_length("restricted", 33, r, 3) for r in (1, 8, 32)] == [32, 4, 1]
    assert [path_length("convolution", 33, 1, k) for k in (1, 2, 5, 33)] == [None, 32, 8, 1]
    assert [path_length("dilated", n, 1, 2) for n in (2, 4, 5, 32)] == [1, 2, 3, 5]
    assert path_length("lstm", 12, 1, 3) == 12


# ---- fits --------------------------------------------------------------------------------


def test_exact_power_law_is_fitted_without_error():
    fit = fit_power_law([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0])
    assert (fit.exponent, fit.error) == (pytest.approx(2), pytest.approx(0, abs=1e-12))
    assert str(fit) == "2.00"
    assert str(fit_power_law([1, 2, 4], [1.0, 3.0, 16.0])) == "2.00 ± 0.24"
    assert fit_power_law([1, 2], [1.0, 2.0]).error is None
    assert fit_power_law([1, 1], [1.0, 2.0]) is None
    assert fit_power_law([1, 2], [0.0, 2.0]) is None


def test_standard_error_of_an_exponent_equals_the_textbook_formula():
    x, y = [1, math.e, math.e**2], [1.0, math.e**1.5, math.e**2]  # logs: (0, 0), (1, 1.5), (2, 2)
    fit = fit_power_law(x, y)
    assert fit.exponent == pytest.approx(1)
    assert fit.error == pytest.approx(math.sqrt(1 / 6 / 2))  # residuals 1/6, 1/3, 1/6; sum of x² 2


def test_crossing_is_at_the_known_point():
    lengths = [64, 128, 256, 512]
    quadratic, linear = [n * n / 200 for n in lengths], [float(n) for n in lengths]
    assert find_crossing(lengths, quadratic, linear) == pytest.approx(200)
    assert find_crossing(lengths, linear, quadratic) is None  # the first curve starts above
    assert find_crossing(lengths[:2], quadratic[:2], linear[:2]) is None


def test_kinds_of_growth_are_distinguished():
    def points(*counts):
        return [{"n": 2**i, "counted": c} for i, c in enumerate(counts, 3)]

    assert grows_as(points(1, 1, 1), "constant")
    assert not grows_as(points(1, 1, 2), "constant")
    assert grows_as(points(8, 16, 32), "linear")
    assert grows_as(points(1, 1, 1, 2, 4), "linear")  # a window of 64, rounded up
    assert not grows_as(points(8, 4, 2), "linear")
    assert not grows_as(points(8, 32, 128), "linear")
    assert not grows_as(points(3, 4, 5), "linear")
    assert grows_as(points(3, 4, 5, 6), "logarithmic")
    assert not grows_as(points(8, 16, 32, 64, 128), "logarithmic")
    assert grows_as(points(None, None), "never")
    assert not grows_as(points(None, 4), "never")


# ---- memory ------------------------------------------------------------------------------


WEIGH = """
from regard.lab.common.counting import CPU
from regard.lab.common.layers import Layer
from regard.lab.common.timing import Pass, peak_memory
import torch

def work():
    for _ in range(3):
        torch.ones(20_000_000)  # 80 MB, one after the other

print("ones", 0, peak_memory(work, CPU))
for name, n in (("attention", 4096), ("attention", 8192), ("restricted", 4096),
                ("restricted", 8192), ("reference", 2048), ("convolution", 2048), ("lstm", 2048)):
    print(name, n, min(Pass(Layer(name, 64, 16, 3, CPU), n, True).memory() for _ in range(3)))
"""


@pytest.fixture(scope="module")
def weighed():
    """Bytes of a training step, measured in a separate process, since this process may keep memory that
    other tests freed."""
    if not memory.MEMORY.exists():
        pytest.skip("only Linux reports the peak")
    printed = subprocess.run(
        [sys.executable, "-c", WEIGH], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout  # fmt: skip
    rows = [line.split() for line in printed.splitlines()]
    return {(name, int(n)): int(used) for name, n, used in rows}


def test_peak_memory_is_the_largest_simultaneous_allocation(weighed):
    assert 75e6 < weighed["ones", 0] < 100e6


@pytest.mark.parametrize("name", ["attention", "restricted"])
def test_memory_of_fused_attention_is_proportional_to_the_length(name, weighed):
    used = [weighed[name, n] for n in (4096, 8192)]
    assert fit_power_law((4096, 8192), used).exponent < 1.2


def test_memory_estimate_is_sufficient_and_not_much_too_large(weighed):
    for (name, n), used in weighed.items():
        if name == "ones":
            continue
        assert used < needed_memory(name, n, 64, WINDOW, KERNEL) < 8 * used


# ---- the command -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("complexity")
    printed, errors, code = regard(
        "--lengths", 32, 64, 128, "--widths", 32, 64, "--window", 8, "--device", "cpu",
        "--out", out, "--quiet", "--json",
    )  # fmt: skip
    assert (code, errors) == (0, "")
    return json.loads(printed), out


def test_the_report_has_every_layer_with_its_counts_and_costs(report):
    result, _ = report
    rows = {row["kind"]: row for row in result["table"]}
    assert tuple(rows) == LAYERS
    assert all(row["parameters_agree"] for row in rows.values())
    assert all(row["path_agrees"] for row in rows.values())
    assert all(row["sequential_agrees"] for row in rows.values())
    assert rows["lstm"]["in_d"]["exponent"] == pytest.approx(2)
    assert rows["lstm"]["in_n"]["exponent"] == pytest.approx(1)
    assert rows["attention"]["paths"] == [[32, 1], [64, 1], [128, 1]]
    assert len(result["times"]) == len(LAYERS) * 3 * 2 * 2
    assert all(point["seconds"] > 0 for point in result["times"])
    assert len(result["notes"]) == len(NOTES)
    assert {entry["rival"] for entry in result["crossings"]} == {"lstm", "gru", "convolution"}
    assert [entry["by_operations"] for entry in result["crossings"] if entry["rival"] == "lstm"][:2] == [64, 128]  # fmt: skip


def test_files_contain_the_report(report):
    result, out = report
    stored = json.loads((out / "complexity.json").read_text(encoding="utf-8"))
    assert stored == result
    rows = list(csv.DictReader((out / "complexity.csv").open(encoding="utf-8")))
    paths = [r for r in rows if (r["what"], r["kind"], r["n"]) == ("paths", "lstm", "128")]
    assert [r["measured"] for r in paths] == ["128"]
    assert len([r for r in rows if r["what"] == "training seconds"]) == len(LAYERS) * 6
    tree = ElementTree.parse(out / "complexity.svg")
    words = ["".join(node.itertext()) for node in tree.iter() if node.tag.endswith("}text")]
    assert "self-attention" in words
    assert "restricted (r=8)" in words
    assert (out / "complexity.png").read_bytes().startswith(b"\x89PNG")


def test_printed_tables_have_theory_beside_measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    printed, _, code = regard(
        "--lengths", 32, 64, "--widths", 32, "--kinds", "attention", "lstm", "convolution",
        "--device", "cpu", "--out", tmp_path, "--quiet",
    )  # fmt: skip
    assert code == 0
    assert "64 ✓" in printed
    assert "Dive into Deep Learning" in printed
    assert "Self-attention takes longer than this layer" in printed


def test_passes_that_would_take_too_long_are_left_out_with_a_message():
    result = measure_complexity(
        ["attention"], [64, 256], [64], limit=1e-9, device="cpu", quiet=True
    )
    assert [(p["n"], p["pass"]) for p in result.left_out] == [(256, "forward"), (256, "training")]
    assert "would take about" in result.left_out[0]["why"]
    assert make_report(result).to_dict()["table"][0]["longest"]["forward"]["n"] == 64


def test_attention_by_definition_is_left_out_by_default_if_it_does_not_fit(monkeypatch):
    monkeypatch.setattr("regard.lab.complexity.measure.available_memory", lambda _: 8e6)
    result = measure_complexity([], [64, 512], [32], window=8, limit=60.0, device="cpu", quiet=True)
    assert {p["kind"] for p in result.left_out if p["n"] == 512} == {"reference"}


@pytest.mark.parametrize(
    ("arguments", "errors"),
    [
        (["--lengths", 1], "--lengths must be at least 2, not 1"),
        (["--widths", 96], "--widths 96: heads have 64 features, so give an even number up to 64 or a multiple of it"),
        (["--window", 0], "--window must be at least 1, not 0"),
        (["--limit", 0], "--limit must be above 0, not 0"),
        (["--kinds", "lstn"], "unknown kind 'lstn'; did you mean 'lstm'?"),
        (["--kinds", "gru", "gru"], "--kinds gru gru: a value is duplicated"),
    ],
)  # fmt: skip
def test_invalid_option_is_one_line_and_exit_code_2(arguments, errors, tmp_path):
    out, err, code = regard(*arguments, "--out", tmp_path / "out")
    assert (out, err, code) == ("", f"regard: {errors}\n", 2)
    assert not (tmp_path / "out").exists()


def test_lengths_that_do_not_fit_are_refused_with_the_estimate(tmp_path):
    _, err, code = regard("--lengths", 4_000_000, "--kinds", "reference", "--out", tmp_path / "out", "--device", "cpu")  # fmt: skip
    assert code == 2
    assert err.startswith(
        "regard: reference with a length of 4000000 and a width of 64 needs about 640,"
    )
    assert "GB are free on the cpu" in err
    assert len(err.splitlines()) == 1


def test_widths_that_fit_no_length_are_refused(tmp_path):
    out = tmp_path / "out"
    _, err, code = regard("--widths", 640_000, "--kinds", "lstm", "--out", out, "--device", "cpu")
    assert code == 2
    assert err.startswith("regard: lstm with a length of 64 and a width of 640000 needs about")
    assert not out.exists()


def test_unwritable_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "regard.lab.complexity.measure.count", lambda *_: pytest.fail("it was begun")
    )
    (tmp_path / "file").touch()
    for out, errors in (
        (tmp_path, f"{tmp_path} exists and was not created by regard lab complexity: choose a different --out"),
        (tmp_path / "file" / "out", f"{tmp_path}/file/out/regard-complexity cannot be written: {tmp_path}/file is not a folder"),
    ):  # fmt: skip
        assert regard("--kinds", "gru", "--device", "cpu", "--out", out) == ("", f"regard: {errors}\n", 2)  # fmt: skip


def test_single_length_has_no_exponent_and_no_mark(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    options = ("--lengths", 32, "--widths", 32, "--kinds", "feed-forward", "--device", "cpu", "--quiet")  # fmt: skip
    printed, _, code = regard(*options, "--out", tmp_path)
    assert code == 0  # and no path to draw
    assert "✗" not in printed
    (row,) = json.loads(regard(*options, "--out", tmp_path, "--json")[0])["table"]
    assert (row["in_n_agrees"], row["in_d_agrees"], row["sequential_agrees"]) == (None, None, None)


def test_peak_memory_is_none_if_the_system_does_not_report_it(monkeypatch):
    def refused(*_):
        raise PermissionError

    worked = []
    monkeypatch.setattr("regard.lab.common.timing.Path.write_text", refused)
    assert peak_memory(lambda: worked.append(1), CPU) is None
    assert worked == [1]
