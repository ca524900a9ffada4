"""Own positions: ALiBi (Press et al. 2022), a penalty that grows with the distance of two tokens."""

import torch

import regard


class Alibi(regard.Positions):
    """Adds -rate * |distance| to the scores of self-attention, with another rate in each head."""

    def __init__(self, config):
        super().__init__()
        rates = 2.0 ** (-8.0 * torch.arange(1, config.heads + 1) / config.heads)
        self.register_buffer("rates", rates, persistent=False)  # [H]

    def bias(self, distance):
        """distance[..., n, m], position of the key minus that of the query -> [..., H, n, m]."""
        return -self.rates[:, None, None] * distance.abs()[..., None, :, :]


regard.register_positions("alibi", Alibi)
config = regard.ModelConfig(
    style="decoder", positions="alibi", vocabulary_size=100, decoder_layers=2, d_model=32, heads=4
)
model = regard.Transformer(config).eval()
print(regard.generate(model, prompt=[[5, 6, 7]], max_length=5))
