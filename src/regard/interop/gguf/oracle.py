"""Run GGUF files in `transformers`, to verify an import or an export."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from regard.interop.gguf.file import read_file
from regard.interop.gguf.tokenizer import PREFIX
from regard.predictor.loading import Uninitialised
from regard.text.imported import SpecialTokens

BATCH = 16  # texts that are decoded at once
_loading = threading.Lock()  # held while functions of other packages are replaced


class GgufOracle:
    """A GGUF file that runs in `transformers`.

    Args:
        path: the file.
        specials: the special tokens around a text. `transformers` does not read whether the file
            adds them.
    """

    name = "transformers"
    # Logits are about 20; if additions are reordered, the float32 results of 30 layers differ by
    # about 1e-4.
    tolerance = 5e-3

    def __init__(self, path: Path, specials: SpecialTokens) -> None:
        import transformers

        self.version, self.specials = transformers.__version__, specials
        metadata = read_file(path).metadata
        with _loading:
            level = transformers.logging.get_verbosity()
            transformers.logging.set_verbosity_error()
            try:
                with contextlib.redirect_stderr(io.StringIO()), _read_once():  # progress bars
                    self.model, self.tokenizer = _load(path, metadata)
            finally:
                transformers.logging.set_verbosity(level)
        # A copy, because a call of the tokenizer of transformers changes this option.
        content = self.tokenizer.backend_tokenizer.to_str()
        self.library: Any = tokenizers.Tokenizer.from_str(content)
        self.library.encode_special_tokens = True  # no text becomes a special token
        if metadata.get(PREFIX + "pre") == "smollm":
            # transformers 5.22 reads this value as "gpt-2". The tokenizer of SmolLM splits digits.
            digits = pre_tokenizers.Digits(individual_digits=True)
            parts = [digits, self.library.pre_tokenizer]
            self.library.pre_tokenizer = pre_tokenizers.Sequence(parts)
        self.eos = specials.eos

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [[*self.specials.begin, *row.ids, *self.specials.end] for row in rows]

    @torch.no_grad()
    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]]:
        return [self.model(torch.tensor([list(row)])).logits[0].numpy() for row in rows]

    @torch.no_grad()
    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        results: dict[int, list[int]] = {}
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            outputs = self._generate([rows[i] for i in chosen], steps)
            results |= dict(zip(chosen, outputs, strict=True))
        return [results[i] for i in range(len(rows))]

    def _generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """Greedy decoding of a batch that is padded on the left."""
        longest = max(map(len, rows))
        inputs = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
        mask = torch.ones(len(rows), longest + steps, dtype=torch.long)
        for i, row in enumerate(rows):
            mask[i, : longest - len(row)] = 0
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        outputs: list[list[int]] = [[] for _ in rows]
        running, cache, seen = set(range(len(rows))), None, longest
        for _ in range(steps):
            result = self.model(
                inputs, attention_mask=mask[:, :seen], past_key_values=cache, use_cache=True,
                position_ids=positions[:, seen - inputs.shape[1] : seen], logits_to_keep=1,
            )  # fmt: skip
            cache, inputs = result.past_key_values, result.logits[:, -1].argmax(-1, keepdim=True)
            seen += 1
            running = {i for i in running if inputs[i].item() != self.eos}
            for i in running:
                outputs[i].append(int(inputs[i].item()))
            if not running:
                break
        return outputs


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Let `transformers` parse a file once and make its table of names once.

    Without this, version 5.22 parses the file for the configuration and again for the weights, and
    makes the table for each of the hundreds of modules: 10 seconds for a small model.
    """
    import gguf

    package: Any = gguf
    kept = package.GGUFReader, package.get_tensor_name_map
    package.GGUFReader, package.get_tensor_name_map = (cache(function) for function in kept)
    try:
        yield
    finally:
        package.GGUFReader, package.get_tensor_name_map = kept


def _load(path: Path, metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer.

    `from_pretrained` needs the package accelerate for a GGUF file; the function that reads the file
    does not.
    """
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    values = load_gguf_checkpoint(str(path))["config"]
    head_size = metadata.get(f"{metadata['general.architecture']}.attention.key_length")
    if head_size is not None:
        values["head_dim"] = head_size
    if values["model_type"] == "gpt2":  # transformers 5.22 does not read these sizes
        values["n_positions"] = metadata["gpt2.context_length"]
        values["n_inner"] = metadata["gpt2.feed_forward_length"]
    config: Any = transformers.AutoConfig.for_model(**values)
    config._attn_implementation = "eager"
    with Uninitialised():  # all weights are replaced
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if config.tie_word_embeddings:
        model.tie_weights()
        missing = [name for name in missing if name != "lm_head.weight"]
    if missing or unexpected:
        raise RuntimeError(f"transformers read different tensors: {[*missing, *unexpected][:3]}")
    # AutoTokenizer would read the whole file once more, only to find the class.
    tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True
    )
    return model.eval(), tokenizer


def load_oracle(path: Path, specials: SpecialTokens) -> GgufOracle | None:
    """The runtime for a file.

    Args:
        path: the file; it must have been read by `read.read`, which checks it.
        specials: the special tokens of the model.

    Returns:
        The runtime; None if `transformers` or `gguf` is not installed.
    """
    if not all(importlib.util.find_spec(name) for name in ("transformers", "gguf")):
        return None
    return GgufOracle(path, specials)
