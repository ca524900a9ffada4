"""docs/performance.md: the stored measurements next to the goals."""

from dataclasses import replace

import pytest

from benchmarks.ratios import Row, read, write
from tools.goals import SECTIONS, Goal, reached
from tools.performance import main, page

ROW = Row(
    "decode", "base, batch 1, greedy", "int8", "CTranslate2 int8", "cpu", "2 cores", 600.0, 200.0,
    "tokens/s", 0.3, "2026-11-15", "abc", "torch 2", "python -m benchmarks decode",
)  # fmt: skip
GOAL = Goal(ROW.benchmark, ROW.work, times=2.5, peers="CTranslate2")


def line_of(text, work):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {work} |")]
    return line


def test_the_best_precision_is_compared_with_its_best_peer():
    rows = [
        ROW,
        replace(ROW, peer="CTranslate2 float32", peer_value=100.0),
        replace(ROW, dtype="bfloat16", value=300.0),
        replace(ROW, peer="Hugging Face float32", peer_value=599.0),  # not what the goal names
        replace(ROW, peer="regard by PyTorch float32", peer_value=599.0),  # not a peer
    ]
    best = reached(rows, GOAL)
    assert (best.row.dtype, best.row.peer, best.row.ratio) == ("int8", "CTranslate2 int8", 3.0)
    assert best.meets(GOAL)
    assert reached(rows, replace(GOAL, peers="")).row.peer == "Hugging Face float32"


@pytest.mark.parametrize(
    ("unit", "value", "met"),
    [("tokens/s", 9.0, True), ("tokens/s", 7.0, False), ("s", 7.0, True), ("GiB", 9.0, False)],
)
def test_a_goal_is_a_minimum_for_speed_and_a_maximum_for_time_and_memory(unit, value, met):
    row = replace(ROW, unit=unit, value=value)
    goal = Goal(ROW.benchmark, ROW.work, figure=8.0)
    assert reached([row], goal).meets(goal) == met


def test_the_page_marks_goals_as_reached_or_not_reached():
    text = page([ROW, replace(ROW, work="base, batch 32, greedy", peer_value=590.0)])
    assert line_of(text, "base, batch 1, greedy").endswith(
        "| 600 (30%) | 200 | 3.00x CTranslate2 int8 (int8) | 2.5x CTranslate2 | reached |"
    )
    assert line_of(text, "base, batch 32, greedy").endswith("1.3x CTranslate2 | **not reached** |")
    assert "- `python -m benchmarks decode`: 2 cores; torch 2; 2026-11-15, commit abc" in text


def test_a_part_without_rows_names_its_command():
    assert "Not measured yet: `python -m benchmarks decode --keep`" in page([])


def test_each_machine_has_its_own_table():
    text = page([ROW, replace(ROW, hardware="64 cores", value=100.0)])
    assert "1.00x" not in text
    assert len([x for x in text.splitlines() if x.startswith("| base, batch 1, greedy |")]) == 2


def test_exponents_are_compared_with_theory():
    row = replace(ROW, benchmark="scaling", work="attention: memory", unit="exponent", value=0.98,
                  peer="theory", peer_value=1.0)  # fmt: skip
    assert "| attention: memory | int8 | 0.98 | theory: 1 |" in page([row])


def test_an_absolute_goal_is_shown_with_its_unit():
    row = replace(ROW, benchmark="train", device="cuda", work="base, 25,000 tokens: memory",
                  unit="GiB", value=9.5, peer_value=16.0)  # fmt: skip
    assert "| at most 9 GiB | **not reached** |" in page([row])


def test_every_goal_of_the_issues_has_its_row():
    goals = [goal for section in SECTIONS.values() for goal in section]
    assert (
        len({(goal.benchmark, goal.work, goal.device) for goal in goals})
        == len(goals)
        == 25 + 12 + 4
    )
    assert all((goal.times is None) != (goal.figure is None) for goal in goals)


def test_rows_of_another_machine_are_copied(tmp_path, capsys):
    here, there, out = (tmp_path / name for name in ("here.json", "there.json", "page.md"))
    write([ROW], here)
    write([replace(ROW, device="cuda", hardware="H200", commit="")], there)
    assert main(["--out", str(out), "--ratios", str(here), "--add", str(there)]) == 0
    rows = read(here)
    assert len(rows) == 2
    assert all(row.commit for row in rows.values())
    assert "H200" in out.read_text()
