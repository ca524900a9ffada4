"""README.md of an export to ONNX: a complete program that runs the model with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from regard.interop.onnx.graph import POSITIONS
from regard.interop.runtime_files import frame_of, id_offset
from regard.predictor.model import Model
from regard.tasks.sequences import Sequences

WIDTH = 88
TEXT = "A dog runs across the field."
BEGIN = """\
import numpy as np
import onnxruntime
import tokenizers

tokenizer = tokenizers.Tokenizer.from_file("{source}")
tokenizer.encode_special_tokens = True  # the name of a special token in a text is text
text = "{text}"
ids = [{begin}*{encoded}{end}]
"""
ENCODE = """\
encoder = onnxruntime.InferenceSession("encoder.onnx")
inputs = {{"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}}
[output] = encoder.run(["{output}"], inputs)
print(output[0]{label})
"""
MEMORY = """\
encoder = onnxruntime.InferenceSession("encoder.onnx")
inputs = {{"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}}
names = [output.name for output in encoder.get_outputs()[1:]]
memory = dict(zip(names, encoder.run(names, inputs)))  # keys and values for each layer
memory["encoder_attention_mask"] = inputs["attention_mask"]

"""
DECODE = """\
decoder = onnxruntime.InferenceSession("decoder_step.onnx")
none = np.zeros((1, {heads}, 0, {size}), np.float32)  # batch, heads, tokens, features
cache = {{f"past_{{part}}_{{i}}": none for i in range({layers}) for part in ("key", "value")}}
tokens = new = {first}
while len(tokens) < {limit}:
    mask = np.ones((1, len(tokens)), np.int64)
    inputs = {{"input_ids": np.array([new]), "attention_mask": mask, **cache{memory}}}
    logits, *present = decoder.run(None, inputs)
    cache = dict(zip(cache, present))  # the keys and values of all tokens so far
    new = [int(logits[0, -1].argmax())]
    if new == [{eos}]:
        break
    tokens = tokens + new
{decoder}print({target}.decode({decoded}))
"""


def readme(model: Model, files: Sequence[str]) -> str:
    """The text of README.md.

    Args:
        model: the exported model.
        files: the names of the tokenizer files; the source comes first.

    Returns:
        The text: what the graphs compute, an example, and the limits.
    """
    config, source = model.config.model, model.source_tokenizer
    parts = [f"# ONNX graphs of a regard model for the task {model.config.task}"]
    parts += [fill(text, WIDTH) for text in describe(model)]
    if config.style == "encoder" and isinstance(model.task, Sequences):
        parts.append(
            f"The input is a text, the token {source.sep}, and one token {source.mask} for each "
            "token of the output."
        )
    elif files:
        parts.append(f"```python\n{program(model, files).rstrip()}\n```")
    else:
        parts.append(
            "The tokenizer of the model is a Python object and is not part of this folder."
        )
    limit = config.max_length if config.positions == "learned" else POSITIONS
    positions = "no length limit" if config.positions == "none" else f"{limit:,} positions"
    parts.append(
        fill(
            f"The model has {positions}. Batch and lengths are dynamic. Padding can be on either "
            "side of a row; `attention_mask` is 1 for tokens and 0 for padding. The properties "
            "`regard.*` of the graphs (metadata_props) contain JSON: special tokens and labels.",
            WIDTH,
        )
    )
    return "\n\n".join(parts) + "\n"


def describe(model: Model) -> list[str]:
    """What each graph computes."""
    config = model.config.model
    heads, size = config.key_value_heads, config.head_size
    if config.head != "language-model":
        output = {
            "masked-language-model": "`logits` [B, T, V]",
            "classifier": "`logits` [B, classes] (softmax gives the probabilities)",
            "pooling": "`sentence_embedding` [B, D] of unit length",
        }[config.head]
        return [
            "`encoder.onnx` reads `input_ids` and `attention_mask` [B, T] (int64) and computes "
            f"{output} and `last_hidden_state` [B, T, D]."
        ]
    step = (
        "`decoder_step.onnx` reads `input_ids` [B, T], the new tokens of each row, after a cache "
        f"of `past_key_i` and `past_value_i` [B, {heads}, P, {size}] for each layer i, where P can "
        "be 0. `attention_mask` [B, P + T] covers both. It computes the `logits` [B, T, V] of the "
        "next tokens, and `present_key_i` and `present_value_i` for the next call."
    )
    if not config.has_encoder:
        return [step]
    return [
        "`encoder.onnx` reads `input_ids` and `attention_mask` [B, S] and computes "
        "`last_hidden_state` [B, S, D], and `cross_key_i` and `cross_value_i` for each layer i of "
        "the decoder, which reads them together with the mask as `encoder_attention_mask`.",
        step,
    ]


def program(model: Model, files: Sequence[str]) -> str:
    """The example: the output of an encoder, or greedy decoding."""
    config, target = model.config.model, model.target_tokenizer
    begin, end = frame_of(model)
    offset = id_offset(model.source_tokenizer)
    encoded = "tokenizer.encode(text, add_special_tokens=False).ids"
    if offset:
        encoded = f"[id + {offset} for id in {encoded}]"
    values = {
        "source": files[0],
        "text": TEXT,
        "encoded": encoded,
        "begin": "".join(f"{id}, " for id in begin),
        "end": "".join(f", {id}" for id in end),
        "output": "sentence_embedding" if config.head == "pooling" else "logits",
        "label": ".argmax(-1)" if config.head != "pooling" else "[:4]",
    }
    if config.head != "language-model":
        return (BEGIN + ENCODE).format(**values)
    both, own = config.has_encoder, id_offset(target)
    shared = len(files) == 1
    first = [target.bos, *target.target_prefix]
    tokens = f"tokens[{len(first)}:]" if both else "tokens[len(ids):]"
    values |= {
        "heads": str(config.key_value_heads),
        "size": str(config.head_size),
        "layers": str(config.decoder_layers),
        "first": str(first) if both else "ids",
        "limit": "100",
        "memory": ", **memory" if both else "",
        "eos": str(target.eos),
        "decoder": ""
        if shared
        else f'target_tokenizer = tokenizers.Tokenizer.from_file("{files[-1]}")\n',
        "target": "tokenizer" if shared else "target_tokenizer",
        "decoded": f"[id - {own} for id in {tokens} if id >= {own}]" if own else tokens,
    }
    return (BEGIN + (MEMORY if both else "") + DECODE).format(**values)
