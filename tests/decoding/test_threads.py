"""Concurrent searches on one model are bit-identical to sequential searches."""

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
    """All values of the predictions, for an exact comparison."""
    return [
        (prediction.token_ids, prediction.logprobs, prediction.score, prediction.alternatives,
         {part: [layer.tolist() for layer in layers] for part, layers in prediction.attention.items()})
        for answer in answers for prediction in (answer, *answer.others)
    ]  # fmt: skip


def stepped(net, options):
    """One search step by step, with the settled tokens after each step."""
    search = Search(net, REQUESTS[1:2], options)
    return [search.settled() for _ in search], described(search.predictions())


def kinds_of_calls(net):
    """All kinds of calls on a decoder, with requests that need position tables of many lengths."""
    details = Details(alternatives=2, attention=True)
    calls = {
        "details": lambda: described(decode(net, REQUESTS, DecodingConfig(max_length=6), details))
    }
    for name, changes in SEARCHES.items():
        options = DecodingConfig(**{"max_length": 6, **changes})
        calls[name] = lambda options=options: described(decode(net, REQUESTS, options))
        calls[f"{name}, stepped"] = partial(stepped, net, options)
    calls["score"] = lambda: [result.logprobs for result in score(net, REQUESTS, [[5, 6, EOS]] * 4)]
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
def test_concurrent_searches_equal_sequential_searches(changes, net):
    transformer = net(seed=11, **changes)
    calls = kinds_of_calls(transformer)
    assert check_concurrent(calls, rounds=4) == 8 * 4 * 12
    assert transformer.backend == "auto"


def test_concurrent_searches_with_pytorch_equal_sequential_searches(net):
    transformer = net(seed=11)
    calls = kinds_of_calls(transformer)
    chosen = {name: calls[name] for name in ("details", "beam", "samples, stepped", "score")}
    check_concurrent(chosen, threads=4, rounds=3)
    assert transformer.backend == "auto"


@needs_compiler
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_python_threads_can_share_openmp_threads(precision, net):
    transformer = net(seed=12, dtype=torch.float32, style="encoder-decoder", d_model=64)
    transformer.precision = precision
    torch.set_num_threads(2)
    try:
        calls = kinds_of_calls(transformer)
        chosen = {name: calls[name] for name in ("beam", "greedy, stepped", "no repeat")}
        check_concurrent(chosen, threads=3, rounds=2)
    finally:
        torch.set_num_threads(1)
        transformer.precision = None


@needs_compiler
def test_short_call_does_not_replace_longer_position_table(net, monkeypatch):
    """The shorter table is finished last, as if its thread had to wait for a core."""
    transformer = net(seed=13, dtype=torch.float32, style="decoder", positions="rotary")
    short, long = (DecodingConfig(beam=1, min_length=n, max_length=n) for n in (300, 900))
    alone = described(decode(transformer, REQUESTS[:1], long))
    fresh = net.__wrapped__(seed=13, dtype=torch.float32, style="decoder", positions="rotary")
    decode(fresh, REQUESTS[:1], DecodingConfig(beam=1, max_length=3))
    angles, began = cpu_weights.angles, Event()

    def slow(positions, *sizes):
        if len(positions) == 512:
            began.set()
            Event().wait(0.3)
        return angles(positions, *sizes)

    monkeypatch.setattr(cpu_weights, "angles", slow)
    thread = Thread(target=decode, args=(fresh, REQUESTS[:1], short))
    thread.start()
    began.wait()
    search = Search(fresh, REQUESTS[:1], long)
    steps = iter(search)
    next(steps)
    thread.join()  # the short table is finished
    for _ in steps:
        pass
    assert described(search.predictions()) == alone


@needs_compiler
def test_c_structure_is_immutable_and_owns_its_tables(net):
    transformer = net.__wrapped__(seed=14, dtype=torch.float32, style="decoder", positions="rotary")
    decoder = cpu_model(transformer).decoder
    first = decoder.reach(100)
    content, table = bytes(first), first.references[2].clone()
    second = decoder.reach(1000)
    assert (first.positions, second.positions) == (256, 1024)
    assert bytes(first) == content
    assert decoder.reach(10) is second
    del second, decoder, transformer
    gc.collect()
    assert first.references[2].data_ptr() == first.rotation
    assert first.references[2].equal(table)


@needs_compiler
def test_learned_position_table_is_built_once(net):
    transformer = net(
        seed=15, dtype=torch.float32, style="decoder", positions="learned", max_length=20
    )
    decoder = cpu_model(transformer).decoder
    table = decoder.reach(3)
    assert table.positions == 20
    assert table is decoder.reach(21)  # the last token of an answer is never read


@needs_compiler
def test_concurrent_calls_convert_weights_once(model):
    for _ in range(5):
        transformer = model(dtype=torch.float32, d_model=64, d_ff=256)
        engines = at_once([partial(cpu_model, transformer)] * 8)
        assert len({id(engine) for engine in engines}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_call_assigns_no_attribute_of_the_model(dtype, net, monkeypatch):
    transformer = net(seed=16, dtype=dtype)
    assigned = []
    plain = torch.nn.Module.__setattr__

    def record(module, name, value):
        assigned.append((type(module).__name__, name))
        plain(module, name, value)

    monkeypatch.setattr(torch.nn.Module, "__setattr__", record)
    for call in kinds_of_calls(transformer).values():
        call()
    assert assigned == []


def test_a_call_can_choose_its_attention_backend(model, row):
    """The choice applies to this call only."""
    net = model(backend="reference")
    source, target = row([3, 5]), row([4, 2])
    expected = net.hidden(source, target)
    result = net.hidden(source, target, backend="padded")
    torch.testing.assert_close(result, expected)
    assert not result.equal(expected)
    assert net.backend == "reference"
