"""On a GPU, hooks and changed modules take effect in every search and in training."""

import pytest
import torch
from torch import nn

from regard import Packed
from regard.config.sections import DecodingConfig
from regard.decoding.engines.cuda_graph import GraphSearch
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import Search, decode
from regard.model.overrides import find_override
from regard.training.cuda_graph import StepGraphs
from regard.training.losses import Batch, token_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

REQUESTS = [Request([5, 3, 8, 2]), Request([6, 2])]
BEAM = DecodingConfig(beam=3, max_length=6)


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def disturb(*arguments):
    output = arguments[-1]
    return output + torch.sin(torch.arange(output.numel(), device=output.device).view_as(output))


def searched(net, options):
    return [number for p in decode(net, REQUESTS, options) for number in p.logprobs]


def batch(device):
    source, target = Packed.of([[5, 3, 8, 2], [6, 2]]), Packed.of([[1, 7, 9, 4], [1, 5]])
    return Batch(source.to(device), target.to(device), (torch.arange(6) + 3).to(device))


def trained(net):
    net.train()
    with torch.autocast("cuda", torch.bfloat16):
        loss, _ = token_loss(net, batch("cuda"), 0.1)
    loss.backward()
    net.zero_grad()
    net.eval()
    return [loss.item()]


USES = {
    "greedy": lambda net: searched(net, DecodingConfig(beam=1, max_length=4)),
    "beam": lambda net: searched(net, BEAM),
    "sampling": lambda net: searched(net, DecodingConfig(temperature=1.0, beam=1, max_length=4)),
    "score": lambda net: score(net, REQUESTS[:1], [[7, 9, 2]])[0].logprobs,
    "training": trained,
}


def make(model, **changes):
    options = {"tie_embeddings": "none", "source_vocabulary_size": 20, "d_model": 32}
    options |= {"positions": "learned", "max_length": 40, "norm_first": True}
    return model(dtype=torch.float32, **options, **changes).cuda()


@pytest.mark.parametrize("use", USES)
def test_a_hook_on_any_module_is_called_and_changes_the_result(use, model):
    net = make(model, encoder_layers=1, decoder_layers=1)
    before = USES[use](net)
    for name, module in net.named_modules():
        if module is net or type(module).forward is nn.Module.forward:
            continue
        calls, results = [], []
        for hook in (lambda *_, calls=calls: calls.append(1), disturb):
            handle = module.register_forward_hook(hook)
            results.append(USES[use](net))
            handle.remove()
        assert calls, name
        assert results[0] == pytest.approx(before, rel=2e-2, abs=2e-2), name
        assert results[1] != results[0], name


def engine(net):
    search = Search(net, REQUESTS, BEAM)
    for _ in search:
        pass
    return type(search.engine)


def test_cuda_graphs_are_used_again_after_hook_is_removed(model):
    net = make(model)
    assert engine(net) is GraphSearch
    hook = net.decoder.layers[0].cross_attention.register_forward_hook(disturb)
    assert engine(net) is EagerSearch
    hook.remove()
    assert engine(net) is GraphSearch


def in_place(net):
    net.load_state_dict({name: -tensor for name, tensor in net.state_dict().items()})


def positions(net):
    with torch.no_grad():
        net.decoder.positions.weight.mul_(-1)


def replaced(net):
    net.decoder.layers[0] = type(net.decoder.layers[0])(net.config, cross=True).cuda().eval()


@pytest.mark.parametrize("change", [in_place, positions, replaced])
def test_cuda_graphs_read_changed_weights(change, model):
    net = make(model)
    before = searched(net, BEAM)
    change(net)
    assert find_override(net) is None
    after = searched(net, BEAM)
    assert after != pytest.approx(before, rel=1e-4)
    net.decoder.register_forward_hook(lambda *_: None)  # for the eager engine
    assert after == pytest.approx(searched(net, BEAM), abs=1e-3)


def test_a_training_step_with_a_hook_uses_no_cuda_graph(model):
    net = make(model).train()
    graphs = StepGraphs(net, lambda b: token_loss(net, b), [64, 64], torch.float32)
    assert graphs.usable
    assert graphs.size(batch("cpu")) is not None
    weight = net.decoder.layers[0].feed_forward.inner.weight
    for register in (
        lambda: net.decoder.layers[0].register_forward_hook(lambda *_: None),
        lambda: net.encoder.register_full_backward_hook(lambda *_: None),
        lambda: weight.register_hook(lambda gradient: gradient * 2),
        lambda: weight.register_post_accumulate_grad_hook(lambda _: None),
    ):
        hook = register()
        assert graphs.size(batch("cpu")) is None
        hook.remove()
        assert graphs.size(batch("cpu")) is not None
