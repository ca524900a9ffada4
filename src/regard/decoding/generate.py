"""`regard.generate`: decode with a `Transformer` that has no task and no tokenizer.

It is a function and not a method of `Transformer`, because the model does not depend on decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from regard.config.sections import DecodingConfig
from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.errors import InputError, warn_user
from regard.model.inputs import read_batch
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer

Batch = Packed | Tensor | Sequence[Sequence[int]]


@overload
def generate(
    model: Transformer, source: Batch | None = ..., prompt: Batch | None = ..., *,
    source_lengths: Sequence[int] | Tensor | None = ..., source_mask: Tensor | None = ...,
    prompt_lengths: Sequence[int] | Tensor | None = ..., prompt_mask: Tensor | None = ...,
    max_length: int = ..., beam: int = ..., length_penalty: float = ..., temperature: float = ...,
    top_k: int = ..., top_p: float = ..., seed: int = ..., bos: int = ..., eos: int | None = ...,
    scores: Literal[False] = ...,
) -> list[list[int]]: ...  # fmt: skip


@overload
def generate(
    model: Transformer, source: Batch | None = ..., prompt: Batch | None = ..., *,
    source_lengths: Sequence[int] | Tensor | None = ..., source_mask: Tensor | None = ...,
    prompt_lengths: Sequence[int] | Tensor | None = ..., prompt_mask: Tensor | None = ...,
    max_length: int = ..., beam: int = ..., length_penalty: float = ..., temperature: float = ...,
    top_k: int = ..., top_p: float = ..., seed: int = ..., bos: int = ..., eos: int | None = ...,
    scores: Literal[True],
) -> tuple[list[list[int]], list[float]]: ...  # fmt: skip


def generate(
    model: Transformer,
    source: Batch | None = None,
    prompt: Batch | None = None,
    *,
    source_lengths: Sequence[int] | Tensor | None = None,
    source_mask: Tensor | None = None,
    prompt_lengths: Sequence[int] | Tensor | None = None,
    prompt_mask: Tensor | None = None,
    max_length: int = 50,
    beam: int = 1,
    length_penalty: float = 0.6,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 1,
    bos: int = Tokenizer.bos,
    eos: int | None = Tokenizer.eos,
    scores: bool = False,
) -> list[list[int]] | tuple[list[list[int]], list[float]]:
    """Generate token ids with a `Transformer` that has a decoder.

    An encoder-decoder reads each source and writes its output after `bos` and the prompt, if there
    is one. A decoder-only model continues each prompt; without a prompt it continues `bos`. The
    result for a sequence does not depend on the others. The model is used in evaluation mode, and
    its mode is restored afterwards.

    Args:
        model: an encoder-decoder or a decoder-only model.
        source: the input of the encoder: `Packed`, a list of lists of token ids, or a padded tensor
            [B, T] with source_lengths or source_mask.
        prompt: the tokens that each output continues, in the same forms.
        source_lengths: [B], the number of tokens of each row of a padded source.
        source_mask: [B, T], True for the tokens of a padded source, False for its padding.
        prompt_lengths: as source_lengths, for the prompt.
        prompt_mask: as source_mask, for the prompt.
        max_length: the largest number of new tokens, including `eos`.
        beam: the number of hypotheses of beam search; 1 is greedy search.
        length_penalty: scores are divided by ((5 + tokens) / 6) to this power.
        temperature: 0 searches; above 0 samples; 1 samples from the model's own probabilities.
        top_k: sample from this many most probable tokens; 0: from all.
        top_p: sample from the fewest most probable tokens with this total probability.
        seed: random seed for sampling.
        bos: the id of the token that begins the decoder's input.
        eos: the id of the token that ends an output; None: every output has max_length tokens.
        scores: whether to return the scores as well.

    Returns:
        The new tokens of each sequence, without the prompt and without `eos`. With `scores=True` a
        pair of these and of the score of each output: the sum of its log-probabilities, including
        those of the prompt of an encoder-decoder and of `eos`, divided by the length penalty.

    Raises:
        InputError: an argument is missing or not valid, or the model has no decoder.
    """
    if not isinstance(model, Transformer):
        raise InputError(f"generate needs a Transformer, not {type(model).__name__}")
    if model.decoder is None or model.config.head != "language-model":
        raise InputError(
            f"a model with style={model.config.style} and head={model.config.head} cannot generate:"
            " it needs a decoder and head=language-model"
        )
    size = model.config.vocabulary_size
    for name, token in (("bos", bos), ("eos", eos)):
        if token is not None and (type(token) is not int or not 0 <= token < size):
            raise InputError(f"{name} must be a token id from 0 to {size - 1}, not {token!r:.60}")
    options = DecodingConfig(
        beam=beam, length_penalty=length_penalty, max_length=max_length, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip
    sources = _sequences(source, source_lengths, source_mask, "source")
    prompts = _sequences(prompt, prompt_lengths, prompt_mask, "prompt")
    requests = _requests(model, sources, prompts, max_length, bos, -1 if eos is None else eos)
    predictions = _decode(model, requests, options)
    outputs = []
    for request, prediction in zip(requests, predictions, strict=True):
        tokens = prediction.token_ids[len(request.prefix) :]
        outputs.append(tokens[:-1] if tokens and tokens[-1] == eos else tokens)
    return (outputs, [prediction.score for prediction in predictions]) if scores else outputs


def _requests(
    model: Transformer, sources: list[list[int]] | None, prompts: list[list[int]] | None,
    max_length: int, bos: int, eos: int,
) -> list[Request]:  # fmt: skip
    both = model.encoder is not None
    if both and sources is None:
        raise InputError("the source is missing: a model of style encoder-decoder needs it")
    if not both and sources is not None:
        raise InputError("a model of style decoder has no source: pass the tokens as prompt")
    if not both:
        known = [[bos]] if prompts is None else prompts
        return [Request(tokens, (), max_length, bos, eos) for tokens in known]
    assert sources is not None
    prefixes = [list[int]() for _ in sources] if prompts is None else prompts
    if len(prefixes) != len(sources):
        raise InputError(
            f"the source has {len(sources)} sequences and the prompt {len(prefixes)}: they must "
            "have the same number"
        )
    if any(prefix[:1] == [bos] for prefix in prefixes):
        warn_user(
            f"the prompt begins with bos={bos}, which generate adds before the prompt of an "
            "encoder-decoder: leave it out"
        )
    pairs = zip(sources, prefixes, strict=True)
    return [Request(s, prefix, len(prefix) + max_length, bos, eos) for s, prefix in pairs]


def _decode(
    model: Transformer, requests: list[Request], options: DecodingConfig
) -> list[Prediction]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        return decode(model, requests, options)
    finally:
        for module in training:
            module.training = True


def _sequences(
    batch: Batch | None, lengths: Sequence[int] | Tensor | None, mask: Tensor | None, side: str
) -> list[list[int]] | None:
    """The sequences of a batch as lists of token ids."""
    rows: Any = batch
    if batch is not None and not isinstance(batch, Packed | torch.Tensor):
        if not isinstance(batch, list | tuple):
            raise InputError(
                f"the {side} must be Packed, a list of lists of token ids or a padded tensor, not "
                f"{type(batch).__name__}"
            )
        if batch and isinstance(batch[0], int):
            raise InputError(f"the {side} is one list of ids: put it into a list of sequences")
        rows = Packed.of(batch)
    packed, _ = read_batch(rows, lengths, mask, side)
    return None if packed is None else [row.tolist() for row in packed.split(packed.tokens)]
