"""The web page when the service loads, is busy, needs a key, or has models that are not in the box:
in a real browser, with a small service that answers as each test needs."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from regard.serve.pages import page_routes
from tools.browser import AVAILABLE, INSTALL, start_browser

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=INSTALL)
CLASSIFIED = {"model": "m", "results": [{"label": "good", "probabilities": {"good": 0.9, "bad": 0.1}}]}  # fmt: skip


def model(task, languages=None):
    layers = {"encoder": 1, "decoder": 1}
    return {
        "name": "-".join(languages or [task]), "task": task, "style": "encoder-decoder", "heads": 2,
        "languages": languages, "layers": layers, "labels": None,
    }  # fmt: skip


@contextmanager
def service(answers):
    """Serve the page, and JSON for POST and GET requests: `answers` has a function for each path,
    which gets the request and its value and returns a value or (value, status, headers)."""

    def route(path, function):
        async def respond(request):
            value = await request.json() if request.method == "POST" else None
            result = function(request, value)
            body, status, headers = result if isinstance(result, tuple) else (result, 200, {})
            return JSONResponse(body, status, headers)

        return Route(path, respond, methods=["GET", "POST"])

    app = Starlette(routes=[*page_routes(), *(route(*each) for each in answers.items())])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def error(message, code):
    return {"error": {"message": message, "code": code, "field": None}}


@pytest.fixture(scope="module")
def browser():
    with start_browser() as started:
        yield started


def show(browser, url, tab, **state):
    browser.open(f"{url}/#{urlencode({'tab': tab, **state})}")


def test_the_page_waits_until_the_models_are_loaded(browser):
    ready = threading.Event()
    answers = {
        "/api/models": lambda request, _: {"ready": ready.is_set(), "models": [model("classify")]},
        "/api/classify": lambda request, value: CLASSIFIED,
    }
    with service(answers) as url:
        show(browser, url, "classify", text="A film.")
        browser.wait(
            "document.querySelector('#loading').textContent.startsWith('The models are being loaded')"
        )
        assert browser.script("return document.querySelectorAll('#classes .bar').length") == 0
        ready.set()
        browser.wait("document.querySelector('#classes .best .bar-label')?.textContent === 'good'")
        assert browser.text("#loading") == ""
        assert browser.complaints() == []


def test_an_api_key_is_requested_only_if_the_service_needs_one(browser):
    keys = []

    def models(request, _):
        keys.append(request.headers.get("authorization"))
        if keys[-1] == "Bearer right":
            return {"ready": True, "models": [model("classify")]}
        return error("this service needs a valid API key", "invalid_api_key"), 401, {}

    with service({"/api/models": models, "/api/classify": lambda *_: CLASSIFIED}) as url:
        show(browser, url, "classify", text="A film.")
        browser.wait("document.querySelector('#key').checkVisibility()")
        assert browser.text("#loading") == "This service needs a valid API key."
        for key in ("wrong", "right"):
            browser.wait("document.querySelector('#key').checkVisibility()")
            browser.type("#key-field", key)
            browser.click("#key button")
        browser.wait("document.querySelector('#classes .best')")
        assert keys == [None, "Bearer wrong", "Bearer right"]
        assert not browser.script("return document.querySelector('#key').checkVisibility()")
        assert "right" not in browser.script("return location.href")
        assert browser.script("return [localStorage.length, document.cookie]") == [0, ""]
        browser.complaints()  # the browser itself reports status 401


def test_a_busy_service_is_tried_again_after_the_requested_time(browser):
    calls = []

    def classify(request, value):
        calls.append(time.monotonic())
        if len(calls) == 1:
            return (
                error("the service is busy: try again in 2 s", "overloaded"),
                429,
                {"Retry-After": "2"},
            )
        return CLASSIFIED

    models = {"ready": True, "models": [model("classify")]}
    with service({"/api/models": lambda *_: models, "/api/classify": classify}) as url:
        show(browser, url, "classify", text="A film.")
        status = "document.querySelector('#panel-classify [data-status]').textContent"
        browser.wait(f"{status} === 'The service is busy: next try in 2 s.'")
        browser.wait(f"{status} === 'The service is busy: next try in 1 s.'")
        browser.wait("document.querySelector('#classes .best')")
        assert browser.script(f"return {status}") == ""
        assert calls[1] - calls[0] >= 1.9
        browser.complaints()  # the browser itself reports status 429


def test_an_error_is_one_sentence_in_its_place(browser):
    refuse = lambda *_: (error("texts: 30000 characters, but at most 20000", "too_large"), 413, {})  # noqa: E731
    models = {"ready": True, "models": [model("classify")]}
    with service({"/api/models": lambda *_: models, "/api/classify": refuse}) as url:
        show(browser, url, "classify", text="A film.")
        browser.wait("document.querySelector('#panel-classify [data-kind=error]')")
        assert (
            browser.text("#panel-classify [data-status]")
            == "Texts: 30000 characters, but at most 20000."
        )
    browser.type("#panel-classify textarea", "!")  # the service has ended
    browser.wait(
        "document.querySelector('#panel-classify [data-status]').textContent.includes('cannot be reached')"
    )
    browser.complaints()


def test_languages_are_switched_if_there_is_a_model_for_the_other_direction(browser):
    requests = []

    def translate(request, value):
        requests.append(value)
        source, target = value["source"], value["target"]
        text = f"<{value['text']}>"
        sentence = {
            "text": value["text"], "start": 0, "translation": text, "translation_start": 0,
            "source_tokens": [], "tokens": [], "n_best": [], "attention": None,
        }  # fmt: skip
        source = "en" if source == "auto" else source
        detected = {"language": "en", "confidence": 90.0} if value["source"] == "auto" else None
        return {
            "model": "m", "source": source, "target": target, "detected": detected,
            "translation": text, "sentences": [sentence],
        }  # fmt: skip

    pairs = [["en", "de"], ["de", "en"], ["en", "fr"]]
    models = {"ready": True, "models": [model("translate", pair) for pair in pairs]}
    shown = "document.querySelector('#translation').textContent"
    with service({"/api/models": lambda *_: models, "/api/translate": translate}) as url:
        show(browser, url, "translate", text="a", target="de")
        browser.wait(f"{shown} === '<a>'")
        assert browser.text("#detected") == "Detected: English"
        browser.click("#swap")
        browser.wait(f"{shown} === '<<a>>'")
        assert [(each["source"], each["target"]) for each in requests] == [
            ("auto", "de"),
            ("de", "en"),
        ]
        options = "return [...document.querySelector('#target').options].map((o) => o.text)"
        assert browser.script(options) == ["English"]
        show(browser, url, "translate", text="a", source="en", target="fr")
        browser.wait(f"{shown} === '<a>'")
        swap = browser.script(
            "const s = document.querySelector('#swap'); return [s.disabled, s.title]"
        )
        assert swap == [True, "No model translates from French to English"]
        assert browser.script(options) == ["German", "French"]
        assert browser.complaints() == []


def test_an_answer_is_marked_in_its_context(browser):
    def answer(request, value):
        assert value == {"question": "Where?", "context": "Anna lives in Rome.", "model": "answer"}
        return {
            "model": "answer",
            "results": [{"question": "Where?", "answer": "rome", "score": -1.0, "n_best": []}],
        }

    models = {"ready": True, "models": [model("answer")]}
    with service({"/api/models": lambda *_: models, "/api/answer": answer}) as url:
        show(browser, url, "answer")
        browser.wait("'ready' in document.body.dataset")
        browser.type("#panel-answer [name=context]", "Anna lives in Rome.")
        browser.type("#panel-answer [name=question]", "Where?\ue007")
        browser.wait("document.querySelector('#answers .answer')")
        assert browser.text("#answers .answer") == "rome"
        assert browser.text("#answers mark") == "Rome"
        browser.wait("location.hash.includes('question=Where')")
        for tab in ("translate", "generate", "fill"):
            browser.click(f"#tab-{tab}")
            assert browser.text(f"#panel-{tab}") == (
                f"This service has no model for the task “{tab}”: serve one with regard serve -m MODEL."
            )
        assert browser.complaints() == []
