"""Join the predictions for parts of a text: for its sentences, or for pieces of a long sentence."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from regard.tasks.lazy import runtime
from regard.text.sentences import LINE_BREAK, SplitText, split_sentences

if TYPE_CHECKING:
    from regard.tasks.runtime import Prediction


def paragraph(text: str) -> SplitText | None:
    """The sentences of a text that must be translated one by one.

    Args:
        text: any text.

    Returns:
        The split text, or None for a single sentence on one line and for a blank text.
    """
    split = split_sentences(text)
    several = len(split.sentences) > 1 or LINE_BREAK.search(text) is not None
    return split if split.sentences and several else None


def join_pieces(predictions: list[Prediction]) -> Prediction:
    """The prediction for a text that was decoded in pieces; see `Prediction.pieces`."""
    if len(predictions) == 1:
        return predictions[0]
    separators = ["", *[" "] * (len(predictions) - 1), ""] if predictions else [""]
    split = SplitText([""] * len(predictions), separators)
    joined = _join(split, predictions)
    joined.pieces = predictions
    return joined


def join_sentences(split: SplitText | None, predictions: list[Prediction]) -> Prediction:
    """The prediction for a text from the predictions for its sentences.

    Args:
        split: the sentences of the text, or None if the text was not split.
        predictions: one for each sentence.

    Returns:
        A prediction whose text has the separators of the original text, with the predictions for
        the sentences in `sentences`. Its tokens and log-probabilities are those of all sentences,
        its score is the sum of their scores, and its n-best list has the best combinations of their
        n-best lists.
    """
    if split is None:
        return predictions[0]
    joined = _join(split, predictions)
    joined.sentences = predictions
    return joined


def _join(split: SplitText, predictions: list[Prediction]) -> Prediction:
    count = max((len(prediction.n_best) for prediction in predictions), default=1)
    lists = [prediction.n_best for prediction in predictions]
    joined, *others = [_concatenated(split, chosen) for chosen in best_combinations(lists, count)]
    joined.others = others
    return runtime.drop_duplicates(joined, count)


def _concatenated(split: SplitText, predictions: Sequence[Prediction]) -> Prediction:
    """The prediction for a text from one prediction for each of its parts."""
    return runtime.Prediction(
        [token for prediction in predictions for token in prediction.token_ids],
        [logprob for prediction in predictions for logprob in prediction.logprobs],
        sum(prediction.score for prediction in predictions),
        max((part.stopped for part in predictions), key=runtime.STOPS.index, default="empty"),
        split.join([prediction.text for prediction in predictions]),
        [token for prediction in predictions for token in prediction.source_ids],
        tokenizers=predictions[0].tokenizers if predictions else None,
    )


def best_combinations(lists: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """The best ways to choose one item of each list.

    Args:
        lists: items with a `score`, best first.
        count: the largest number of combinations to return.

    Returns:
        The combinations with the largest sums of scores, best first.
    """
    # (sum of scores, the combination so far as a linked list), best first.
    best: list[tuple[float, Any]] = [(0.0, None)]
    for items in lists:
        heap = [(-(best[0][0] + items[0].score), 0, 0)]
        longer: list[tuple[float, Any]] = []
        while heap and len(longer) < count:
            negative, i, j = heappop(heap)
            longer.append((-negative, (best[i][1], items[j])))
            if j + 1 < len(items):
                heappush(heap, (-(best[i][0] + items[j + 1].score), i, j + 1))
            if j == 0 and i + 1 < len(best):
                heappush(heap, (-(best[i + 1][0] + items[0].score), i + 1, 0))
        best = longer
    return [_unlinked(chain) for _, chain in best]


def _unlinked(chain: Any) -> list[Any]:
    items: list[Any] = []
    while chain is not None:
        chain, item = chain
        items.append(item)
    return items[::-1]
