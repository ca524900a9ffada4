"""The attention page: its content, its content security policy, and its behaviour in a real browser
(Chromium)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from regard import InputError
from regard.predictor.attention import Attention, Stack, View
from regard.view import attention_page
from regard.view.attention_page import page, write_page
from tools.browser import AVAILABLE, INSTALL, start_browser

EVIL = "</script><img src=x onerror=document.title='bad'>"
NEEDS = pytest.mark.skipif(not AVAILABLE, reason=INSTALL)


def attention(n=3, m=4, layers=2, heads=2, tokens=("a", "▁b", "<eos>", "c")):
    """Random weights of cross-attention and of a decoder."""
    random = np.random.default_rng(3)
    stacks = {}
    for name, width in (("decoder", n), ("cross", m)):
        weights = random.random((layers, heads, n, width)) ** 3
        weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
        rows, columns = ([tokens[i % len(tokens)] for i in range(size)] for size in (n, width))
        writes = [f"w{i}" for i in range(n)]
        stacks[name] = Stack(name, rows, columns, weights, weights.mean(1), writes)
    return Attention("model", "translate", "encoder-decoder", "text", "target", stacks)


VIEW = View("grid", "cross", None, None)


class Parts(HTMLParser):
    """The elements of a page, and the text of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.inline, self.inside = [], {}, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.inside = dict(attributes).get("type", tag)

    def handle_data(self, data):
        if self.inside:
            self.inline[self.inside], self.inside = data, ""


def test_page_contains_the_weights_to_four_digits():
    sample = attention()
    data = json.loads(Parts(page(sample, VIEW)).inline["application/json"])
    for stack, stored in zip(sample.stacks.values(), data["stacks"], strict=True):
        assert (stored["rows"], stored["columns"]) == (stack.rows, stack.columns)
        for name in ("weights", "rollout"):
            expected = getattr(stack, name)
            actual = np.frombuffer(base64.b64decode(stored[name]), "<u2").reshape(expected.shape)
            np.testing.assert_allclose(actual / 65535, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "layer", "head", "expected"),
    [
        ("grid", None, None, {"what": "head", "how": "map", "layer": 2, "head": 1}),
        ("lines", 1, 2, {"what": "head", "how": "lines", "layer": 1, "head": 2}),
        ("mean", None, None, {"what": "mean", "how": "map", "layer": 2, "head": 1}),
        ("rollout", 1, None, {"what": "rollout", "how": "map", "layer": 1, "head": 1}),
    ],
)
def test_page_starts_with_the_requested_view(kind, layer, head, expected):
    text = page(attention(), View(kind, "decoder", layer, head))
    data = json.loads(Parts(text).inline["application/json"])
    assert data["view"] == {"stack": "decoder", **expected}


def test_tokens_never_become_markup():
    sample = attention(tokens=(EVIL, "<!--", "{{script}}", "]]>"))
    text = page(sample, VIEW)
    actual, usual = Parts(text), Parts(page(attention(), VIEW))
    assert actual.elements == usual.elements
    data = json.loads(actual.inline["application/json"])
    assert data["stacks"][0]["rows"] == [EVIL, "<!--", "{{script}}"]
    named = Attention(f"<b>{EVIL}", "fill", "encoder", EVIL, "", sample.stacks)
    assert [tag for tag, _ in Parts(page(named, VIEW)).elements] == [
        tag for tag, _ in usual.elements
    ]


def test_content_security_policy_allows_only_the_script_and_style_of_the_page():
    actual = Parts(page(attention(), VIEW))
    [policy] = [a["content"] for tag, a in actual.elements if tag == "meta" and "http-equiv" in a]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for name in ("script", "style"):
        digest = hashlib.sha256(actual.inline[name].encode()).digest()
        assert rules.pop(f"{name}-src") == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert set(rules.values()) == {"'none'"}
    assert rules["default-src"] == "'none'"
    urls = {name for _, attributes in actual.elements for name in attributes} & {"src", "href"}
    assert not urls
    assert not re.search(
        r"https?:|//\w|@import|url\(", "".join(actual.inline.values()).replace("// ", "")
    )


