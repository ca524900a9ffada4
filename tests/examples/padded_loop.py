"""A plain PyTorch training loop with padded tensors: the model learns to copy its input."""

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import regard

BOS, EOS, IGNORED = 1, 2, -100
torch.manual_seed(0)
config = regard.ModelConfig(
    vocabulary_size=13, encoder_layers=1, decoder_layers=1, d_model=64, heads=4, d_ff=128
)
model = regard.Transformer(config)
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)


def pad(rows, value=0):
    return pad_sequence(rows, batch_first=True, padding_value=value)


for _ in range(300):
    lengths = torch.randint(2, 8, (32,))
    rows = [torch.randint(3, 13, (int(length),)) for length in lengths]
    source = pad(rows)  # [B, T]
    target = pad([F.pad(row, (1, 0), value=BOS) for row in rows])  # [B, T + 1]
    labels = pad([F.pad(row, (0, 1), value=EOS) for row in rows], IGNORED)
    logits = model(source, target, source_lengths=lengths, target_lengths=lengths + 1)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

copies = regard.generate(model, [[3, 5, 8], [12, 4, 4, 7]], max_length=10)
print(f"loss {loss:.3f}, copies {copies}")
