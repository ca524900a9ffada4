"""Which rows a recording is made for; tests/gpu holds replays to the rows themselves."""

import torch

from regard import ModelConfig, Packed, Transformer
from regard.tasks.task import Batch
from regard.training.recorded import MOST, SHARES, Recorder


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
