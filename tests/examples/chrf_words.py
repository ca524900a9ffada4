"""Own metric: chrF++, which compares words as well as characters, in validation and evaluation."""

from sacrebleu.metrics import CHRF

import regard


def chrf_words(predictions, references):
    """Two lists of texts, one entry for each example -> a number from 0 to 100."""
    return CHRF(word_order=2).corpus_score(predictions, [references]).score


regard.register_metric("chrf++", chrf_words, task="translate")
model = regard.load("box:translate", device="cpu")
pairs = [
    ("A dog runs over the grass.", "Ein Hund rennt über das Gras."),
    ("Two men are talking.", "Zwei Männer unterhalten sich."),
]
print(model.evaluate(pairs).scores["chrf++"])
