"""Options of models from other toolkits on a GPU: decoding and training equal the CPU."""

import pytest
import torch

from regard import ModelConfig, Packed, Transformer
from regard.config.sections import DecodingConfig
from regard.decoding import search
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.requests import Request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LLAMA = {
    "style": "decoder", "heads": 4, "key_value_heads": 2, "norm": "rms", "norm_first": True,
    "activation": "swiglu", "bias": False, "positions": "rotary", "norm_epsilon": 1e-6,
}  # fmt: skip
OPTIONS = [
    LLAMA,
    LLAMA | {"query_key_value_bias": True, "tie_embeddings": "none"},
    {"style": "decoder", "activation": "gelu-tanh", "positions": "learned", "norm_first": True},
    {"activation": "silu", "output_bias": True, "norm_epsilon": 1e-12},
    {"activation": "gelu-tanh", "heads": 2, "key_value_heads": 1},
    {"decoder_layers": 1, "output_bias": True, "norm_epsilon": 1e-2},
    {"decoder_mixer": "ssru", "output_bias": True},
    {"style": "decoder", "decoder_mixer": "ssru"},
]


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """Compute float32 products in float32, not in TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def make(changes):
    torch.manual_seed(5)
    layers = {"decoder_layers": 2}
    if changes.get("style") != "decoder":
        layers["encoder_layers"] = 2
    values = {"d_model": 32, "d_ff": 48, "heads": 2, "dropout": 0.0, **layers, **changes}
    net = Transformer(ModelConfig(vocabulary_size=40, **values)).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
@pytest.mark.parametrize("beam", [1, 4])
def test_decoding_equals_the_cpu(changes, beam, monkeypatch):
    net = make(changes)
    rows = [torch.randint(3, 40, (1 + 5 * i % 17,)).tolist() for i in range(9)]
    requests = [Request(row, limit=20, bos=7, eos=11) for row in rows]
    options = DecodingConfig(beam=beam)
    with monkeypatch.context() as eager:
        eager.setattr(search, "choose_engine", EagerSearch)
        expected = search.decode(net, requests, options)
    net.cuda()
    for batch_tokens in (None, 60):  # 60: one sentence at a time
        ours = search.decode(net, requests, options, batch_tokens=batch_tokens)
        for a, b in zip(ours, expected, strict=True):
            assert a.token_ids == b.token_ids
            assert a.score == pytest.approx(b.score, abs=2e-3)


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_gradients_equal_the_cpu(changes):
    net = make(changes).train()
    rows = [torch.randint(3, 40, (n,)).tolist() for n in (5, 17, 1)]
    gradients = {}
    for device in ("cpu", "cuda"):
        net = net.to(device)
        packed = Packed.of(rows).to(device)
        source = packed if net.encoder is not None else None
        net.zero_grad()
        net(source, packed).square().mean().backward()
        gradients[device] = {name: p.grad.cpu().clone() for name, p in net.named_parameters()}
    for name, expected in gradients["cpu"].items():
        difference = (gradients["cuda"][name] - expected).norm()
        assert difference <= 1e-4 * expected.norm() + 1e-7, name


def test_bfloat16_training_step_of_every_activation():
    for activation in ("relu", "gelu", "gelu-tanh", "silu", "swiglu"):
        net = make({"style": "decoder", "activation": activation}).cuda().train()
        packed = Packed.of([[5, 6, 7, 8]]).to("cuda")
        losses = []
        for mixed in (False, True):
            net.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
                loss = net(None, packed).float().square().mean()
            loss.backward()
            losses.append(net.decoder.layers[0].feed_forward.inner.weight.grad.clone())
        assert (losses[1] - losses[0]).norm() <= 0.1 * losses[0].norm(), activation
