"""Statistics of the classes of training data, and warnings about data that is probably wrong.

A classifier learns from any labels, so a header that was read as data, or swapped columns, would
otherwise go unnoticed. The warnings are issued only in cases that are almost certainly mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from regard.console import visible_line

MOST_CLASSES = 20  # rows of the table of classes
MOST_NAMES = 5  # classes that a warning names
TRACKED = 100_000  # rows whose texts are compared
FEW_ROWS = 10  # fewer rows show nothing about classes
SWAPPED = "the label and text columns are probably swapped (a line is label<TAB>text)"
LONGEST_NAME = 30  # characters of a class in the table
# Names of columns, which a header has in its first row.
LABEL_COLUMNS = {
    "label", "labels", "class", "classes", "category", "categories", "target", "tag", "topic",
    "sentiment", "intent", "stars", "rating", "score", "y", "id",
}  # fmt: skip
TEXT_COLUMNS = {
    "text", "texts", "sentence", "sentences", "review", "comment", "content", "body", "title",
    "document", "message", "input", "description", "question", "utterance", "tweet", "x",
}  # fmt: skip


class LabelStatistics:
    """Counts labels while the training data is read."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rows = 0
        self._first: list[tuple[Path, int, str, str]] = []  # the first row of each file
        self._texts: set[int] = set()  # hashes of the texts of the first rows
        self._labels: set[str] = set()  # the labels of the same rows
        self._text_size = self._label_size = 0  # characters

    def add(self, path: Path, line: int, text: str, label: str) -> None:
        """Count a row of the training data."""
        if not self._first or self._first[-1][0] != path:
            self._first.append((path, line, text, label))
        self.counts[label] += 1
        self.rows += 1
        self._text_size += len(text)
        self._label_size += len(label)
        if self.rows <= TRACKED:
            self._texts.add(hash(text))
            self._labels.add(label)

    def table(self) -> list[str]:
        """The classes with their counts, the most frequent first, in at most 20 lines."""
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        listed = ranked if len(ranked) <= MOST_CLASSES else ranked[: MOST_CLASSES - 1]
        lines = [(shorten(visible_line(label)), count) for label, count in listed]
        if rest := ranked[len(listed) :]:
            total = sum(count for _, count in rest)
            lines.append((f"... {len(rest):,} more classes", total))
        name = max(len(label) for label, _ in lines)
        number = max(len(f"{count:,}") for _, count in lines)
        head = f"{len(ranked):,} classes in {self.rows:,} training examples:"
        return [head] + [
            f"  {label:{name}}  {count:>{number},}  {count / self.rows:6.1%}"
            for label, count in lines
        ]

    def warnings(self) -> Iterator[str]:
        """One line for each probable mistake in the data."""
        header = self._header()
        if header is not None:
            path, line, text, label = header
            row = visible_line(f"{shorten(label)!r}, {shorten(text)!r}")
            columns = visible_line(f"text={shorten(text)},label={shorten(label)}")
            yield (
                f"{path}:{line}: the first row ({row}) looks like a header, but was read as an "
                f"example: remove it, or set the option columns to {columns}"
            )
        if swapped := self._swapped():
            yield swapped
            return
        once = sorted(label for label, count in self.counts.items() if count == 1)
        if header is not None and header[3] in once:
            once.remove(header[3])
        if once and self.rows >= FEW_ROWS:
            names = ", ".join(shorten(label) for label in once[:MOST_NAMES])
            more = ", ..." if len(once) > MOST_NAMES else ""
            have = "has" if len(once) == 1 else "have"
            yield visible_line(
                f"{len(once):,} of {len(self.counts):,} classes {have} only one example "
                f"({names}{more}): a class needs several examples to be learned"
            )

    def _header(self) -> tuple[Path, int, str, str] | None:
        for first in self._first:
            _, _, text, label = first
            names = label.strip().lower() in LABEL_COLUMNS or text.strip().lower() in TEXT_COLUMNS
            if names and self.counts[label] == 1 and self.rows > 1:
                return first
        return None

    def _swapped(self) -> str:
        """A warning if the labels look like texts; otherwise empty."""
        if self.rows < FEW_ROWS:
            return ""
        classes = len(self.counts)
        longer = self._label_size > self._text_size
        if classes > self.rows / 2:
            hint = SWAPPED if longer else "nearly every example has its own label"
            return f"{classes:,} classes in only {self.rows:,} training examples: {hint}"
        if longer and len(self._labels) > len(self._texts):
            return f"the labels are longer and more varied than the texts: {SWAPPED}"
        return ""


def shorten(name: str) -> str:
    """A label or a text for a table or a message."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
