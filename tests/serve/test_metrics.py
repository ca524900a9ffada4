"""Metrics in the Prometheus text format."""

import re

from regard.serve.metrics import Metrics, escape, sample
from regard.serve.settings import Settings
from serve.process import request
from serve.stub import stub

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)')


def parse(text):
    """The samples of the text format by name and labels; checks the format."""
    samples, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert re.fullmatch(r"# HELP [a-z_]+ \S.*", line)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        else:
            match = LINE.fullmatch(line)
            assert match, line
            base = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert kinds.get(match[1]) in ("counter", "gauge") or kinds[base] == "histogram"
            key = match[1], match[2] or ""
            assert key not in samples
            samples[key] = float(match[3])
    assert text.endswith("\n")
    return samples


def test_counts_requests_by_interface_endpoint_and_status():
    with stub(Settings(access_log=False)) as address:
        for path, body in (("/v1/completions", {}), ("/v1/completions", {}), ("/v1/completions", {"text": 5}),
                           ("/nothing", None), ("/api/things/a", None), ("/api/things/b", None)):  # fmt: skip
            request(address + path, body)
        _, text, headers = request(address + "/metrics")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = parse(text)
    counts = {
        labels: value
        for (name, labels), value in samples.items()
        if name == "regard_requests_total"
    }
    assert counts == {
        'interface="openai",endpoint="/v1/completions",status="200"': 2,
        'interface="openai",endpoint="/v1/completions",status="400"': 1,
        'interface="",endpoint="other",status="404"': 1,
        'interface="api",endpoint="/api/things/{name}",status="200"': 2,
    }
    labels = 'interface="openai",endpoint="/v1/completions"'
    assert samples["regard_request_duration_seconds_count", labels] == 3
    assert 0 < samples["regard_request_duration_seconds_sum", labels] < 3
    buckets = [value for (name, key), value in samples.items()
               if name.endswith("_bucket") and key.startswith(labels)]  # fmt: skip
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3
    assert samples["regard_ready", ""] == 1
    assert samples["process_resident_memory_bytes", ""] > 10**7
    assert samples["regard_num_requests_running", ""] == 0


def test_sums_the_numbers_of_all_processes():
    values = [0.0] * Metrics.SIZE
    other = Metrics(values)
    metrics = Metrics(others=[values])
    for each in (metrics, other):
        each.endpoints.append(("api", "/api/echo"))
    metrics.count(1, 200, 0.02)
    other.count(1, 200, 0.02)
    other.count(1, 299, 3_600)
    samples = parse(metrics.render(False, {}))
    labels = 'interface="api",endpoint="/api/echo"'
    assert samples["regard_requests_total", f'{labels},status="200"'] == 2
    assert samples["regard_requests_total", f'{labels},status="other"'] == 1
    assert samples["regard_request_duration_seconds_bucket", f'{labels},le="60.0"'] == 2
    assert samples["regard_request_duration_seconds_bucket", f'{labels},le="+Inf"'] == 3


def test_escapes_labels():
    assert escape('a"b\\c\nd') == r"a\"b\\c\nd"
    assert sample("m", {"model": 'x"\n'}, 1.5) == 'm{model="x\\"\\n"} 1.5'
    samples = parse(Metrics().render(True, {'odd "name"\\': "translate"}))
    assert samples["regard_model_loaded", r'model="odd \"name\"\\",task="translate"'] == 1
