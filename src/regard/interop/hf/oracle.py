"""Run a model in the package `transformers`, for the comparison with regard.

Only local files are read, and no code from them is executed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from regard.interop.hf.bart import NEVER
from regard.interop.model import ImportedModel

CLASSES = {
    "fill": "AutoModelForMaskedLM", "classify": "AutoModelForSequenceClassification",
    "embed": "AutoModel", "generate": "AutoModelForCausalLM", "translate": "AutoModelForSeq2SeqLM",
}  # fmt: skip
OPTIONS = {"local_files_only": True, "trust_remote_code": False}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the progress bars and warnings of `transformers`."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


class TransformersOracle:
    """The engine `transformers` in float32 with its plain attention. See `Oracle`.

    Args:
        path: the folder of the model.
        model: the imported model.
    """

    name = "transformers"

    def __init__(self, path: Path, model: ImportedModel) -> None:
        self.version = str(transformers.__version__)
        self.tolerance = 1e-5 if model.task == "embed" else 1e-3  # vectors have unit length
        factory = getattr(transformers, CLASSES[model.task])
        with quiet():
            self.model: Any = factory.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager", **OPTIONS
            ).eval()
        self._path, self._imported = path, model
        self._tokenizer: Any = None
        if model.task == "translate":  # tokens that are never generated
            bias = model.tensors["head.bias"]
            self.model.final_logits_bias[0, bias == NEVER] = NEVER

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids that `AutoTokenizer` computes for each text, with its special tokens. Names
        of special tokens in a text are text."""
        if self._tokenizer is None:
            with quiet():
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(self._path, **OPTIONS)
        options = {"split_special_tokens": True, "verbose": False}
        return [list(self._tokenizer(text, **options)["input_ids"]) for text in texts]

    @torch.inference_mode()
    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]]:
        """As in `Oracle`. The vector of an encoder with pooling has the length 1; the decoder of an
        encoder-decoder reads its start token and the tokens with which every output begins."""
        return [self._output(torch.tensor([list(row)])).numpy() for row in rows]

    def _output(self, row: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(row)
        if self._imported.task == "translate":
            read = torch.tensor([self._prefix])
            output = self.model(input_ids=row, attention_mask=mask, decoder_input_ids=read)
            return output.logits[0, -1:]
        output = self.model(input_ids=row, attention_mask=mask)
        if self._imported.task == "embed":
            hidden = output.last_hidden_state[0]
            vector = hidden[0] if self._imported.config.pooling == "cls" else hidden.mean(0)
            return torch.nn.functional.normalize(vector, dim=0)
        return output.logits[0]

    @property
    def _prefix(self) -> list[int]:
        specials = self._imported.tokenizers[1].specials
        return [specials.bos, *specials.target]

    @torch.inference_mode()
    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        """As in `Oracle`; without the tokens with which every output begins."""
        if self._imported.task not in ("generate", "translate"):
            return None
        end = self._imported.tokenizers[1].eos
        self.model.generation_config = transformers.GenerationConfig(
            do_sample=False, num_beams=1, eos_token_id=end, pad_token_id=end,
            decoder_start_token_id=self._prefix[0] if self._imported.config.has_encoder else None,
        )  # fmt: skip
        results = []
        for row in rows:
            inputs = torch.tensor([list(row)])
            options: dict[str, Any] = {"attention_mask": torch.ones_like(inputs)}
            skipped = len(row)
            if self._imported.task == "translate":
                options["decoder_input_ids"] = torch.tensor([self._prefix])
                skipped = len(self._prefix)
            with quiet():
                output = self.model.generate(inputs, max_new_tokens=steps, **options)
            tokens = output[0, skipped:].tolist()
            results.append(tokens[: tokens.index(end)] if end in tokens else tokens)
        return results
