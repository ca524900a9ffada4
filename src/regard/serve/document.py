"""Documents: texts or HTML, divided into sentences and the parts between them, which are kept."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from regard.serve.markup import Kind, Part, Passage, parse_markup, parse_plain
from regard.serve.passage import MOST_PARTS, Sentence
from regard.text.sentences import needs_space, split_sentences


class Document:
    """A text, HTML or XML, divided into sentences and the parts between them, which are kept.

    Args:
        items: sentences, and texts that are kept.
        words: the text without markup and placeholders, for language detection.
    """

    def __init__(self, items: list[str | Sentence], words: str) -> None:
        self.items, self.words = items, words
        self.sentences = [item for item in items if isinstance(item, Sentence)]

    def join(self, translations: Sequence[str]) -> str:
        """The document with a translation in place of each sentence."""
        remaining = iter(translations)
        pieces: list[str] = []
        previous: str | None = None  # the translation directly before an item
        for item in self.items:
            if isinstance(item, str):
                pieces.append(item)
                previous = None
                continue
            if previous is not None and needs_space(previous, ""):
                pieces.append(" ")
            previous = next(remaining)
            pieces.append(previous)
        return "".join(pieces)


@dataclass(frozen=True)
class Format:
    """How a text is read.

    Attributes:
        markup: "", "html" or "xml".
        split: whether the text is split into sentences.
        newlines: whether a line break ends a sentence; never in HTML and XML.
        ignored: names of elements that are not translated.
    """

    markup: str = ""
    split: bool = True
    newlines: bool = True
    ignored: frozenset[str] = frozenset()


def read_document(text: str, form: Format) -> Document:
    """Divide a text into sentences."""
    markup = bool(form.markup)
    passages: list[str | Passage] = (
        list(parse_markup(text, form.markup == "xml", form.ignored))
        if markup
        else [parse_plain(text)]
    )
    parts = [part for passage in passages if not isinstance(passage, str) for part in passage]
    texts = [part for part in parts if part.kind is Kind.TEXT]
    literal = {c for part in texts if part.raw == part.text for c in part.text}
    entities = {
        part.text: part.raw for part in texts if part.raw != part.text and part.text not in literal
    }
    items: list[str | Sentence] = []
    for passage in passages:
        if isinstance(passage, str):
            items.append(passage)
        else:
            items += split_passage(passage, form, entities)
    return Document(items, "".join(part.text for part in texts))


def split_passage(passage: Passage, form: Format, entities: dict[str, str]) -> list[str | Sentence]:
    """Split a passage into sentences and the white space and tags between them."""
    text = "".join(part.text for part in passage)
    if form.markup or not form.newlines:
        text = re.sub(r"[\n\r\u2028\u2029]", " ", text)
    if form.split:
        split = split_sentences(text)
        spans, end = [], 0
        for separator, sentence in zip(split.separators, split.sentences, strict=False):
            start = end + len(separator)
            end = start + len(sentence)
            spans.append((start, end))
    else:
        begin = len(text) - len(text.lstrip())
        spans = [(begin, len(text.rstrip()))] if text.strip() else []
    items: list[str | Sentence] = []
    parts = list(cut_parts(passage, [edge for span in spans for edge in span]))
    ends = [0, *accumulate(len(part.text) for part in parts)]  # ends[i]: characters before part i
    done = 0
    for start, end in spans:
        # Tags at the first and at the last character are outside.
        first = bisect_right(ends, start) - 1
        last = bisect_left(ends, end)
        first, last = pull_tags(parts, done, first, last)
        items += ["".join(part.raw for part in parts[done:first])] if first > done else []
        inside = parts[first:last]
        words = "".join(part.text for part in inside if part.kind is Kind.TEXT)
        if any(map(str.isalpha, words)):
            items.append(Sentence(inside, bool(form.markup), entities))
        else:
            items.append("".join(part.raw for part in inside))
        done = last
    rest = "".join(part.raw for part in parts[done:])
    return [*items, rest] if rest else items


def pull_tags(parts: Passage, done: int, first: int, last: int) -> tuple[int, int]:
    """Extend a sentence, `parts[first:last]`, by tags directly before and after it whose element
    ends or begins within it, so that they can move with the words of the translation."""
    if last - first > MOST_PARTS:
        return first, last
    names = [(part.kind, part.name) for part in parts[first:last]]
    while first > done and parts[first - 1].kind is Kind.OPEN:
        name = parts[first - 1].name
        if names.count((Kind.CLOSE, name)) <= names.count((Kind.OPEN, name)):
            break
        first -= 1
        names.append((Kind.OPEN, name))
    while last < len(parts) and parts[last].kind is Kind.CLOSE:
        name = parts[last].name
        if names.count((Kind.OPEN, name)) <= names.count((Kind.CLOSE, name)):
            break
        names.append((Kind.CLOSE, name))
        last += 1
    return first, last


def cut_parts(passage: Passage, edges: Sequence[int]) -> Iterable[Part]:
    """The parts of a passage, with texts cut at the positions `edges`, which are in order."""
    at = 0
    for part in passage:
        end = at + len(part.text)
        if part.kind is not Kind.TEXT or part.raw != part.text:
            yield part
        else:
            inside = edges[bisect_right(edges, at) : bisect_left(edges, end)]
            for start, stop in pairwise([at, *inside, end]):
                piece = part.text[start - at : stop - at]
                if piece:
                    yield Part(Kind.TEXT, piece, piece)
        at = end
