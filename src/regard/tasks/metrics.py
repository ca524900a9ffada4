"""Standard metrics of classification, question answering, similarity and calibration.

Pure functions of NumPy arrays and texts. They are implemented here because each is a few lines, and
their results in special cases (a class without examples, an empty answer, a constant) must be the
same on every machine and never NaN. All results are fractions, not percentages.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]


def confusion(targets: Ints, predictions: Ints, classes: int) -> NDArray[np.int64]:
    """[classes, classes]: the number of examples of each target class (row) with each predicted
    class (column)."""
    # Both steps raise ValueError for different lengths and for unknown classes.
    pair = tuple(np.stack([targets, predictions]).astype(np.int64))
    cells = np.ravel_multi_index(pair, (classes, classes))
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def classification(targets: Ints, predictions: Ints, classes: int) -> dict[str, float]:
    """accuracy and macro_f1 in [0, 1], matthews in [-1, 1]; all 0 without examples.

    macro_f1 is the mean over the classes that occur, as a target or as a prediction: a class that
    is never predicted correctly counts 0, and one that does not occur does not count. matthews is
    the correlation of targets and predictions (Gorodkin 2004): 0 for predictions that do not depend
    on the example, and also where it is not defined, for example if all predictions are the same.
    """
    table = confusion(targets, predictions, classes).astype(np.float64)
    n, right = table.sum(), table.diagonal()
    examples, predicted = table.sum(1), table.sum(0)
    if n == 0:
        return {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}
    present = examples + predicted > 0
    f1 = 2 * right[present] / (examples + predicted)[present]
    both = right.sum() * n - examples @ predicted
    spread = np.sqrt((n * n - examples @ examples) * (n * n - predicted @ predicted))
    return {
        "accuracy": float(right.sum() / n),
        "macro_f1": float(f1.mean()),
        "matthews": float(np.clip(both / spread, -1, 1)) if spread else 0.0,
    }


def calibration_error(probabilities: Floats, targets: Ints, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017): the mean distance between the confidence and
    the accuracy of predictions. 0 without examples.

    The examples are sorted by their highest probability into bins of equal width, (low, high]; the
    result is the mean over examples of each bin's |accuracy - mean probability|. On few examples it
    is too high: the accuracy of a bin varies, and the absolute value counts that variation.

    Args:
        probabilities: [n, classes]
        targets: [n], the correct classes
        bins: number of bins
    """
    if len(targets) == 0:
        return 0.0
    _, gaps, _ = _calibration_bins(probabilities, targets, bins)
    return float(np.abs(gaps).sum() / len(targets))


def debiased_calibration_error(probabilities: Floats, targets: Ints, bins: int = 15) -> float:
    """The calibration error without the contribution of sampling variation; may be negative.

    From the squared gap of each bin its sampling variance is subtracted, which makes the square
    unbiased (Bröcker 2012; Ferro & Fricker 2012; Kumar et al. 2019, "Verified Uncertainty
    Calibration"), and the signed square root returns to the scale of `calibration_error`. The
    accuracy of a bin, which its variance needs, is smoothed by one example of the mean probability.
    `regard.tasks.bootstrap` uses it for the confidence interval of `calibration_error`.

    Args: as for `calibration_error`.
    """
    if len(targets) == 0:
        return 0.0
    counts, gaps, confidences = _calibration_bins(probabilities, targets, bins)
    full = counts > 0
    counts, gaps, confidences = counts[full], gaps[full], confidences[full]
    accuracy = (gaps + confidences + confidences / counts) / (counts + 1)
    squares = gaps**2 - counts * np.clip(accuracy * (1 - accuracy), 0, None)
    return float((np.sign(squares) * np.sqrt(np.abs(squares))).sum() / len(targets))


