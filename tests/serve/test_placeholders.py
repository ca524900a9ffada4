"""Placeholders: which parts of a text are kept, and that no model can lose or change one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.serve.document import Format
from regard.serve.placeholders import FIRST_NUMBERS, StandIns, find_placeholders
from serve.scripted import ScriptedModel, copy, garbler, run


def spans(text):
    return [text[each.start : each.end] for each in find_placeholders(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You have %d new messages.", ["%d"]),
        ("%1$s sent %2$s to %(name)s: %-5.2f", ["%1$s", "%2$s", "%(name)s", "%-5.2f"]),
        ("{name}, {{x}}, ${x}, {0}, {0:.2f}, {}", ["{name}", "{{x}}", "${x}", "{0}", "{0:.2f}", "{}"]),
        ("{n, plural, one {# file} other {# files}} left", ["{n, plural, one {# file} other {# files}}"]),
        ("See https://a.org/x?b=1#c, then (www.b.de).", ["https://a.org/x?b=1#c", "www.b.de"]),
        ("(https://en.wikipedia.org/wiki/A_(b))", ["https://en.wikipedia.org/wiki/A_(b)"]),
        ("Write to a.b+c@d-e.org.", ["a.b+c@d-e.org"]),
        ("5 km, 3.5 GB, 20 °C, -1,234.5 km/h, 45%, $5.00", ["5 km", "3.5 GB", "20 °C", "-1,234.5 km/h", "45%", "$5.00"]),
        ("In the 1990s, 100% sure", ["100%"]),
        ("Run `pip install x` or ``a``.", ["`pip install x`", "``a``"]),
        ("%s%s {a}{b} pre{c}fix /home/%s/x %s.txt #{id}", ["%s%s", "{a}{b}", "pre{c}fix", "/home/%s/x", "%s.txt", "#{id}"]),
        ("{see the notes} 50 % {b", ["50 %"]),
        ("Open README.md in $HOME.", ["README.md", "$HOME"]),
        ("No placeholder, e.g. in the U.S. or 5 men.", []),
    ],
)  # fmt: skip
def test_find_placeholders(text, expected):
    assert spans(text) == expected


@pytest.mark.parametrize(
    "text",
    ["{" * 20_000, "`" * 20_000, "a" * 20_000, "a@" * 9_000, "a." * 9_000, "%" * 20_000, "/" * 20_000,
     "{a}b" * 5_000, "{a,plural" * 2_000],
)  # fmt: skip
def test_hostile_text_takes_linear_time(text):
    assert len(find_placeholders(text)) <= 2_000


def test_stand_ins_are_not_in_the_text():
    first = FIRST_NUMBERS[0]
    stand_ins = StandIns(["{a}", "5 km"], ["{a}", "5 km"], [False, True], f"{first} is here", first)
    assert stand_ins.texts == [str(first + 1), "5 km"]
    assert stand_ins.locate(f"{first + 1} und 5 km") == [(0, 4, 0), (9, 13, 1)]
    for wrong in ("5 km", f"{first + 1} 15 km", f"{first + 1} {first + 1} 5 km", f"{first + 1}er 5 km",
                  f"{first + 1}.5 und 5 km"):  # fmt: skip
        assert stand_ins.locate(wrong) is None


def test_numbers_of_the_user_are_not_placeholders():
    text = f"{FIRST_NUMBERS[0]} people and {{name}} and {FIRST_NUMBERS[1]} more."
    assert run(ScriptedModel(copy), text) == text


def test_second_attempt_and_fallback():
    lossy = {str(number) for number in FIRST_NUMBERS[:1]}
    model = ScriptedModel(
        lambda text: [" ".join(w for w in text.upper().split() if w not in lossy)]
    )
    assert run(model, "hello {name} there") == "HELLO {name} THERE"
    assert len(model.calls) == 2
    lossy |= {str(number) for number in FIRST_NUMBERS}
    model.calls.clear()
    assert run(model, "hello {name} there, %d friends") == "HELLO {name} THERE, %d FRIENDS"
    assert model.calls[2] == ["hello ", " there, ", " friends"]


def test_placeholder_in_a_worse_translation_is_used():
    model = ScriptedModel(lambda text: ["lost it", text.upper()])
    assert run(model, "hello {name}") == "HELLO {name}"
    assert len(model.calls) == 1


PARTS = st.sampled_from(
    [
        "hello",
        "world,",
        "dogs.",
        "The",
        "7391",
        "4628",
        "12",
        "(so)",
        "\n",
        "%s",
        "%1$s",
        "%(name)s",
        "{name}",
        "{0}",
        "{{x}}",
        "${x}",
        "5 km",
        "3.5 GB",
        "20 °C",
        "https://e.org/a?b=1",
        "a@b.org",
        "&amp;",
        "&nbsp;",
        "&eacute;",
        "`x y`",
        "\xa0",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS).map(" ".join), st.integers(0, 10**6))
def test_placeholders_survive_any_model(text, seed):
    translation = run(ScriptedModel(garbler(seed)), text)
    for part in ("%s", "%1$s", "%(name)s", "{name}", "{0}", "{{x}}", "${x}", "https://e.org/a?b=1",
                 "a@b.org", "&amp;", "&nbsp;", "&eacute;", "`x y`", "\u00a0"):  # fmt: skip
        assert translation.count(part) == text.count(part)
    quantities = {"5 km", "3.5 GB", "20 °C"}
    kept = [Counter(s for s in spans(t) if s in quantities) for t in (text, translation)]
    assert kept[0] == kept[1]


@settings(max_examples=200, deadline=None)
@given(st.text() | st.lists(PARTS).map(" ".join))
def test_copying_model_changes_nothing(text):
    assert run(ScriptedModel(copy), text) == text


def test_no_split_reads_the_text_as_one():
    model = ScriptedModel(copy)
    run(model, "One dog. Two\ndogs.", Format(split=False))
    run(model, "One dog. Two\ndogs.", Format(newlines=False))
    run(model, "One dog. Two\ndogs.")
    assert [len(call) for call in model.calls] == [1, 2, 3]
