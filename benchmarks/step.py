"""Forward and backward of one training step, beside `torch.nn.Transformer` padded.

Both have the same sizes, tied embeddings, dropout, label smoothing and sentences; both compute
the loss of the same real target tokens. Steps alternate between the two, so that whatever else
the machine does hits both.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sentences import batches
from regard import ModelConfig, Packed, Transformer
from regard.model.parameters import operations
from regard.model.positions import sinusoids
from regard.training.machine import peak, synchronise


class Peer(nn.Module):
    """torch.nn.Transformer as its users run it: padded, with key padding masks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = config
        self.scale = math.sqrt(c.d_model)
        self.dropout = c.dropout
        self.embedding = nn.Embedding(c.vocabulary_size, c.d_model)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        self.transformer = nn.Transformer(
            c.d_model, c.heads, c.encoder_layers, c.decoder_layers, c.d_ff, c.dropout,
            batch_first=True, norm_first=c.norm_first,
        )  # fmt: skip
        # It has dropout on attention weights and inside the feed-forward network as well; the
        # paper and regard's default have not, so it is spared that work.
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()  # type: ignore[assignment]
        table = sinusoids(torch.arange(512), c.d_model, c.position_base).float()
        self.register_buffer("positions", table, persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        assert isinstance(self.positions, Tensor)
        x = self.embedding(tokens) * self.scale + self.positions[: tokens.shape[1]]
        return F.dropout(x, self.dropout, self.training)

    def forward(self, source: Tensor, target: Tensor, holes: tuple[Tensor, Tensor]) -> Tensor:
        """source[B, S], target[B, T], where the padding is -> logits[B, T, V]."""
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        x = self.transformer(
            self.embed(source), self.embed(target),
            tgt_mask=causal == -math.inf, tgt_is_causal=True,
            src_key_padding_mask=holes[0], tgt_key_padding_mask=holes[1],
            memory_key_padding_mask=holes[0],
        )  # fmt: skip
        return F.linear(x, self.embedding.weight)


def pad(rows: list[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """[B, T] tokens and where the padding is."""
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100).to(device)
    return padded.clamp(min=0), padded < 0


def run(preset: str, options: argparse.Namespace) -> None:
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    config = ModelConfig.preset(preset, vocabulary_size=options.vocabulary, dropout=0.1)
    ours = Transformer(config).to(device)
    peer = Peer(config).to(device)
    made = batches(config, options.tokens, options.batches, sort=not options.shuffled)
    times: dict[str, list[float]] = {"regard": [], "nn.Transformer": []}
    work, real, rows = 0.0, 0, 0

    def timed(name: str, step: Callable[[], Tensor], model: nn.Module) -> float:
        synchronise(device)
        start = time.perf_counter()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = step()
        loss.backward()
        synchronise(device)
        times[name].append(time.perf_counter() - start)
        model.zero_grad(set_to_none=True)
        return float(loss.detach())

    for repeat in range(options.repeats + 1):
        for sources, targets in made:

            def regard_step(s: list[Tensor] = sources, t: list[Tensor] = targets) -> Tensor:
                source, target = Packed.of(s).to(device), Packed.of(t).to(device)
                logits = ours(source, target)
                return F.cross_entropy(logits, target.tokens, label_smoothing=0.1)

            def peer_step(s: list[Tensor] = sources, t: list[Tensor] = targets) -> Tensor:
                (source, no_source), (target, no_target) = pad(s, device), pad(t, device)
                logits = peer(source, target, (no_source, no_target))
                wanted = target.masked_fill(no_target, -100)
                return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=0.1)

            losses = timed("regard", regard_step, ours), timed("nn.Transformer", peer_step, peer)
            assert all(map(math.isfinite, losses)), losses
            if repeat == 0:  # a warm-up; and count the work, which is the same for both
                source, target = Packed.of(sources), Packed.of(targets)
                work += operations(config, source.lengths, target.lengths)
                real += len(target.tokens)
                rows += len(targets) * max(target.lengths)
        if repeat == 0:
            times = {name: [] for name in times}
    limit = real / (work / peak(device, dtype))
    kind = "shuffled" if options.shuffled else "similar lengths"
    print(
        f"{preset}, vocabulary {options.vocabulary:,}, {device.type} {options.dtype}, "
        f"{real // len(made):,} real target tokens a batch ({kind}; padding adds "
        f"{rows / real - 1:.0%} for the peer)"
    )
    speed = {
        name: real / len(made) / (statistics.median(seconds)) for name, seconds in times.items()
    }
    for name, value in speed.items():
        print(f"  {name:15} {value:10,.0f} tokens/s  {value / limit:6.1%} of the machine's peak")
    ratios = [p / o for o, p in zip(times["regard"], times["nn.Transformer"], strict=True)]
    print(
        f"  ratio           {speed['regard'] / speed['nn.Transformer']:10.2f}x  "
        f"(single steps {min(ratios):.2f} to {max(ratios):.2f})"
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks step", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["small", "base"])
    parser.add_argument("--tokens", type=int, default=4096, help="real target tokens a batch")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--shuffled", action="store_true", help="do not sort by length")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args(arguments)
    for preset in options.presets:
        run(preset, options)
