"""Server-sent events: their format, limits, errors in mid-stream, and clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import openai
import pytest

from regard.errors import InputError
from regard.serve import app as application
from regard.serve import events
from regard.serve.errors import Overloaded
from regard.serve.events import StreamCount, stream_events
from regard.serve.openai_choices import GrowingText
from regard.serve.openai_format import OPENAI
from regard.serve.settings import Limits, Settings
from regard.text.tokenizer import Tokenizer
from serve import live

BYTES = Tokenizer.learn([], "byte", 0)


@contextmanager
def service(**limits):
    """A service; yields a client and the application."""
    apps, create = [], application.create_endpoints

    def remember(*arguments, **options):
        app = create(*arguments, **options)
        apps.append(app)
        return app

    with (
        mock.patch.object(application, "create_endpoints", remember),
        live.serve(Settings(limits=Limits(**limits)), ("generate",)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, apps[0]


def stream(client, **options):
    return client.completions.create(
        model="generate", prompt="ROMEO:", **{"stream": True, "max_tokens": 1_000, **options}
    )


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def served():
    with service() as (client, app):
        yield client, app


def test_headers(served):
    client, _ = served
    with client.completions.with_streaming_response.create(
        model="generate", prompt="ROMEO:", stream=True
    ) as response:
        headers = response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        assert "content-length" not in headers
        lines = response.read().decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(line.removeprefix("data: "))["id"] for line in lines[:-2])


def test_disconnected_stream_leaves_the_batch(served):
    client, app = served
    scheduler, streams = app.state.pool.scheduler, app.state.shared["streams"]
    steps = scheduler.steps
    updates = stream(client, n=3)
    next(updates)
    wait_until(lambda: scheduler.running == 3)
    assert streams.value == 1
    updates.close()
    wait_until(lambda: not scheduler.running)
    assert scheduler.steps - steps < 900
    wait_until(lambda: not streams.value and not scheduler.outstanding)


def test_disconnected_request_leaves_the_batch(served):
    client, app = served
    scheduler = app.state.pool.scheduler

    async def run():
        url = str(client.base_url)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as other:
            request = asyncio.ensure_future(
                other.completions.create(model="generate", prompt="A", max_tokens=1_000, n=2)
            )
            while not scheduler.running:
                await asyncio.sleep(0.002)
            request.cancel()

    asyncio.run(run())
    wait_until(lambda: not scheduler.running and not scheduler.outstanding)


def test_stop_text_ends_decoding_at_once(served):
    client, app = served
    scheduler = app.state.pool.scheduler
    steps = scheduler.steps
    text = client.completions.create(
        model="generate", prompt="ROMEO:", max_tokens=1_000, stop="\n", temperature=0
    )
    assert text.choices[0].finish_reason == "stop"
    wait_until(lambda: not scheduler.running)
    assert scheduler.steps - steps < 300


def test_most_streams(served):
    client, app = served
    streams = app.state.shared["streams"]
    streams.value = app.state.settings.limits.streams
    try:
        with pytest.raises(openai.RateLimitError) as error:
            stream(client)
    finally:
        streams.value = 0
    assert int(error.value.response.headers["retry-after"]) >= 1
    assert error.value.type == "rate_limit_error"


def test_client_tries_again_after_429(served, monkeypatch):
    client, app = served
    streams, refused = app.state.shared["streams"], threading.Event()
    streams.value = app.state.settings.limits.streams

    def refuse(seconds):
        refused.set()
        return Overloaded(seconds)

    monkeypatch.setattr(events, "Overloaded", refuse)
    texts = []

    def call():
        retrying = client.with_options(max_retries=1)
        texts.append("".join(c.choices[0].text for c in stream(retrying, max_tokens=5, seed=1)))

    thread = threading.Thread(target=call)
    thread.start()
    assert refused.wait(20)
    streams.value = 0
    thread.join(20)
    assert [len(text) for text in texts] == [5]


def test_full_queue_is_an_ordinary_error():
    with service(queue_tokens=1_500) as (client, app):
        updates = stream(client)
        next(updates)
        for options in ({}, {"stream": False}):
            with pytest.raises(openai.RateLimitError) as error:
                stream(client, **options)
            assert int(error.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.BadRequestError, match="3021 tokens"):
            stream(client, n=3)
        updates.close()
        wait_until(lambda: not app.state.pool.scheduler.outstanding)
        assert stream(client, stream=False, max_tokens=3).choices[0].text


def test_time_limit_of_a_stream():
    with service(seconds=0.3) as (client, app):
        with pytest.raises(openai.APIError, match=r"stopped after 0\.3 s"):
            list(stream(client, n=8))
        wait_until(lambda: not app.state.pool.scheduler.outstanding)
        wait_until(lambda: not app.state.shared["streams"].value)


# ---- without a service ----------------------------------------------------------------------


def run_response(values, seconds=10.0, disconnect=None):
    """The messages of a response with the events of an iterator."""
    state, sent = {"streams": StreamCount()}, []

    async def receive():
        await (disconnect.wait() if disconnect else asyncio.Event().wait())
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    settings = Settings(limits=Limits(seconds=seconds))
    call = SimpleNamespace(settings=settings, state=state, http=SimpleNamespace(receive=receive))

    async def run():
        response = await stream_events(call, OPENAI, values)
        assert state["streams"].value == 1
        await response({}, receive, send)
        assert state["streams"].value == 0

    asyncio.run(run())
    return b"".join(message.get("body", b"") for message in sent).decode(), sent


async def numbers(*values):
    for value in values:
        if isinstance(value, Exception):
            raise value
        if isinstance(value, float):
            await asyncio.sleep(value)
        else:
            yield value


def test_values_are_events():
    content, sent = run_response(numbers(1, "ä\n", [2]))
    assert content == 'data: 1\n\ndata: "ä\\n"\n\ndata: [2]\n\ndata: [DONE]\n\n'
    assert [message.get("more_body") for message in sent] == [None, True, True, True, False]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Overloaded(3), "rate_limit_error"), (InputError("NaN"), "invalid_request_error")],
)
def test_error_in_mid_stream_is_an_event(error, kind):
    content, sent = run_response(numbers(1, error))
    first, last, end = content.split("\n\n")
    assert (first, end) == ("data: 1", "")
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == kind
    assert not sent[-1]["more_body"]


def test_unexpected_error_is_an_event_and_is_raised():
    with pytest.raises(RuntimeError, match="broken"):
        run_response(numbers(1, RuntimeError("broken")))


def test_error_before_the_first_event_is_raised():
    with pytest.raises(Overloaded):
        run_response(numbers(Overloaded(3)))


def test_comments_keep_the_connection_open(monkeypatch):
    monkeypatch.setattr(events, "PING_SECONDS", 0.05)
    content, _ = run_response(numbers(1, 0.3, 2))
    assert content.startswith("data: 1\n\n: keep-alive\n\n")
    assert content.endswith(": keep-alive\n\ndata: 2\n\ndata: [DONE]\n\n")


def test_deadline_ends_a_stream():
    content, _ = run_response(numbers(1, 5.0, 2), seconds=0.1)
    assert '"code":"timeout"' in content
    assert "[DONE]" not in content


def test_disconnect_closes_the_events():
    closed, disconnect = [], asyncio.Event()

    async def values():
        try:
            yield 1
            disconnect.set()
            await asyncio.sleep(30)
            yield 2
        finally:
            closed.append(True)

    started = time.monotonic()
    content, _ = run_response(values(), disconnect=disconnect)
    assert (content, closed) == ("data: 1\n\n", [True])
    assert time.monotonic() - started < 10


# ---- texts that grow ------------------------------------------------------------------------


def parts(content, stops, prompt=""):
    """The settled text after each byte, and the final text."""
    text = GrowingText(BYTES, stops, BYTES.encode(prompt))
    settled = []
    for token in [byte + 6 for byte in content]:
        text.add(token)
        if text.stopped:
            break
        settled.append(text.text[: text.settled()])
    else:
        text.end()
    return settled, text.text, text.stopped


def test_stop_text_is_held_back_until_it_is_decided():
    assert parts(b"ab<en<end>c", ["<end>"]) == (
        ["a", "ab", "ab", "ab", "ab", "ab<en", "ab<en", "ab<en", "ab<en"], "ab<en", True,
    )  # fmt: skip
    assert parts(b"ab<e", ["<end>"]) == (["a", "ab", "ab", "ab"], "ab<e", False)


def test_stop_texts_that_overlap():
    assert parts(b"aab", ["ab"]) == (["", "a"], "a", True)
    assert parts(b"xabcd", ["bcd", "abc"])[1] == "x"
    assert parts(b"aaab", ["aab"])[1] == "a"


def test_incomplete_characters_are_held_back():
    assert parts("aäß".encode(), []) == (["a", "a", "aä", "aä", "aäß"], "aäß", False)
    assert parts("ä".encode()[:1], []) == ([""], "\ufffd", False)
    assert parts(b"\xffa", [])[1] == "\ufffda"
    assert parts("xäy".encode(), ["äy"]) == (["x", "x", "x"], "x", True)


def test_stop_text_in_the_prompt_does_not_count():
    assert parts(b"b.", ["."], prompt="a.") == (["a.b"], "a.b", True)
    assert parts(b"b", ["ab"], prompt="a")[1:] == ("ab", False)
