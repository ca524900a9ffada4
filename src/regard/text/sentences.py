"""Split a text into sentences, so that the text can be put together again exactly.

The rules need no model and no language setting: a sentence ends at a line break, or at a mark such
as . ! ? or … that is followed by a space and by a word that can begin a sentence. Lists of
abbreviations for English, German and French, and rules for initials, ordinals and list markers,
prevent false boundaries. The marks 。！？ also end a sentence without a space after them.

Every decision depends only on the words of the current sentence and on the next words. Splitting a
sentence again therefore returns the same sentence, and the time is linear in the length of a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

WIDE = "。！？｡"  # end a sentence without a space after them
END_MARKS = ".!?…‽؟۔।॥" + WIDE
CLOSERS = "\"'”’“»›«)]}）］｝」』】〉》*_"  # may follow an end mark; “ closes in German
OPENERS = "\"'“„‚‘”’«‹»›([{（［｛「『【〈《¿¡*_"
# A word, up to a wide end mark and what closes it. The possessive quantifier keeps the time linear.
WIDE_CLOSERS = "\"'”’»）］｝」』】〉》)"
ANY_MARK, ANY_WIDE = tuple(END_MARKS), tuple(WIDE)
MARKS = frozenset(END_MARKS + CLOSERS)
WORD = re.compile(rf"[^\s{WIDE}]*+[{WIDE}][{WIDE}!?…{re.escape(WIDE_CLOSERS)}]*|\S+")
LINE_BREAK = re.compile(r"[\n\r\u2028\u2029]")
FIXED_SPACE = "\xa0\u202f\u2007"  # never separates sentences
ALONE = "«‹„“‘([{（¿¡"  # open something even if a space follows
DASHES = "-–—―•·◦▪‣"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations without their last point. After these a sentence never ends ...
NEVER = _words("""
dr mr mrs ms mx prof hon rev revd gen lt sgt capt cmdr maj adm gov sen supt messrs mt st ste
fr hr hrn hll dipl ing dipl.-ing lic jur priv.-doz doz mgr pr vve mlle
e.g i.e eg ie cf viz vs approx esp incl excl resp
z.b d.h bzw vgl ggf evtl bspw sog inkl exkl zzgl abzgl ca entspr geb gegr verh insb insbes bes allg
eigtl urspr staatl städt gesetzl z.t z.zt z.h z.hd i.d.r u.u i.a i.allg m.e s.o s.u o.g i.v.m i.s.d
i.h.v v.a p.ex c.-à-d c-à-d env av boul éd trad
""")
# ... after these only where no number, letter or Roman numeral follows ...
NUMBERED = _words("""
no nos nr nrn fig figs abb tab eq eqs gl art abs ziff rn rz bd bde vol vols kap chap ch sec sect par
para p pp s tel app ex lit bl bsp anm aufl pos ref réf ill pl t op num n gem max min mind str
jan feb febr mar mär apr jun jul aug sep sept oct okt nov dec dez janv févr avr juil déc
""")
# ... and after these, after initials and after other abbreviations with points inside only before
# a word that often begins a sentence.
SOMETIMES = _words("""
inc ltd corp co bros jr sr llc plc assn dept univ al ph.d chr cie sté ave blvd rd min std hrs
mio mrd tsd dgl
""")
MONTHS = _words("""
january february march april may june july august september october november december
januar jänner februar märz mai juni juli oktober dezember
janvier février mars avril juin juillet août septembre octobre novembre décembre
jan feb mar mär apr jun jul aug sep sept oct okt nov dec dez janv févr avr juil déc
""")
# Words before an ordinal number in German: "im 2. Stock", "der 1. Platz".
BEFORE_ORDINAL = _words("""
am im vom zum zur beim ab bis seit der die das den dem des dieser diese dieses ein eine einen einem
einer jeder jede jedes jeden jedem kein keine sein seine ihr ihre mein meine unser unsere den und
oder als auf in nach vor
""")
STARTERS = _words("""
the a an this that these those there here he she it we they you i his her its our their my your who
what when where why how which but and or so then in on at for from after before while if as with by
to not no yes however although because since until also even one some many most all both each
is are was were do does did can could will would should may might let please
now today yesterday tomorrow later soon still once nobody everybody
der die das den dem des ein eine einen einem einer dieser diese dieses diesem diesen jener er sie es
wir ihr ich du man mein meine sein seine ihre unser unsere euer wer was wann wo warum wie welche
welcher aber und oder denn doch so dann da dort hier im am in an auf für von vom zu zum zur bei beim
mit nach vor seit aus nicht nein ja auch wenn als ob weil dass obwohl während alle viele einige kein
keine ist sind war waren hat haben kann können wird werden soll sollte bitte daher deshalb trotzdem
danach dabei damit davon dazu darum dafür dagegen heute gestern morgen jetzt später bald nun
le la les l un une des du de ce cet cette ces il elle on nous vous ils elles je tu mon ma mes son sa
ses notre votre leur leurs qui que quoi quand où pourquoi comment quel quelle mais et ou donc or car
dans sur pour par avec sans après avant depuis pendant chez non oui si aussi comme puis alors ainsi
est sont était à au aux en
el los las una uno lo yo él ella esto esta este pero y cuando
""")

FIRST_WORD = re.compile(r"\W")  # what ends the first word
ELISION = re.compile(r"^(?:[cdjlmnst]|qu)['’](?=\w)", re.IGNORECASE)  # l'article
SHORT = re.compile(r"\w{1,2}\.")  # an initial
INITIAL = re.compile(r"[^\W\d_]")
DOTTED = re.compile(r"(?:[^\W\d_]{1,3}\.-?)+[^\W\d_]{1,3}")
NUMBER = re.compile(r"\d{1,3}")
ROMAN = re.compile(r"[IVXLCDM]{1,7}")
REFERENCE = re.compile(r"\d|(?!I\b)[IVXLC]+\b|(?![AI]\b)[A-Za-z]\b|[§#°]")
MARKER = re.compile(r"\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,5})\)")
BRACKETED_MARK = re.compile(rf"[(\[][{END_MARKS}]+[)\]]")  # (!), [...]
LETTER = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class SplitText:
    """The sentences of a text, and what separates them.

    Attributes:
        sentences: the sentences, without spaces around them; none is empty.
        separators: the white space before the first sentence, between each two sentences, and after
            the last one: one more than there are sentences.
    """

    sentences: list[str]
    separators: list[str]

    def join(self, sentences: Sequence[str] | None = None) -> str:
        """Put sentences and separators together.

        Args:
            sentences: one text in place of each sentence, such as its translation; None: the
                sentences themselves, which restores the text exactly. Two texts that no white space
                separates get a space between them, unless the first ends with a mark such as 。

        Returns:
            The text.

        Raises:
            ValueError: there are more or fewer texts than sentences.
        """
        texts = self.sentences if sentences is None else sentences
        parts = [self.separators[0]]
        for i, text in enumerate(texts):
            parts += text, self.separators[i + 1]
            last = i == len(texts) - 1
            if sentences is not None and not last and needs_space(text, self.separators[i + 1]):
                parts.append(" ")
        if len(texts) != len(self.sentences):
            raise ValueError(f"{len(texts)} texts for {len(self.sentences)} sentences")
        return "".join(parts)


def needs_space(text: str, separator: str) -> bool:
    """Whether a space must separate a text from the next one: sentences that end with 。 have no
    separator, but their translations can need one."""
    return not separator and bool(text) and not text.rstrip(CLOSERS).endswith(ANY_WIDE)


def split_sentences(text: str) -> SplitText:
    """Split a text into sentences.

    Args:
        text: a text of any length and any number of lines. A line break always ends a sentence.

    Returns:
        The sentences and the white space around them; `SplitText.join` restores the text exactly. A
        text without words has no sentences.
    """
    spans = [match.span() for match in WORD.finditer(text)]
    if not spans:
        return SplitText([], [text])
    words = [text[start:end] for start, end in spans]
    bounds = _boundaries(text, spans, words)
    first, last = [0, *bounds], [*bounds, len(spans)]
    begins, ends = [spans[i][0] for i in first], [spans[i - 1][1] for i in last]
    sentences = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    inner = [text[end:begin] for end, begin in zip(ends, begins[1:], strict=False)]
    return SplitText(sentences, [text[: begins[0]], *inner, text[ends[-1] :]])


def _boundaries(text: str, spans: list[tuple[int, int]], words: list[str]) -> list[int]:
    """The index of the first word of each sentence but the first."""
    boundaries: list[int] = []
    several_lines = LINE_BREAK.search(text) is not None
    start = 0  # first word of the current sentence
    stop = -1  # the last word with an end mark, if only symbols follow it
    spoken = False  # whether the current sentence has a letter or a digit
    capitals = False  # whether it has a capital letter
    for i, word in enumerate(words[:-1]):
        spoken = spoken or LETTER.search(word) is not None
        capitals = capitals or word != word.lower()
        if word[-1] in MARKS and _has_end_mark(word):
            stop = i
        elif stop >= 0 and LETTER.search(word):
            stop = -1
        ends = False
        if several_lines and LINE_BREAK.search(text, spans[i][1], spans[i + 1][0]):
            ends = True
        elif stop >= 0 and spoken:
            gap = text[spans[i][1] : spans[i + 1][0]]
            if words[stop].rstrip(CLOSERS).endswith(ANY_WIDE):
                ends = LETTER.search(words[i + 1]) is not None
            elif gap.strip(FIXED_SPACE):
                ends = _ends(words, start, stop, i + 1, capitals)
        if ends:
            boundaries.append(i + 1)
            start, stop, spoken, capitals = i + 1, -1, False, False
    return boundaries


def _has_end_mark(word: str) -> bool:
    """Whether a word ends with an end mark, apart from what closes a quotation or a bracket."""
    return word.rstrip(CLOSERS).endswith(ANY_MARK) and not BRACKETED_MARK.fullmatch(word)


def _ends(words: list[str], start: int, stop: int, following: int, capitals: bool) -> bool:
    """Whether the sentence that begins at word `start` ends after word `stop`, which has an end
    mark, and before word `following`. capitals: whether the sentence has a capital letter."""
    bare = words[following].strip(DASHES)
    if (not bare or bare in ALONE) and following + 1 < len(words):  # « before the next sentence
        bare = words[following + 1]
    begin = bare.lstrip(OPENERS)
    if not begin or not LETTER.search(begin):
        return False  # only symbols: they belong to this sentence
    first, last = begin[0], words[stop].rstrip(CLOSERS)
    closed = len(last) < len(words[stop])
    marker = MARKER.match(bare) is not None
    # After a quotation, a small letter continues the sentence (he shouted). Elsewhere it can
    # begin a sentence of a text that has no capital letters.
    small = first.islower() and not marker and not begin[1:2].isupper()
    if small and (capitals or closed or (stop == start and last[-1] == ".")):
        return False
    if not LETTER.match(first) and not marker and first not in "$€£§#@":
        return False
    if last[-1] != "." or last.endswith(".."):
        return True
    word = last[:-1].lstrip(OPENERS)
    return word == "" or not _abbreviates(word, words, start, stop, begin, closed)


def _abbreviates(
    word: str, words: list[str], start: int, stop: int, begin: str, closed: bool
) -> bool:
    """Whether the point after `word` belongs to an abbreviation, an initial or an ordinal number
    that does not end the sentence.

    Args:
        word: the word without its point.
        words, start, stop: all words, the first of the sentence, and the one with the point.
        begin: the next word, without quotation marks and brackets before it.
        closed: whether a quotation mark or a bracket follows the point.
    """
    lower = ELISION.sub("", word.lower())
    first = FIRST_WORD.split(begin, maxsplit=1)[0].lower()
    starts = ELISION.match(begin) is not None or first in STARTERS
    starts = starts and not SHORT.fullmatch(begin)
    # Parts of "z. B.", "i. d. R." and "p. ex." are separate words.
    together = lower
    for k in range(stop - 1, max(start, stop - 3) - 1, -1):
        if not words[k].endswith(".") or len(words[k]) > 5:
            break
        together = words[k].lstrip(OPENERS).lower() + together
        if together in NEVER:
            return True
    if lower in NEVER or word in ("M", "MM"):  # M. de Villiers
        return True
    if closed:
        return False
    if (lower in NUMBERED or lower.endswith("str")) and REFERENCE.match(begin):
        return True
    if NUMBER.fullmatch(word) or (ROMAN.fullmatch(word) and len(word) > 1):
        return _is_ordinal(words, start, stop, begin, starts)
    if stop == start and len(word) == 1:  # "a. First item"
        return True
    if lower in SOMETIMES or INITIAL.fullmatch(word) or DOTTED.fullmatch(word):
        return not starts
    return False


def _is_ordinal(words: list[str], start: int, stop: int, begin: str, starts: bool) -> bool:
    """Whether the number with a point `words[stop]` is a list marker or an ordinal number."""
    if stop == start or begin[0].isdigit() or begin.rstrip(".,;:").lower() in MONTHS:
        return True
    previous = words[stop - 1].lstrip(OPENERS).lower()
    if previous == "am" and stop - 1 > start and words[stop - 2] == "I":  # I am 21.
        return False
    if previous.endswith(".") and previous[:-1].isdigit():  # the month of "am 3. 5. Beginn"
        return not starts
    return previous in BEFORE_ORDINAL and not starts