def test_page_that_would_be_too_large_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(attention_page, "MOST_WEIGHTS", 10)
    with pytest.raises(InputError, match="weights, but at most 10 fit: shorten the text"):
        write_page(attention(), VIEW, tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_the_largest_page_stays_under_30_megabytes():
    assert attention_page.MOST_WEIGHTS * 2 * 4 / 3 < 30e6


# ---- in a browser -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with start_browser() as started:
        yield started


ARROW_UP, ARROW_DOWN, ARROW_RIGHT, ESCAPE = "\ue013", "\ue015", "\ue014", "\ue00c"


@NEEDS
def test_pointing_at_a_token_lists_its_weights(browser, tmp_path):
    sample = attention()
    write_page(sample, View("head", "cross", 1, 2), tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    assert browser.text("#shown") == "Cross-attention: layer 1, head 2"
    assert browser.text("#details") == ""
    stack = sample.stacks["cross"]
    browser.hover("#stage [data-row='1']")
    row = stack.weights[0, 1, 1]
    best = int(row.argmax())
    details = browser.text("#details")
    assert details.startswith("▁b (writes w1) attends to")
    listed = re.findall(r"(\S+)\n(\d\.\d{4})", details)
    assert listed[0] == (stack.columns[best], f"{row[best]:.4f}")
    assert [float(weight) for _, weight in listed] == pytest.approx(
        sorted(row, reverse=True), abs=1e-4
    )
    browser.hover("#stage [data-column='2']")
    assert browser.text("#details").startswith("<eos> receives attention from")
    place = browser.script(
        "return [place.left, place.top, place.cell, stage.offsetWidth, stage.offsetHeight]"
    )
    left, top, cell, width, height = place
    x, y = left + 3.5 * cell - width / 2, top + 2.5 * cell - height / 2
    browser.hover("#stage", int(x), int(y))  # row 3, column 4, by mouse
    assert browser.text("#details").startswith(
        f"<eos> (writes w2) attends to c: {stack.weights[0, 1, 2, 3]:.4f}"
    )
    browser.hover("h1")
    assert browser.text("#details") == ""
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "a.html").as_uri()]


@NEEDS
def test_every_stack_head_and_kind_can_be_selected(browser, tmp_path):
    sample = attention()
    write_page(sample, VIEW, tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    browser.click("#grid button[aria-label='layer 2, head 2']")
    assert browser.text("#shown") == "Cross-attention: layer 2, head 2"
    pressed = "return [...document.querySelectorAll('[aria-pressed=true]')].map((b) => b.ariaLabel)"
    assert browser.script(pressed) == ["layer 2, head 2"]
    browser.click("[name=stack][value=decoder]")
    assert browser.text("#shown") == "Self-attention of the decoder: layer 2, head 2"
    stack = sample.stacks["decoder"]
    for weights_of, title, matrix in (
        ("mean", "layer 2, mean over heads", stack.weights[1].mean(0)),
        ("rollout", "rollout through layer 2", stack.rollout[1]),
        ("head", "layer 2, head 2", stack.weights[1, 1]),
    ):
        browser.click(f"[name=what][value={weights_of}]")
        assert browser.text("#shown") == f"Self-attention of the decoder: {title}"
        for drawing in ("lines", "map"):
            browser.click(f"[name=how][value={drawing}]")
            browser.hover("#stage [data-row='0']")
            weights = re.findall(r"\d\.\d{4}", browser.text("#details"))
            assert [float(w) for w in weights] == pytest.approx(sorted(matrix[0])[::-1], abs=1e-4)
    assert browser.script("return form.elements.head.disabled") is False
    assert browser.complaints() == []


@NEEDS
def test_keyboard_reaches_every_function(browser, tmp_path):
    sample = attention()
    write_page(sample, View("head", "cross", 1, 1), tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    browser.script("stage.focus()")
    browser.press(ARROW_DOWN, ARROW_DOWN, ARROW_RIGHT)
    weights = sample.stacks["cross"].weights[0, 0]
    assert browser.text("#details").startswith(f"▁b (writes w1) attends to a: {weights[1, 0]:.4f}")
    browser.press(ARROW_UP, ARROW_UP, ARROW_UP)
    assert browser.text("#details").startswith("a receives attention from")
    browser.press(ESCAPE)
    assert browser.text("#details") == ""
    order = "return [...document.querySelectorAll('input, select, button, [tabindex]')].every((e) => e.tabIndex >= 0)"
    assert browser.script(order)
    browser.script("document.querySelector('#grid button:last-of-type').focus()")
    browser.press("\ue007")  # Enter
    assert browser.text("#shown") == "Cross-attention: layer 2, head 2"


@NEEDS
def test_markup_in_a_text_stays_text(browser, tmp_path):
    sample = attention(tokens=(EVIL, "b", "<img src=x onerror=alert(1)>", "d"))
    sample = Attention("m", "translate", "encoder-decoder", EVIL, EVIL, sample.stacks)
    write_page(sample, VIEW, tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    assert browser.text("#text") == EVIL
    browser.hover("#stage [data-row='0']")
    assert browser.text("#details").startswith(f"{EVIL} (writes w0) attends to")
    assert browser.script("return [document.images.length, document.title]") == [
        0,
        "Attention of m",
    ]
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "a.html").as_uri()]


@NEEDS
@pytest.mark.parametrize("size", [1, 200])
def test_pages_of_1_and_200_tokens_fit(browser, tmp_path, size):
    sample = attention(size, size, 1, 1)
    write_page(sample, View("head", "cross", 1, 1), tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    for drawing in ("map", "lines"):
        browser.click(f"[name=how][value={drawing}]")
        browser.hover(f"#stage [data-row='{size - 1}']")
        assert "attends to" in browser.text("#details")
        lines = browser.script("return document.querySelectorAll('#details li').length")
        assert lines == min(size, 12)
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []
