"""The end of a service: SIGTERM, SIGINT, and requests that are being answered."""

import http.client
import json
import signal
import socket

import pytest

from serve.process import request, service, wait_for

LONG = {"model": "generate", "prompt": "Once", "max_tokens": 500, "temperature": 1.0, "seed": 1}


def begin(running, body):
    """Send a request for a completion; returns when the model works on it."""
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    client.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    wait_for(
        lambda: "regard_num_requests_running 0\n" not in request(running.address + "/metrics")[1]
    )
    return client


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_finishes_what_was_accepted_and_accepts_nothing_new(number, code):
    with service("-m", "box:generate") as running:
        running.wait_until_ready()
        client = begin(running, LONG)
        idle = running.connect()  # without a request
        running.process.send_signal(number)
        wait_for(lambda: refuses(running.port))
        response = client.getresponse()
        assert response.status == 200
        assert json.load(response)["usage"]["completion_tokens"] == 500
        assert running.process.wait(20) == code
        idle.close()
    assert not any("Traceback" in line or "Error" in line for line in running.lines), running.lines


def refuses(port):
    """Whether the port refuses connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionError:
        return True
    return False


def test_cancels_requests_that_take_longer_than_the_drain():
    with service("-m", "box:generate", "--drain", "0.2") as running:
        running.wait_until_ready()
        plain, streamed = begin(running, LONG | {"n": 32}), None
        streamed = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        body = json.dumps(LONG | {"n": 32, "stream": True})
        streamed.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        events = streamed.getresponse()
        assert events.readline().startswith(b"data: ")
        running.process.send_signal(signal.SIGTERM)
        response = plain.getresponse()
        assert response.status == 503
        assert (
            json.load(response)["error"]["message"]
            == "the service is shutting down: try again later"
        )
        last = events.read().strip().splitlines()[-1]
        assert (
            json.loads(last.removeprefix(b"data: "))["error"]["message"]
            == "the service is shutting down: try again later"
        )
        assert running.process.wait(20) == 0
    assert not any("Traceback" in line or "Error" in line for line in running.lines), running.lines


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_service_at_once(second):
    with service("-m", "box:generate") as running:
        running.wait_until_ready()
        client = begin(running, LONG | {"n": 32})
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(running.port))
        assert running.end(second) == 128 + second
        client.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_models_are_loaded(number, code):
    with service("-m", "box:generate") as running:
        assert running.end(number) == code
    assert not any("Traceback" in line for line in running.lines), running.lines
