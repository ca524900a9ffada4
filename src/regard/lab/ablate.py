"""`regard lab ablate`: the paper's Table 3 on the user's own data.

Each row (ablate_rows.py) is the base with one thing changed, trained with each seed from nothing
(ablate_runs.py), all on the same files and the same vocabulary. What they learned is kept in --out
and found again. What is reported is how much a row differs from the base, and whether chance would
do the same (significance.py); times are measured anew at every call (ablate_measured.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.config.sections import Config
from regard.console import make_console
from regard.device import keep_freed_memory
from regard.errors import InputError, TrainingFailed, unknown
from regard.files import cache_folder
from regard.lab.ablate_measured import QUALITY, Result, compare, judge, measure_time
from regard.lab.ablate_report import Report, draw_ablation
from regard.lab.ablate_rows import BASE, GROUPS, Row, Values, make_rows
from regard.lab.ablate_runs import Training, train_all
from regard.lab.report import write_tables
from regard.lab.trainings import (
    OURS,
    begin,
    check_files,
    check_out,
    check_seeds,
    check_settings,
    finished,
    with_defaults,
    write_builtin,
)
from regard.model.transformer import Transformer
from regard.tasks.registry import find_task
from regard.tasks.task import Task
from regard.text.rows import Rows
from regard.text.store import Store
from regard.training.distributed import choose_device
from regard.view.info import final_scores

NAME = "ablate"


def ablate(
    out: Path,
    task: str = "translate",
    files: dict[str, list[str]] | None = None,
    preset: str | None = None,
    values: Values | None = None,
    wanted: Sequence[str] = tuple(GROUPS),
    seeds: Sequence[int] = (1,),
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
) -> Report:
    """Train each row and seed that is not trained yet, compare all with the base, draw.

    files: those of "train", "valid" and "test"; none: the built-in corpus.
    values: settings of the base by section, as in a configuration.
    wanted: rows by name or by group. jobs: trainings at once.
    """
    keep_freed_memory()
    where = choose_device(device)
    console = make_console(stderr=True, quiet=quiet)
    if task not in QUALITY:
        raise unknown("task", task, QUALITY)
    values = values or {}
    check_settings(values, OURS)
    check_seeds(seeds)
    check_out(out, NAME)
    files = check_files(task, files or {})
    chosen = with_defaults(bool(files), preset, values)
    chosen["training"]["seed"] = seeds[0]

    def build(changes: Values) -> Config:
        sections = [*chosen, *(section for section in changes if section not in chosen)]
        both = {s: {**chosen.get(s, {}), **changes.get(s, {})} for s in sections}
        return Config.build(task, preset or "tiny", both)

    make_rows(wanted, build)  # refuses what is wrong with the settings before anything is written
    files = files or write_builtin(out, NAME)
    chosen["data"] |= {"train": files["train"], "valid": files["valid"]}
    rows, skipped = make_rows(wanted, build)
    learned, store, examples = read(rows[0].config, files, quiet)
    rows = [fitted(row, learned, store) for row in rows]
    for name, why in skipped:
        console.print(f"{name} is left out: {why}", soft_wrap=True)
    every = {
        (row.name, seed): Training(f"{row.name}-{seed}", with_seed(row.config, seed), out)
        for seed in seeds
        for row in rows
    }
    missing = [one for one in every.values() if not finished(one.run, one.config, store)]
    begin(out, NAME)
    if missing:
        train_all(missing, jobs, device, console)
    failed = {row.name: why for row in rows for why in failures(row, seeds, every)}
    if BASE in failed:
        raise TrainingFailed(
            f"the base could not be trained, so there is nothing to compare with: {failed[BASE]}; "
            f"see {out / 'logs'}"
        )
    found = [
        Result(row, [every[row.name, seed].run for seed in seeds])
        for row in rows
        if row.name not in failed
    ]
    judge(found, examples, "test" in files, device, quiet)
    compare(found)
    measure_time(found, learned, store, device, quiet)
    machine, threads = where.type, torch.get_num_threads()
    if machine == "cpu":
        machine += f", {threads} thread{'' if threads == 1 else 's'}"
    report = Report(
        task, "test" if "test" in files else "valid", len(examples), list(seeds), machine, found,
        skipped, list(failed.items()),
    )  # fmt: skip
    report.files += draw_ablation(out / NAME, report)
    report.files += [out / f"{NAME}.{end}" for end in ("json", "csv")]
    write_tables(out, NAME, report.to_dict(), report.lines())
    return report


def read(base: Config, files: dict[str, list[str]], quiet: bool) -> tuple[Task, Store, list[Any]]:
    """The vocabulary, the training data, and the examples that quality is measured on: what is
    wrong with any file is found here, before the first training."""
    learned = find_task(base.task).learn(base, None, lambda _: None, quiet)
    store, _ = learned.build([Path(file) for file in base.data.train], cache_folder(), base, quiet)
    paths = [Path(file) for file in files.get("test", files["valid"])]
    find_task(base.task).check_files(paths)
    examples = list(learned.read(paths, base))
    if not examples:
        raise InputError(f"{paths[0]} is empty: there is nothing to evaluate")
    for example in examples:
        learned.check(example)
    learned.prepare(store, base)
    return learned, store, examples


def fitted(row: Row, learned: Task, store: Store) -> Row:
    """The row with the vocabulary that was learned, once its model can be built and trained."""
    config = replace(row.config, model=replace(row.config.model, **learned.model_options()))
    with torch.device("meta"):  # shapes without memory
        Transformer(config.model)
    tokens = config.training.batch_tokens  # refuses what is too small for the longest example
    Rows(learned.sizes(store), tokens, store.fingerprint, 0, counted=learned.counted)
    return replace(row, config=config)


def with_seed(config: Config, seed: int) -> Config:
    return replace(config, training=replace(config.training, seed=seed))


def failures(row: Row, seeds: Sequence[int], every: dict[tuple[str, int], Training]) -> list[str]:
    """Why the row cannot be reported: the first of its seeds that failed, or that learned nothing
    which has a figure."""
    for seed in seeds:
        one = every[row.name, seed]
        why = one.failed or ("" if "loss" in final_scores(one.run) else "its loss is not finite")
        if why:
            return [f"seed {seed}: {why}"]
    return []
