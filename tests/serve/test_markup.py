"""HTML and XML: every byte of markup is kept, whatever the input and the model."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.serve.document import Format
from regard.serve.markup import Kind, parse_markup, parse_text, scan
from serve.scripted import ScriptedModel, copy, garbler, run

HTML, XML = Format("html"), Format("xml")
SNIPPETS = st.sampled_from(
    [
        "<p>",
        "</p>",
        '<div class="a b">',
        "</div>",
        "<b>",
        "</b>",
        "<i>",
        "</i>",
        '<a href="x?a=1&amp;b=2">',
        "</a>",
        "<br>",
        "<br/>",
        "<img src='a\"b'>",
        "<!--c-->",
        "<!DOCTYPE html>",
        "<![CDATA[x<y]]>",
        "<?pi?>",
        "<code>",
        "</code>",
        "<script>",
        "</script>",
        "<x-y>",
        "</x-y>",
        "</ul>",
        "<li>",
        '<span translate="no">',
        "</span>",
        '<em class="notranslate">',
        "</em>",
        "<",
        ">",
        "&",
        '"',
        "'",
        "&amp;",
        "&lt;",
        "&nbsp;",
        "&copy;",
        "&eacute;",
        "&bogus;",
        "{name}",
        "%s",
        "5&nbsp;km",
        "<b",
        '<a x="',
        "https://e.org/?a&amp;b",
        "<!--",
        "<3",
        "Hello",
        "world,",
        "dog sleeps.",
        "The",
        "7391",
        "Done!",
        "</",
        "&#39;",
        "&#xe9;",
        "\xa0",
        "\xad",
        "red dog",
    ]
)
DOCUMENTS = st.lists(st.one_of(SNIPPETS, st.sampled_from(["", " ", "\n  "]), st.text(max_size=3)))
DOCUMENTS = DOCUMENTS.map(lambda parts: "".join(parts)).filter(lambda text: "\x00" not in text)


def markup_of(text):
    return [token.raw for token in scan(text) if token.kind is not Kind.TEXT]


def joined(items):
    return "".join(
        item if isinstance(item, str) else "".join(part.raw for part in item) for item in items
    )


@given(DOCUMENTS, st.booleans())
def test_parts_together_are_the_input(text, xml):
    assert "".join(token.raw for token in scan(text)) == text
    assert joined(parse_markup(text, xml)) == text
    assert joined([parse_text(text)]) == text


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.sampled_from([HTML, XML]), st.integers(0, 10**6))
def test_markup_survives_any_model(text, form, seed):
    translation = run(ScriptedModel(garbler(seed)), text, form)
    assert markup_of(translation) == markup_of(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(SNIPPETS).map(" ".join), st.sampled_from([HTML, XML]))
def test_copying_model_changes_only_white_space(text, form):
    translation = run(ScriptedModel(copy), text, form)
    blank = re.compile(r"[\s\u00ad]+")
    assert blank.sub("", html.unescape(translation)) == blank.sub("", html.unescape(text))


@pytest.mark.parametrize(
    "text",
    [
        '<p class="x">A man <b>rides</b> a <i>horse</i>.</p>\n<ul>\n  <li>One dog</li>\n</ul>',
        "<p>Click <a href='x'>here</a>, please &amp; read\u00a0it.</p>",
        "First <br>line <img src=x> with <!-- a comment --> words.",
        "<p><b>All of it is bold.</b> <i>And italic.</i></p>",
    ],
)
def test_tags_return_to_their_words(text):
    assert run(ScriptedModel(copy), text, HTML) == text


def test_tag_within_a_word_moves_to_its_end():
    assert (
        run(ScriptedModel(copy), "It is un<b>believ</b>able.", HTML) == "It is <b>unbelievable</b>."
    )


def test_tags_follow_the_attention():
    # The translation has the words in the opposite order, and attends accordingly.
    model = ScriptedModel(lambda text: [" ".join(reversed(text.split()))])
    prediction = model.prediction

    def attending(text, attention):
        output = prediction(text, attention)
        if attention:
            weights = output.attention["cross"][0]
            weights.zero_()
            for word in text.split():
                at, to = text.index(word), output.text.index(word)
                weights[0, to : to + len(word), at : at + len(word)] = 1
        return output

    model.prediction = attending
    assert run(model, "red <b>green</b> blue white", HTML) == "white blue <b>green</b> red"
    assert run(model, "red green <b>blue white</b>", HTML) == "<b>white blue</b> green red"


def test_untranslated_elements():
    model = ScriptedModel(lambda text: [text.upper()])
    text = (
        "<pre>one <b>two</b></pre><script>var a = '<p>x</p>';</script><style>p {}</style>"
        '<textarea>x</textarea><div translate="no">stay <div>stay</div> stay</div>'
        "<p class='a notranslate'>stay</p><!-- stay --><p title='stay'>go</p>"
    )
    assert run(model, text, HTML) == text.replace(">go<", ">GO<")
    assert run(model, "run <code>a &lt; b</code> now", HTML) == "RUN <code>a &lt; b</code> NOW"
    assert run(model, "a <kept>b</kept> c", Format("xml", ignored=frozenset({"kept"}))) == (
        "A <kept>b</kept> C"
    )


def test_blocks_separate_texts():
    model = ScriptedModel(lambda text: [text])
    run(model, "<p>one</p>two<br>three<td>four <b>five</b></td>", HTML)
    assert model.calls == [["one", "two", "three", "four five"]]
    model.calls.clear()
    run(model, "<doc><t>one</t><t>two <x>three</x></t></doc>", XML)
    assert model.calls == [["one", "two three"]]


def test_line_breaks_in_html_do_not_end_sentences():
    model = ScriptedModel(copy)
    assert run(model, "<p>\n  one\n  two\n</p>", HTML) == "<p>\n  one two\n</p>"
    assert model.calls == [["one two"]]


def test_entities():
    model = ScriptedModel(lambda text: [text.replace("caf\u00e9", "Caf\u00e9")])
    text = "&lt;b&gt; is &amp; a caf&eacute; &copy;&nbsp;2026 &quot;x&quot;"
    assert run(model, text, HTML) == text.replace("caf", "Caf")
    # Text that a model invents never becomes markup.
    inventing = ScriptedModel(lambda text: [text + " <script> &"])
    assert run(inventing, "hello", HTML) == "hello &lt;script&gt; &amp;"


@pytest.mark.parametrize(
    "text", ["<" * 9_000, '<a "' * 5_000, "<code>" * 3_000, "<b>" * 6_000, "&amp;" * 4_000]
)
def test_hostile_markup_takes_linear_time(text):
    assert joined(parse_markup(text)) == text
