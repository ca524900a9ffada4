"""Which rows a recording is made for; tests/gpu holds replays to the rows themselves."""

import torch

from regard import ModelConfig, Packed, Transformer
from regard.training.cuda_graph import MOST, SHARES, Recorder
from regard.training.losses import Batch


def test_a_row_that_was_cut_into_more_tokens_than_were_counted_is_recorded_too():
    model = Transformer(ModelConfig.preset("tiny", vocabulary_size=50))
    recorder = Recorder(model, lambda batch: None, [80, 80], torch.float32)

    def share(source, target):
        rows = [Packed.of([[1] * tokens]) for tokens in (source, target)]
        return recorder.share(Batch(*rows, torch.zeros(target, dtype=torch.int64)))

    assert [share(1, 1), share(10, 11), share(80, 5)] == [1, 2, SHARES]
    assert share(80, 100) == SHARES + 2
    assert share(160, 5) == MOST
    assert share(161, 5) is None


def test_gradients_of_rows_before_are_added_to_their_own_parameters(monkeypatch):
    """Also where a parameter among them has none, because nothing uses it."""
    model = Transformer(ModelConfig.preset("tiny", vocabulary_size=50))
    recorder = Recorder(model, lambda batch: None, [80, 80], torch.float32)
    unused, *used = recorder.parameters

    class Replayed:
        def __init__(self, *made):
            pass

        def replay(self, batch, seed):
            for parameter in used:
                parameter.grad = torch.ones_like(parameter)
            return torch.zeros(2)

    monkeypatch.setattr("regard.training.cuda_graph.Recording", Replayed)
    for number, parameter in enumerate(used):
        parameter.grad = torch.full_like(parameter, number)
    rows = [Packed.of([[1] * 5]) for _ in "st"]
    recorder.gradients(Batch(*rows, torch.zeros(5, dtype=torch.int64)), seed=1, share=1)
    assert unused.grad is None
    for number, parameter in enumerate(used):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full_like(parameter, number + 1))
