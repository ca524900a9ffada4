"""Own attention: weights from the cosine of query and key, with a learned scale for each head."""

import torch
from torch.nn import functional as F

import regard


class CosineAttention(regard.MultiHeadAttention):
    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.nn.Parameter(torch.full((config.heads, 1, 1), 10.0))

    def weights(self, query, key, mask):
        """query[B, H, n, K], key[B, H, m, K], mask[B or 1, H or 1, n, m] -> [B, H, n, m]."""
        cosine = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)
        return (self.scale * cosine + mask).softmax(-1)


regard.register_attention("cosine", CosineAttention)
config = regard.ModelConfig(
    attention="cosine", vocabulary_size=100, encoder_layers=2, decoder_layers=2, d_model=32, heads=4
)
model = regard.Transformer(config)
capture = regard.AttentionCapture()
row = regard.Packed.of([[5, 6, 7], [8, 9]])
model(row, row, capture)
print(capture.cross[0][1].sum(-1))  # the captured weights are those of the variant
