"""Several processes on one port: they share the work, are replaced, and end together."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from regard.serve.processes import MOST_FAILURES
from regard.training.shipped import folder_of
from serve.process import request, service

TESTS = Path(__file__).parents[1]
SECONDS = 60  # no wait in these tests is longer


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def children(process):
    """The PIDs of the worker processes of a service."""
    pids = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return {int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def exists(pid):
    """Whether a process runs; one that has ended and waits for its parent does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def started(command):
    """A process in a group of its own, which has ended at the end."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=SECONDS)


@contextmanager
def small_service(mode, count=2):
    """A service without models. Yields its process and its port."""
    with started([sys.executable, "-m", "serve.small_service", mode, str(count)]) as process:
        yield process, int(process.stdout.readline())


def visit(port):
    """Connect to a small service; the index and the PID of the worker."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        index, pid = connection.makefile().readline().split()
        return int(index), int(pid)


def visit_all(port, count=2):
    """Connect until each worker has answered; their PIDs."""
    seen = {}
    wait_until(lambda: seen.update([visit(port)]) or len(seen) == count)
    return seen


def test_connections_that_arrive_together_are_spread_over_the_workers():
    with small_service("answers") as (_, port):
        visit_all(port)
        with ThreadPoolExecutor(64) as pool:
            indices = [index for index, _ in pool.map(lambda _: visit(port), range(200))]
    assert min(indices.count(0), indices.count(1)) >= 20, indices


def test_a_killed_worker_is_replaced_while_the_other_answers():
    with small_service("answers") as (process, port):
        pids = visit_all(port)
        assert set(pids.values()) == children(process.pid)
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: not exists(pids[0]))
        assert visit(port)[1] == pids[1]
        assert process.stdout.readline().startswith("ended 0 ")
        replaced = {}
        wait_until(lambda: replaced.update([visit(port)]) or replaced.get(0, pids[0]) != pids[0])
        assert replaced[1] == pids[1]
        process.terminate()
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert errors == "regard: worker 0 ended (SIGKILL); a new one starts in 0.25 s\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_all_workers(number, code):
    with small_service("answers", 3) as (process, port):
        pids = visit_all(port, 3)
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
        output, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, output, errors) == (code, "", "")
        assert not any(map(exists, pids.values()))
        assert refuses(port)


def test_a_signal_while_workers_start_ends_them():
    with small_service("answers") as (process, _):
        pids = wait_until(lambda: children(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, output, errors) == (130, "", "")
        assert not any(map(exists, pids))


def test_a_worker_that_does_not_end_is_killed_after_a_second_signal():
    with small_service("never ends", 1) as (process, port):
        pids = wait_until(lambda: children(process.pid))
        wait_until(lambda: ignores_sigterm(*pids))
        process.terminate()
        wait_until(lambda: refuses(port))
        assert exists(*pids)
        process.terminate()
        process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert not exists(*pids)


def ignores_sigterm(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.split("SigIgn:")[1].split()[0], 16)
    return mask >> (signal.SIGTERM - 1) & 1


def refuses(port):
    with suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
        return False
    return True


def test_workers_end_if_their_parent_is_killed():
    with small_service("answers") as (process, port):
        pids = visit_all(port)
        process.kill()
        wait_until(lambda: not any(map(exists, pids.values())))


def test_workers_that_cannot_start_end_the_service():
    with small_service("fails") as (process, _):
        output, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        lines = errors.splitlines()
        assert len(lines) == MOST_FAILURES
        assert lines[0] == "regard: worker 0 ended (exit code 3); a new one starts in 0.25 s"
        assert lines[-1] == "regard: workers end before they are ready: see the messages above"
        assert output == "ended 0 0\n" * (MOST_FAILURES - 1)


def test_a_wrong_option_is_reported_once():
    with small_service("bad input") as (process, _):
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (2, "regard: there is no such model\n")


def test_the_service_goes_on_if_only_some_workers_start():
    with small_service("fails later") as (process, port):
        for _ in range(MOST_FAILURES + 1):
            assert process.stdout.readline() == "ended 1 0\n"
            assert visit(port)[0] == 0
        process.terminate()
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        pauses = [line.rpartition(" in ")[2] for line in errors.splitlines()]
        assert pauses[:4] == ["0.25 s", "0.5 s", "1 s", "2 s"]


# ---- services with models -------------------------------------------------------------------


@pytest.fixture(scope="module")
def running():
    """A service with two workers; tests that kill a worker leave it with two."""
    limits = ("--requests-per-minute", "1000", "--device", "cpu")
    with service("--workers", 2, "-m", "box:translate", "-m", "box:classify", *limits) as each:
        wait_until(lambda: workers_ready(each) == 2)
        yield each
        pids = children(each.process.pid)
        assert each.end(signal.SIGTERM) == 0
        assert len(pids) == 2
        assert not any(map(exists, pids))


def metric(running, name):
    """The sum of all samples of a metric."""
    status, text, _ = request(running.address + "/metrics")
    assert status == 200
    lines = [line.split() for line in text.splitlines() if line.startswith(name)]
    return sum(float(value) for _, value in lines)


def workers_ready(running):
    with suppress(OSError):
        return metric(running, "regard_workers")
    return 0


def worker_of(connection, running):
    """The PID of the worker that has accepted a connection."""
    local, remote = connection.getsockname()[1], connection.getpeername()[1]
    ports = f":{remote:04X}", f":{local:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1][-5:], fields[2][-5:]) == ports:
            name = f"socket:[{fields[9]}]"
    for pid in children(running.process.pid):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(path) == name:
                    return pid
    return None


def post(running, path, body):
    """Send a request over a new connection; the PID of the worker, and the body of the response."""
    connection = HTTPConnection("127.0.0.1", running.port, timeout=SECONDS)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    pid = worker_of(connection.sock, running)
    content = response.read()
    connection.close()
    assert response.status == 200, content
    return pid, content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/classify", {"texts": ["What a wonderful film!", "I want my money back."]}),
        ("/api/translate", {"text": "A man is walking his dog.", "source": "en", "target": "de"}),
    ],
)
def test_workers_give_the_same_responses(running, path, body):
    responses = {}
    wait_until(lambda: responses.update([post(running, path, body)]) or len(responses) == 2)
    assert set(responses) == children(running.process.pid)
    assert len(set(responses.values())) == 1


