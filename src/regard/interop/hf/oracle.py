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

from regard.config.model import ModelConfig
from regard.interop.hf.bart import NEVER
from regard.interop.hf.restore import SOURCE, TARGET
from regard.interop.model import ImportedModel
from regard.text.tokenizer import Tokenizer

CLASSES = {
    "masked-language-model": "AutoModelForMaskedLM", "pooling": "AutoModel",
    "classifier": "AutoModelForSequenceClassification",
}  # fmt: skip
OPTIONS = {"local_files_only": True, "trust_remote_code": False}
TEXT_OPTIONS = {"split_special_tokens": True, "truncation": False, "verbose": False}


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
    """The runtime `transformers` in float32 with its plain attention. See `Oracle`.

    Args:
        path: the folder of the model.
        config: the architecture of the model in regard.
        target: the target tokenizer in regard.
        temperature: the number by which the class logits in the folder have been divided.

    Attributes:
        model: the model in `transformers`.
    """

    name = "transformers"

    def __init__(
        self, path: Path, config: ModelConfig, target: Tokenizer, temperature: float = 1.0
    ) -> None:
        self.version = str(transformers.__version__)
        self.tolerance = 1e-5 if config.head == "pooling" else 1e-3  # vectors have unit length
        self._path, self._config = path, config
        self._target, self._temperature = target, temperature
        name = CLASSES.get(config.head, "AutoModelForCausalLM")
        if config.style == "encoder-decoder":
            name = "AutoModelForSeq2SeqLM"
        with quiet():
            self.model: Any = (
                getattr(transformers, name)
                .from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **OPTIONS)
                .eval()
            )

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids that `AutoTokenizer` computes for each text, with its special tokens. Names
        of special tokens in a text are text."""
        tokenizer = self._load_tokenizer(SOURCE)
        files = {path.name for path in self._path.glob("tokenizer.*")}
        if files == {"tokenizer.model"}:
            # SentencePiece adds a space before every text; transformers omits it before a space.
            texts = [f" {text}" if text.startswith(" ") else text for text in texts]
        return [list(tokenizer(text, **TEXT_OPTIONS)["input_ids"]) for text in texts]

    def tokenize_target(self, texts: Sequence[str]) -> list[list[int]]:
        """As in `Oracle`."""
        tokenizer = self._load_tokenizer(TARGET)
        options = {**TEXT_OPTIONS, "add_special_tokens": False}
        if (self._path / TARGET).is_dir():
            return [list(tokenizer(text, **options)["input_ids"]) for text in texts]
        return [list(tokenizer(text_target=text, **options)["input_ids"]) for text in texts]

    def _load_tokenizer(self, name: str) -> Any:
        """The tokenizer in a subfolder of the model, or else the one of the model."""
        place = self._path / name
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(
                place if place.is_dir() else self._path, **OPTIONS
            )

    @torch.inference_mode()
    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]]:
        """As in `Oracle`. The vector of an encoder with pooling has the length 1; the decoder of an
        encoder-decoder reads its start token and the tokens with which every output begins."""
        return [self._output(torch.tensor([list(row)])).numpy() for row in rows]

    def _output(self, row: torch.Tensor) -> torch.Tensor:
        inputs: dict[str, Any] = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        if self._config.style == "encoder-decoder":
            output = self.model(**inputs, decoder_input_ids=torch.tensor([self._prefix]))
            return output.logits[0, -1:]
        output = self.model(**inputs)
        if self._config.head == "pooling":
            hidden = output.last_hidden_state[0]
            ends = {"cls": hidden[0], "last": hidden[-1]}
            vector = ends.get(self._config.pooling, hidden.mean(0))
            return torch.nn.functional.normalize(vector, dim=0)
        scale = self._temperature if self._config.head == "classifier" else 1.0
        return output.logits[0] * scale

    @property
    def _prefix(self) -> list[int]:
        return [self._target.bos, *self._target.target_prefix]

    @torch.inference_mode()
    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        """As in `Oracle`; without the tokens with which every output begins."""
        if self._config.head != "language-model":
            return None
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        results = []
        for row in rows:
            inputs = torch.tensor([list(row)])
            options: dict[str, Any] = {"attention_mask": torch.ones_like(inputs)}
            skipped = len(row)
            if self._config.style == "encoder-decoder":
                options["decoder_input_ids"] = torch.tensor([self._prefix])
                skipped = len(self._prefix)
            with quiet():
                output = self.model.generate(inputs, max_new_tokens=steps, **options)
            tokens = output[0, skipped:].tolist()
            place = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
            results.append(tokens[:place])
        return results


def decode_greedily(engine: TransformersOracle, model: ImportedModel) -> None:
    """Change the options of a runtime to those that regard imports: greedy decoding without the
    other options of generation_config.json, and without the tokens that are never generated."""
    if not model.config.has_decoder:
        return
    end = model.tokenizers[1].eos
    engine.model.generation_config = transformers.GenerationConfig(
        do_sample=False, num_beams=1, eos_token_id=end, pad_token_id=end,
        decoder_start_token_id=model.tokenizers[1].bos if model.config.has_encoder else None,
    )  # fmt: skip
    if model.config.has_encoder:
        bias = model.tensors["head.bias"]
        engine.model.final_logits_bias[0, bias == NEVER] = NEVER
