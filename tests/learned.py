"""Vocabularies learned from a few lines, for the tests of text."""

from regard.text.tokenizer import Tokenizer

LINES = [
    "A dog runs across the green field.",
    "Two dogs are running across a field of green grass.",
    "Ein Hund läuft über die grüne Wiese.",
    "Zwei Hunde laufen über eine Wiese mit grünem Gras.",
    "The children's ball isn't theirs; they've found it, 1999 or 2024.",
] * 3
BPE = Tokenizer.learn(LINES, "bpe", 350)
BYTE = Tokenizer.learn([], "byte", 0)
