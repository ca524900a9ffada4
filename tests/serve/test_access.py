"""Access control: keys, rates, addresses, CORS, headers and the log."""

import json
import os
from hashlib import sha256

import pytest

from regard.errors import InputError
from regard.serve.access import ProxyList, RateLimit, is_local, rate_group
from regard.serve.keys import KeyFile, new_key, read_keys
from regard.serve.settings import Settings
from serve.process import request
from serve.stub import PATHS, stub

KEY = "regard-secret"
LINE = f"alice {sha256(KEY.encode()).hexdigest()}\n"


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# comment\n\n{LINE}")
    return path


@pytest.fixture
def locked(keys):
    with stub(Settings(keys=keys)) as address:
        yield address


@pytest.mark.parametrize(
    ("interface", "status"),
    [("api", 401), ("openai", 401), ("deepl", 403), ("libretranslate", 403)],
)
def test_refuses_a_request_without_a_valid_key_in_the_format_of_its_interface(
    locked, interface, status
):
    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}"}):
        code, body, answered = request(locked + PATHS[interface], {"text": "hi"}, headers)
        assert code == status
        assert "valid API key" in json.dumps(body)
        assert (answered["www-authenticate"] == "Bearer") == (status == 401)
        shape = {"api": dict, "openai": dict, "libretranslate": str}.get(interface)
        assert set(body) == ({"message"} if interface == "deepl" else {"error"})
        assert shape is None or isinstance(body["error"], shape)


def test_accepts_a_key_in_each_place_where_clients_put_it(locked):
    for headers in (
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"DeepL-Auth-Key {KEY}"},
        {"x-api-key": KEY},
    ):
        assert request(locked + "/v2/translate", {"text": "hi"}, headers)[:2] == (
            200,
            {"text": "hi"},
        )
    url = locked + "/translate"
    assert request(url, {"text": "hi", "api_key": KEY})[:2] == (200, {"text": "hi"})
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert request(url, f"text=hi&api_key={KEY}".encode(), form)[:2] == (200, {"text": "hi"})
    assert request(url, {"text": "hi", "api_key": "wrong"})[0] == 403
    assert request(url, {"text": "hi", "api_key": 5})[0] == 403
    # Only LibreTranslate has the key in the body.
    assert request(locked + "/api/echo", {"text": "hi", "api_key": KEY})[0] == 401


def test_health_and_documents_need_no_key_but_metrics_do(locked):
    for path in ("/", "/static/main.js", "/health", "/ready", "/openapi.json"):
        assert request(locked + path)[0] == 200
    assert request(locked + "/metrics")[0] == 401
    assert request(locked + "/metrics", headers={"x-api-key": KEY})[0] == 200
    assert request(locked + "/api/nothing")[0] == 401  # does not reveal which paths exist


def test_reads_the_key_file_again_when_it_changes(keys, capsys):
    file = KeyFile(keys)
    assert file.name_of(KEY) == "alice"
    other = new_key(keys, "bob")
    assert (file.name_of(other), file.name_of(KEY)) == ("bob", "alice")
    keys.write_text("not a key file\n")
    assert file.name_of(other) == "bob"
    assert (
        f"{keys}:1: not a line with a name and a SHA-256 hash: use --new-key; the previous"
        in capsys.readouterr().err
    )
    keys.unlink()
    assert file.name_of(other) == "bob"
    assert capsys.readouterr().err.count("No such file") == 1
    assert file.name_of(other) == "bob"
    assert capsys.readouterr().err == ""  # once
    keys.write_text(LINE)
    assert (file.name_of(other), file.name_of(KEY)) == (None, "alice")


def test_a_new_key_is_stored_as_a_hash_that_others_cannot_read(tmp_path):
    path = tmp_path / "keys"
    key = new_key(path, "alice")
    assert key not in path.read_text()
    assert os.stat(path).st_mode & 0o077 == 0
    assert read_keys(path) == [("alice", sha256(key.encode()).hexdigest())]
    path.write_text(path.read_text().rstrip("\n"))  # edited by hand
    new_key(path, "bob")
    assert [name for name, _ in read_keys(path)] == ["alice", "bob"]
    with pytest.raises(InputError, match="already has a key with the name bob"):
        new_key(path, "bob")
    with pytest.raises(InputError, match="letters, digits"):
        new_key(path, "two words")


@pytest.mark.parametrize(
    "content",
    [
        b"alice\n",
        b"alice " + b"0" * 63,
        b"\xff\n",
        (LINE * 2).encode(),
        b"#" * 2**21,
        b"x" * 65 + b" " + b"0" * 64,
    ],
)
def test_refuses_a_broken_key_file(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InputError):
        KeyFile(path)


def test_a_rate_limit_refuses_requests_and_says_when_to_try_again():
    with stub(Settings(requests_per_minute=3)) as address:
        url = address + "/v1/completions"
        assert [request(url, {})[0] for _ in range(3)] == [200] * 3
        status, body, headers = request(url, {})
        assert (status, body["error"]["type"]) == (429, "rate_limited")
        assert 1 <= int(headers["retry-after"]) <= 20
        assert request(address + "/health")[0] == 200
        assert request(url, {}, {"x-forwarded-for": "9.9.9.9"})[0] == 429  # not a proxy


