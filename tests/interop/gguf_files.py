"""Small GGUF files, written with the package `gguf`, and a plain implementation of their models."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import gguf
import numpy as np
import torch
from torch.nn import functional as F

from regard.text.tokenizer import SIGNS

V, D, H, G, K, FF, L = 264, 32, 4, 2, 8, 64, 2
EPSILON, BASE, CONTEXT = 1e-5, 50_000.0, 128
SPECIALS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<think>"]
MERGES = ["Ġ t", "h e", "Ġt he"]


def shapes(architecture):
    """The tensors of a small model."""
    names = {"token_embd.weight": (V, D), "output_norm.weight": (D,)}
    for i in range(L):
        layer = {
            "attn_norm.weight": (D,), "attn_q.weight": (H * K, D), "attn_k.weight": (G * K, D),
            "attn_v.weight": (G * K, D), "attn_output.weight": (D, H * K), "ffn_norm.weight": (D,),
            "ffn_gate.weight": (FF, D), "ffn_up.weight": (FF, D), "ffn_down.weight": (D, FF),
        }  # fmt: skip
        if architecture == "qwen2":
            layer |= {"attn_q.bias": (H * K,), "attn_k.bias": (G * K,), "attn_v.bias": (G * K,)}
        names |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return names


def random_tensors(architecture, seed=1):
    generator = np.random.default_rng(seed)
    return {
        name: (
            generator.normal(size=shape) * (0.3 if len(shape) > 1 else 0.1)
            + (1 if "norm" in name else 0)
        ).astype(np.float32)
        for name, shape in shapes(architecture).items()
    }


def write(path: Path, architecture="llama", tensors=None, types=None, metadata=(), without=()):
    """Write a file. types: the type of tensors by name (default: F32); metadata: further values;
    without: keys that are left out."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {
        "block_count": L, "context_length": CONTEXT, "embedding_length": D,
        "feed_forward_length": FF, "attention.head_count": H, "attention.head_count_kv": G,
        "vocab_size": V,
    }  # fmt: skip
    reals = {"attention.layer_norm_rms_epsilon": EPSILON, "rope.freq_base": BASE}
    tokens = [*SPECIALS, *SIGNS, "Ġt", "he", "Ġthe"]
    values = {f"{architecture}.{key}": value for key, value in (sizes | reals).items()} | {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [3, 3, 3, 3, 4] + [1] * (V - 5),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ messages }}",
    } | dict(metadata)  # fmt: skip
    for key, value in values.items():
        if key in without:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, x in (random_tensors(architecture) if tensors is None else tensors).items():
        type = (types or {}).get(name)
        if type is None:
            writer.add_tensor(name, x)
        else:
            writer.add_tensor(name, gguf.quants.quantize(x, type), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def header(tensors=0, keys=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def string(text):
    content = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(content)) + content


def entry(name="x", shape=(32,), type=0, offset=0):
    """A line of the table of tensors; shape: in the order of the file."""
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + sizes + struct.pack("<IQ", type, offset)


def logits(tensors, tokens, architecture, base=BASE):
    """The logits of a Llama-style model for a row of tokens, in float64: a plain implementation of
    the definition, with the layout of the rotation of the architecture."""
    w = {name: torch.from_numpy(np.array(x)).double() for name, x in tensors.items()}
    n = len(tokens)
    angle = torch.arange(n).double()[:, None] / base ** (torch.arange(0, K, 2).double() / K)
    turn = torch.polar(torch.ones_like(angle), angle)  # [n, K/2]

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt() * w[name]

    def rotate(x):  # [heads, n, K]
        halves = architecture == "qwen2"
        first, second = x.chunk(2, -1) if halves else (x[..., 0::2], x[..., 1::2])
        turned = torch.complex(first, second) * turn
        parts = turned.real, turned.imag
        return torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)

    def project(x, name, heads):
        y = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(1).double())
        return y.view(n, heads, K).transpose(0, 1)

    x = w["token_embd.weight"][tokens]
    for i in range(L):
        p = f"blk.{i}"
        y = norm(x, f"{p}.attn_norm.weight")
        q, k = rotate(project(y, f"{p}.attn_q", H)), rotate(project(y, f"{p}.attn_k", G))
        v = project(y, f"{p}.attn_v", G)
        k, v = k.repeat_interleave(H // G, 0), v.repeat_interleave(H // G, 0)
        scores = q @ k.transpose(1, 2) / math.sqrt(K)
        scores += torch.full((n, n), -torch.inf).double().triu(1)
        y = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, H * K)
        x = x + y @ w[f"{p}.attn_output.weight"].T
        y = norm(x, f"{p}.ffn_norm.weight")
        y = F.silu(y @ w[f"{p}.ffn_gate.weight"].T) * (y @ w[f"{p}.ffn_up.weight"].T)
        x = x + y @ w[f"{p}.ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ w.get("output.weight", w["token_embd.weight"]).T
