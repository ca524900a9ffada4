"""Searches on one model from several threads find what they find alone, bit for bit."""

import gc
from functools import partial
from threading import Event, Thread

import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding.engines import cpu_weights
from regard.decoding.engines.cpu import cpu_model
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import Details, Search, decode
from regard.ops.cpu import build as native
from threads import at_once, check_concurrent

needs_compiler = pytest.mark.skipif(
    native.library("inference") is None, reason="needs a C++ compiler"
)
EOS = 2
SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "n_best": 3},
    "no repeat": {"beam": 2, "no_repeat": 2, "min_length": 4},
    "samples": {"beam": 1, "temperature": 1.3, "n_best": 2, "seed": 5},
    "long": {"beam": 1, "min_length": 80, "max_length": 80},
}
REQUESTS = [Request([3 + (5 * i + j) % 9 for j in range(1 + 3 * i)] + [EOS]) for i in range(4)]


def described(answers):
    """All of the answers, numbers to the last bit."""
    return [
        (one.token_ids, one.logprobs, one.score, one.alternatives,
         {part: [layer.tolist() for layer in layers] for part, layers in one.attention.items()})
        for answer in answers for one in (answer, *answer.others)
    ]  # fmt: skip


def stepped(net, options):
    """One search step by step, with what is settled after each."""
    search = Search(net, REQUESTS[1:2], options)
    return [search.settled() for _ in search], described(search.predictions())


def kinds_of_calls(net):
    """Every kind of call on a decoder, with requests that need position tables of many lengths."""
    details = Details(alternatives=2, attention=True)
    calls = {
        "details": lambda: described(decode(net, REQUESTS, DecodingConfig(max_length=6), details))
    }
    for name, changes in SEARCHES.items():
        options = DecodingConfig(**{"max_length": 6, **changes})
        calls[name] = lambda options=options: described(decode(net, REQUESTS, options))
        calls[f"{name}, stepped"] = partial(stepped, net, options)
    calls["score"] = lambda: [one.logprobs for one in score(net, REQUESTS, [[5, 6, EOS]] * 4)]
    return calls


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": torch.float32, "style": "encoder-decoder"},
        {"dtype": torch.float32, "style": "decoder", "positions": "rotary", "window": 5},
        {"dtype": torch.float32, "style": "decoder", "positions": "learned", "max_length": 120},
    ],
    ids=str,
)
def test_concurrent_searches_find_what_they_find_alone(changes, net):
    one = net(seed=11, **changes)
    calls = kinds_of_calls(one)
    assert check_concurrent(calls, rounds=4) == 8 * 4 * 12
    assert one.backend == "auto"


def test_concurrent_searches_by_pytorch_find_what_they_find_alone(net):
    one = net(seed=11)
    calls = kinds_of_calls(one)
    chosen = {name: calls[name] for name in ("details", "beam", "samples, stepped", "score")}
    check_concurrent(chosen, threads=4, rounds=3)
    assert one.backend == "auto"


@needs_compiler
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_threads_of_python_may_share_the_threads_of_openmp(precision, net):
    one = net(seed=12, dtype=torch.float32, style="encoder-decoder", d_model=64)
    one.precision = precision
    torch.set_num_threads(2)
    try:
        calls = kinds_of_calls(one)
        chosen = {name: calls[name] for name in ("beam", "greedy, stepped", "no repeat")}
        check_concurrent(chosen, threads=3, rounds=2)
    finally:
        torch.set_num_threads(1)
        one.precision = None


@needs_compiler
def test_a_short_call_leaves_a_long_one_its_position_table(net, monkeypatch):
    """The shorter table is ready last, as where its thread had to wait for a core."""
    one = net(seed=13, dtype=torch.float32, style="decoder", positions="rotary")
    short, long = (DecodingConfig(beam=1, min_length=n, max_length=n) for n in (300, 900))
    alone = described(decode(one, REQUESTS[:1], long))
    fresh = net.__wrapped__(seed=13, dtype=torch.float32, style="decoder", positions="rotary")
    decode(fresh, REQUESTS[:1], DecodingConfig(beam=1, max_length=3))
    angles, began = cpu_weights.angles, Event()

    def slow(where, *sizes):
        if len(where) == 512:
            began.set()
            Event().wait(0.3)
        return angles(where, *sizes)

    monkeypatch.setattr(cpu_weights, "angles", slow)
    other = Thread(target=decode, args=(fresh, REQUESTS[:1], short))
    other.start()
    began.wait()
    search = Search(fresh, REQUESTS[:1], long)
    steps = iter(search)
    next(steps)
    other.join()  # the short table is there
    for _ in steps:
        pass
    assert described(search.predictions()) == alone


@needs_compiler
def test_a_structure_never_changes_and_keeps_its_tables(net):
    one = net.__wrapped__(seed=14, dtype=torch.float32, style="decoder", positions="rotary")
    decoder = cpu_model(one).decoder
    first = decoder.reach(100)
    content, table = bytes(first), first.kept[2].clone()
    second = decoder.reach(1000)
    assert (first.positions, second.positions) == (256, 1024)
    assert bytes(first) == content
    assert decoder.reach(10) is second
    del second, decoder, one
    gc.collect()
    assert first.kept[2].data_ptr() == first.turn
    assert first.kept[2].equal(table)


@needs_compiler
def test_a_learned_table_is_made_once(net):
    one = net(seed=15, dtype=torch.float32, style="decoder", positions="learned", max_length=20)
    decoder = cpu_model(one).decoder
    table = decoder.reach(3)
    assert table.positions == 20
    assert table is decoder.reach(21)  # the last token of an answer is never read


@needs_compiler
def test_threads_that_need_an_engine_pack_its_weights_once(model):
    for _ in range(5):
        one = model(dtype=torch.float32, d_model=64, d_ff=256)
        engines = at_once([partial(cpu_model, one)] * 8)
        assert len({id(engine) for engine in engines}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_call_assigns_no_attribute_of_the_model(dtype, net, monkeypatch):
    one = net(seed=16, dtype=dtype)
    assigned = []
    plain = torch.nn.Module.__setattr__

    def record(module, name, value):
        assigned.append((type(module).__name__, name))
        plain(module, name, value)

    monkeypatch.setattr(torch.nn.Module, "__setattr__", record)
    for call in kinds_of_calls(one).values():
        call()
    assert assigned == []


def test_a_call_can_choose_its_attention_backend(model, row):
    """And the model keeps its own choice."""
    net = model(backend="reference")
    source, target = row([3, 5]), row([4, 2])
    expected = net.hidden(source, target)
    found = net.hidden(source, target, backend="padded")
    torch.testing.assert_close(found, expected)
    assert not found.equal(expected)
    assert net.backend == "reference"