def test_a_proxy_separates_its_clients():
    with stub(Settings(requests_per_minute=1, proxies=("127.0.0.0/8",))) as address:
        url = address + "/v1/completions"
        for client, status in (
            ("1.1.1.1", 200),
            ("2.2.2.2", 200),
            ("1.1.1.1", 429),
            ("5.5.5.5, 2.2.2.2", 429),
        ):
            assert request(url, {}, {"x-forwarded-for": client})[0] == status


def test_tokens_are_refilled_at_a_constant_rate():
    limit = RateLimit(60)
    assert [limit.wait("a", now=0.0) for _ in range(60)] == [0.0] * 60
    assert limit.wait("a", now=0.0) == pytest.approx(1.0)
    assert limit.wait("b", now=0.0) == 0.0
    assert limit.wait("a", now=0.75) == pytest.approx(0.25)
    assert limit.wait("a", now=1.0) == 0.0
    assert limit.wait("a", now=1.0) > 0
    for i in range(20_000):
        limit.wait(str(i), now=2.0)
    assert len(limit._buckets) == 10_000


def test_the_address_of_a_client_is_the_last_one_that_is_not_a_proxy():
    proxies = ProxyList(["10.0.0.0/8", "::1"])
    assert proxies.client_address("9.9.9.9", "1.1.1.1") == "9.9.9.9"
    assert proxies.client_address("10.0.0.1", "1.1.1.1, 2.2.2.2, 10.0.0.7") == "2.2.2.2"
    assert proxies.client_address("::1", "[2001:db8::1]") == "2001:db8::1"
    assert proxies.client_address("10.0.0.1", "1.1.1.1, nonsense") == "10.0.0.1"
    assert proxies.client_address("10.0.0.1", "") == "10.0.0.1"
    with pytest.raises(InputError, match="--proxy 'proxy'"):
        ProxyList(["proxy"])
    assert rate_group("2001:db8::1") == rate_group("2001:db8::ffff") != rate_group("2001:db8:1::1")
    assert [is_local(host) for host in ("127.0.0.5", "::1", "localhost", "0.0.0.0", "::", "a.org")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_cors_is_off_by_default_and_allows_the_chosen_origins():
    origin = {"origin": "https://a.org", "access-control-request-method": "POST"}
    with stub() as address:
        status, _, headers = request(address + "/translate", None, origin, "OPTIONS")
        assert status == 405
        assert "access-control-allow-origin" not in headers
    with stub(Settings(cors=("https://a.org",))) as address:
        status, _, headers = request(address + "/translate", None, origin, "OPTIONS")
        assert status == 204
        assert headers["access-control-allow-origin"] == "https://a.org"
        assert "authorization" in headers["access-control-allow-headers"]
        _, _, headers = request(address + "/translate", {}, origin)
        assert headers["access-control-allow-origin"] == "https://a.org"
        assert headers["vary"] == "origin"
        _, _, headers = request(address + "/translate", {}, {"origin": "https://b.org"})
        assert "access-control-allow-origin" not in headers


def test_every_response_has_security_headers_and_an_id():
    with stub() as address:
        for path in ("/health", "/nothing", "/api/fail", "/openapi.json"):
            _, _, headers = request(address + path)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert len(headers["x-request-id"]) == 32
            assert "server" not in headers
        own = request(address + "/health", headers={"x-request-id": "my-id-1"})[2]
        assert own["x-request-id"] == "my-id-1"
        for bad in ("x" * 65, "two words", "ü"):
            answered = request(
                address + "/health", headers={"x-request-id": bad.encode().decode("latin-1")}
            )[2]
            assert len(answered["x-request-id"]) == 32


def test_the_log_has_no_texts_queries_or_keys(keys, capfd):
    with stub(Settings(keys=keys)) as address:
        headers = {"x-api-key": KEY, "x-request-id": "id-1", "user-agent": "a secret text"}
        request(address + "/api/echo?q=private", {"text": "confidential"}, headers)
        request(address + "/api/fail", None, headers)
        request(address + "/nothing%0Afake%20line", {"text": "confidential"})
    log = capfd.readouterr().err
    [line] = [line for line in log.splitlines() if "/api/echo" in line]
    _, identity, name, method, path, status, duration, items = line.split(" ")
    assert (identity, name, method, path, status) == ("id-1", "alice", "POST", "/api/echo", "200")
    assert duration.endswith("ms")
    assert items == "items=1"
    assert "/nothing%0Afake%20line 404" in log
    assert "request id-1 failed with RuntimeError" in log
    assert "stub.py" in log  # where
    for secret in ("private", "confidential", KEY, "a secret text"):
        assert secret not in log


def test_the_log_can_be_json(capfd):
    with stub(Settings(json_log=True)) as address:
        request(address + "/api/echo", {"text": "hi"}, {"x-request-id": "id-1"})
    record = json.loads(capfd.readouterr().err)
    assert {**record, "time": "", "ms": 0} == {
        "time": "", "id": "id-1", "key": None, "method": "POST", "path": "/api/echo", "status": 200,
        "ms": 0, "items": 1,
    }  # fmt: skip
