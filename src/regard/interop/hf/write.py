"""Export to Hugging Face: a folder that `transformers` loads without custom code.

`AutoModelForSeq2SeqLM`, `ForMaskedLM`, `ForSequenceClassification` and `ForCausalLM` compute the
same logits, and `AutoTokenizer` computes the same ids. A model that embeds texts becomes a
`sentence-transformers` folder, which `AutoModel` loads as well. write_options.py defines which
options can be expressed; an error names the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from regard.errors import InputError
from regard.files import read_bounded, write_file
from regard.interop.expressible import check_unchanged
from regard.interop.hf.restore import EXACT, KEY, SOURCE, TARGET, description
from regard.interop.hf.write_config import config_json, generation_json
from regard.interop.hf.write_options import Architecture, choose
from regard.interop.hf.write_tensors import calibrated, convert, inexact
from regard.interop.hf.write_tokenizer import (
    TEMPLATE,
    as_json,
    pad_of,
    special_ids,
    tokenizer_files,
    write_files,
)
from regard.interop.model import Oracle
from regard.predictor.model import Model
from regard.tasks.classify import Classify
from regard.tasks.embed import Embed
from regard.tasks.sequences import Sequences, input_ids
from regard.text.imported import ImportedTokenizer
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import not_finite

LARGEST_TEMPLATE = 2**20  # bytes
POOLING = {"mean": "mean", "cls": "cls", "last": "lasttoken"}  # names in sentence-transformers
QWEN = json.dumps(r"|\p{N}| ?")[1:-1]  # in the pattern of Qwen2: each digit is a token
TOLERANCE = 1e-3  # of float32 logits


def write(model: Model, folder: Path) -> None:
    """Write a model as a folder for `transformers`.

    The files are config.json, generation_config.json, model.safetensors (float32), the tokenizer
    files, chat_template.jinja if the model has one, and the sentence-transformers files for a model
    that embeds texts. A model with two vocabularies has two folders of tokenizer files,
    `source_tokenizer` and `target_tokenizer`, because no class of `transformers` reads both.
    regard.safetensors has the original tensors where model.safetensors has only rounded ones; only
    `restore` reads it.

    Args:
        model: the model.
        folder: an empty folder.

    Raises:
        InputError: `transformers` has no architecture for the options of the model, which the
            message names; or the weights contain NaN or infinity.
    """
    config = model.config.model
    architecture = architecture_of(model)
    check_unchanged(model.transformer)
    state = {name: x.detach().float() for name, x in model.transformer.state_dict().items()}
    if name := not_finite(state):
        raise InputError(f"{name} contains NaN or infinity, so the model cannot be exported")
    temperature = _temperature(model)
    tokenizers = _tokenizers(model)
    longest = model.config.longest_input
    positions = _positions(model)
    texts = {
        name: tokenizer_files(tokenizer, model.task.name, config.style, longest, _template(model))
        for name, tokenizer in tokenizers.items()
    }
    ids = special_ids(model.target_tokenizer, config.style)
    labels = model.labels if isinstance(model.task, Classify) else []
    classes = labels if config.head == "classifier" else ()
    values = config_json(config, architecture, positions, ids, classes)
    values[KEY] = description(
        config,
        model.task.name,
        longest,
        asdict(model.config.decoding),
        labels,
        temperature,
        positions,
        tokenizers,
    )
    files = {"config.json": as_json(values)}
    if config.head == "language-model":
        steps = model.config.decoding.max_length  # beyond the length of a source
        longest_output = steps if config.style == "decoder" else min(longest + steps, positions)
        files["generation_config.json"] = as_json(
            generation_json(config.style, ids, longest_output)
        )
    if config.head == "pooling":
        files |= _sentence_files(model)
    write_files(folder, files)
    for name, contents in texts.items():
        write_files(folder / name, contents)
    tensors = convert(calibrated(state, temperature), config, architecture, positions)
    write_file(folder / "model.safetensors", to_bytes(tensors))
    if names := inexact(state, config, architecture, temperature):
        write_file(folder / EXACT, to_bytes({name: state[name] for name in names}))


def architecture_of(model: Model) -> Architecture:
    """The architecture of `transformers` for a model.

    Raises:
        InputError: there is none.
    """
    qwen = is_qwen(model.target_tokenizer)
    return choose(model.config.model, () if qwen else ("qwen2",))


def is_qwen(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer splits text like the Qwen2 tokenizer, which AutoTokenizer uses for every
    folder of type qwen2."""
    if not isinstance(tokenizer, ImportedTokenizer):
        return False
    parts = json.loads(tokenizer.fast.to_str())
    return "NFC" in str(parts["normalizer"]) and QWEN in json.dumps(parts["pre_tokenizer"])


def _tokenizers(model: Model) -> dict[str, Any]:
    """The tokenizers, keyed by the folder that contains them."""
    source, target = model.source_tokenizer, model.target_tokenizer
    if source is target or source.fingerprint == target.fingerprint:
        return {"": target}
    if pad_of(source, "encoder-decoder") != pad_of(target, "encoder-decoder"):
        raise InputError(
            "the two tokenizers have different padding tokens, but transformers uses one for both"
        )
    return {SOURCE: source, TARGET: target}


def _temperature(model: Model) -> float:
    """The number by which the logits of a model that classifies are divided."""
    return model.task.temperature if isinstance(model.task, Classify) else 1.0


def _positions(model: Model) -> int:
    """The number of positions in the export. regard computes sinusoids and rotations for any
    position; transformers has a table or a limit."""
    config = model.config
    if config.model.positions == "learned":
        return config.model.max_length
    return config.longest_input + (config.decoding.max_length if config.model.has_decoder else 0)


