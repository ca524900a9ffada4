"""The command `regard serve`: its options and its errors. tests/serve tests the service."""

import configparser
import json
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from command import error_of, regard
from regard.cli import serve as module
from regard.cli.main import build_parser
from regard.serve.settings import Limits, Settings
from serve.process import request, service

DEPLOY = Path(__file__).parents[2] / "deploy"


def parsed(*arguments):
    return build_parser().parse_args(["serve", *arguments])


def test_options_become_settings():
    options = parsed(
        "--host", "::1", "--port", "9", "--cors", "https://a.org", "--cors", "https://b.org",
        "--proxy", "10.0.0.1", "--drain", "5", "--requests-per-minute", "60", "--max-items", "7",
        "--max-body-seconds", "2.5", "--quiet", "--json",
    )  # fmt: skip
    assert module.chosen_settings(options) == Settings(
        host="::1", port=9, cors=("https://a.org", "https://b.org"), proxies=("10.0.0.1",), drain=5.0,
        requests_per_minute=60, limits=Limits(items=7, body_seconds=2.5), access_log=False, json_log=True,
    )  # fmt: skip


def test_the_defaults_of_the_options_are_those_of_the_settings():
    assert module.chosen_settings(parsed()) == Settings()
    help_text, _, code = regard("serve", "--help")
    assert code == 0
    for field in fields(Limits):
        assert f"--max-{field.name.replace('_', '-')}" in help_text


def test_the_files_for_deployment_use_valid_options():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "regard.service")
    program, verb, *arguments = unit["Service"]["ExecStart"].split()
    assert (Path(program).name, verb) == ("regard", "serve")
    settings = module.chosen_settings(parsed(*arguments))
    assert float(unit["Service"]["TimeoutStopSec"]) > settings.drain
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    [entry] = [line.removeprefix("ENTRYPOINT ") for line in lines if line.startswith("ENTRYPOINT ")]
    assert module.chosen_settings(parsed(*json.loads(entry)[2:])).host == "0.0.0.0"
    assert "USER regard" in lines


def test_help_does_not_import_torch_or_the_extra():
    code = (
        "import sys; sys.argv = ['regard', 'serve', '--help']\n"
        "from regard.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'uvicorn', 'starlette', 'msgspec'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "PACKAGES", ("uvicorn", "no_such_package"))
    assert error_of("serve") == (
        "regard serve needs no_such_package: install it with pip install 'regard[serve]'"
    )


def test_mistakes_end_with_one_line(tmp_path):
    broken = tmp_path / "keys"
    broken.write_text("alice secret\n")
    missing = tmp_path / "missing"
    for arguments, message in (
        (["-m", missing], f"{missing}: no such folder (expected a model folder or box:NAME)"),
        (["-m", tmp_path], f"{tmp_path} is not a model: it has no config.yaml"),
        (["-m", "box:translat"], "unknown model in the box 'translat'; did you mean 'translate'?"),
        (["-m", "=box:fill"], "-m =box:fill: write MODEL or NAME=MODEL, for example en-de=runs/my-run"),
        (["-m", "a=box:fill", "-m", "a=box:embed"],
         "two models have the name 'a': write -m NAME=MODEL for one of them"),
        (["--keys", missing], f"{missing}: No such file or directory"),
        (["--keys", broken], f"{broken}:1: not a line with a name and a SHA-256 hash"),
        (["--new-key", "alice"], "--new-key needs --keys FILE, the file in which the hash of the key is stored"),
        (["--port", "70000"], "--port must be at most 65,535, not 70000"),
        (["--host", "256.1.1.1"], "--host 256.1.1.1: "),
        (["--host", "8.8.8.8"], "cannot listen at 8.8.8.8 port 8000: "),
        (["--proxy", "proxy"], "--proxy 'proxy': write an address or a network such as 10.0.0.0/8"),
        (["--cors", "example.org"],
         "--cors 'example.org': write an origin such as https://example.org, without a path"),
        (["--cors", "https://example.org/"], "--cors 'https://example.org/': write an origin"),
        (["box:fill"], "unexpected argument 'box:fill' (see: regard serve --help)"),
        (["--private-key", broken], "--private-key needs --certificate FILE"),
        (["--port", "0", "--certificate", broken], f"--certificate {broken}: "),
        (["--max-items", "0"], "--max-items must be at least 1, not 0"),
        (["--device", "gpu"], "--device must be auto, cpu, cuda, cuda:INDEX or mps, not 'gpu'; did you mean cuda?"),
    ):  # fmt: skip
        assert error_of("serve", *arguments).startswith(message)


def test_a_port_in_use():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        message = error_of("serve", "--port", port)
    assert message == (
        f"cannot listen at 127.0.0.1 port {port}: Address already in use; choose another --port or --host"
    )


def test_makes_a_key_and_prints_it_once(tmp_path):
    path = tmp_path / "keys"
    key, err, code = regard("serve", "--keys", path, "--new-key", "alice")
    assert (err, code) == ("", 0)
    assert key.startswith("regard-")
    assert path.read_text().startswith("alice ")
    assert key.strip() not in path.read_text()
    assert error_of("serve", "--keys", path, "--new-key", "alice").endswith("the name alice")


def test_a_model_that_cannot_be_loaded_ends_the_service(tmp_path):
    (tmp_path / "config.yaml").write_text("task: nothing\n")
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", "-m", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    *_, loading, message = done.stderr.splitlines()
    assert loading.startswith("regard: loading")
    assert message.startswith(f"regard: {tmp_path}")


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_warns_about_an_open_address_without_keys(host, warns):
    with service("--host", host, "-m", "box:classify") as running:
        assert running.address.startswith("http://127.0.0.1:")
        assert request(running.address + "/health")[0] == 200
        assert running.end(signal.SIGTERM) == 0
    assert any("everyone who can reach" in line for line in running.lines) == warns