def test_metrics_are_those_of_all_workers(running):
    name = 'regard_requests_total{interface="api",endpoint="/api/classify",status="200"}'
    before, workers = metric(running, name), set()
    for sent in range(1, 200):
        workers.add(post(running, "/api/classify", {"texts": ["good"]})[0])
        if len(workers) == 2 and sent > 10:
            break
    assert len(workers) == 2
    assert {metric(running, name) for _ in range(10)} == {before + sent}
    assert metric(running, "regard_ready") == 1


def test_workers_share_the_weights(running):
    post(running, "/api/translate", {"text": "Hello.", "source": "en", "target": "de"})
    files, pss, dirty = {}, 0, 0
    for pid in children(running.process.pid):
        for path, sizes in mapped_files(pid):
            files[path] = os.stat(path).st_size
            pss, dirty = pss + sizes["Pss"], dirty + sizes["Private_Dirty"]
    assert len(files) == 2
    assert 0 < pss < 1.2 * sum(files.values())
    assert dirty == 0


def mapped_files(pid):
    """The mapped weights of a process: their path, and the sizes of their memory in bytes."""
    ranges = []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            ranges.append((line.split()[-1], {}))
        elif value.endswith("kB"):
            ranges[-1][1][name] = int(value.split()[0]) * 1024
    return [each for each in ranges if each[0].endswith(".tensors")]


def test_a_killed_worker_of_a_service_is_replaced(running):
    body = {"texts": ["good"]}
    before = children(running.process.pid)
    counted = metric(running, "regard_requests_total")
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not exists(killed))

    def answers():
        """Send a request, which a worker that is ready must answer. Whether there are two."""
        assert request(running.address + "/api/classify", body)[0] == 200
        after = children(running.process.pid) - {killed}
        return len(after) == 2 and workers_ready(running) == 2

    wait_until(answers)
    assert len(children(running.process.pid) & before) == 1
    assert metric(running, "regard_requests_total") > counted  # none is forgotten
    assert any("ended (SIGKILL)" in line for line in running.lines)


def test_a_model_that_cannot_be_loaded_ends_the_service(tmp_path):
    shutil.copytree(folder_of("box:classify"), tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with service("--workers", 2, "-m", tmp_path / "model", "--device", "cpu") as each:
        assert each.process.wait(SECONDS) == 2
        wait_until(lambda: not each._reader.is_alive())
        errors = [line for line in each.lines if "damaged" in line]
        assert errors == [f"regard: {weights} is damaged: its checksum does not match\n"]
        assert not any("Traceback" in line for line in each.lines)
