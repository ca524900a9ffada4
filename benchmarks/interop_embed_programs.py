"""Programs that compute the vectors of sentences with a pretrained encoder, one process each.

A request is a list of texts; the output is one vector of unit length for each of them. The time
includes the tokenizer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.encoder_programs import ONNX_FILES
from benchmarks.interop_weights import read_model
from benchmarks.processes import Call, Prepare
from benchmarks.programs import begin
from regard.predictor.loading import check_int8

BATCH = 32  # sentences, the default of sentence-transformers
Vectors = NDArray[Any]  # [texts, D]


def ours(folder: str, dtype: str, threads: int, native: bool) -> Prepare:
    if not native:
        os.environ["REGARD_NATIVE"] = "off"
    begin(threads)
    model = read_model(Path(folder))
    if dtype == "int8":
        model.transformer.precision = dtype
        check_int8(model.transformer)
    else:
        model.transformer.to(getattr(torch, dtype))

    def prepare(texts: list[str]) -> Call:
        return lambda: np.asarray(model.predict(texts))

    return prepare


def sentence_transformers(folder: str, dtype: str, threads: int) -> Prepare:
    begin(threads)
    from sentence_transformers import (
        SentenceTransformer,
    )

    model = SentenceTransformer(folder, device="cpu").to(getattr(torch, dtype))

    def prepare(texts: list[str]) -> Call:
        return lambda: model.encode(
            texts, batch_size=BATCH, convert_to_tensor=True, show_progress_bar=False
        ).float().numpy()  # fmt: skip

    return prepare


def onnxruntime(folder: str, files: str, dtype: str, threads: int) -> Prepare:
    import onnxruntime as runtime
    from tokenizers import Tokenizer

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(
        str(Path(files) / ONNX_FILES[dtype]), options, providers=["CPUExecutionProvider"]
    )
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()

    def prepare(texts: list[str]) -> Call:
        def call() -> Vectors:
            ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
            order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
            vectors: list[Vectors] = []
            for start in range(0, len(order), BATCH):
                rows = [ids[i] for i in order[start : start + BATCH]]
                tokens = np.zeros((len(rows), len(rows[0])), np.int32)  # the longest comes first
                mask = np.zeros_like(tokens)
                for row, real in enumerate(rows):
                    tokens[row, : len(real)], mask[row, : len(real)] = real, 1
                (hidden,) = session.run(None, {"tokens": tokens, "mask": mask})
                means = np.einsum("btd,bt->bd", hidden, mask.astype(np.float32))
                vectors.append(means / np.linalg.norm(means, axis=1, keepdims=True))
            result = np.empty((len(ids), vectors[0].shape[1]), np.float32)
            result[order] = np.concatenate(vectors)
            return result

        return call

    return prepare


def wrong(output: Vectors, expected: Vectors) -> str | None:
    """A description of what is wrong with an output, if anything."""
    if output.shape != expected.shape:
        return f"expected an array of shape {expected.shape}, got {output.shape}"
    cosines = (output * expected).sum(1)
    if cosines.min() < 0.9:
        return (
            f"vector {cosines.argmin()} has a cosine of {cosines.min():.3f} with the expected one"
        )
    return None
