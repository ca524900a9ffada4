"""`regard lab ablate`: the paper's Table 3 on the user's own data.

Each variant (variants.py) is the base with one change. It is trained from scratch with each seed
(processes.py), on the same files and vocabulary. Finished runs are kept in --out and reused. The
report says how much a variant differs from the base, and whether the difference is significant:
with several seeds by Student's t-test over the runs, with one seed by the paired bootstrap of
`regard evaluate --against` over the examples, which does not cover the variation between seeds.
Times are measured again at every call.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from regard.config.sections import Config
from regard.console import make_console, progress
from regard.device import choose_device, keep_freed_memory
from regard.errors import TrainingFailed
from regard.lab.ablate.processes import TrainingProcess, train_all
from regard.lab.ablate.report import NEAR, QUALITY, AblationReport, Difference, VariantResult
from regard.lab.ablate.variants import BASE, GROUPS, Values, Variant, make_variants
from regard.lab.common import training
from regard.lab.common.significance import holm, load_stdtr, pool, t_test
from regard.lab.common.timing import machine_name, time_training_steps
from regard.lab.common.training import TrainingOptions
from regard.model.transformer import Transformer
from regard.predictor.loading import load
from regard.tasks.configuration import make_config
from regard.tasks.task import Evaluation, Task
from regard.text.store import Store
from regard.training.model_folder import final_scores
from regard.view.curves import read_curves

NAME = AblationReport.command
WARM_UP, STEPS = 3, 10  # training steps that are not timed, and that are
TOGETHER = 4  # models that are in memory at once while they are timed


def measure_ablation(
    options: TrainingOptions, rows: Sequence[str] = tuple(GROUPS), jobs: int = 1
) -> AblationReport:
    """Train each variant with each seed, unless that is done already, and compare with the base.

    rows: variants by name or by group. jobs: number of training processes at once.
    """
    keep_freed_memory()
    device = choose_device(options.device)
    console = make_console(stderr=True, quiet=options.quiet)
    options = options.check(NAME, QUALITY)
    if len(options.seeds) > 1:
        load_stdtr()  # a missing scipy is reported before the training
    values = options.sections()

    def build(changes: Values) -> Config:
        both = {s: {**values.get(s, {}), **changes.get(s, {})} for s in {**values, **changes}}
        return make_config(options.task, options.preset or "tiny", both)

    make_variants(rows, build)  # refuses wrong settings before anything is written
    files = options.add_corpus(values, NAME)
    variants, skipped = make_variants(rows, build)
    base, test = variants[0].config, "test" in files
    evaluated = files["test" if test else "valid"]
    task, store, examples = training.read_data(base, evaluated, options.quiet)
    task.prepare(store, base)
    variants = [with_vocabulary(variant, task, store) for variant in variants]
    for name, why in skipped:
        console.print(f"{name} is left out: {why}", soft_wrap=True)
    runs = {}
    for seed, variant in product(options.seeds, variants):
        name, config = f"{variant.name}-{seed}", training.with_seed(variant.config, seed)
        runs[variant.name, seed] = TrainingProcess(name, config, options.out)
    missing = [
        entry for entry in runs.values() if not training.is_finished(entry.run, entry.config, store)
    ]
    training.create_out(options.out, NAME)
    if missing:
        train_all(missing, jobs, options.device, console)
    failed: dict[str, str] = {}
    for (name, seed), entry in runs.items():
        if not entry.failed and "loss" not in final_scores(entry.run):
            entry.failed = "its loss is NaN or infinity"
        if entry.failed:
            failed.setdefault(name, f"seed {seed}: {entry.failed}")
    if BASE in failed:
        raise TrainingFailed(
            f"the base could not be trained, so no comparison is possible: {failed[BASE]}; "
            f"see {options.out / 'logs'}"
        )
    results = [
        VariantResult(variant, [runs[variant.name, seed].run for seed in options.seeds])
        for variant in variants
        if variant.name not in failed
    ]
    evaluate_all(results, examples, test, options.device, options.quiet)
    compare(results)
    measure_time(results, task, store, options.device, options.quiet)
    return AblationReport(
        options.task, "test" if test else "valid", len(examples), list(options.seeds),
        machine_name(device), results, skipped,
        [(variant.name, failed[variant.name]) for variant in variants if variant.name in failed],
    )  # fmt: skip


def with_vocabulary(variant: Variant, task: Task, store: Store) -> Variant:
    """The variant with the vocabulary of the task; refused if it cannot be built or trained."""
    model = replace(variant.config.model, **task.model_options())
    with torch.device("meta"):  # shapes without memory
        Transformer(model)
    config = replace(variant.config, model=model)
    training.check_batch_tokens(config, task, store)
    return replace(variant, config=config)


def evaluate_all(
    results: Sequence[VariantResult], examples: list[Any], test: bool, device: str, quiet: bool
) -> None:
    """Measure the quality on the test data, and with one seed compare with the base by bootstrap.
    The validation scores are in the metrics of the runs already."""
    one_seed = len(results[0].runs) == 1
    base: Evaluation | None = None
    if not (test or one_seed):
        return
    with progress("evaluating", len(results), quiet) as show_done:
        for i, result in enumerate(results):
            for run in result.runs:
                model = load(run, device, "float32")
                own = model.evaluate_examples(examples, **training.GREEDY)
                if test:
                    result.tests.append(float(own.scores[result.metric]))
                if one_seed:
                    ranges, differences = training.bootstrap(model, own, base, BASE)
                    result.interval = ranges[result.metric]
                    if base is not None:
                        entry = differences[result.metric]
                        result.difference = Difference(entry.difference, entry.p)
                    base = base or own
            show_done(i + 1)


def compare(results: Sequence[VariantResult]) -> None:
    """Set the difference of each variant to the base, which is the first, with the corrected p; and
    the steps in which each run reached the goal."""
    base, others = results[0], results[1:]
    if len(base.runs) > 1:
        pooled = pool([result.qualities for result in results])
        for result in others:
            test = t_test(result.qualities, base.qualities, pooled)
            result.difference = Difference(test.difference, test.p, test.error)
    differences = [other.difference for other in others if other.difference is not None]
    for difference, p in zip(differences, holm([d.p for d in differences]), strict=True):
        difference.adjusted = p
    goal = NEAR * statistics.fmean(base.valid)
    for result in results:
        for run in result.runs:
            curves = read_curves(run, result.variant.name)
            points = curves.series.get(f"valid_{result.metric}", [])
            steps = (point.step for point in points if point.value >= goal > 0)
            result.reached.append(next(steps, None))


def measure_time(
    results: Sequence[VariantResult], task: Task, store: Store, device: str, quiet: bool
) -> None:
    """Measure the time of a training step, a few variants and the base in turns. The time relative
    to the base's counts, so that a temporarily slow machine changes nothing."""
    base = results[0]
    groups = list(timing_groups(results))
    base_times, relative = list[float](), list[tuple[VariantResult, float]]()
    with progress("timing training steps", len(groups), quiet) as show_done:
        for i, group in enumerate(groups):
            models = [(result.variant.config, task) for result in group]
            times = time_training_steps(models, store, device, WARM_UP, STEPS)
            own = [1000 * statistics.median(seconds for seconds, *_ in each) for each in times]
            base_times.append(own[0])
            relative += [(result, ms / own[0]) for result, ms in zip(group, own, strict=True)]
            gc.collect()
            torch.cuda.empty_cache()
            show_done(i + 1)
    base.ms = statistics.median(base_times)
    for result, ratio in relative:
        result.ms = ratio * base.ms


def timing_groups(results: Sequence[VariantResult]) -> Iterator[list[VariantResult]]:
    """Variants that are timed in turns with the base: few, so that they fit into memory."""
    base, *others = results
    for start in range(0, max(1, len(others)), TOGETHER - 1):
        yield [base, *others[start : start + TOGETHER - 1]]
