"""Hooks, subclasses and other changes of modules take effect in every kind of inference."""

import logging
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import regard
from regard import InputError, Packed
from regard.config.sections import DecodingConfig
from regard.decoding.engines.cpu import CpuSearch
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import Search, decode
from regard.model.attention import MultiHeadAttention
from regard.model.overrides import find_override
from regard.training.losses import Batch, token_loss

FIXTURES = Path(__file__).parents[1] / "fixtures"
SOURCE, TARGET = [5, 3, 8, 2], [1, 7, 9, 4]
BASE = {"norm_first": True, "embedding_norm": True, "positions": "learned", "max_length": 40}
STYLES = {
    "encoder-decoder": {"tie_embeddings": "none", "source_vocabulary_size": 20, **BASE},
    "decoder": {"tie_embeddings": "none", **BASE},
    "encoder": {"tie_embeddings": "none", "head": "masked-language-model", **BASE},
    "swiglu": {"norm": "rms", "activation": "swiglu", "positions": "rotary"},
}
SEARCHES = {
    "greedy": DecodingConfig(beam=1, max_length=4),
    "beam": DecodingConfig(beam=3, n_best=2, max_length=4),
    "sampling": DecodingConfig(beam=1, temperature=1.0, max_length=4),
}


@pytest.fixture
def net(model):
    """net(name): a model of STYLES in float32, which the CPU engine supports."""

    def make(name):
        changes = {"decoder_layers": 2 if name == "encoder-decoder" else 1, **STYLES[name]}
        if name != "decoder":
            changes["encoder_layers"] = 1
        if name == "encoder":
            del changes["decoder_layers"]
        if name != "swiglu":
            changes["style"] = name
        return model(dtype=torch.float32, **changes)

    return make


def disturb(*arguments):
    """A forward hook that changes the output of a module."""
    output = arguments[-1]
    return output + torch.sin(torch.arange(output.numel()).view_as(output))


def flat(values):
    """Flatten nested lists into a list of numbers."""
    if isinstance(values, list):
        return [number for part in values for number in flat(part)]
    return [values]


def close(first, second):
    first, second = flat(first), flat(second)
    return len(first) == len(second) and first == pytest.approx(second, rel=1e-3, abs=1e-4)


def searched(net, options):
    return [p.logprobs for p in decode(net, [Request(SOURCE), Request([6, 2])], options)]


def batch(net):
    config = net.config
    source = Packed.of([SOURCE, [6, 2]]) if config.has_encoder else None
    target = Packed.of([TARGET, [1, 5]]) if config.has_decoder else None
    return Batch(source, target, torch.arange(6) + 3)


def trained(net, r_drop=0.0):
    """The loss of a training step, with gradients."""
    net.train()
    loss, _ = token_loss(net, batch(net), 0.1, r_drop)
    loss.backward()
    net.zero_grad()
    net.eval()
    return [loss.item()]


def captured(net):
    scored = score(net, [Request(SOURCE)], [[7, 9, 2]], attention=True)[0]
    return [layer.sum(0).flatten().tolist() for part in scored.attention.values() for layer in part]


USES = {
    **{name: lambda net, o=options: searched(net, o) for name, options in SEARCHES.items()},
    "prefix": lambda net: [
        p.logprobs for p in decode(net, [Request(SOURCE, [7, 8])], SEARCHES["beam"])
    ],
    "score": lambda net: [s.logprobs for s in score(net, [Request(SOURCE)], [[7, 9, 2]])],
    "attention": captured,
    "training": trained,
}
OUTPUT_ONLY = ("head", "head.output", "decoder", "decoder.final_norm")  # after all attention


def both_hooks(module, run):
    """The results with a hook that has no effect, and with a hook that changes the output."""
    results = []
    for hook in (lambda *_: None, disturb):
        handle = module.register_forward_hook(hook)
        results.append(run())
        handle.remove()
    return results


def parts(net):
    """The names of all modules that have a `forward`, without the Transformer itself."""
    modules = [(name, m) for name, m in net.named_modules() if name]
    return [name for name, m in modules if type(m).forward is not nn.Module.forward]