def _calibration_bins(
    probabilities: Floats, targets: Ints, bins: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """For each bin: the number of examples, the sum of (correct - probability), and the sum of
    probabilities; [bins] each."""
    top = probabilities.max(1).astype(np.float64)  # [n]
    right = probabilities.argmax(1) == targets
    inner = np.linspace(0, 1, bins + 1)[1:-1]  # so that 1.0000001 falls into the last bin
    bin_index = np.searchsorted(inner, top, side="left")
    counts = np.bincount(bin_index, minlength=bins).astype(np.float64)
    gaps = np.bincount(bin_index, weights=right - top, minlength=bins)
    return counts, gaps, np.bincount(bin_index, weights=top, minlength=bins)


COLDEST, HOTTEST = 0.05, 20.0  # the bounds of a temperature
HALVINGS = 48  # of the interval of log T, whose final length is 6 / 2^48


def fit_temperature(logits: Floats, targets: Ints) -> float:
    """The temperature T in [0.05, 20] that maximises the likelihood of the target classes under
    softmax(logits / T) (Guo et al. 2017). Fitted on held-out examples, it calibrates probabilities
    and changes no prediction. 1 without examples, or if all temperatures are equally good.

    The negative log-likelihood is convex in 1/T, so its derivative changes sign at most once.
    Bisection finds this point, or ends at a bound if it is outside.
    """
    if len(targets) == 0:
        return 1.0
    scores = logits.astype(np.float64)
    scores -= scores.max(1, keepdims=True)
    # A class may have the logit -inf. 0 * -inf would be NaN, and exp(-1e6 / T) is 0 as well.
    np.maximum(scores, -1e6, out=scores)
    target_mean = np.take_along_axis(scores, targets[:, None], 1).mean()
    low, high = np.log(COLDEST), np.log(HOTTEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2  # 0 in the first iteration: T = 1
        weights = np.exp(scores / np.exp(middle))  # [n, C]
        expected = ((weights * scores).sum(1) / weights.sum(1)).mean()
        if expected == target_mean:
            return float(np.exp(middle))
        if expected > target_mean:  # overconfident
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:an?|the)\b")


def normalise_answer(text: str) -> str:
    """The normalisation of SQuAD v1.1: lower case, no ASCII punctuation or articles, single spaces.

    The steps have this order: "A.N. Other" loses its points first, and then "an" as an article.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction equals one of the correct answers after normalisation, else 0. The
    correct answer of an unanswerable question is [""]; the result is 0 if `answers` is empty."""
    prediction_words = normalise_answer(prediction)
    return float(any(prediction_words == normalise_answer(answer) for answer in answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """The largest F1 of the bags of words of the prediction and of a correct answer."""
    prediction_words = normalise_answer(prediction).split()

    def f1(words: list[str]) -> float:
        if not prediction_words or not words:
            return float(prediction_words == words)
        common = (Counter(prediction_words) & Counter(words)).total()
        return 2 * common / (len(prediction_words) + len(words))

    return max((f1(normalise_answer(answer).split()) for answer in answers), default=0.0)


def pearson(a: ArrayLike, b: ArrayLike) -> float:
    """The linear correlation, in [-1, 1]; 0 if it is not defined because a side is constant."""
    x, y = _directions(a), _directions(b)
    return float(np.clip(x @ y, -1, 1))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """The correlation of the ranks: 1 if one side is a monotonically increasing function of the
    other. Equal values share the mean of their ranks, so the order of examples has no effect."""
    return pearson(_ranks(a), _ranks(b))


def _directions(values: ArrayLike) -> NDArray[np.float64]:
    """The distances from the mean, as a vector of length 1 (0 for a constant)."""
    array = np.asarray(values, np.float64)
    # The distances are not compared with 0: the computed mean of three times 0.1 is not 0.1.
    if len(array) == 0 or array.min() == array.max():
        return np.zeros_like(array)
    array = array - array.mean()
    array = array / np.abs(array).max()  # squares of small distances would underflow
    return array / np.sqrt(array @ array)


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    """The ranks from 1; equal values have the mean of their ranks."""
    _, index, counts = np.unique(
        np.asarray(values, np.float64), return_inverse=True, return_counts=True
    )
    return (np.cumsum(counts) - (counts - 1) / 2)[index]
