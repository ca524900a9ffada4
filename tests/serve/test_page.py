"""The web page in a real browser (Chromium), with the models in the box."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from regard.view.walk_json import walk_json
from serve.live import boxed, serve
from tools.browser import AVAILABLE, INSTALL, start_browser

NEEDS = pytest.mark.skipif(not AVAILABLE, reason=INSTALL)
TAB, ENTER, ESCAPE, SHIFT = "\ue004", "\ue007", "\ue00c", "\ue008"
LEFT, RIGHT, DOWN, HOME = "\ue012", "\ue014", "\ue015", "\ue011"
EVIL = "<img src=x onerror=document.title='bad'><script>document.title='bad'</script>"
TEXT = "My sister bought a new car yesterday. The dog sleeps."
TABS = {
    "translate": {"text": TEXT},
    "generate": {"prompt": "ROMEO:", "max_tokens": "40"},
    "classify": {"text": "A wonderful, moving film.\nA dull and boring mess."},
    "fill": {"text": "The acting was <mask>."},
    "answer": {},
    "search": {"query": "a sleeping cat", "documents": "A cat sleeps.\nIt rains in Rome.\nThe car is red."},
    "embeddings": {"text": "A cat sleeps.\nEine Katze schläft.\nIt rains."},
    "attention": {"text": "The cat sleeps.", "model": "translate"},
    "walk": {"text": "cats"},
}  # fmt: skip


@pytest.fixture(scope="module")
def url():
    with serve(walk=walk_json) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with start_browser() as started:
        yield started


@pytest.fixture
def browser(chromium, url):
    """The browser, at desktop width. Afterwards: no messages in the console, and no request to
    another address."""
    chromium.emulate(1200, 900)
    yield chromium
    assert chromium.complaints() == []
    assert {
        each for each in chromium.requests() if not each.startswith((f"{url}/", "data:"))
    } == set()


def show(browser, url, tab, **state):
    """Open a tab with a state, and wait for its results."""
    browser.open(f"{url}/#{urlencode({'tab': tab, **state})}")
    browser.wait("'ready' in document.body.dataset")
    settle(browser)


def settle(browser):
    browser.wait("!document.querySelector('[aria-busy]')")


def enter(browser, selector, text):
    """Put a text into a field at once."""
    browser.script(
        f"const field = document.querySelector('{selector}'); field.value = {json.dumps(text)};"
        "field.dispatchEvent(new Event('input', {bubbles: true}))"
    )


def translated(text):
    return " ".join(boxed("translate").predict([text], split=True)[0].text.split())


def word(text, side="translation"):
    """A selector for a word of the translation or of the text."""
    return f"#{side} [data-test='{text}']"


def name_words(browser):
    """Give the words attributes with their texts, for selectors."""
    browser.script(
        "for (const e of document.querySelectorAll('.word')) e.dataset.test = e.textContent"
    )


# ---- without a browser ------------------------------------------------------------------


def fetch(address, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Inline(HTMLParser):
    """The attributes and script elements of a page that a strict policy does not allow."""

    def __init__(self, text):
        super().__init__()
        self.parts, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        self.links += [names[name] for name in ("src", "href") if name in names]
        self.parts += [name for name in names if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.parts.append(tag)


@pytest.mark.parametrize("path", ["", "api"])
def test_the_pages_have_a_strict_policy_and_nothing_inline(url, path):
    status, headers, body = fetch(f"{url}/{path}")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    page = Inline(body.decode())
    assert page.parts == []
    assert [link for link in page.links if re.match(r"[a-z]+:|//", link)] == []
    for link in page.links:
        if "static/" in link:
            assert fetch(f"{url}/{link.removeprefix('/')}")[0] == 200


def test_static_files_are_revalidated_and_only_those_of_the_page_exist(url):
    status, headers, body = fetch(f"{url}/static/main.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert headers["cache-control"] == "no-cache"
    assert b"import " in body
    status, again, body = fetch(f"{url}/static/main.js", **{"If-None-Match": headers["etag"]})
    assert (status, again["etag"], body) == (304, headers["etag"], b"")
    for path in ("missing.js", "index.html", "..%2fapp.py", "%2e%2e/app.py"):
        assert fetch(f"{url}/static/{path}")[0] == 404, path


# ---- translate --------------------------------------------------------------------------


@NEEDS
def test_translates_as_you_type(browser, url):
    show(browser, url, "translate")
    browser.type("#text", TEXT)
    expected = translated(TEXT)
    browser.wait(f"document.querySelector('#translation').textContent === {json.dumps(expected)}")
    assert browser.text("#detected") == "Detected: English"
    spoken = browser.script("return document.querySelector('#announcement').textContent")
    assert spoken == expected
    assert browser.script("return document.querySelector('#swap').disabled")
    assert browser.script("return document.querySelector('#swap').title") == (
        "No model translates from German to English"
    )
    browser.click("#copy")
    browser.wait("document.querySelector('#copy').textContent === 'Copied'")
    mirror = "return document.querySelector('#mirror').textContent.replace('\\u200b', '')"
    assert browser.script(mirror) == TEXT


@NEEDS
@pytest.mark.parametrize(
    ("text", "detected"),
    [
        ("Der Hund schläft im Haus und träumt.", "Detected: German, not translated"),
        ("Bonjour, comment allez-vous ?", "Detected: French, translated as English"),
    ],
)
def test_the_detected_language_is_not_that_of_the_model(browser, url, text, detected):
    show(browser, url, "translate", text=text)
    browser.wait("document.querySelector('#translation').textContent")
    assert browser.text("#detected") == detected


@NEEDS
def test_a_superseded_request_is_cancelled(browser, url):
    show(browser, url, "translate")
    long = "The old man with the red hat walks slowly through the park. " * 30
    enter(browser, "#text", long)
    browser.wait("document.querySelector('[aria-busy]')")
    enter(browser, "#text", "The dog sleeps.")
    expected = json.dumps(translated("The dog sleeps."))
    browser.wait(f"document.querySelector('#translation').textContent === {expected}")
    cancelled = browser.events("Network.loadingFailed")
    assert [event["canceled"] for event in cancelled] == [True]


@NEEDS
def test_an_alternative_forces_the_prefix_and_can_be_undone(browser, url):
    show(browser, url, "translate", text=TEXT)
    before = browser.text("#translation")
    first, second = before.split(". ", 1)
    name_words(browser)
    browser.click(word("gestern"))
    browser.wait("document.querySelector('#alternatives button:nth-of-type(2)')")
    prefix = first[: first.index("gestern")]
    current = "#alternatives button[aria-current] span"
    assert browser.text(current).removesuffix(" ✓") == "gestern"
    chosen = browser.text("#alternatives button:nth-of-type(2) span")
    assert chosen != "gestern"
    browser.click("#alternatives button:nth-of-type(2)")
    browser.wait("document.querySelector('#undo')")
    after = browser.text("#translation")
    assert after.startswith(prefix + chosen)
    assert after.endswith(f". {second}")
    assert browser.text("#translation .forced") == chosen
    assert browser.script("return document.activeElement.textContent") == chosen
    # The marks still belong to the words: the offsets of the second sentence have moved.
    name_words(browser)
    browser.hover(word("Hund"))
    assert marked(browser, "mirror")[0][1] == "dog"
    browser.wait("location.hash.includes('chosen')")
    browser.open(browser.script("return location.href"))  # the choice is in the address
    browser.wait(f"document.querySelector('#translation').textContent === {json.dumps(after)}")
    assert browser.text("#translation .forced") == chosen
    browser.click("#undo")
    browser.wait(f"document.querySelector('#translation').textContent === {json.dumps(before)}")
    assert browser.text("#forced") == ""


def marked(browser, side):
    """The weights and texts of the words of one side, largest first."""
    words = browser.script(
        f"return [...document.querySelectorAll('#{side} .word')].map((e) =>"
        " [Number(e.style.getPropertyValue('--weight')), e.textContent])"
    )
    return sorted(words, reverse=True)


@NEEDS
def test_pointing_at_a_word_shows_the_attention_of_every_layer_and_head(browser, url):
    show(browser, url, "translate", text=TEXT)
    name_words(browser)
    browser.hover(word("Auto"))
    assert marked(browser, "mirror")[0] == [1, "car"]
    assert browser.text("#aligned").startswith("Auto attends to: car ")
    all_heads = browser.text("#aligned")
    browser.hover(word("car", "mirror"))  # the field is above its mirror
    assert marked(browser, "translation")[0] == [1, "Auto"]
    assert browser.text("#aligned").startswith("car is attended to by: Auto ")
    config = boxed("translate").config.model
    sizes = [
        browser.script(f"return document.querySelector('#{name}').length")
        for name in ("layer", "head")
    ]
    assert sizes == [config.decoder_layers + 1, config.heads + 1]
    show(browser, url, "translate", text=TEXT, layer="3", head="2")
    prediction = boxed("translate").predict([TEXT.split(". ")[0] + "."], attention=True)[0]
    row = prediction.tokens.index("▁Auto")
    column = prediction.source_tokens.index("▁car")
    weight = float(prediction.attention["cross"][2][1, row, column])
    name_words(browser)
    browser.hover(word("Auto"))
    assert browser.text("#aligned") != all_heads
    shown = re.search(r"car ([\d.]+)\s%", browser.text("#aligned"))
    assert float(shown[1]) == pytest.approx(100 * weight, abs=0.51)


@NEEDS
def test_other_translations_of_the_sentence(browser, url):
    show(browser, url, "translate", text="The dog sleeps.")
    browser.click("#others summary")
    browser.wait("document.querySelectorAll('#n-best button').length > 1")
    expected = [
        each.text for each in boxed("translate").predict(["The dog sleeps."], n_best=4)[0].n_best
    ]
    texts = "return [...document.querySelectorAll('#n-best button')].map((e) => e.firstChild.textContent)"
    assert browser.script(texts) == expected
    settle(browser)
    browser.click("#n-best li:nth-of-type(2) button")
    browser.wait(
        f"document.querySelector('#translation').textContent === {json.dumps(expected[1])}"
    )


@NEEDS
def test_a_shared_address_restores_the_view(browser, url):
    show(browser, url, "translate")
    browser.script("document.querySelector('#layer').value = '2'")
    text = "The “red” bicycle & 100 % of the 🚲"
    enter(browser, "#text", text)
    browser.wait("document.querySelector('#translation').textContent")
    address, result = browser.script(
        "return [location.href, document.querySelector('#translation').textContent]"
    )
    browser.open(address)
    browser.wait(f"document.querySelector('#translation').textContent === {json.dumps(result)}")
    assert browser.script("return document.querySelector('#text').value") == text
    assert browser.script("return document.querySelector('#layer').value") == "2"
    assert browser.script("return location.href") == address


# ---- the other tabs ---------------------------------------------------------------------


@NEEDS
def test_a_text_streams_and_can_be_stopped(browser, url):
    show(browser, url, "generate", prompt="ROMEO:", max_tokens="1000")
    # Collect the lengths of the text as it grows.
    browser.script(
        "window.lengths = []; new MutationObserver(() => lengths.push("
        "document.querySelector('#generated .text').textContent.length)).observe("
        "document.querySelector('#generated'), {childList: true, subtree: true})"
    )
    browser.click("#panel-generate .primary")
    browser.wait("window.lengths.length > 5")
    browser.click("#stop")
    settle(browser)
    lengths = browser.script("return window.lengths")
    assert lengths == sorted(lengths)
    assert re.fullmatch(r"\d+ tokens, \d+ tokens/s", browser.text("#speed"))
    assert browser.script("return document.querySelector('#stop').disabled")
    assert lengths[-1] < 1000
    assert [each["canceled"] for each in browser.events("Network.loadingFailed")] == [True]
    show(browser, url, "generate", prompt="ROMEO:", max_tokens="30", temperature="0", top_p="1")
    browser.click("#panel-generate .primary")
    settle(browser)
    assert browser.text("#speed").startswith("30 tokens, ")
    [expected] = boxed("generate").predict(["ROMEO:"], max_length=30, temperature=0, beam=1)
    assert expected.text.endswith(
        browser.script("return document.querySelector('#generated .text').textContent")
    )


@NEEDS
@pytest.mark.parametrize(
    ("tab", "selector", "expected"),
    [
        ("classify", "#classes section:nth-child(2) .best", "negative"),
        ("fill", "#gaps .best button", ""),
        ("answer", "#panel-answer", "regard serve -m MODEL"),
        ("search", "#hits li:first-child .text", "A cat sleeps."),
        ("embeddings", "#similarity tbody tr:first-child", "1.00"),
        ("attention", "#map-title", "Cross-attention, layer 3, head 1"),
        ("walk", "#steps .step h3", "1. characters and ids"),
    ],
)
def test_every_tab_shows_its_results(browser, url, tab, selector, expected):
    show(browser, url, tab, **TABS[tab])
    if tab == "fill":
        expected = boxed("fill").fill([TABS["fill"]["text"]])[0].gaps[0].candidates[0][0].strip()
    assert expected in browser.text(selector)
    assert browser.script("return document.title").endswith(" – regard")


@NEEDS
def test_fill_inserts_masks_and_words(browser, url):
    show(browser, url, "fill")
    browser.type("#panel-fill textarea", "A ")
    browser.click("#mask")
    browser.type("#panel-fill textarea", " film.")
    browser.wait("document.querySelector('#gaps .best button')")
    best = browser.text("#gaps .best button")
    browser.click("#gaps .best button")
    assert (
        browser.script("return document.querySelector('#panel-fill textarea').value")
        == f"A {best} film."
    )


@NEEDS
def test_search_sends_the_documents_once(browser, url):
    show(browser, url, "search", **TABS["search"])
    browser.requests()
    enter(browser, "#panel-search [name=query]", "rain")
    sent = browser.wait_for(lambda: browser.events("Network.requestWillBeSent"), "a request")
    body = json.loads(sent[0]["request"]["postData"])
    assert set(body) == {"queries", "documents_id", "top", "model"}
    browser.wait("document.querySelector('#hits .text').textContent === 'It rains in Rome.'")


@NEEDS
def test_attention_of_any_head_with_mouse_and_keyboard(browser, url):
    show(browser, url, "attention", **TABS["attention"])
    browser.click("#maps button[aria-label='layer 1, head 2']")
    assert browser.text("#map-title") == "Cross-attention, layer 1, head 2"
    weights = boxed("translate").attention("The cat sleeps.").stacks["cross"]
    browser.script("document.querySelector('#map').focus()")
    browser.press(DOWN, DOWN, RIGHT)
    details = browser.text("#map-details")
    value = 100 * weights.weights[0, 1, 1, 1]
    start = f"{weights.rows[1]} (writes {weights.writes[1]}) attends to {weights.columns[1]}: "
    assert details.startswith(start)
    assert float(details.removeprefix(start).split("%")[0]) == pytest.approx(value, abs=0.51)
    browser.wait("location.hash.includes('head=2') && location.hash.includes('layer=1')")


# ---- for everyone -----------------------------------------------------------------------


@NEEDS
def test_the_keyboard_reaches_everything(browser, url):
    show(browser, url, "translate", text=TEXT)
    browser.script("document.querySelector('#tab-translate').focus()")
    browser.press(RIGHT, RIGHT)
    assert browser.script("return document.activeElement.id") == "tab-classify"
    assert (
        browser.script("return document.querySelectorAll('[role=tabpanel]:not([hidden])').length")
        == 1
    )
    browser.press(HOME)
    browser.press(TAB, TAB, TAB, TAB)  # source, target (the switch is disabled), text, first word
    assert browser.script("return document.activeElement.className") == "word pointed"
    browser.press(RIGHT, RIGHT, RIGHT)
    assert browser.script("return document.activeElement.textContent") == "gestern"
    assert marked(browser, "mirror")[0][1] == "yesterday"
    browser.press(ENTER)
    browser.wait("document.activeElement.getAttribute('role') === 'menuitem'")
    browser.press(ESCAPE)
    assert browser.script("return document.activeElement.textContent") == "gestern"
    browser.press(ENTER)
    browser.wait("document.activeElement.getAttribute('role') === 'menuitem'")
    browser.press(DOWN, ENTER)
    browser.wait("document.querySelector('#undo')")
    assert browser.script("return document.activeElement.classList.contains('forced')")


CONTRASTS = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const parse = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (element) => {
  const layers = [];
  for (let each = element; each; each = each.parentElement) layers.push(parse(getComputedStyle(each).backgroundColor));
  return layers.reverse().reduce((below, [r, g, b, a]) =>
    [r, g, b].map((v, i) => v * a / 255 + below[i] * (1 - a / 255)), [255, 255, 255]);
};
return [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility()
    && !element.closest(':disabled, .hidden, .mirror, [aria-hidden=true], .skip')
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((element) => {
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.slice(0, 40)];
  }).sort((a, b) => a[0] - b[0]).slice(0, 3);
"""


@NEEDS
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_have_enough_contrast_and_narrow_screens_do_not_scroll(browser, url, dark):
    browser.emulate(360, 740, dark=dark)
    for tab, state in TABS.items():
        show(browser, url, tab, **state)
        background = browser.script("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) < 150) is dark
        worst = browser.script(CONTRASTS)
        assert worst[0][0] >= 4.5, (tab, worst)
        width = browser.script("return document.documentElement.scrollWidth")
        assert width == 360, tab


@NEEDS
def test_markup_in_a_text_stays_text(browser, url):
    for tab, state in TABS.items():
        fields = {name: EVIL for name in state if name not in ("model", "max_tokens")}
        if tab == "fill":
            fields["text"] += "<mask>"
        show(browser, url, tab, **fields)
        if tab == "generate":
            browser.click("#panel-generate .primary")
            browser.wait("document.querySelector('#generated .text').textContent.length")
            settle(browser)
            assert EVIL in browser.text("#generated")
        page = browser.script(
            "return [document.images.length, document.title, document.scripts.length]"
        )
        assert page[0] == 1, tab
        assert "bad" not in page[1]
        assert page[2] == 1, tab
