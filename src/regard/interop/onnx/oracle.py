"""Run an exported folder in ONNX Runtime, for the comparison with regard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from regard.interop.runtime_files import FolderTokenizers, rounding_tolerance, temperature_of
from regard.predictor.model import Model

Arrays = dict[str, NDArray[Any]]
BATCH = 16  # rows that are decoded at once
KINDS = ("key", "value")


class OnnxOracle(FolderTokenizers):
    """See `interop.model.Oracle`. Rows are padded, so the comparison covers padding.

    Args:
        folder: the exported folder.
        model: the exported model.
    """

    name = "onnxruntime"
    version: str = onnxruntime.__version__

    def __init__(self, folder: Path, model: Model) -> None:
        super().__init__(folder, model)
        self.tolerance = rounding_tolerance(model.config.model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.sessions: dict[str, Any] = {
            path.stem: onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            for path in sorted(folder.glob("*.onnx"))
        }

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]] | None:
        config = self.model.config.model
        ids, mask = pad(rows)
        if config.head in ("classifier", "pooling"):
            # `write` has divided the logits of a classifier by its temperature.
            return list(self.run("encoder", ids, mask)[0] * temperature_of(self.model))
        if config.style == "encoder":
            logits = self.run("encoder", ids, mask)[0]
        elif config.style == "decoder":
            logits = self.step(ids, mask, self.empty(len(rows)))[0]
        else:
            tokenizer = self.model.target_tokenizer
            begun = np.array([[tokenizer.bos, *tokenizer.target_prefix]] * len(rows))
            return list(self.step(begun, np.ones_like(begun), self.read(ids, mask))[0][:, -1:])
        return [part[: len(row)] for part, row in zip(logits, rows, strict=True)]

    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        if "decoder_step" not in self.sessions:
            return None
        batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        return [tokens for batch in batches for tokens in self._generate(batch, steps)]

    def _generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        tokenizer = self.model.target_tokenizer
        ids, mask = pad(rows)
        cache = self.empty(len(rows))
        last = mask.sum(1) - 1
        if self.model.config.model.has_encoder:
            cache = self.read(ids, mask)
            ids = np.array([[tokenizer.bos, *tokenizer.target_prefix]] * len(rows))
            mask = np.ones_like(ids)
            last = np.full(len(rows), ids.shape[1] - 1)
        outputs, done = [list[int]() for _ in rows], np.zeros(len(rows), bool)
        for _ in range(steps):
            logits, cache = self.step(ids, mask, cache)
            tokens = logits[np.arange(len(rows)), last].argmax(-1)
            done |= tokens == tokenizer.eos
            for i in np.flatnonzero(~done):
                outputs[i].append(int(tokens[i]))
            if done.all():
                break
            ids, last = tokens[:, None], np.zeros(len(rows), np.int64)
            mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        return outputs

    def run(self, name: str, ids: NDArray[Any], mask: NDArray[Any]) -> list[NDArray[Any]]:
        """The outputs of the encoder."""
        outputs: list[NDArray[Any]] = self.sessions[name].run(
            None, {"input_ids": ids, "attention_mask": mask}
        )
        return outputs

    def empty(self, count: int) -> Arrays:
        """An empty cache."""
        config = self.model.config.model
        shape = (count, config.key_value_heads, 0, config.head_size)
        names = [f"past_{kind}_{i}" for i in range(config.decoder_layers) for kind in KINDS]
        return {name: np.zeros(shape, np.float32) for name in names}

    def read(self, ids: NDArray[Any], mask: NDArray[Any]) -> Arrays:
        """The cache of an encoder-decoder that has read the source."""
        names = [output.name for output in self.sessions["encoder"].get_outputs()]
        outputs = dict(zip(names, self.run("encoder", ids, mask), strict=True))
        del outputs["last_hidden_state"]
        return self.empty(len(ids)) | outputs | {"encoder_attention_mask": mask}

    def step(
        self, ids: NDArray[Any], mask: NDArray[Any], cache: Arrays
    ) -> tuple[NDArray[Any], Arrays]:
        """The logits [B, T, V] of new tokens, and the cache that includes them."""
        session = self.sessions["decoder_step"]
        logits, *present = session.run(None, {"input_ids": ids, "attention_mask": mask} | cache)
        names = [output.name.replace("present", "past") for output in session.get_outputs()[1:]]
        return logits, cache | dict(zip(names, present, strict=True))


def pad(rows: Sequence[Sequence[int]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Token ids [B, T] with padding on the right, and their mask."""
    longest = max(len(row) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask
