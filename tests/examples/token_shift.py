"""Own mixer: each token gets half of its features from its left and half from its right neighbour."""

import torch

import regard


class TokenShift(torch.nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.output = torch.nn.Linear(config.d_model, config.d_model)

    def forward(self, x, plan):
        """x[N, D], all sequences of the batch one after the other -> [N, D].

        plan.shifted(x, k): at each token the vector of the token k places further on in the same
        sequence, or zeros.
        """
        left, right = (
            plan.shifted(x, -1).chunk(2, dim=-1)[0],
            plan.shifted(x, 1).chunk(2, dim=-1)[1],
        )
        return self.output(torch.cat([left, right], dim=-1))


regard.register_mixer("token-shift", TokenShift)
config = regard.ModelConfig(
    mixer="token-shift",
    vocabulary_size=100,
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    heads=4,
)
model = regard.Transformer(config).eval()
print(regard.generate(model, [[5, 6, 7]], max_length=5))
