"""The interface of LibreTranslate, with its own client and with plain requests."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from libretranslatepy import LibreTranslateAPI

from regard.serve.errors import Overloaded
from regard.serve.models import ServedModel
from regard.serve.settings import Limits, Settings
from serve.live import boxed, serve


@pytest.fixture(scope="module")
def url():
    with serve(Settings(limits=Limits(characters=2_000, items=30)), models=("translate",)) as url:
        yield url


def send(url, body, kind="application/json"):
    """POST a body; returns the status and the parsed response."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    request = urllib.request.Request(url, body, {"content-type": kind})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def translate(url, q, **fields):
    status, body = send(f"{url}/translate", {"q": q, "source": "en", "target": "de"} | fields)
    assert status == 200, body
    return body


def test_client(url):
    client = LibreTranslateAPI(url)
    text = "A man rides a horse. You have %d new messages, {name}."
    assert client.translate("A man rides a horse.", "en", "de") == (
        boxed("translate").translate("A man rides a horse.")
    )
    translation = client.translate(text, "auto", "de")
    assert translation.count("%d") == translation.count("{name}") == 1
    [detected] = client.detect("The weather is nice today.")
    assert detected["language"] == "en"
    assert 50 < detected["confidence"] <= 100
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]


def test_client_errors(url):
    with pytest.raises(urllib.error.HTTPError) as error:
        LibreTranslateAPI(url).translate("Hello", "en", "xx")
    assert error.value.code == 400
    assert "en to xx" in json.load(error.value)["error"]


def test_lists(url):
    body = translate(url, ["A dog.", "", " A cat. "], source="auto", alternatives=2)
    assert body["translatedText"][1] == ""
    assert body["translatedText"][2] == f" {body['translatedText'][2].strip()} "
    assert [each["language"] for each in body["detectedLanguage"]] == ["en"] * 3
    assert [len(each) for each in body["alternatives"]] == [2, 0, 2]
    assert translate(url, [])["translatedText"] == []


def test_alternatives(url):
    assert set(translate(url, "The dog is big.")) == {"translatedText"}
    body = translate(url, "The dog is big.", alternatives=20)
    texts = [body["translatedText"], *body["alternatives"]]
    assert 2 < len(texts) <= 10
    assert len(set(texts)) == len(texts)
    # The same text among others has the same translation.
    assert translate(url, "The dog is big.", alternatives=3)["translatedText"]


def test_html(url):
    text = (
        '<!DOCTYPE html>\n<p class="a">A man &amp; a <b>horse</b>.<br></p><!-- no --><code>x</code>'
    )
    translation = translate(url, text, format="html")["translatedText"]
    assert translation.startswith('<!DOCTYPE html>\n<p class="a">')
    assert "<b>Pferd</b>" in translation
    assert translation.endswith("<br></p><!-- no --><code>x</code>")
    assert translation.count("&amp;") == 1


def test_json_that_is_declared_as_a_form(url):
    body = b'{"q": "A dog.", "source": "en", "target": "de"}'
    status, answer = send(f"{url}/translate", body, "application/x-www-form-urlencoded")
    assert status == 400
    assert "content-type: application/json" in answer["error"]


def test_form(url):
    form = urllib.parse.urlencode([("q", "A dog."), ("q", "A cat."), ("source", "en"), ("target", "de"),
                                   ("alternatives", "1"), ("format", "text")])  # fmt: skip
    status, body = send(f"{url}/translate", form.encode(), "application/x-www-form-urlencoded")
    assert (status, len(body["translatedText"]), len(body["alternatives"])) == (200, 2, 2)


@pytest.mark.parametrize(
    "body",
    [
        {"source": "en", "target": "de"},
        {"q": 5, "source": "en", "target": "de"},
        {"q": "x", "source": "en"},
        {"q": "x", "source": "en", "target": "de", "format": "pdf"},
        {"q": "x", "source": "en", "target": "de", "alternatives": -1},
        {"q": "word " * 500, "source": "en", "target": "de"},
        {"q": ["x"] * 31, "source": "en", "target": "de"},
        {"q": "x", "source": "de", "target": "en"},
        {"q": "x", "source": "auto", "target": "fr"},
        b'{"q": "\\ud800 word", "source": "en", "target": "de"}',
        b"{",
        b"\xff",
    ],
)
def test_errors(url, body):
    status, response = send(f"{url}/translate", body)
    assert status == 400
    assert list(response) == ["error"]
    assert isinstance(response["error"], str)


def test_detect(url):
    for text, language in [
        ("", "en"),
        ("Das ist ein Haus.", "de"),
        ("Bonjour tout le monde", "fr"),
    ]:
        status, [body] = send(f"{url}/detect", {"q": text})
        assert (status, body["language"]) == (200, language)


def test_settings(url):
    with urllib.request.urlopen(f"{url}/frontend/settings", timeout=20) as response:
        body = json.load(response)
    assert body["charLimit"] == 2_000
    assert (body["keyRequired"], body["apiKeys"]) == (False, False)
    assert body["language"] == {
        "source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"},
    }  # fmt: skip


def test_overloaded_service_is_reported(url, monkeypatch):
    async def refuse(*_, **__):
        raise Overloaded(3)

    monkeypatch.setattr(ServedModel, "predict", refuse)
    status, body = send(f"{url}/translate", {"q": "A dog.", "source": "en", "target": "de"})
    assert (status, list(body)) == (429, ["error"])
