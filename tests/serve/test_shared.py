"""Numbers that processes share: metrics, and the rates of clients."""

import multiprocessing

import pytest

from regard.serve.access import RateLimit
from regard.serve.metrics import Metrics
from regard.serve.shared import WAYS, SharedNumbers, SharedRates
from serve.small_service import count_up, use_rates

SECONDS = 60  # no wait in these tests is longer


def test_processes_share_numbers_and_exclude_each_other():
    context, numbers = multiprocessing.get_context("spawn"), SharedNumbers(2, 3)
    processes = [context.Process(target=count_up, args=(numbers, 2_000)) for _ in range(2)]
    for process in processes:
        process.start()
    count_up(numbers, 2_000)
    for process in processes:
        process.join(SECONDS)
    assert list(numbers.row(1)) == [0, 0, 6_000]
    assert list(numbers.row(0)) == [0, 0, 0]


def test_metrics_of_workers_are_summed_and_counters_outlive_a_worker():
    name, table = "regard_deepl_characters_total", SharedNumbers(3, Metrics.SIZE)
    rows = [table.row(i) for i in range(3)]
    first, second = Metrics(rows[0], [rows[1], rows[2]]), Metrics(rows[1], [rows[0], rows[2]])
    for metrics in (first, second):
        metrics.add(name, 5)
        metrics.count(0, 200, 0.1)
        metrics.update(None, streams=2, connections=1)
    assert first.total(name) == second.total(name) == 10
    assert first.total("regard_num_streams") == 4
    Metrics.retire(rows[0], rows[2])
    assert not any(rows[0])
    assert second.total(name) == 10
    assert second.total("regard_num_streams") == 2
    samples = second.render(ready=True, models={}).splitlines()
    assert 'regard_requests_total{interface="",endpoint="other",status="200"} 2' in samples


def test_shared_rates_equal_those_of_one_process():
    own, shared = RateLimit(6), SharedRates(6, SharedRates.make_table())
    for i in range(400):
        client, now = f"client {i % 7}", 1_000 + i * 0.8
        assert shared.wait(client, now) == pytest.approx(own.wait(client, now), abs=1e-9), i
    assert SharedRates(0, shared.table).wait("client 1") == 0


def test_the_table_of_rates_is_bounded():
    table = SharedRates.make_table()
    rates = SharedRates(1, table)
    assert rates.wait("first", 100) == 0
    assert rates.wait("first", 101) > 0
    for i in range(table.rows * 3):
        rates.wait(f"client {i}", 102 + i / 1e6)
    assert rates.wait("first", 103) == 0  # forgotten
    assert table.rows % WAYS == 0


def test_a_limit_holds_over_all_processes():
    context = multiprocessing.get_context("spawn")
    rates, allowed = SharedRates(30, SharedRates.make_table()), 0
    processes, readers = [], []
    for _ in range(2):
        reader, writer = context.Pipe(duplex=False)
        processes.append(context.Process(target=use_rates, args=(rates, writer)))
        processes[-1].start()
        writer.close()
        readers.append(reader)
    for process, reader in zip(processes, readers, strict=True):
        allowed += sum(reader.recv() for _ in range(40))
        process.join(SECONDS)
    assert 30 <= allowed <= 32  # 80 requests; a second or two may pass meanwhile
