"""Divide HTML, XML or plain text into the text to translate and everything else, which is kept.

A regular expression finds the tags, comments and declarations; what it does not match is text. The
concatenated parts are always the input, so markup passes through unchanged.
Block elements separate passages; a passage has text and inline tags.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from regard.serve.placeholders import ENTITY_PATTERN, find_placeholders, word_around, words


class Kind(Enum):
    """What a part of a passage is."""

    TEXT = "text"
    FIXED = "fixed"  # a placeholder, or an inline element that is not translated
    OPEN = "open"  # inline tags
    CLOSE = "close"
    POINT = "point"  # an inline tag without content, or a comment
    SPACE = "space"  # a no-break space or another character that only separates


@dataclass(frozen=True)
class Part:
    """A part of a passage.

    Attributes:
        kind: what it is.
        raw: its text in the input.
        text: what a sentence splitter reads; of a text, with entities decoded.
        natural: whether the model can read a fixed part as it is.
        name: the name of the element of a tag.
    """

    kind: Kind
    raw: str
    text: str = ""
    natural: bool = False
    name: str = ""

    @property
    def is_element(self) -> bool:
        """Whether it is an element that is not translated, whose order among tags is kept."""
        return self.kind is Kind.FIXED and self.raw.startswith("<") and len(self.raw) > 1


Passage = list[Part]
WORD = "Xyz"  # stands for a fixed part while a text is split into sentences

INLINE = words("""
a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark q s small span
strike strong sub sup time u wbr code kbd samp var tt math
""")
BLOCK = words("""
address article aside audio base blockquote body br button canvas caption center col colgroup dd
details dialog dir div dl dt embed fieldset figcaption figure footer form frame frameset h1 h2 h3 h4
h5 h6 head header hgroup hr html iframe legend li link main map menu meta nav noscript object ol
optgroup option p param picture pre script search section select slot source style summary svg table
tbody td template textarea tfoot th thead title tr track ul video
""")
VOID = words("area base br col embed hr img input link meta param source track wbr")
RAW_TEXT = words("script style textarea xmp iframe noembed noframes plaintext")
UNTRANSLATED = RAW_TEXT | words("pre code kbd samp var tt math svg template")

QUOTED = r"\"[^\"]{0,4000}\"|'[^']{0,4000}'"
TOKEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^>]*(?:>|\Z)"
    rf"|</?[A-Za-z](?:[^\"'<>]|{QUOTED})*+>|</?[A-Za-z][^>]*(?:>|\Z)",
    re.DOTALL,
)
NAME = re.compile(r"</?([A-Za-z][^\s/>]*)")
PLAIN_TAG = re.compile(r"</?([A-Za-z\d][\w:.-]{0,63})(?:\s[^<>\n]{0,1000})?/?>")
NO_TRANSLATION = re.compile(
    r"\stranslate\s*=\s*[\"']?no\b"
    r"|\sclass\s*=\s*(?:\"[^\"]*(?<![\w-])notranslate(?![\w-])|'[^']*(?<![\w-])notranslate(?![\w-])"
    r"|notranslate(?![\w-]))",
    re.IGNORECASE,
)
SEPARATING = re.compile("[\u00a0\u202f\u2007\u2009\u00ad]")  # a model cannot read them
ESCAPED = re.compile("[&<>]")


@dataclass(frozen=True)
class Token:
    """A tag, a comment or declaration (without a name), or a text (kind TEXT)."""

    kind: Kind
    raw: str
    name: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the markup ends before the document does."""
        return self.raw.endswith("-->" if self.raw.startswith("<!--") else ">")


def scan(text: str) -> Iterator[Token]:
    """The tokens of HTML or XML; their `raw` texts together are the input."""
    at = 0
    while at < len(text):
        match = TOKEN.search(text, at)
        begin = match.start() if match else len(text)
        if begin > at:
            yield Token(Kind.TEXT, text[at:begin])
        if match is None:
            return
        at = match.end()
        name = NAME.match(match[0])
        if name is None:
            yield Token(Kind.POINT, match[0])
            continue
        tag = tag_token(match[0], name[1].lower())
        yield tag
        if tag.kind is Kind.OPEN and tag.name in RAW_TEXT:
            end = re.compile(rf"</{re.escape(tag.name)}(?![\w-])", re.IGNORECASE).search(text, at)
            stop = end.start() if end else len(text)
            if stop > at:
                yield Token(Kind.POINT, text[at:stop])
            at = stop


def tag_token(raw: str, name: str) -> Token:
    """The token of a tag."""
    if raw.startswith("</"):
        return Token(Kind.CLOSE, raw, name)
    point = name in VOID or raw.endswith("/>")
    return Token(Kind.POINT if point else Kind.OPEN, raw, name)


def parse_markup(
    text: str, xml: bool = False, ignored: Collection[str] = ()
) -> list[str | Passage]:
    """Divide HTML or XML into passages and markup.

    Args:
        text: the document, or a part of one; it need not be valid.
        xml: an element is inline if there is text beside it, whatever its name.
        ignored: names of further elements that are not translated.

    Returns:
        Passages, and the markup between them as strings; together they are the input.
    """
    tokens = list(scan(text))
    inline = inline_tokens(tokens, xml)
    untranslated = frozenset(ignored) if xml else UNTRANSLATED | frozenset(ignored)
    result: list[str | Passage] = []
    passage: Passage = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        end = i + 1
        if token.kind is Kind.TEXT:
            passage += parse_text(token.raw, markup=True)
        else:
            part, complete = Part(token.kind, token.raw, name=token.name), token.is_complete
            if token.kind is Kind.OPEN and (
                token.name in untranslated or NO_TRANSLATION.search(token.raw)
            ):
                end = element_end(tokens, i)
                raw = "".join(each.raw for each in tokens[i:end])
                part = Part(Kind.FIXED, raw, WORD)
                last = tokens[end - 1]
                complete = last.is_complete and (last.kind, last.name) == (Kind.CLOSE, token.name)
            # Incomplete markup is at the end of the document, and must stay at the end.
            if inline[i] and complete:
                passage.append(part)
            else:
                result += [passage, part.raw]
                passage = []
        i = end
    return [each for each in [*result, passage] if each]


