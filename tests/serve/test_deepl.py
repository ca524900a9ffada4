"""The interface of DeepL, with its own client and with plain requests."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

import deepl
import pytest

from regard.serve.errors import Overloaded
from regard.serve.models import ServedModel
from regard.serve.settings import Limits, Settings
from serve.live import boxed, serve
from serve.test_libretranslate import send


@pytest.fixture(scope="module")
def url():
    with serve(Settings(limits=Limits(characters=2_000, items=30)), models=("translate",)) as url:
        yield url


@pytest.fixture
def client(url, monkeypatch):
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)
    client = deepl.DeepLClient("key", server_url=url)
    yield client
    client.close()


def test_texts(client):
    result = client.translate_text("A man rides a horse.", target_lang="DE")
    assert result.text == boxed("translate").translate("A man rides a horse.")
    assert (result.detected_source_lang, result.billed_characters) == ("EN", 20)
    results = client.translate_text(
        ["A dog.", "", "Hello {name}!"], source_lang="EN", target_lang="DE"
    )
    assert results[1].text == ""
    assert "{name}" in results[2].text


def test_markup(client):
    html = '<p>A man rides a <b>horse</b>.</p><p translate="no">A dog.</p>'
    result = client.translate_text(html, target_lang="DE", tag_handling="html")
    assert "<b>Pferd</b>" in result.text
    assert result.text.endswith('<p translate="no">A dog.</p>')
    xml = "<doc><t>A dog.</t><t>A <x>cat</x> is <n>Mr Cat</n>.</t></doc>"
    result = client.translate_text(xml, target_lang="DE", tag_handling="xml", ignore_tags=["n"])
    assert result.text.startswith("<doc><t>")
    assert result.text.count("<x>") == result.text.count("<n>Mr Cat</n>") == 1


def test_options(client):
    options = {"formality": "prefer_more", "preserve_formatting": True, "context": "pets"}
    one = client.translate_text("A dog.\nA cat.", target_lang="DE", split_sentences="0", **options)
    two = client.translate_text("A dog.\nA cat.", target_lang="DE", split_sentences="1", **options)
    assert two.text.count("\n") == 1
    assert one.text.count("\n") == 0


def test_languages(client):
    assert [(each.code, each.name) for each in client.get_source_languages()] == [("EN", "English")]
    [target] = client.get_target_languages()
    assert (target.code, target.name, target.supports_formality) == ("DE", "German", False)


def test_regional_variants():
    with serve(models={"de-en": boxed("translate")}) as url:
        client = deepl.DeepLClient("key", server_url=url)
        assert [each.code for each in client.get_target_languages()] == ["EN-GB", "EN-US"]
        result = client.translate_text("A dog.", source_lang="DE", target_lang="EN-GB")
        assert result.text == boxed("translate").translate("A dog.")
        client.close()


def test_usage(client):
    before = client.get_usage().character
    client.translate_text(["A dog.", "12"], target_lang="DE")
    after = client.get_usage().character
    assert after.count - before.count == 8
    assert after.valid
    assert not after.limit_reached


def test_client_errors(client):
    with pytest.raises(deepl.DeepLException, match="no model translates from en to fr"):
        client.translate_text("Hello", source_lang="EN", target_lang="FR")
    with pytest.raises(deepl.DeepLException, match="413"):
        client.translate_text("word " * 500, target_lang="DE")


def test_overloaded_service_is_reported(client, monkeypatch):
    async def refuse(*_, **__):
        raise Overloaded(3)

    monkeypatch.setattr(ServedModel, "predict", refuse)
    with pytest.raises(deepl.TooManyRequestsException, match="busy"):
        client.translate_text("A dog.", target_lang="DE")


def test_form(url):
    form = urllib.parse.urlencode([("text", "A dog."), ("text", "A cat."), ("target_lang", "DE"),
                                   ("show_billed_characters", "1")])  # fmt: skip
    status, body = send(f"{url}/v2/translate", form.encode(), "application/x-www-form-urlencoded")
    assert status == 200
    assert [each["billed_characters"] for each in body["translations"]] == [6, 6]
    status, body = send(f"{url}/v2/translate", {"text": ["A dog."], "target_lang": "DE"})
    assert set(body["translations"][0]) == {"detected_source_language", "text"}


@pytest.mark.parametrize(
    "body", [{"text": ["x"]}, {"text": 5, "target_lang": "DE"}, b"{",
             {"text": ["x"], "target_lang": "DE", "tag_handling": "pdf"}],
)  # fmt: skip
def test_errors(url, body):
    status, response = send(f"{url}/v2/translate", body)
    assert status == 400
    assert isinstance(response["message"], str)


def test_language_types(url):
    with urllib.request.urlopen(f"{url}/v2/languages?type=target", timeout=20) as response:
        assert json.load(response)[0]["language"] == "DE"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}/v2/languages?type=x", timeout=20)
    assert error.value.code == 400
