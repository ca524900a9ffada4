"""One training step (forward, loss, backward, Adam) compared with peers on the same sentences.

All programs have the same sizes, tied embeddings, dropout, label smoothing and sentences, and
compute the loss of the same real target tokens. The peers pad batches of similar lengths, as their
users do. Steps alternate between the programs and precisions, so that other load on the machine
affects all of them. The memory setting of `regard train` also applies to the peers.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import ratios
from benchmarks.compare import Entrant, busy_others, show, ticks
from benchmarks.limits import best_peak
from benchmarks.ratios import RatioLog
from benchmarks.sentences import batches
from regard import ModelConfig, Packed, Transformer
from regard.config.parameters import operations
from regard.device import keep_freed_memory, synchronise
from regard.model.positions import sinusoids
from regard.ops import cross_entropy

if TYPE_CHECKING:
    from transformers import MarianConfig

SMOOTHING = 0.1
TOKENS, USUAL_TOKENS = {"base": 2048}, 4096  # real target tokens per batch
VOCABULARIES, USUAL_VOCABULARY = {"base": 37_000}, 10_000
Step = Callable[[list[Tensor], list[Tensor]], Tensor]  # sources, targets -> loss


class PyTorch(nn.Module):
    """torch.nn.Transformer with embeddings: padded, with key padding masks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = config
        self.scale, self.dropout = math.sqrt(c.d_model), c.dropout
        self.embedding = nn.Embedding(c.vocabulary_size, c.d_model)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        self.transformer = nn.Transformer(
            c.d_model, c.heads, c.encoder_layers, c.decoder_layers, c.d_ff, c.dropout,
            batch_first=True, norm_first=c.norm_first,
        )  # fmt: skip
        # nn.Transformer also has dropout on attention weights and inside the feed-forward network;
        # the paper and the defaults of regard do not, so it is disabled.
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
        """source[B, S], target[B, T], masks of the padding -> logits[B, T, V]."""
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        x = self.transformer(
            self.embed(source), self.embed(target),
            tgt_mask=causal == -math.inf, tgt_is_causal=True,
            src_key_padding_mask=holes[0], tgt_key_padding_mask=holes[1],
            memory_key_padding_mask=holes[0],
        )  # fmt: skip
        return F.linear(x, self.embedding.weight)


def marian_config(config: ModelConfig, end: int = 1, use_cache: bool = False) -> MarianConfig:
    """The Hugging Face configuration for the sizes of a model; `end` is the id of the end token."""
    from transformers import MarianConfig

    c = config
    return MarianConfig(
        vocab_size=c.vocabulary_size, d_model=c.d_model, max_position_embeddings=512,
        encoder_layers=c.encoder_layers, decoder_layers=c.decoder_layers,
        encoder_attention_heads=c.heads, decoder_attention_heads=c.heads,
        encoder_ffn_dim=c.d_ff, decoder_ffn_dim=c.d_ff, activation_function="relu",
        dropout=c.dropout, attention_dropout=0.0, activation_dropout=0.0,
        scale_embedding=True, pad_token_id=0, eos_token_id=end, forced_eos_token_id=None,
        decoder_start_token_id=0, use_cache=use_cache,
    )  # fmt: skip


class Marian(nn.Module):
    """Hugging Face's MarianMTModel with random weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        from transformers import MarianMTModel

        # by default, its attention is the fused kernel of PyTorch
        self.model = MarianMTModel(marian_config(config))

    def forward(self, source: Tensor, target: Tensor, holes: tuple[Tensor, Tensor]) -> Tensor:
        return self.model(
            input_ids=source, attention_mask=(~holes[0]).long(), decoder_input_ids=target,
            decoder_attention_mask=(~holes[1]).long(), use_cache=False,
        ).logits  # fmt: skip


def padded_step(model: nn.Module, device: torch.device) -> Step:
    def pad(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Padded tokens[B, T] and the mask of the padding."""
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100).to(device)
        return tokens.clamp(min=0), tokens < 0

    def step(sources: list[Tensor], targets: list[Tensor]) -> Tensor:
        (source, no_source), (target, no_target) = pad(sources), pad(targets)
        logits = model(source, target, (no_source, no_target)).flatten(0, 1)
        labels = target.masked_fill(no_target, -100).flatten()
        return F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)

    return step


def packed_step(model: Transformer, device: torch.device) -> Step:
    def step(sources: list[Tensor], targets: list[Tensor]) -> Tensor:
        source, target = Packed.of(sources).to(device), Packed.of(targets).to(device)
        hidden = model.hidden(source, target)
        loss, _ = cross_entropy(hidden, model.output_matrix(), target.tokens, SMOOTHING)
        return loss / len(target.tokens)

    return step


def run(preset: str, options: argparse.Namespace, log: RatioLog) -> None:
    device = torch.device(options.device)
    vocabulary = options.vocabulary or VOCABULARIES.get(preset, USUAL_VOCABULARY)
    tokens = options.tokens or TOKENS.get(preset, USUAL_TOKENS)
    config = ModelConfig.preset(preset, vocabulary_size=vocabulary, dropout=0.1)
    models: dict[str, nn.Module] = {
        "regard": Transformer(config), "nn.Transformer": PyTorch(config), "Marian": Marian(config),
    }  # fmt: skip
    programs = {}
    for name, model in models.items():
        model.to(device).train()
        make = packed_step if isinstance(model, Transformer) else padded_step
        step = make(model, device)  # type: ignore[arg-type]
        programs[name] = step, torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
    samples = batches(config, tokens, options.batches, sort=not options.shuffled)
    times: dict[Entrant, list[float]] = {
        Entrant(name, dtype): [] for name in programs for dtype in options.dtype
    }
    before, own = ticks(), time.process_time()
    for repeat in range(options.repeats + 1):
        for sources, targets in samples:
            for entrant, seconds in times.items():
                step, optimiser = programs[entrant.name]
                dtype = getattr(torch, entrant.dtype)
                synchronise(device)
                start = time.perf_counter()
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    loss = step(sources, targets)
                loss.backward()
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                synchronise(device)
                assert loss.isfinite(), entrant.label
                if repeat:  # the first round is the warm-up
                    seconds.append(time.perf_counter() - start)
    others = busy_others(before, time.process_time() - own)
    rows = [(Packed.of(sources), Packed.of(targets)) for sources, targets in samples]
    # the operations and the real target tokens are the same for all programs
    work = sum(operations(config, source.lengths, target.lengths) for source, target in rows)
    real = sum(len(target.tokens) for _, target in rows)
    padding = sum(len(target) * max(target.lengths) for _, target in rows) / real - 1
    kind = "shuffled" if options.shuffled else "similar lengths"
    print(
        f"{preset}, vocabulary {vocabulary:,}, {log.hardware}, {real // len(samples):,} real "
        f"target tokens a batch ({kind}; padding adds {padding:.0%} for the peers)"
    )
    limits = {dtype: real / (work / best_peak(device, dtype)) for dtype in options.dtype}
    show(f"{preset}, {tokens:,} tokens", times, real / len(samples), limits, log, others)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks step", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["tiny", "small", "base"])
    parser.add_argument("--tokens", type=int, help="real target tokens a batch (4096; base: 2048)")
    parser.add_argument("--vocabulary", type=int, help="(default: 10000; 37000 for base)")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--shuffled", action="store_true", help="do not sort by length")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    log = RatioLog("step", arguments, options, options.device)
    keep_freed_memory()
    for preset in options.presets:
        run(preset, options, log)
    return log.close()
