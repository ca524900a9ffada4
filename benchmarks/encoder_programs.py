"""Encoder programs of BERT shape: token ids in, one vector per token out.

A request is a list of sentences of different lengths. An output is the number of vectors of each
sentence and their width. Vectors of padding do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.compare import OURS
from benchmarks.processes import Call, Make, Prepare
from benchmarks.programs import PAD, begin, ctranslate2_model, our_model
from regard import ModelConfig, Packed
from regard.decoding.engines import hidden

Sentences = list[list[int]]
Output = tuple[list[int], int]  # vectors of each sentence, and their width
ONNX_FILES = {"float32": "float32.onnx", "int8": "int8.onnx"}


def ours(config: ModelConfig, dtype: str, device: str, threads: int, native: bool) -> Prepare:
    begin(threads)
    model = our_model(config, dtype, device, native)

    def prepare(sentences: Sentences) -> Call:
        @torch.no_grad()
        def call() -> Output:
            row = Packed.of(sentences).to(device)
            memory = hidden(model, row)  # [N, D]
            synchronise(device)
            return list(row.lengths) if len(memory) == len(row.tokens) else [], memory.shape[-1]

        return call

    return prepare


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def padded(sentences: Sentences) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Padded tokens[B, T] and the mask of real tokens."""
    longest = max(map(len, sentences))
    tokens = np.array([[*sentence, *[PAD] * (longest - len(sentence))] for sentence in sentences])
    lengths = np.array([[len(sentence)] for sentence in sentences])
    return tokens, (np.arange(longest) < lengths).astype(np.int64)


def covered(mask: NDArray[np.int64], shape: Sequence[int]) -> Output:
    """The output of a padded result [B, T, D]: only real tokens count."""
    return mask[: shape[0], : shape[1]].sum(1).tolist(), shape[2]


def bert(config: ModelConfig) -> Any:
    from transformers import BertConfig, BertModel

    c = config
    sizes = BertConfig(
        vocab_size=c.vocabulary_size, hidden_size=c.d_model, num_hidden_layers=c.encoder_layers,
        num_attention_heads=c.heads, intermediate_size=c.d_ff, hidden_act=c.activation,
        max_position_embeddings=c.max_length, pad_token_id=PAD,
    )  # fmt: skip
    sizes.position_embedding_type = "absolute"  # the converter of CTranslate2 reads this
    return BertModel(sizes).eval()


def hugging_face(config: ModelConfig, dtype: str, device: str, threads: int) -> Prepare:
    begin(threads)
    model = bert(config)
    model.pooler = None  # the vector of the sentence is not part of the work
    model.to(device, getattr(torch, dtype))

    def prepare(sentences: Sentences) -> Call:
        @torch.inference_mode()
        def call() -> Output:
            tokens, mask = padded(sentences)
            result = model(
                torch.from_numpy(tokens).to(device),
                attention_mask=torch.from_numpy(mask).to(device),
            )
            synchronise(device)
            return covered(mask, result.last_hidden_state.shape)

        return call

    return prepare


def ctranslate2(folder: str, dtype: str, threads: int, workers: int) -> Prepare:
    model = ctranslate2_model("Encoder", folder, dtype, threads, workers)

    def prepare(sentences: Sentences) -> Call:
        _, mask = padded(sentences)

        def call() -> Output:
            result = model.forward_batch(sentences)  # it knows the lengths and may skip padding
            return covered(mask, result.last_hidden_state.shape)

        return call

    return prepare


def onnxruntime(folder: str, dtype: str, threads: int, workers: int) -> Prepare:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(
        str(Path(folder) / ONNX_FILES[dtype]), options, providers=["CPUExecutionProvider"]
    )

    def prepare(sentences: Sentences) -> Call:
        def call() -> Output:
            tokens, mask = padded(sentences)
            feed = {"tokens": tokens.astype(np.int32), "mask": mask.astype(np.int32)}
            (result,) = session.run(None, feed)
            return covered(mask, result.shape)

        return call

    return prepare


ENCODERS: dict[str, Make] = {
    OURS: ours, "huggingface": hugging_face, "ctranslate2": ctranslate2,
    "onnxruntime": onnxruntime,
}  # fmt: skip


def convert(config: ModelConfig, folder: Path) -> None:
    """Write the Hugging Face model for CTranslate2, with the ids as words."""
    from ctranslate2.converters.transformers import BertLoader

    torch.manual_seed(0)
    with torch.no_grad():
        spec = BertLoader().get_model_spec(bert(config))
    spec.register_vocabulary([str(i) for i in range(config.vocabulary_size)])
    spec.config.unk_token = str(PAD)
    spec.config.layer_norm_epsilon = 1e-12
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def wrong(output: Output, lengths: list[int], width: int) -> str | None:
    """Say what is wrong with an output, if anything."""
    counts, size = output
    if list(counts) != lengths or size != width:
        return (
            f"expected {sum(lengths)} vectors of {width} numbers, got {sum(counts)} of {size}: "
            f"by sentence {counts}"
        )
    return None
