"""Split texts into sentences or pieces, and join the predictions for these parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from regard.tasks.lazy import runtime
from regard.text.sentences import LINE_BREAK, SplitText, split_sentences

if TYPE_CHECKING:
    from regard.tasks.runtime import Prediction


BOUNDARIES = (r"(?<=[.!?…。！？])\s+", r"\s+")  # between sentences, between words


def paragraph(text: str) -> SplitText | None:
    """Split a text whose sentences must be translated one by one.

    Args:
        text: any text.

    Returns:
        The split text, or None for a single sentence on one line and for a blank text.
    """
    split = split_sentences(text)
    several = len(split.sentences) > 1 or LINE_BREAK.search(text) is not None
    return split if split.sentences and several else None


def split_pieces(
    text: str, count: Callable[[str], int], most: int, boundaries: tuple[str, ...] = BOUNDARIES
) -> list[str]:
    """Cut a text into pieces of a limited number of tokens: between sentences if possible,
    otherwise between words, and within a word that is longer than the limit.

    Args:
        text: the text.
        count: returns the number of tokens of a text.
        most: largest number of tokens of a piece.
        boundaries: regular expressions of the places to cut, in the order in which they are tried.

    Returns:
        The pieces in the order of the text.
    """
    if count(text) <= most:
        return [text]
    pieces: list[str] = []
    if not boundaries:
        start, smallest = 0, max(1, most // 4)  # a character has at most four tokens
        while start < len(text):
            size = most
            while size > smallest and count(text[start : start + size]) > most:
                size = max(smallest, size * 3 // 4)
            pieces.append(text[start : start + size])
            start += size
        return pieces
    piece, tokens = "", 0
    for part in re.split(boundaries[0], text):
        size = count(" " + part)
        if piece and tokens + size <= most:
            piece, tokens = f"{piece} {part}", tokens + size
            continue
        if piece:
            pieces.append(piece)
        piece, tokens = "", 0
        size = count(part)  # without a space before it, the count may differ
        if size > most:
            pieces += split_pieces(part, count, most, boundaries[1:])
        else:
            piece, tokens = part, size
    return [*pieces, piece] if piece else pieces


def join_pieces(predictions: list[Prediction]) -> Prediction:
    """Join the predictions for the pieces of a text; see `Prediction.pieces`."""
    if len(predictions) == 1:
        return predictions[0]
    separators = ["", *[" "] * (len(predictions) - 1), ""] if predictions else [""]
    split = SplitText([""] * len(predictions), separators)
    joined = _join(split, predictions)
    joined.pieces = predictions
    return joined


def join_sentences(split: SplitText | None, predictions: list[Prediction]) -> Prediction:
    """Join the predictions for the sentences of a text.

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
    """Concatenate one prediction for each part of a text."""
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
    """Find the best ways to choose one item of each list.

    Args:
        lists: items with a `score`, best first.
        count: largest number of combinations to return.

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
