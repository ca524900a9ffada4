"""Parts of a text that must not change: variables, addresses, code and numbers with units.

The models are small and were trained on plain text, so they garble `{name}` or `%1$s`. The model
reads a stand-in instead, and the translation must contain each stand-in exactly once; otherwise the
caller tries again with other stand-ins, and in the end translates the text around the placeholder
separately (passage.py).

The model box:translate copies numbers of four different digits reliably: of 60 sentences of
documentation, it copied one such number in 60, two in 60, three in 57 and all of four in 55, if the
whole n-best list is searched. Numbers of three digits are about as good. Four consecutive numbers
were all copied in only 25 sentences, and two invented words in 31. A simple quantity
such as "5 km" is its own stand-in at first, because the model knows it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, permutations


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


UNITS = words("""
m g l h km cm dm mm µm μm nm mi yd ft kg mg µg μg lb lbs oz ml cl dl hl ha m² km² m³ cm³ m2 m3
kB KB MB GB TB PB KiB MiB GiB TiB kbit Mbit Gbit kbps Mbps Gbps bps ms µs μs ns min Hz kHz MHz GHz
THz W kW MW GW Wh kWh MWh V kV mV mA Ah mAh kJ MJ kcal cal Pa hPa kPa MPa bar dB dBm px pt dpi ppi
fps rpm km/h m/s mph kn °C °F °K ° % ‰ € £ ¥ EUR USD GBP CHF JPY mol lm lx Ω kΩ
""")
SHORT_UNITS = words("t L s J K A N B")  # only after a space
SPACE = "[ \u00a0\u202f\u2009]"
NUMBER = r"(?<![\w.,])[-+−]?\d+(?:[.,\u2019']\d+)*"


def _any(choices: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(choices, key=len, reverse=True))


QUANTITY = (
    rf"{NUMBER}(?:{SPACE}?(?:{_any(UNITS)})|{SPACE}(?:{_any(SHORT_UNITS)}))(?![\w%({{$])"
    rf"|[$€£¥]{SPACE}?\d+(?:[.,]\d+)*(?![\w%({{$])"
)
ENDINGS = words("""
com org net edu gov io dev app info eu de fr uk at ch nl es it us html htm pdf txt md json xml yaml
yml toml csv py js ts css exe zip gz log ini conf sh png jpg
""")
URL = (
    r"\b(?:https?|ftps?|file|ssh|git|wss?)://[^\s<>\"`]+|\b(?:mailto|tel):[^\s<>\"`]+"
    r"|\bwww\.[^\s<>\"`]+"
)
EMAIL = r"(?<![\w.+%-])[\w.+%-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}"
FILE = (
    rf"(?<![\w.@/-])[\w-]{{1,64}}(?:\.[\w-]{{1,64}}){{0,8}}\.(?:{_any(ENDINGS)})\b"
    r"(?![.-]?\w)(?:/[^\s<>\"`]*)?"
)
BRACES = r"[$#]?\{\{[^{}\n]{1,200}\}\}|[$#%]?\{[\w.:;!|$@#%+*/<>=^~?\[\],'-]{0,200}\}"
PERCENT = (
    r"%\(\w+\)[-+0#]*\d*(?:\.\d+)?[a-zA-Z]|%(?:\d+\$)?[-+0#]*\d*(?:\.\d+)?(?:hh?|ll?|[zjtL])?"
    r"[sdiufFeEgGxXocp@](?![a-zA-Z])|%%|%\w+%"
)
CODE = r"(?<!`)(?P<ticks>`{1,3})(?!`)[^`\n]+(?P=ticks)(?!`)"
SHELL = r"\$[A-Za-z_]\w*"
ENTITY = r"&(?:\#\d{1,7}|\#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});"
MESSAGE = (
    r"\{\s{0,9}\w{1,64}\s{0,9},\s{0,9}(?:plural|select|selectordinal|number|date|time|choice)\b"
)
PATTERN = re.compile(
    rf"(?P<message>{MESSAGE})|(?P<opaque>{CODE}|{URL}|{EMAIL}|{BRACES}|{PERCENT}|{SHELL}|{FILE})|(?P<quantity>{QUANTITY})"
)
ENTITY_PATTERN = re.compile(ENTITY)
ADDRESS = re.compile(rf"{URL}|{EMAIL}|{FILE}")
TRAILING = ".,;:!?'\"”’)]}»…*_"  # belongs to the sentence, not to the address before it
CLOSED_BY = {")": "(", "]": "[", "}": "{"}
BRACE = re.compile(r"[{}]")
WORD = re.compile(r"\w")
WORD_AFTER = re.compile(r"(?:[\w/]|\.(?=\w))(?:[\w/]|[.-]+(?=[\w/]))*")
DIGITS = ["".join(digits) for digits in permutations("23456789", 4)]
# Successive numbers differ in most digits.
NUMBERS = [DIGITS[(i + 1) * 1009 % len(DIGITS)] for i in range(len(DIGITS))]
ATTEMPTS = 2  # to translate a sentence with stand-ins
SIMPLE = re.compile(r"\d+ ?[A-Za-z]+")  # quantities that models copy
MOST_PLACEHOLDERS = 24  # in a sentence that is translated as a whole


@dataclass(frozen=True)
class Placeholder:
    """A part of a text that must not change.

    Attributes:
        start: its first character.
        end: the character after the last one.
        natural: whether the model can read it as it is.
    """

    start: int
    end: int
    natural: bool = False


def find_placeholders(text: str) -> list[Placeholder]:
    """The placeholders of a text in order. Adjacent ones are merged, and a word that contains
    a placeholder, such as file-%s.txt, is one placeholder."""
    results: list[Placeholder] = []
    for match in PATTERN.finditer(text):
        start, end = match.span()
        natural = match["quantity"] is not None
        if match["message"] is not None:
            end = closing_brace(text, start)
        elif not natural:
            end = start + len(without_trailing(match[0]))
        if not natural:
            start, end = word_around(text, start, end, results[-1].end if results else 0)
        if results and start <= results[-1].end:
            results[-1] = Placeholder(results[-1].start, max(end, results[-1].end))
        else:
            simple = SIMPLE.fullmatch(text, start, end) is not None
            results.append(Placeholder(start, end, natural and simple))
    return results


def closing_brace(text: str, start: int) -> int:
    """The position after the brace that closes the one at `start`; the end of the text if there is
    none."""
    depth = 0
    for match in BRACE.finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def without_trailing(text: str) -> str:
    """An address without the marks at its end that belong to the sentence around it."""
    if not ADDRESS.match(text):
        return text
    while text[-1] in TRAILING:
        if text.count(text[-1]) <= text.count(CLOSED_BY.get(text[-1], "\0")):
            break
        text = text[:-1]
    return text


def word_around(text: str, start: int, end: int, first: int) -> tuple[int, int]:
    """Extend a span by the word that touches it, but not to the left of `first`."""
    if match := WORD_AFTER.match(text, end):
        end = match.end()
    left = start
    while left > first and (text[left - 1] in "/.-" or WORD.match(text[left - 1])):
        left -= 1
    if start > first and text[start - 1] == "#":
        start -= 1
    elif left < start and text[start - 1] not in ".-":
        start = left
        while text[start] in ".-":
            start += 1
    return start, end


class StandIns:
    """The stand-ins of the placeholders of one sentence, and how they become placeholders again.

    Args:
        texts: the text of each placeholder that the model would read.
        raws: what the translation must contain in place of it.
        naturals: whether the text itself is its stand-in, for each placeholder.
        around: the text that must not contain a stand-in.
        attempt: the number of the attempt, which has its own stand-ins.
    """

    def __init__(
        self,
        texts: Sequence[str],
        raws: Sequence[str],
        naturals: Sequence[bool],
        around: str,
        attempt: int,
    ) -> None:
        # A number that occurs in the text, even as a part of another one, is no stand-in.
        numbers = unused_numbers(attempt, " ".join([around, *texts]))
        self.texts = [
            text if natural else next(numbers)
            for text, natural in zip(texts, naturals, strict=True)
        ]
        self.raws = raws
        self.counts = Counter(self.texts)
        self.pattern = re.compile("|".join(map(_bounded, sorted(self.counts, key=len)[::-1])))

    def locate(self, translation: str) -> list[tuple[int, int, int]] | None:
        """Find the stand-ins in a translation.

        Returns:
            Start, end and the index of the placeholder of each one in order; None if one is missing
            or occurs too often.
        """
        if not self.texts:
            return []
        matches = list(self.pattern.finditer(translation))
        if Counter(match[0] for match in matches) != self.counts:
            return None
        if any(translation.count(text) < count for text, count in self.counts.items()):
            return None
        indices = defaultdict(list)
        for i, text in enumerate(self.texts):
            indices[text].append(i)
        queues = {text: iter(numbers) for text, numbers in indices.items()}
        return [(*match.span(), next(queues[match[0]])) for match in matches]


def unused_numbers(attempt: int, text: str) -> Iterator[str]:
    """The stand-ins of an attempt that do not occur in a text."""
    first = attempt * len(NUMBERS) // ATTEMPTS
    numbers = chain(NUMBERS[first:], NUMBERS[:first], map(str, count(10_000)))
    return (number for number in numbers if number not in text)


def _bounded(text: str) -> str:
    """A regular expression for a stand-in that is not a part of a longer word or number."""
    before = r"(?<!\w)(?<!\d[.,])" if WORD.match(text[0]) else ""
    after = r"(?!\w)(?![.,]\d)" if WORD.match(text[-1]) else ""
    return before + re.escape(text) + after