def without_effect(use, name, net):
    """Whether a module cannot affect the values that a use reads."""
    last = f"decoder.layers.{len(net.decoder.layers) - 1}." if net.decoder else ""
    after = ("feed_forward", "cross_attention.output", "cross_attention_norm")
    if use != "attention":
        return False
    return name in OUTPUT_ONLY or name == last[:-1] or (
        name.startswith(last) and name != last + "self_attention.query_key_value"
        and (not name.startswith(last + "self_attention") or net.encoder is None)
        and (name.removeprefix(last).startswith(after) or net.encoder is None
             or name == last + "cross_attention")
    )  # fmt: skip


@pytest.mark.parametrize("style", [s for s in STYLES if s != "encoder"])
@pytest.mark.parametrize("use", USES)
def test_a_hook_on_any_module_is_called_and_changes_the_result(style, use, net):
    network = net(style)
    before = USES[use](network)
    for name in parts(network):
        calls = []
        module = network.get_submodule(name)
        counter = module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        eager = USES[use](network)
        counter.remove()
        assert calls, name
        assert close(eager, before), name
        hook = module.register_forward_hook(disturb)
        after = USES[use](network)
        hook.remove()
        if not without_effect(use, name, network):
            assert after != eager, name
    assert USES[use](network) == before


def test_a_hook_on_any_module_of_an_encoder_changes_its_predictions(net):
    network = net("encoder")
    options, requests = DecodingConfig(), [Request([5, 3, 4, 4, 2], limit=2)]
    uses = {
        "slots": lambda: [p.logprobs for p in decode(network, requests, options)],
        "training": lambda: trained(network),
    }
    network.get_submodule("head").bias.data.normal_()
    for use, run in uses.items():
        before = run()
        for name in parts(network):
            eager, after = both_hooks(network.get_submodule(name), run)
            assert close(eager, before), (use, name)
            assert after != eager, (use, name)


