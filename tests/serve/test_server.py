"""A service in a process of its own: start, load, disconnections and TLS."""

import http.client
import json
import shutil
import ssl
import subprocess
import time
import urllib.request

import pytest

from serve.process import request, service, wait_for

LONG = {"model": "generate", "prompt": "Once", "max_tokens": 1_000, "temperature": 1.0}


@pytest.fixture(scope="module")
def running():
    with service("-m", "box:generate", "-m", "box:classify", "--quiet") as running:
        yield running.wait_until_ready()


def gauge(running, name):
    """A number of /metrics."""
    text = request(running.address + "/metrics")[1]
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


def connection(running):
    return http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)


def begin(running, body):
    """Send a request for a completion, without reading its response."""
    client = connection(running)
    client.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    return client


def test_answers_while_the_models_are_loaded():
    start = time.monotonic()
    with service("-m", "box:classify", "--quiet") as running:
        assert request(running.address + "/health")[:2] == (200, {"status": "ok"})
        status, body, _ = request(running.address + "/ready")
        assert (status, body["status"]) in ((503, "loading"), (200, "ready"))
        assert request(running.address + "/")[2]["content-type"].startswith("text/html")
        # A request waits until torch is imported; then the model may still be loading.
        status, body, headers = request(running.address + "/api/classify", {"texts": ["Good."]})
        assert status == 200 or (body["error"]["code"], headers["retry-after"]) == ("loading", "1")
        running.wait_until_ready()
        assert request(running.address + "/api/classify", {"texts": ["Good."]})[0] == 200
        assert request(running.address + "/ready")[1] == {"status": "ready", "models": ["classify"]}
    assert time.monotonic() - start < 60


def test_health_is_answered_while_the_model_thread_is_busy(running):
    clients = [begin(running, LONG | {"n": 4, "seed": i}) for i in range(8)]
    wait_for(lambda: gauge(running, "regard_num_requests_running") == 32)
    delays = []
    for _ in range(40):
        start = time.monotonic()
        with urllib.request.urlopen(running.address + "/health", timeout=20) as response:
            assert response.read() == b'{"status":"ok"}'
        delays.append(time.monotonic() - start)
    assert gauge(running, "regard_num_requests_running") == 32  # still busy
    assert sorted(delays)[20] < 0.05, delays
    for client in clients:
        client.close()
    wait_for(lambda: gauge(running, "regard_num_requests_running") == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_frees_its_place(running, stream):
    steps = gauge(running, "regard_decoding_steps_total")
    client = begin(running, LONG | {"stream": stream})
    if stream:
        response = client.getresponse()
        assert response.status == 200
        assert response.readline().startswith(b"data: ")
        response.close()
    else:
        wait_for(lambda: gauge(running, "regard_num_requests_running") == 1)
    client.close()
    wait_for(lambda: gauge(running, "regard_num_requests_running") == 0)
    assert gauge(running, "regard_queue_tokens") == 0
    assert gauge(running, "regard_num_streams") == 0
    assert gauge(running, "regard_decoding_steps_total") - steps < 900  # of 1,000


def test_a_client_that_does_not_read_does_not_stop_others(running):
    client = running.connect()
    body = json.dumps(LONG | {"stream": True, "n": 8}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    client.sendall(head % len(body) + body)
    wait_for(lambda: gauge(running, "regard_num_streams") == 1)
    assert request(running.address + "/api/classify", {"texts": ["Good."]})[0] == 200
    client.close()
    wait_for(lambda: gauge(running, "regard_num_streams") == 0)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls(tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    with service(
        "-m", "box:classify", "--certificate", certificate, "--private-key", key
    ) as running:
        assert running.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=certificate)
        with urllib.request.urlopen(
            running.address + "/health", timeout=20, context=context
        ) as response:
            assert response.read() == b'{"status":"ok"}'
