"""The host code of the GPU engine, with an ordinary function in place of CUDA graphs.
tests/gpu runs the same on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding import continuous, search
from regard.decoding.continuous import ContinuousBatch
from regard.decoding.engines import cuda_graph
from regard.decoding.requests import Request
from regard.decoding.search import Search, decode

MODES = [
    {"beam": 1},
    {"beam": 4, "n_best": 3},
    {"beam": 3, "no_repeat": 2, "min_length": 9},
    {"beam": 1, "temperature": 1.0, "n_best": 3},
]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    def make_graph(body, pool):
        body()  # a warm-up call, in which libraries allocate memory
        return SimpleNamespace(replay=body)

    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(cuda_graph, "make_graph", torch.no_grad()(make_graph))
    monkeypatch.setattr(cuda_graph, "fused_step", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)


@pytest.fixture
def replayed(monkeypatch):
    """`decode` with the GPU engine."""

    def run(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(search, "choose_engine", cuda_graph.GraphSearch)
            return decode(*arguments, **options)

    return run


def requests(count, prefixes=False):
    return [
        Request(torch.randint(3, 20, (1 + 7 * i % 41,)).tolist(), [5, 9, 11][: i % 4] if prefixes else [])
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("changes", [{}, {"window": 4, "positions": "rotary"}], ids=str)
def test_graph_search_equals_eager_engine(style, mode, prefixes, changes, model, replayed, same):
    net, options = model(style=style, **changes), DecodingConfig(max_length=12, **mode)
    batch = requests(11, prefixes)
    expected = decode(net, batch, options)
    same(replayed(net, batch, options), expected)
    same(replayed(net, batch[::-1], options, batch_tokens=300)[::-1], expected)


def test_unfinished_sentences_move_to_smaller_buffers(model, replayed, same, monkeypatch):
    net, moved, move_from = model(), [], cuda_graph.GraphBuffers.move_from
    batch = [Request([3 + i % 17, 5, 2], limit=2 if i % 16 else 40) for i in range(64)]
    options = DecodingConfig(beam=2, min_length=40)
    monkeypatch.setattr(
        cuda_graph.GraphBuffers,
        "move_from",
        lambda *args: (moved.append(len(args[2])), move_from(*args)),
    )
    same(replayed(net, batch, options), decode(net, batch, options))
    assert moved == [4]


def test_concurrent_searches_do_not_share_buffers(model, same, monkeypatch):
    net, options = model(), DecodingConfig(beam=2, max_length=9, min_length=9)
    batch = [[Request([3, 4, 5, 2])], [Request([9, 8, 7, 2])]]
    expected = [decode(net, requests, options)[0] for requests in batch]
    monkeypatch.setattr(search, "choose_engine", cuda_graph.GraphSearch)
    both = [Search(net, requests, options) for requests in batch]
    steps = [iter(job) for job in both]
    while [next(step, "end") for step in steps] != ["end", "end"]:  # alternately
        pass
    assert len(cuda_graph._buffers[net]) == 2
    same([job.predictions()[0] for job in both], expected)


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_groups_of_a_continuous_batch(style, model, same, monkeypatch):
    net = model(style=style, dtype=torch.float32)
    pairs = [
        (request, DecodingConfig(max_length=4 + 40 * (i % 3 == 0), **MODES[i % 4]))
        for i, request in enumerate(requests(24, prefixes=True))
    ]
    expected = [decode(net, [request], options)[0] for request, options in pairs]
    monkeypatch.setattr(continuous, "cpu_model", lambda model: None)
    monkeypatch.setattr(continuous, "has_graphs", lambda model, job: True)

    def run(pairs, size):
        batch, predictions, owners = ContinuousBatch(net), {}, {}
        for start in [*range(0, len(pairs), size), *[None] * 99]:
            if start is not None:
                added = batch.add(pairs[start : start + size])
                owners |= dict(zip(added, range(start, start + len(added)), strict=True))
                if len(added) > 6:
                    batch.remove(batch.add(pairs[:1])[0])
            for running in batch.step():
                predictions[owners[running]] = running.prediction()
        assert not batch.running
        assert not any(buffers.busy for buffers in cuda_graph._buffers[net].values())
        return [predictions[i] for i in range(len(pairs))]

    alone = run(pairs, 1)
    same(alone, expected)
    assert repr([vars(each) for each in run(pairs, 9)]) == repr([vars(each) for each in alone])


def test_abandoned_search_releases_its_buffers(model, monkeypatch):
    net, options = model(), DecodingConfig(beam=2, min_length=9)
    monkeypatch.setattr(search, "choose_engine", cuda_graph.GraphSearch)
    for _ in range(3):
        steps = iter(Search(net, [Request([3, 4, 5, 2])], options))
        next(steps)
        del steps
    assert len(cuda_graph._buffers[net]) == 1
    assert not any(buffers.busy for buffers in cuda_graph._buffers[net].values())


def test_the_number_of_buffers_is_bounded_and_they_can_be_released(model, replayed):
    net = model()
    for beam in range(1, cuda_graph.MAX_BUFFERS + 5):
        replayed(net, [Request([3, 2], limit=2)], DecodingConfig(beam=beam))
    assert len(cuda_graph._buffers[net]) == cuda_graph.MAX_BUFFERS
    cuda_graph.release_graphs(net)
    assert net not in cuda_graph._buffers
