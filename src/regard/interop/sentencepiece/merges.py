"""The merges of a SentencePiece BPE vocabulary, which has only scores.

SentencePiece joins the two neighbours whose union has the highest score; the library `tokenizers`
needs the list of all such pairs. A vocabulary is untrusted: nested tokens ("a", "aa", "aaa", ...)
have a number of pairs that is quadratic in the size of the file, so the work is limited.
"""

from __future__ import annotations

from collections.abc import Mapping

from regard.errors import InputError

# Every split of a token can be a merge. The largest known vocabularies, with 256,000 tokens, need a
# third of these limits.
MOST_MERGES, MOST_CHARACTERS = 2_000_000, 60_000_000


def merges_of_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of tokens that forms a token.

    Args:
        scores: the score of each token, in the order of the vocabulary.

    Returns:
        The pairs, sorted by decreasing score of the token that they form, then by its place in the
        vocabulary, then by increasing length of the left token.

    Raises:
        InputError: there are too many pairs.
    """
    if sum(len(token) ** 2 for token in scores) > MOST_CHARACTERS:
        raise InputError(f"the merges of the vocabulary have over {MOST_CHARACTERS:,} characters")
    ranked = []
    for number, (token, score) in enumerate(scores.items()):
        for i in range(1, len(token)):
            left, right = token[:i], token[i:]
            if left in scores and right in scores:
                ranked.append((-score, number, i, left, right))
        if len(ranked) > MOST_MERGES:
            raise InputError(f"the vocabulary has more than {MOST_MERGES:,} merges")
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
