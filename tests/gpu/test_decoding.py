"""A search with CUDA graphs equals the eager engine and the CPU."""

import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding import search
from regard.decoding.engines import cuda_graph
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.requests import Request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODES = [
    DecodingConfig(beam=1),
    DecodingConfig(beam=4, n_best=3),
    DecodingConfig(beam=30, max_length=8, n_best=5),
    DecodingConfig(beam=3, no_repeat=2, min_length=9),
    DecodingConfig(beam=1, temperature=1.0, n_best=3),
    DecodingConfig(beam=1, temperature=0.8, top_k=6, top_p=0.9, no_repeat=3),
]


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """Compute float32 products in float32, not in TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def requests(count, prefixes):
    batch = []
    for i in range(count):
        source = torch.randint(3, 20, (1 + 7 * i % 41,)).tolist()
        batch.append(Request(source, [5, 9, 11][: i % 4] if prefixes else []))
    return batch


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        for prediction, reference in zip((a, *a.others), (b, *b.others), strict=True):
            assert prediction.token_ids == reference.token_ids
            assert prediction.stopped == reference.stopped
            assert prediction.score == pytest.approx(reference.score, abs=1e-4)


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("changes", [{}, {"window": 4, "positions": "rotary"}], ids=str)
def test_graph_search_equals_eager_and_the_cpu(
    style, options, prefixes, changes, model, monkeypatch
):
    # Rounding can change a sampled token, so sampling is compared in float64.
    dtype = torch.float64 if options.temperature else torch.float32
    net = model(style=style, dtype=dtype, d_model=32, **changes)
    batch = requests(11, prefixes)
    on_cpu = search.decode(net, batch, options)
    net.cuda()
    predictions = search.decode(net, batch, options)
    again = search.decode(net, batch[::-1], options, batch_tokens=400)[::-1]
    monkeypatch.setattr(search, "choose_engine", EagerSearch)
    same(predictions, search.decode(net, batch, options))
    same(predictions, on_cpu)
    same(predictions, again)


def test_unfinished_sentences_move_to_smaller_buffers(model, monkeypatch):
    net = model(dtype=torch.float32, d_model=32).cuda()
    batch = [Request([3 + i % 17, 5, 2], limit=2 if i % 16 else 60) for i in range(64)]
    options = DecodingConfig(beam=2, min_length=60)
    moved = []
    move_from = cuda_graph.GraphBuffers.move_from
    monkeypatch.setattr(
        cuda_graph.GraphBuffers,
        "move_from",
        lambda *args: (moved.append(len(args[2])), move_from(*args)),
    )
    predictions = search.decode(net, batch, options)
    assert moved == [4]
    monkeypatch.setattr(search, "choose_engine", EagerSearch)
    same(predictions, search.decode(net, batch, options))


def test_changed_weights_are_used(model):
    net = model(dtype=torch.float32, d_model=32).cuda()
    source = model(dtype=torch.float32, d_model=32)
    torch.nn.init.normal_(source.table("target").weight)
    batch, options = requests(5, False), DecodingConfig(beam=2)
    before = search.decode(net, batch, options)
    net.load_state_dict(source.state_dict())
    after = search.decode(net, batch, options)
    assert [a.token_ids for a in after] != [a.token_ids for a in before]
    same(after, search.decode(source, batch, options))
    same(search.decode(net.double().float(), batch, options), after)


def test_number_of_buffers_is_bounded(model):
    net = model(dtype=torch.float32, d_model=32).cuda()
    for count in range(1, 2 * cuda_graph.MAX_BUFFERS, 2):
        search.decode(net, requests(count, False)[-3:], DecodingConfig(beam=1 + count % 7))
    assert len(cuda_graph._buffers[net]) <= cuda_graph.MAX_BUFFERS
