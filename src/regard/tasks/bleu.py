"""BLEU and chrF of translations, computed by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.tasks.lazy import runtime

if TYPE_CHECKING:
    from regard.tasks.runtime import Comparison


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a"
) -> dict[str, Any]:
    """Compute BLEU and chrF of cased, detokenised translations.

    Args:
        hypotheses: the translations of a model.
        references: one reference for each translation.
        tokenizer: the name of sacreBLEU's tokenizer (data.bleu).

    Returns:
        The scores `bleu` and `chrf`, and their signatures `bleu_signature` and `chrf_signature`.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores: dict[str, Any] = {}
    for name, metric in (("bleu", BLEU(tokenize=tokenizer)), ("chrf", CHRF())):
        score = metric.corpus_score(list(hypotheses), [list(references)])
        scores[name] = round(score.score, 2)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


def bootstrap_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    baseline: Sequence[str] | None,
    samples: int,
    tokenizer: str,
) -> tuple[dict[str, tuple[float, float]], dict[str, Comparison]]:
    """Compute confidence intervals with sacreBLEU's bootstrap, and compare two models with its
    paired bootstrap.

    Args:
        hypotheses: the translations of a model.
        references: one reference for each translation.
        baseline: the translations of the other model, or None.
        samples: number of bootstrap samples.
        tokenizer: the name of sacreBLEU's tokenizer (data.bleu).

    Returns:
        The confidence intervals of `bleu` and `chrf`, and the comparisons with the baseline, which
        are empty without one.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest, Result

    systems: list[tuple[str, Sequence[str]]] = [("ours", hypotheses)]
    if baseline is not None:
        systems.insert(0, ("theirs", baseline))
    metrics = {"BLEU": BLEU(tokenize=tokenizer), "chrF2": CHRF()}
    _, results = PairedTest(systems, metrics, [references], "bs", samples)()
    intervals, comparisons = {}, {}
    for name, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
        ours, theirs = results[column][-1], results[column][0]
        assert isinstance(ours, Result)
        assert isinstance(theirs, Result)
        if ours.mean is not None and ours.ci is not None:
            middle, half = float(ours.mean), float(ours.ci)
            intervals[name] = max(0.0, middle - half), min(100.0, middle + half)
        if baseline is not None and ours.p_value is not None:
            difference = ours.score - theirs.score
            # sacreBLEU counts samples with a strictly larger difference, so its p-value is wrong
            # for a difference of 0.
            p = float(ours.p_value) if difference else 1.0
            comparisons[name] = runtime.Comparison(difference, None, None, p)
    return intervals, comparisons
