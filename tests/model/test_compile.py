"""torch.compile and torch.export give the results of the eager model, or are refused clearly."""

import pytest
import torch

from regard import InputError, ModelConfig, Packed, Transformer
from regard.model.padded_encoder import PaddedEncoder

SOURCE, TARGET = [[5, 3, 8, 2], [9, 2]], [[1, 7, 7], [1, 4]]


def padded(sequences, size):
    tokens = torch.zeros(len(sequences), size, dtype=torch.long)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    return tokens, torch.tensor([len(sequence) for sequence in sequences])


def small(model, **changes):
    options = {"encoder_layers": 1, "decoder_layers": 1, "norm_first": True, **changes}
    if options.get("style") == "encoder":
        del options["decoder_layers"]
    return model(dtype=torch.float32, **options)


GROUPED = {"heads": 4, "key_value_heads": 2, "window": 2}


@pytest.mark.parametrize("changes", [{}, {"window": 2, "positions": "rotary"}, GROUPED], ids=str)
def test_the_padded_encoder_equals_the_packed_one(model, changes):
    net = small(model, **changes)
    tokens, lengths = padded(SOURCE, 6)
    hidden = PaddedEncoder(net)(tokens, lengths)
    expected = net.encode(Packed.of(SOURCE))
    real = torch.arange(6) < lengths[:, None]
    torch.testing.assert_close(hidden[real], expected, rtol=1e-4, atol=1e-5)
    assert not hidden[~real].any()


@pytest.mark.parametrize(
    "changes", [{"style": "encoder-decoder"}, {"style": "encoder"}, GROUPED], ids=str
)
def test_an_exported_encoder_reads_batches_of_any_size(model, changes, tmp_path):
    net = small(model, **changes)
    encoder = PaddedEncoder(net).eval()
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2)
    shapes = ({0: batch, 1: length}, {0: batch})
    with torch.no_grad():
        exported = torch.export.export(encoder, padded(SOURCE, 6), dynamic_shapes=shapes)
        torch.export.save(exported, tmp_path / "encoder.pt2")
        loaded = torch.export.load(tmp_path / "encoder.pt2").module()
        for sequences in (SOURCE, [*SOURCE, list(range(3, 20))]):
            inputs = padded(sequences, max(map(len, sequences)))
            torch.testing.assert_close(loaded(*inputs), encoder(*inputs), rtol=1e-4, atol=1e-5)


def test_export_of_a_packed_row_is_refused_clearly(model):
    class Packing(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, tokens, offsets):
            return self.net.encode(Packed(tokens, offsets))

    row = Packed.of(SOURCE)
    with pytest.raises(InputError, match="PaddedEncoder"):
        torch.export.export(Packing(small(model)), (row.tokens, row.offsets))


def test_models_that_cannot_be_exported_are_refused(model):
    with pytest.raises(InputError, match="no encoder"):
        PaddedEncoder(model(style="decoder"))
    with pytest.raises(InputError, match="mixer=attention"):
        PaddedEncoder(Transformer(ModelConfig(
            style="encoder", head="masked-language-model", mixer="gru", d_model=16, heads=2,
            d_ff=16, encoder_layers=1, vocabulary_size=20,
        )))  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_gives_the_same_logits_and_gradients(model, backend):
    net = small(model)
    source, target = Packed.of(SOURCE), Packed.of(TARGET)
    compiled = torch.compile(net, backend=backend)
    results = []
    for call in (net, compiled):
        logits = call(source, target)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad for p in net.parameters())])
        net.zero_grad()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


def test_a_compiled_padded_encoder_is_one_graph(model):
    encoder = PaddedEncoder(small(model)).eval()
    inputs = padded(SOURCE, 6)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), encoder(*inputs), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
