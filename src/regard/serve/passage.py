"""Sentences with placeholders and inline tags: what a model reads, and how its output becomes the
translation.

A sentence is translated as a whole at first, with stand-ins for its placeholders; the attention
weights show where its tags belong (alignment.py). If a stand-in is missing in the output, a second
attempt uses other ones. If that also fails, the texts between placeholders and tags are translated
separately and joined. So every translation has each placeholder and each tag exactly once.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from regard.serve.alignment import Alignment, Span, divide
from regard.serve.markup import Kind, Part, Passage
from regard.serve.placeholders import ATTEMPTS, MOST_PLACEHOLDERS, StandIns

SEPARATE = ATTEMPTS  # the attempt that translates the parts of a sentence separately
OWN_SEGMENT = 0.02  # weight of a segment beside the weight of all segments with the same tags
MOST_PARTS = 200  # of a sentence that is translated as a whole
TAGS = (Kind.OPEN, Kind.CLOSE, Kind.POINT, Kind.SPACE)
WHITESPACE = re.compile(r"\s+")
WORD = re.compile(r"\w")
UNIT = re.compile(r"\w+|[^\w\s]")
END_MARK = re.compile(r"[.!?…。:;][\"'”’“»)\]]*\Z")
MARKUP = re.compile(r"[A-Za-z/!?]")  # after <
FINAL_MARK = re.compile(r"[.!?…:;,]\Z")


@dataclass(frozen=True)
class Output:
    """What a model wrote for one input.

    Attributes:
        texts: the n-best list, best first.
        scores: the score of each text.
        alignment: of the first text, where attention weights were computed.
    """

    texts: Sequence[str]
    scores: Sequence[float]
    alignment: Alignment | None = None


@dataclass(frozen=True)
class Candidate:
    """A translation of a sentence, with its placeholders and tags."""

    text: str
    score: float


class Sentence:
    """A sentence of a passage.

    Args:
        parts: its parts. Tags at its ends belong to it if they open or close an element within it.
        markup: whether the sentence is from HTML or XML.
        entities: in HTML, how characters are written that are always entities in the input.
    """

    def __init__(self, parts: Passage, markup: bool, entities: dict[str, str]) -> None:
        self.parts, self.markup, self.entities = parts, markup, entities
        # Segments of words, and the clusters of tags and spaces between them.
        self.segments: list[Passage] = []
        self.clusters: list[Cluster] = []
        for is_cluster, group in group_parts(parts):
            if is_cluster:
                if len(self.segments) == len(self.clusters):
                    self.segments.append([])  # before a tag at the start of the sentence
                self.clusters.append(Cluster(group))
            else:
                self.segments.append(group)
        if len(self.segments) == len(self.clusters):
            self.segments.append([])
        self.fixed = [part for part in parts if part.kind is Kind.FIXED]
        self.homes = [
            k for k, segment in enumerate(self.segments)
            for part in segment if part.kind is Kind.FIXED
        ]  # fmt: skip

    @property
    def tagged(self) -> bool:
        """Whether there are tags within the sentence."""
        return bool(self.clusters)

    def next_attempt(self, attempt: int) -> int:
        """The attempt after one that failed; the first one after -1."""
        large = len(self.fixed) > MOST_PLACEHOLDERS or len(self.parts) > MOST_PARTS
        if large or (attempt >= 0 and not self.fixed):
            return SEPARATE
        return attempt + 1

    def inputs(self, attempt: int) -> list[str]:
        """The texts that the model reads in an attempt."""
        if attempt < SEPARATE:
            return [self._compose(attempt)[0]]
        return [text.strip() for text, translated in self._fragments() if translated]

    def accept(self, attempt: int, outputs: Sequence[Output]) -> list[Candidate]:
        """The translations, best first, for the outputs of the model; none if a placeholder is
        missing in all of them or the tags cannot be placed."""
        if attempt == SEPARATE:
            texts = iter(output.texts[0] for output in outputs)
            joined = [
                keep_white_space(self._encode(tidy(text.strip(), next(texts))), text)
                if translated
                else text
                for text, translated in self._fragments()
            ]
            return [Candidate(self._join(joined), sum(output.scores[0] for output in outputs))]
        source, spans, stand_ins = self._compose(attempt)
        [output] = outputs
        candidates = []
        for i, (output_text, score) in enumerate(zip(output.texts, output.scores, strict=True)):
            text = tidy(source, output_text)
            places = stand_ins.locate(text)
            if places is None or not self._in_order(places):
                continue
            if not self.tagged:
                candidates.append(Candidate(self._render(text, places, (0, len(text))), score))
            elif i == 0 and output.alignment is not None:
                tagged = self._insert_tags(text, places, source, spans, output.alignment)
                candidates += [Candidate(tagged, score)] if tagged is not None else []
        return candidates

    def _compose(self, attempt: int) -> tuple[str, list[Span], StandIns]:
        """What the model reads, the spans of the segments in it, and the stand-ins."""
        stand_ins = StandIns(
            [WHITESPACE.sub(" ", part.text) for part in self.fixed],
            [part.raw for part in self.fixed],
            [part.natural and attempt == 0 for part in self.fixed],
            "".join(part.text for part in self.parts if part.kind is Kind.TEXT),
            attempt,
        )
        numbers = iter(stand_ins.texts)
        source, spans = "", []
        for k, segment in enumerate(self.segments):
            start = len(source)
            for part in segment:
                source += next(numbers) if part.kind is Kind.FIXED else self._readable(part.text)
            spans.append((start, len(source)))
            if k < len(self.clusters) and self.clusters[k].separates:
                source += " "
        return source, spans, stand_ins

    def _readable(self, text: str) -> str:
        return WHITESPACE.sub(" ", text) if self.markup else text

    def _in_order(self, places: Sequence[tuple[int, int, int]]) -> bool:
        """Whether elements that are not translated are still in the order of the input."""
        elements = [i for _, _, i in places if self.fixed[i].is_element]
        return elements == sorted(elements)

    def _insert_tags(
        self,
        text: str,
        places: Sequence[tuple[int, int, int]],
        source: str,
        spans: list[Span],
        alignment: Alignment,
    ) -> str | None:
        """The translation with its tags at the best places; None if there are none."""
        units, homes = self._units(text, places)
        if not units:
            return None
        states = self._states()
        last = max(k for k, (start, end) in enumerate(spans) if start < end)
        marks = FINAL_MARK.search(source) and FINAL_MARK.search(text)
        if marks and not states[last]:  # the final mark is outside all elements
            homes[-1] = last
        weights = alignment.between(units, spans)
        same_state = np.array([[a == b for b in states] for a in states], np.float32)
        # No element becomes empty. The text outside an element may all be on one side of it.
        counts = Counter(states)
        least = [
            int(counts[state] == 1 and WORD.search(source[start:end]) is not None)
            for state, (start, end) in zip(states, spans, strict=True)
        ]
        bounds = divide(weights @ same_state + OWN_SEGMENT * weights, least, homes)
        if bounds is None:
            return None
        pieces: list[str] = []
        previous = 0  # end of the last unit
        for k, (begin, end) in enumerate(zip(bounds, [*bounds[1:], len(units)], strict=True)):
            if k:
                following = units[begin][0] if begin < len(units) else len(text)
                gap = text[previous:following]
                pieces.append(self.clusters[k - 1].render(gap))
                previous = following
            if end > begin:
                pieces.append(self._render(text, places, (units[begin][0], units[end - 1][1])))
                previous = units[end - 1][1]
        return "".join(pieces)

    def _units(
        self, text: str, places: Sequence[tuple[int, int, int]]
    ) -> tuple[list[Span], list[int | None]]:
        """The words, marks and stand-ins of a translation, and the segments of the stand-ins."""
        units: list[Span] = []
        homes: list[int | None] = []
        done = 0
        for start, end, i in [*places, (len(text), len(text), -1)]:
            words = [match.span() for match in UNIT.finditer(text, done, start)]
            units += words
            homes += [None] * len(words)
            if i >= 0:
                units.append((start, end))
                homes.append(self.homes[i])
            done = end
        return units, homes

    def _states(self) -> list[tuple[int, ...]]:
        """For each segment a value that is equal for those with the same open elements."""
        opened: list[tuple[int, str]] = []
        count = 0
        states: list[tuple[int, ...]] = [()]
        for cluster in self.clusters:
            for part in cluster.parts:
                count += 1
                if part.kind is Kind.OPEN:
                    opened.append((count, part.name))
                elif part.kind is Kind.CLOSE:
                    names = [name for _, name in opened]
                    if part.name in names:
                        del opened[len(names) - 1 - names[::-1].index(part.name) :]
                    else:
                        opened.append((count, ""))
            states.append(tuple(number for number, _ in opened))
        return states

    def _render(self, text: str, places: Iterable[tuple[int, int, int]], span: Span) -> str:
        """A part of a translation with placeholders in place of stand-ins."""
        pieces: list[str] = []
        done = span[0]
        for start, end, i in places:
            if span[0] <= start and end <= span[1]:
                pieces += self._encode(text[done:start]), self.fixed[i].raw
                done = end
        pieces.append(self._encode(text[done : span[1]]))
        return self._join([piece for piece in pieces if piece])

    def _join(self, pieces: Sequence[str]) -> str:
        """Concatenate pieces. A `<` in the text must not become the beginning of a tag."""
        following = [*pieces[1:], ""] if self.markup else []
        for i, after in enumerate(following):
            if pieces[i].endswith("<") and MARKUP.match(after):
                pieces = [*pieces[:i], pieces[i][:-1] + "&lt;", *pieces[i + 1 :]]
        return "".join(pieces)

    def _encode(self, text: str) -> str:
        """Write text in HTML."""
        if not self.markup:
            return text
        return "".join(self.entities.get(c) or html.escape(c, quote=False) for c in text)

    def _fragments(self) -> list[tuple[str, bool]]:
        """The parts of the sentence for separate translation, and whether each is translated."""
        fragments: list[tuple[str, bool]] = []
        for is_text, group in groupby(self.parts, lambda part: part.kind is Kind.TEXT):
            parts = list(group)
            text = "".join(part.text for part in parts)
            translated = is_text and any(map(str.isalpha, text))
            raw = "".join(part.raw for part in parts)
            fragments.append((self._readable(text) if translated else raw, translated))
        return fragments


class Cluster:
    """Tags between two words, with the white space around them."""

    def __init__(self, parts: Passage) -> None:
        self.parts = parts
        blank = [part.kind is Kind.TEXT for part in parts]
        first = blank.index(False)
        last = len(blank) - 1 - blank[::-1].index(False)
        self.inner = parts[first : last + 1]
        self.raw = "".join(part.raw for part in parts)
        self.has_space = any(part.kind is Kind.SPACE for part in parts)
        self.spaced = any(blank)

    @property
    def separates(self) -> bool:
        """Whether it separates two words."""
        return any(part.text for part in self.parts)

    def render(self, gap: str) -> str:
        """The tags between two words of a translation that are separated by `gap`."""
        if self.has_space or (gap and self.spaced):
            return self.raw
        pieces = [part.raw for part in self.inner]
        if gap:  # the tags touched a word on both sides
            before = 0
            while before < len(pieces) and self.inner[before].kind is Kind.CLOSE:
                before += 1
            pieces.insert(before, gap)
        return "".join(pieces)


def group_parts(parts: Passage) -> Iterable[tuple[bool, Passage]]:
    """Divide the parts of a sentence into segments of words and clusters of tags, alternately. The
    white space beside a tag belongs to its cluster."""
    atoms: Passage = []
    for part in parts:
        if part.kind is Kind.TEXT and part.raw == part.text:
            core = part.text.strip()
            at = part.text.index(core) if core else len(part.text)
            pieces = [part.text[:at], core, part.text[at + len(core) :]]
            atoms += [Part(Kind.TEXT, piece, piece) for piece in pieces if piece]
        else:
            atoms.append(part)
    groups: list[tuple[bool, Passage]] = []
    for between, group in groupby(atoms, lambda a: a.kind in TAGS or not a.raw.strip()):
        atoms = list(group)
        is_cluster = between and any(atom.kind in TAGS for atom in atoms)
        if groups and not is_cluster and not groups[-1][0]:
            groups[-1][1].extend(atoms)
        else:
            groups.append((is_cluster, atoms))
    return groups


def keep_white_space(text: str, original: str) -> str:
    """The text with the white space that surrounds the original text."""
    core = original.strip()
    at = original.index(core)
    return original[:at] + text + original[at + len(core) :]


def tidy(source: str, translation: str) -> str:
    """The translation without a full stop that the model added, as it does after headings."""
    added = translation.endswith(".") and not translation.endswith("..")
    return translation[:-1] if added and not END_MARK.search(source) else translation
