"""Limits of requests, and errors before a handler runs, in the format of each interface."""

import http.client
import socket
from contextlib import suppress
from dataclasses import replace

import pytest

from regard.serve import gateway, server
from regard.serve.settings import Limits, Settings
from serve.process import exchange, request, wait_for
from serve.stub import PATHS, stub

LIMITS = Limits(body_bytes=1_000, characters=100, items=3, body_seconds=0.3, seconds=0.3)


@pytest.fixture(scope="module")
def address():
    with stub(Settings(limits=LIMITS, access_log=False)) as address:
        yield address


def connection(address):
    host, port = address.removeprefix("http://").split(":")
    return http.client.HTTPConnection(host, int(port), timeout=20)


def raw(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def message_of(interface, body):
    """The message of an error in the format of an interface."""
    if interface == "deepl":
        return body["message"]
    return body["error"] if interface == "libretranslate" else body["error"]["message"]


@pytest.mark.parametrize("interface", PATHS)
def test_errors_before_a_handler_have_the_format_of_the_interface(address, interface):
    url = address + PATHS[interface]
    for status, message, answer in (
        (405, "the method is not allowed for this path: see GET /api", request(url)),
        (404, "there is no such path: GET /api lists all paths", request(f"{url}/nothing", {})),
        (413, "the body of the request is larger than 1000 bytes: send less text", request(url, {"text": "x" * 2_000})),
        (413, "text: 500 characters, but at most 100: send less text", request(url, {"text": "x" * 500})),
        (415, "the content type 'text/plain' is not supported: send application/json",
         request(url, b"hello", {"content-type": "text/plain"})),
        (400, "the body is not valid UTF-8: encode it as UTF-8", request(url, b"text=%ff\xff", {"content-type": "application/x-www-form-urlencoded"})),
        (503, "the request was stopped after 0.3 s: send less text, or try again later", request(url, {"seconds": 5})),
    ):  # fmt: skip
        assert (answer[0], message_of(interface, answer[1])) == (status, message)
    assert request(url)[2]["allow"] == "POST"


def test_a_path_of_no_interface_gets_a_plain_error(address):
    assert request(address + "/nothing")[:2] == (
        404, {"error": {"message": "there is no such path: GET /api lists all paths", "code": "not_found"}},
    )  # fmt: skip


def test_a_large_body_without_a_length_is_refused(address):
    client = connection(address)
    client.request("POST", "/v2/translate", iter([b"x" * 400] * 10), encode_chunked=True)
    response = client.getresponse()
    assert response.status == 413
    assert b"larger than 1000 bytes" in response.read()
    # The same connection can be used again: the body was read to its end.
    client.request("POST", "/v2/translate", '{"text": "hi"}')
    assert client.getresponse().read() == b'{"text":"hi"}'


def test_a_client_that_sends_far_too_much_is_stopped(address):
    with raw(address) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            client.sendall(b"x" * 100_000_000)


def test_a_slow_body_is_not_waited_for(address):
    with raw(address) as client:
        head = b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        answer = exchange(client, head + b'{"text"')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower()
    assert answer.endswith(b'{"error":"the body did not arrive within 0.3 s: try again"}')


def test_a_failing_handler_gets_an_error_without_its_message(address):
    status, body, _ = request(address + "/api/fail")
    assert (status, body) == (
        500, {"error": {"message": "the service failed to answer: try again", "code": "internal_error"}},
    )  # fmt: skip


def test_wrong_methods_of_own_paths(address):
    status, _, headers = request(address + "/health", {})
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert request(address + "/health", method="HEAD")[:2] == (200, "")


def test_too_many_connections_get_an_error_but_health_is_answered():
    with stub(Settings(limits=Limits(connections=4))) as address:
        clients = [connection(address) for _ in range(8)]
        for client in clients:
            client.request("POST", "/v2/translate", '{"seconds": 2}')
        assert request(address + "/health")[0] == 200
        responses = [client.getresponse() for client in clients]
        assert {response.status for response in responses} <= {200, 503}
        [refused, *_] = [response for response in responses if response.status == 503]
        assert refused.headers["retry-after"] == "1"
        assert (
            refused.read() == b'{"message":"the service has too many connections: try again soon"}'
        )


def test_only_connections_beyond_the_limit_are_refused_if_they_arrive_together():
    with stub(Settings(limits=Limits(connections=4))) as address:
        clients = [raw(address) for _ in range(12)]
        head = b"POST /v2/translate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
        for client in clients:
            client.sendall(head)
        for client in clients:
            with suppress(OSError):  # it is refused and closed
                client.sendall(b"{}")
        answers = [client.recv(12) for client in clients]
        assert answers.count(b"HTTP/1.1 200") >= 4
        for client in clients:
            client.close()


def test_idle_connections_do_not_keep_others_out():
    with stub(Settings(limits=Limits(connections=5))) as address:
        idle = [raw(address) for _ in range(60)]
        wait_for(lambda: request(address + "/v2/translate", {})[0] == 200, 8)
        for client in idle:
            client.close()


def test_what_is_not_http_gets_an_error(address):
    for data in (b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 40_000):
        with raw(address) as client:
            answer = exchange(client, data)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(
            b'{"error":{"message":"Invalid HTTP request received","code":"invalid_http"}}'
        )


def test_a_connection_without_a_request_is_closed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "KEEP_ALIVE", 0.2)
        with stub(Settings(limits=LIMITS)) as address:
            for data in (
                b"",
                b"GET /health HTT",
                b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /he",
            ):
                with raw(address) as client:
                    try:
                        answer = exchange(client, data)
                    except ConnectionResetError:
                        answer = b""
                    assert answer.endswith(b'{"status":"ok"}') or len(data) < 20


def test_bodies_of_all_requests_together_are_bounded(monkeypatch):
    monkeypatch.setattr(gateway, "BODIES", 2)
    with stub(Settings(limits=replace(LIMITS, body_seconds=20), access_log=False)) as address:
        head = b"POST /api/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n"
        with raw(address) as first, raw(address) as second:
            for client in (first, second):
                client.sendall(head + b" " * 880)
            url, large = address + PATHS["api"], {"text": " " * 90, "other": "x" * 700}
            wait_for(lambda: request(url, large)[0] == 503)
            assert request(url, large)[2]["retry-after"] == "1"
            assert request(url, {"text": "hi"})[0] == 200
        wait_for(lambda: request(url, large)[0] == 200)