def element_end(tokens: Sequence[Token], start: int) -> int:
    """The index after the end tag of the element that begins at `start`; if it has none, the end of
    the document."""
    name, depth = tokens[start].name, 0
    for i in range(start, len(tokens)):
        if tokens[i].name == name:
            depth += (tokens[i].kind is Kind.OPEN) - (tokens[i].kind is Kind.CLOSE)
            if depth == 0:
                return i + 1
    return len(tokens)


def inline_tokens(tokens: Sequence[Token], xml: bool) -> list[bool]:
    """For each token, whether it can be within a sentence.

    Elements of HTML are listed above. An unknown element is inline if its parent also has text.
    """
    parents, has_text = [0] * len(tokens), {0: False}
    stack = [(0, "")]  # open elements: number and name
    for i, token in enumerate(tokens):
        if token.kind is Kind.CLOSE:
            depth = next((d for d in range(len(stack) - 1, 0, -1) if stack[d][1] == token.name), 0)
            if depth:
                del stack[depth:]
        parents[i] = stack[-1][0]
        if token.kind is Kind.TEXT:
            has_text[stack[-1][0]] |= not token.raw.isspace()
        elif token.kind is Kind.OPEN and len(stack) < 500:
            stack.append((i + 1, token.name))
            has_text[i + 1] = False
    return [
        token.kind is Kind.TEXT
        or (not token.name and not token.raw.startswith(("<!d", "<!D", "<?", "<![")))
        or (not xml and token.name in INLINE)
        or ((xml or token.name not in BLOCK) and bool(token.name) and has_text[parents[i]])
        for i, token in enumerate(tokens)
    ]


def parse_text(raw: str, markup: bool = False) -> Passage:
    """Divide a text into words and parts that must not change.

    Args:
        raw: the text.
        markup: decode its entities; otherwise they are placeholders.

    Returns:
        The parts; their `raw` texts together are the input.
    """
    text, starts, entities = decode_entities(raw)
    spans = {each.start: (each.end, each.natural) for each in find_placeholders(text)}
    singles = {match.start() for match in SEPARATING.finditer(text)} | set(entities)
    if markup:
        singles |= {match.start() for match in ESCAPED.finditer(text)}
    passage: Passage = []
    done = 0

    def add(part: Part, start: int, end: int) -> None:
        nonlocal done
        if start > done:
            plain = text[done:start]
            passage.append(Part(Kind.TEXT, plain, plain))
        elif passage and part.kind is passage[-1].kind is Kind.FIXED:  # adjacent ones are merged
            part = Part(Kind.FIXED, passage.pop().raw + part.raw, WORD)
        passage.append(part)
        done = end

    for start in sorted(spans.keys() | singles):
        if start < done:
            continue
        if start in spans:
            end, natural = spans[start]
            shown = text[start:end] if natural else WORD
            add(Part(Kind.FIXED, raw[starts[start] : starts[end]], shown, natural), start, end)
            continue
        end = start + entities.get(start, 1)
        part = single_part(text[start:end], raw[starts[start] : starts[end]], markup)
        if part.kind is Kind.FIXED and not part.natural:
            start, end = word_around(text, start, end, done)
            part = Part(Kind.FIXED, raw[starts[start] : starts[end]], WORD)
        add(part, start, end)
    if done < len(text):
        passage.append(Part(Kind.TEXT, text[done:], text[done:]))
    return passage


def parse_plain(raw: str) -> Passage:
    """Divide a plain text. What looks like a tag, as in messages of programs, is kept like one."""
    passage: Passage = []
    done = 0
    for match in PLAIN_TAG.finditer(raw):
        kind = Kind.CLOSE if match[0].startswith("</") else Kind.OPEN
        passage += parse_text(raw[done : match.start()])
        passage.append(Part(kind, match[0], name=match[1].lower()))
        done = match.end()
    return passage + parse_text(raw[done:])


def decode_entities(raw: str) -> tuple[str, list[int], dict[int, int]]:
    """Decode the entities of a text.

    Returns:
        The decoded text; for each of its characters, and its end, the position in `raw`; and the
        number of decoded characters of each entity by its position in the decoded text.
    """
    pieces: list[str] = []
    starts: list[int] = []
    entities: dict[int, int] = {}
    done = 0
    for match in ENTITY_PATTERN.finditer(raw):
        character = html.unescape(match[0])
        if character == match[0] or not character:
            continue
        starts += range(done, match.start())
        entities[len(starts)] = len(character)
        starts += [match.start()] * len(character)
        pieces += raw[done : match.start()], character
        done = match.end()
    starts += range(done, len(raw) + 1)
    return "".join([*pieces, raw[done:]]), starts, entities


def single_part(character: str, raw: str, markup: bool) -> Part:
    """The part for an entity, or for a character that needs one in HTML."""
    category = unicodedata.category(character[0])
    if character.isspace() or category in ("Cc", "Cf"):
        return Part(Kind.SPACE, raw, "\u00a0" if character.isspace() else "")
    if character in "&<>" or category[0] == "S":
        natural = character == "&"
        return Part(Kind.FIXED, raw, character if natural else WORD, natural)
    return Part(Kind.TEXT, raw, character) if markup else Part(Kind.FIXED, raw, WORD)