def _template(model: Model) -> str | None:
    """The chat template in the folder of the model."""
    path = None if model.folder is None else model.folder / TEMPLATE
    if path is None or not path.is_file():
        return None
    return read_bounded(path, LARGEST_TEMPLATE, "a chat template").decode("utf-8")


def _sentence_files(model: Model) -> dict[str, str]:
    """The sentence-transformers files: tokenisation, pooling and normalisation."""
    config = model.config.model
    modules = [
        ("0", "", "sentence_transformers.models.Transformer"),
        ("1", "1_Pooling", "sentence_transformers.models.Pooling"),
        ("2", "2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
             "weightedmean_tokens", "lasttoken")  # fmt: skip
    chosen = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}[config.pooling]
    pooling = {
        "word_embedding_dimension": config.d_model,
        **{f"pooling_mode_{mode}": mode == chosen for mode in modes},
        "include_prompt": True,
    }
    listed = [
        {"idx": int(name), "name": name, "path": path, "type": kind} for name, path, kind in modules
    ]
    return {
        "modules.json": json.dumps(listed, indent=2) + "\n",
        "1_Pooling/config.json": as_json(pooling),
        "2_Normalize/config.json": as_json({}),
        "sentence_bert_config.json": as_json(
            {"max_seq_length": model.config.longest_input, "do_lower_case": False}
        ),
        "config_sentence_transformers.json": as_json(
            {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
        ),
    }


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """Write a reproducible float32 safetensors file that `transformers` can read."""
    arrays, places = {}, set()  # the library refuses tensors that share memory
    for name in sorted(tensors):
        x = tensors[name].to("cpu", torch.float32).contiguous()
        memory = x.untyped_storage()
        alone = memory.nbytes() == x.nbytes and memory.data_ptr() not in places
        places.add(memory.data_ptr())
        arrays[name] = x if alone else x.clone()
    return save(arrays, metadata={"format": "pt"})


# ---- the proof ------------------------------------------------------------------------------


def read_row(model: Model, ids: Sequence[int]) -> list[int]:
    """The token ids that a model reads for a text in its task."""
    tokenizer, style = model.source_tokenizer, model.config.model.style
    if isinstance(model.task, Sequences):
        return input_ids(tokenizer, style, ids)
    frame = tokenizer.frame_pooled if isinstance(model.task, Embed) else tokenizer.frame
    return frame(ids, style)


class TransformersOracle:
    """`transformers` with an exported folder, in float32."""

    name, tolerance = "transformers", TOLERANCE

    def __init__(self, folder: Path, model: Model) -> None:
        import transformers

        self.version = str(transformers.__version__)
        config = model.config.model
        self.style, self.head, self.pooling = config.style, config.head, config.pooling
        kind = {
            "masked-language-model": "AutoModelForMaskedLM", "pooling": "AutoModel",
            "classifier": "AutoModelForSequenceClassification",
        }.get(config.head, "AutoModelForCausalLM")  # fmt: skip
        if self.style == "encoder-decoder":
            kind = "AutoModelForSeq2SeqLM"
        load = getattr(transformers, kind).from_pretrained
        self.model: Any = load(folder, dtype=torch.float32, local_files_only=True).eval()
        place = folder / SOURCE
        automatic: Any = transformers.AutoTokenizer
        self.tokenizer: Any = automatic.from_pretrained(place if place.is_dir() else folder)
        self.start = model.target_tokenizer.bos
        self.prefix = list(model.target_tokenizer.target_prefix)
        self.frame = partial(read_row, model)
        self.temperature = _temperature(model)  # `write` has divided the logits by it

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of AutoTokenizer for each text, with special tokens around it. The names of
        special tokens in a text are text."""
        encoded = self.tokenizer(list(texts), split_special_tokens=True, truncation=False)
        return [[int(id) for id in ids] for ids in encoded["input_ids"]]

    @torch.no_grad()
    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]]:
        """The logits or the vector for each row (interop/model.py)."""
        results = []
        for row in rows:
            inputs: dict[str, Any] = {"input_ids": torch.tensor([list(row)])}
            if self.style == "encoder-decoder":
                inputs["decoder_input_ids"] = torch.tensor([[self.start, *self.prefix]])
            result = self.model(**inputs)
            if self.head == "pooling":
                hidden = result.last_hidden_state[0]
                at = {"cls": hidden[0], "last": hidden[-1]}
                vector = at.get(self.pooling, hidden.mean(0))
                results.append(torch.nn.functional.normalize(vector, dim=-1).numpy())
            elif self.style == "encoder-decoder":
                results.append(result.logits[0, -1:].numpy())
            else:
                results.append(result.logits[0].numpy() * self.temperature)
        return results

    @torch.no_grad()
    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        """The tokens of greedy decoding for each row."""
        if self.head != "language-model":
            return None
        return [self._decode(list(row), steps) for row in rows]

    def _decode(self, row: list[int], steps: int) -> list[int]:
        inputs: dict[str, Any] = {"input_ids": torch.tensor([row])}
        before = row
        if self.style == "encoder-decoder":
            before = [self.start, *self.prefix]
            inputs["decoder_input_ids"] = torch.tensor([before])
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        output = self.model.generate(**inputs, max_new_tokens=steps)[0].tolist()[len(before) :]
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        place = next((i for i, token in enumerate(output) if token in ends), len(output))
        return output[:place]


def oracle(folder: Path, model: Model) -> Oracle | None:
    """The engine that reads an exported folder, for the comparison with regard.

    Args:
        folder: the folder that `write` wrote.
        model: the exported model.

    Returns:
        The engine; None if `transformers` is not installed.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        return None
    return TransformersOracle(folder, model)