TASKS = {
    "translate": lambda m: m.score([("ein hund", "a dog")])[0].logprob,
    "generate": lambda m: m.predict("a", beam=1, temperature=0.0, max_length=4).logprob,
    "classify": lambda m: m.task.logits(m.transformer, ["good"]).tolist(),
    "fill": lambda m: m.fill("a <mask>").gaps[0].candidates[0][1],
    "embed": lambda m: m.embed("a dog").tolist(),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_hook_on_any_module_changes_the_predictions_of_a_task(task):
    model = regard.load(FIXTURES / task, device="cpu")
    before = TASKS[task](model)
    for name in parts(model.transformer):
        module = model.transformer.get_submodule(name)
        eager, after = both_hooks(module, lambda: TASKS[task](model))
        assert close(eager, before), name
        assert after != eager, name


class Doubled(MultiHeadAttention):
    """An attention that computes its output from the memory."""

    def forward(self, x, plan, memory=None, rotation=None, capture=None, **more):
        if memory is None:
            return 2 * super().forward(x, plan, memory, rotation, capture, **more)
        query = self._project(x, slice(None, self.width)).unflatten(1, (self.heads, -1))
        key, value = self.project_memory(memory)
        return 2 * self.output(plan.attend(query, key, value).flatten(1))


class Negated(nn.Module):
    def forward(self, weight):
        return -weight


def change_class(net):
    for block in net.decoder.layers:
        block.cross_attention.__class__ = Doubled


def change_forward(net):
    linear = net.decoder.layers[0].feed_forward.outer
    linear.forward = lambda x: torch.zeros(len(x), linear.out_features)


def replace_linear(net):
    feed = net.encoder.layers[0].feed_forward
    feed.inner = nn.Linear(feed.inner.in_features, feed.inner.out_features)


def change_memory(net):
    attention = net.decoder.layers[0].cross_attention

    def halve(module, arguments, options):
        return arguments, options | {"memory": options["memory"] / 2}

    attention.register_forward_pre_hook(halve, with_kwargs=True)


CHANGES = {
    "subclass": (change_class, "decoder.layers.0.cross_attention is a Doubled"),
    "forward": (change_forward, "feed_forward.outer has its own forward method"),
    "replaced": (replace_linear, "encoder.layers.0.feed_forward.inner is a Linear"),
    "memory": (change_memory, "cross_attention has a forward pre-hook"),
    "parametrised": (
        lambda net: parametrize.register_parametrization(
            net.decoder.layers[0].cross_attention.query_key_value, "weight", Negated()
        ),
        "cross_attention.query_key_value is a ParametrizedLinear",
    ),
    "spectral norm": (
        lambda net: parametrizations.spectral_norm(net.embeddings["target"]),
        "embeddings.target is a ParametrizedEmbedding",
    ),
    "pruned": (
        lambda net: prune.random_unstructured(
            net.decoder.layers[1].feed_forward.inner, "weight", amount=0.5
        ),
        "feed_forward.inner has a",
    ),
    "identity": (
        lambda net: setattr(net.decoder.layers[0].feed_forward_norm, "norm", nn.Identity()),
        "feed_forward_norm.norm is a Identity",
    ),
    "eps": (lambda net: setattr(net.encoder.final_norm, "eps", 0.5), "final_norm has another eps"),
    "max_norm": (
        lambda net: setattr(net.embeddings["source"], "max_norm", 0.1),
        "embeddings.source has max_norm",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_changes_the_search_and_its_steps_agree_with_the_full_pass(name, net):
    change, reason = CHANGES[name]
    network, requests = net("encoder-decoder"), [Request(SOURCE), Request([6, 4, 2])]
    options = DecodingConfig(beam=3, max_length=5)
    before = [p.logprobs for p in decode(network, requests, options)]
    torch.manual_seed(5)
    change(network)
    network.eval()
    assert reason in find_override(network)
    predictions = decode(network, requests, options)
    assert not close([p.logprobs for p in predictions], before)
    scored = score(network, requests, [p.token_ids for p in predictions])
    for prediction, full in zip(predictions, scored, strict=True):
        assert prediction.logprobs == pytest.approx(full.logprobs, abs=1e-4)
    trained(network)


def job_of(net):
    search = Search(net, [Request(SOURCE)], DecodingConfig(max_length=3))
    next(iter(search))
    return search.engine.__class__


def test_fast_engine_is_used_again_after_hook_is_removed(net, caplog):
    caplog.set_level(logging.DEBUG, "regard")
    network = net("encoder-decoder")
    assert job_of(network) is CpuSearch
    hook = network.decoder.layers[0].cross_attention.register_forward_hook(disturb)
    assert job_of(network) is job_of(network) is EagerSearch
    messages = [record.message for record in caplog.records if record.name == "regard"]
    assert len(messages) == 1
    assert "decoder.layers.0.cross_attention has a forward hook" in messages[0]
    hook.remove()
    assert job_of(network) is CpuSearch
    network.probe = nn.Linear(3, 3)  # which no module calls
    network.decoder.register_full_backward_hook(lambda *_: None)  # which inference does not call
    assert job_of(network) is CpuSearch


def test_global_hooks_and_replaced_class_methods_are_detected(net, monkeypatch):
    network = net("encoder-decoder")
    before = searched(network, SEARCHES["beam"])
    calls = []
    hook = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        assert close(searched(network, SEARCHES["beam"]), before)
    finally:
        hook.remove()
    assert calls
    monkeypatch.setattr(MultiHeadAttention, "forward", lambda self, x, *_, **__: x)
    assert find_override(network) == "MultiHeadAttention.forward was replaced"
    assert not close(searched(network, SEARCHES["beam"]), before)


def test_a_part_in_training_mode_is_honoured(model):
    network = model(dtype=torch.float32, dropout=0.5)
    network.encoder.train()
    assert find_override(network).startswith("encoder is in training mode")


def test_hooks_that_predictions_never_call_are_refused(net):
    network = net("encoder-decoder")
    for module in (network, network.decoder.layers, network.embeddings):
        hook = module.register_forward_hook(lambda *_: None)
        for use in ("greedy", "score"):
            with pytest.raises(InputError, match="never call this module"):
                USES[use](network)
        hook.remove()
    calls = []
    network.register_forward_hook(lambda *_: calls.append(1))
    trained(network)  # a training step calls the Transformer
    assert calls


def test_backward_hooks_of_any_module_are_called_in_training(net):
    network = net("encoder-decoder")
    for name in parts(network):
        calls = []
        hook = network.get_submodule(name).register_full_backward_hook(
            lambda *_, calls=calls: calls.append(1)
        )
        trained(network)
        hook.remove()
        assert calls, name


def test_a_hook_on_the_head_does_not_change_the_loss_or_its_gradient(net):
    network = net("encoder-decoder")
    for r_drop in (0.0, 1.0):
        results = []
        for hooked in (False, True):
            hook = network.head.register_forward_hook(lambda *_: None) if hooked else None
            loss, likelihood = token_loss(network, batch(network), 0.1, r_drop)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            results.append([loss, likelihood, *gradients])
            if hook:
                hook.remove()
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def in_place(net):
    with torch.no_grad():
        net.decoder.layers[0].feed_forward.inner.weight.mul_(-1)


def by_data(net):
    net.decoder.layers[0].feed_forward.inner.weight.data.mul_(-1)


def by_loading(net):
    net.load_state_dict({name: -tensor for name, tensor in net.state_dict().items()})


def by_parameter(net):
    layer = net.encoder.layers[0].self_attention.output
    layer.weight = nn.Parameter(-layer.weight.detach())


def by_optimiser(net):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    token_loss(net, batch(net), 0.0, 0.0)[0].backward()
    optimiser.step()


def by_module(net):
    net.decoder.layers[0] = type(net.decoder.layers[0])(net.config, cross=True).eval()


def positions(net):
    with torch.no_grad():
        net.decoder.positions.weight.mul_(-1)


@pytest.mark.parametrize(
    "change", [in_place, by_data, by_loading, by_parameter, by_optimiser, by_module, positions]
)
def test_the_cpu_engine_reads_changed_weights(change, net):
    network = net("encoder-decoder")
    before = searched(network, SEARCHES["beam"])
    change(network)
    assert find_override(network) is None
    after = searched(network, SEARCHES["beam"])
    assert not close(after, before)
    network.decoder.register_forward_hook(lambda *_: None)  # for the eager engine
    assert close(after, searched(network, SEARCHES["beam"]))


def test_a_head_can_be_removed_by_a_hook_on_the_output_projection():
    """The example of docs/python.md."""
    model = regard.load(FIXTURES / "translate", device="cpu")
    layer = model.transformer.decoder.layers[0].cross_attention
    pair = ("ein hund", "a dog")
    scores = [model.score([pair])[0].logprob]
    for head in range(layer.heads):

        def remove(module, inputs, head=head):
            heads = inputs[0].unflatten(1, (layer.heads, -1)).clone()
            heads[:, head] = 0
            return (heads.flatten(1),)

        handle = layer.output.register_forward_pre_hook(remove)
        scores.append(model.score([pair])[0].logprob)
        prediction = model.predict(pair[0], beam=2)
        handle.remove()
        # The same as weights of zero for the features of this head.
        weight = layer.output.weight.detach().clone()
        with torch.no_grad():
            layer.output.weight.view(-1, layer.heads, layer.head_size)[:, head] = 0
        assert scores[-1] == pytest.approx(model.score([pair])[0].logprob, abs=1e-5)
        assert prediction.score == pytest.approx(model.predict(pair[0], beam=2).score, abs=1e-4)
        with torch.no_grad():
            layer.output.weight.copy_(weight)
    assert len(set(scores)) == layer.heads + 1


def test_int8_with_a_hook_uses_the_dequantised_weights():
    model = regard.load(FIXTURES / "translate", device="cpu", dtype="int8")
    plain = model.score([("ein hund", "a dog")])[0].logprob
    model.transformer.decoder.register_forward_hook(lambda *_: None)
    prediction = model.predict("ein hund", beam=1)
    weights = regard.load(FIXTURES / "translate", device="cpu").transformer.state_dict()
    assert any(not torch.equal(w, weights[n]) for n, w in model.transformer.state_dict().items())
    full = score(model.transformer, [Request(prediction.source_ids)], [prediction.token_ids])[0]
    assert prediction.logprobs == pytest.approx(full.logprobs, abs=1e-4)
    assert plain == pytest.approx(model.score([("ein hund", "a dog")])[0].logprob)


def test_the_search_for_overrides_takes_little_time():
    network = regard.Transformer(regard.ModelConfig.preset("base", vocabulary_size=50)).eval()
    times = []
    for _ in range(50):
        start = time.perf_counter()
        find_override(network)
        times.append(time.perf_counter() - start)
    assert min(times) < 5e-4
