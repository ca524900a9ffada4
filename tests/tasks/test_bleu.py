"""BLEU and chrF, their confidence intervals and comparisons."""

from regard.tasks.bleu import bleu, bootstrap_bleu

REFERENCES = [f"The dog number {i} saw the old house near the river." for i in range(20)]
TRANSLATIONS = [
    reference.replace("old house", "new garden") if i % 4 == 0 else reference
    for i, reference in enumerate(REFERENCES)
]


def test_perfect_translations_score_100_with_signature_of_tokenizer():
    scores = bleu(REFERENCES, REFERENCES, "char")
    assert (scores["bleu"], scores["chrf"]) == (100, 100)
    assert "tok:char" in scores["bleu_signature"]


def test_interval_contains_score_and_there_is_no_comparison_without_baseline():
    scores = bleu(TRANSLATIONS, REFERENCES)
    intervals, comparisons = bootstrap_bleu(TRANSLATIONS, REFERENCES, None, 100, "13a")
    assert comparisons == {}
    for name, (low, high) in intervals.items():
        assert low < scores[name] < high <= 100


def test_identical_systems_have_p_value_1():
    _, comparisons = bootstrap_bleu(TRANSLATIONS, REFERENCES, TRANSLATIONS, 100, "13a")
    assert {name: (c.difference, c.p) for name, c in comparisons.items()} == {
        "bleu": (0, 1), "chrf": (0, 1),
    }  # fmt: skip


def test_better_system_has_positive_difference_and_small_p_value():
    _, comparisons = bootstrap_bleu(REFERENCES, REFERENCES, TRANSLATIONS, 100, "13a")
    for comparison in comparisons.values():
        assert comparison.difference > 0
        assert comparison.p < 0.05
