"""Devices and dtypes by name or as objects of PyTorch, and clear refusals."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import InputError, Packed, device
from regard.config.sections import DecodingConfig
from regard.decoding.engines.cpu import cpu_model
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.model.positions import sinusoids
from regard.ops.attention import attention_backend
from regard.ops.cuda import training as cuda
from regard.training.losses import Batch, token_loss

FOLDER = Path(__file__).parent / "fixtures" / "translate"


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_can_be_chosen_by_its_index():
    assert device.choose_device("auto") == torch.device("cuda:0")
    assert device.choose_device("cuda:1") == torch.device("cuda:1")
    assert device.choose_device(torch.device("cuda", 1)) == torch.device("cuda:1")
    assert device.choose_device("cuda", rank=1) == torch.device("cuda:1")
    with pytest.raises(InputError, match="device=cuda:2: there is no such device.*cuda:1"):
        device.choose_device("cuda:2")
    with pytest.raises(InputError, match="each of several processes needs its own"):
        device.choose_device("cuda:1", rank=1)


def test_a_missing_device_is_refused_in_one_sentence(monkeypatch, model):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:1"):
        for use in (device.choose_device, model().to, lambda d: regard.load(FOLDER, device=d)):
            with pytest.raises(InputError, match="no CUDA GPU; use cpu or auto"):
                use(name)
    with pytest.raises(InputError, match="choose auto, cpu, cuda"):
        regard.load(FOLDER, device="gpu")


def test_mps_is_used_only_where_pytorch_has_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match="no Apple GPU"):
        device.choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    mps = device.choose_device("mps")
    assert mps.type == "mps"
    assert device.choose_device("auto").type == "cpu"
    assert device.choose_dtype("auto", mps, lambda: True) == torch.float32
    assert device.search_device(mps).type == "cpu"
    assert attention_backend("auto", mps, 0.0) == "padded"


@pytest.mark.usefixtures("two_gpus")
def test_triton_kernels_run_only_on_the_current_device(monkeypatch):
    monkeypatch.setattr(cuda, "has_triton", lambda: True)
    monkeypatch.setattr("regard.ops.attention.has_triton", lambda: True)
    assert attention_backend("auto", torch.device("cuda:0"), 0.0) == "cuda"
    assert attention_backend("auto", torch.device("cuda:1"), 0.0) == "padded"


class NoFloat64(TorchDispatchMode):
    """Fails if an operation returns float64, as every operation on MPS would."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        assert getattr(result, "dtype", None) != torch.float64, func
        return result


@pytest.mark.parametrize("positions", ["learned", "none"])
def test_a_device_without_float64_can_train(monkeypatch, model, positions):
    net = model(dtype=torch.float32, positions=positions, max_length=20, backend="padded")
    source, target = Packed.of([[5, 3, 2], [6, 2]]), Packed.of([[1, 7, 9], [1, 5]])
    batch = Batch(source, target, torch.arange(5) + 3, plans=net.plans(source, target))
    expected = token_loss(net, batch)[0].item()
    monkeypatch.setattr("regard.ops.backend", lambda *_, **__: regard.ops.reference)
    monkeypatch.setattr(device, "NO_FLOAT64", {"cpu"})
    with NoFloat64():
        loss, _ = token_loss(net, batch)
        loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_positions_on_a_device_without_float64_are_precise(monkeypatch):
    places = torch.tensor([0, 1, 1_000_003])
    expected = sinusoids(places, 16)
    monkeypatch.setattr(device, "NO_FLOAT64", {"cpu"})
    assert sinusoids(places, 16).dtype == torch.float32
    assert (sinusoids(places, 16) - expected).abs().max() < 1e-6


def test_load_accepts_torch_device_and_dtype_objects():
    model = regard.load(FOLDER, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert model.transformer.output_matrix().dtype == torch.bfloat16
    same = regard.load(FOLDER, device="cpu", dtype="bfloat16")
    assert model.translate("ein hund") == same.translate("ein hund")
    with pytest.raises(InputError, match="dtype"):
        regard.load(FOLDER, device="cpu", dtype=torch.int32)


def test_float16_is_refused_in_one_sentence(model):
    net = model(dtype=torch.float32)
    refused = [
        net.half, lambda: net.to(torch.float16), lambda: net.to("cpu", torch.half),
        lambda: net.type(torch.float16),
        lambda: regard.load(FOLDER, device="cpu", dtype="float16"),
        lambda: regard.load(FOLDER, device="cpu", dtype=torch.float16),
    ]  # fmt: skip
    for use in refused:
        with pytest.raises(InputError, match="use bfloat16"):
            use()
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert net.to(torch.bfloat16).bfloat16().float().cpu() is net


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_never_read_as_float32(model, dtype):
    """Searches and training steps agree with those in float32 of the same weights."""
    net = model(dtype=torch.float32, vocabulary_size=20)
    net.load_state_dict({n: t.bfloat16().float() for n, t in net.state_dict().items()})
    source, target = Packed.of([[5, 3, 2], [6, 2]]), Packed.of([[1, 7, 9], [1, 5]])
    batch = Batch(source, target, torch.arange(5) + 3)
    results = []
    for each in (torch.float32, dtype):
        net = net.to(each)
        prediction = decode(net, [Request([5, 3, 2], [7, 8])], DecodingConfig(max_length=3))[0]
        results.append([token_loss(net, batch)[0].item(), *prediction.logprobs[:2]])
    assert results[0] == pytest.approx(results[1], rel=3e-2 if dtype == torch.bfloat16 else 1e-4)


def test_parts_of_a_model_in_another_dtype_are_never_read_as_float32(model):
    net = model(dtype=torch.float32, tie_embeddings="none", source_vocabulary_size=20)
    assert cpu_model(net) is not None
    net.embeddings.double()
    assert cpu_model(net) is None
    with pytest.raises(RuntimeError, match="dtype|type"):
        decode(net, [Request([5, 3, 2])], DecodingConfig(max_length=3))
