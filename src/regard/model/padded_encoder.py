"""The encoder on a padded batch, for `torch.export` and `torch.compile(fullgraph=True)`.

A packed row has shapes that depend on its data: the lengths of its sequences are Python numbers,
which a graph cannot contain. In a padded batch only the sizes of the tensors vary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.model.cache import to_add
from regard.model.stack import Stack
from regard.model.transformer import Transformer
from regard.ops.padded import attend_rectangles


class PaddedEncoder(nn.Module):
    """`PaddedEncoder(transformer)(tokens, lengths)`: the output of the encoder, without a head.

    It shares the modules of the Transformer and calls them, so hooks take effect.

    Args:
        transformer: a model with an encoder of self-attention layers.

    Raises:
        InputError: the model has no encoder, or the encoder has another mixer than attention.
    """

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        if transformer.encoder is None:
            raise InputError(
                f"model.style={transformer.config.style} has no encoder to export: use a model of "
                "style encoder or encoder-decoder"
            )
        if transformer.config.mixer != "attention":
            raise InputError(
                f"model.mixer={transformer.config.mixer} reads packed rows only and cannot be "
                "exported: use model.mixer=attention"
            )
        self.table, self.encoder = transformer.table("source"), transformer.encoder

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode B sequences.

        Args:
            tokens: [B, T] token ids; those from lengths[b] on are padding and may have any valid
                value.
            lengths: [B], from 1 to T.

        Returns:
            [B, T, D], zeros for padding.
        """
        place = torch.arange(tokens.shape[1], device=tokens.device)
        real = place < lengths[:, None]  # [B, T]
        hidden = encode_rectangle(self.encoder, self.table, tokens, real)
        return torch.where(real[..., None], hidden.unflatten(0, tokens.shape), 0.0)


def encode_rectangle(stack: Stack, table: nn.Embedding, tokens: Tensor, real: Tensor) -> Tensor:
    """tokens[B, T], real[B, T] (False for padding) -> [B*T, D]."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    positions = place.expand_as(tokens).flatten()
    rows = stack.rows_until(tokens.shape[1], tokens.device)
    x = stack.embed(table, tokens.flatten(), positions, rows)
    plan = Rectangle(self_mask(real, stack.config.window, x.dtype))
    return stack(x, positions, [plan] * len(stack.layers))


def self_mask(real: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of self-attention: real[B, T] -> [B, 1, 1 or T, T]."""
    visible = real[:, None, None]
    if window is not None:
        place = torch.arange(real.shape[1], device=real.device)
        visible = visible & ((place[:, None] - place).abs() <= window)
    return to_add(visible, dtype)


class Rectangle:
    """Attention within each sentence, where all sentences are padded to one length."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query[B*T, H, K], key and value[B*T, G, K] -> [B*T, H, K]."""
        size = self.mask.shape[-1]
        query, key, value = (split(x, size) for x in (query, key, value))
        output = attend_rectangles(query, key, value, self.mask)
        return output.transpose(1, 2).flatten(0, 1)


def split(x: Tensor, size: int) -> Tensor:
    """[B*size, H, K] -> [B, H, size, K]."""
    return x.unflatten(0, (-1, size)).transpose(1, 2)
