"""Export to Hugging Face: a folder that `transformers` loads without custom code.

`AutoModelForSeq2SeqLM`, `ForMaskedLM`, `ForSequenceClassification` and `ForCausalLM` compute the
same logits, and `AutoTokenizer` computes the same ids. A model that embeds texts becomes a
`sentence-transformers` folder, which `AutoModel` loads as well. write_options.py defines which
options can be expressed; an error names the others.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
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
from regard.text.imported import ImportedTokenizer
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import not_finite

LARGEST_TEMPLATE = 2**20  # bytes
POOLING = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
QWEN = json.dumps(r"|\p{N}| ?")[1:-1]  # in the pattern of Qwen2: each digit is a token


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
    pooling = {
        "word_embedding_dimension": config.d_model,
        **{f"pooling_mode_{mode}": mode == POOLING[config.pooling] for mode in modes},
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


def oracle(folder: Path, model: Model) -> Oracle | None:
    """The runtime that reads an exported folder, for the comparison with regard.

    Args:
        folder: the folder that `write` wrote.
        model: the exported model.

    Returns:
        The runtime; None if `transformers` is not installed.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        return None
    from regard.interop.hf.oracle import TransformersOracle

    return TransformersOracle(
        folder, model.config.model, model.target_tokenizer, _temperature(model)
    )
