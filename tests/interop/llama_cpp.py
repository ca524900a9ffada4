"""llama.cpp through the package `cyllama`, for comparisons by hand; it is not installed in CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LlamaCpp:
    """A GGUF file in llama.cpp, on the CPU.

    Quantised weights stay quantised there, so its logits differ from those of float32 weights; its
    tokens are exact.
    """

    def __init__(self, path: Path) -> None:
        from cyllama.llama import llama_cpp as library

        self.library: Any = library
        if hasattr(library, "disable_logging"):
            library.disable_logging()
        parameters = library.LlamaModelParams()
        parameters.n_gpu_layers = 0

        class LlamaModel(library.LlamaModel):  # type: ignore[misc]
            """cyllama 0.2 reads this attribute, which its class does not have."""

            n_vocab = property(lambda self: self.get_vocab().n_vocab)

        self.model = LlamaModel(str(path), parameters)
        self.vocabulary = self.model.get_vocab()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(self.vocabulary.tokenize(text, True, False)) for text in texts]

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """The logits of the last token of each row, [1, V]."""
        results = []
        for row in rows:
            parameters = self.library.LlamaContextParams()
            parameters.n_ctx, parameters.n_threads = max(64, len(row)), 1
            parameters.type_k = parameters.type_v = 0  # float32 keys and values
            context = self.library.LlamaContext(self.model, parameters)
            context.decode(self.library.llama_batch_get_one(list(row)))
            results.append(np.array(context.get_logits_ith(-1), np.float32)[None])
        return results
