"""The sizes of CUDA graphs and sums of gradients; tests/gpu compares replays with eager steps."""

import torch

from regard import ModelConfig, Packed, Transformer
from regard.training.cuda_graph import MAX_SIZE, SIZES, StepGraphs
from regard.training.losses import Batch


def test_row_with_more_tokens_than_the_budget_has_a_graph():
    model = Transformer(ModelConfig.preset("tiny", vocabulary_size=50))
    graphs = StepGraphs(model, lambda batch: None, [80, 80], torch.float32)

    def size(source, target):
        rows = [Packed.of([[1] * tokens]) for tokens in (source, target)]
        return graphs.size(Batch(*rows, torch.zeros(target, dtype=torch.int64)))

    assert [size(1, 1), size(10, 11), size(80, 5)] == [1, 2, SIZES]
    assert size(80, 100) == SIZES + 2
    assert size(160, 5) == MAX_SIZE
    assert size(161, 5) is None


def test_gradients_of_earlier_rows_are_added(monkeypatch):
    """One parameter is unused and has no gradient."""
    model = Transformer(ModelConfig.preset("tiny", vocabulary_size=50))
    graphs = StepGraphs(model, lambda batch: None, [80, 80], torch.float32)
    unused, *used = graphs.parameters

    class Replayed:
        def __init__(self, *arguments):
            pass

        def replay(self, batch, seed):
            for parameter in used:
                parameter.grad = torch.ones_like(parameter)
            return torch.zeros(2)

    monkeypatch.setattr("regard.training.cuda_graph.StepGraph", Replayed)
    for number, parameter in enumerate(used):
        parameter.grad = torch.full_like(parameter, number)
    rows = [Packed.of([[1] * 5]) for _ in "st"]
    graphs.gradients(Batch(*rows, torch.zeros(5, dtype=torch.int64)), seed=1, size=1)
    assert unused.grad is None
    for number, parameter in enumerate(used):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full_like(parameter, number + 1))
