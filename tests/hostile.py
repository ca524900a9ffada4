"""Hostile variants of a model folder: `VARIANTS` maps a name to a function that damages the folder."""

import json
import os
import struct
from dataclasses import fields
from functools import partial

import torch
import yaml
from safetensors.torch import load_file, save_file

from regard.config.model import ModelConfig
from regard.config.sections import DataConfig, DecodingConfig, TrainingConfig

FILES = ("config.yaml", "tokenizer.json", "labels.json", "model.safetensors", "metrics.jsonl",
         "README.md", "checkpoints/step-1/state.json")  # fmt: skip
CONTENTS = {
    "empty": b"", "zeros": b"\0" * 1000, "not UTF-8": b"{\"a\": \"\xff\xfe\"}\n", "null": b"null",
    "a list": b"[]", "an object": b"{}", "a text": b'"text"', "a number": b"1", "NaN": b"NaN",
    "1e400": b'{"step": 1e400, "final": 1e400}', "brackets": b"[" * 10_000,
    "nested": b'{"a": ' * 10_000, "closed brackets": b"[" * 10_000 + b"]" * 10_000,
    "nested blocks": b"- " * 10_000, "digits": b'{"step": ' + b"9" * 5_000 + b"}",
    "surrogate": b'{"step": 1, "final": "\\ud800"}', "duplicates": b'{"step": 1, "step": 2}',
    "one line": b"a" * 3_000_000, "commas": b"[" + b"0," * 1_400_000 + b"0]",
    "lists": b"[" + b"[]," * 900_000 + b"[]]", "lines": b"\n" * 3_000_000,
    "control": b'{"step": 1, "final": "\x1b[2J\x07"}', "escape": b'{"step": 1, "final": "\\u001b[2J"}',
    "deep final": b'{"step": 1, "final": ' + b"[" * 500 + b"]" * 500 + b"}",
    "negative step": b'{"step": -1, "loss": 1e308, "final": "x"}',
    "huge step": b'{"step": 1' + b"0" * 30 + b', "loss": 1.0}\n',
    "text score": b'{"step": 1, "valid_loss": 1.0}\n{"step": 1, "final": "x", "loss": "low"}\n',
}  # fmt: skip
YAML = {
    "alias bomb": "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "recursive alias": "&a [*a]", "merge": "model: {<<: {heads: 4}}", "!!int abc": "task: !!int abc",
    "!!python": "task: !!python/object/apply:os.system [ls]", "!!binary": "task: !!binary //8=",
    "!!timestamp": "task: !!timestamp x", "!!set": "model: !!set {a, b}", "date": "task: 2001-99-99",
    "keys": "1: 2\nnull: 3", "list key": "? [a]\n: 1", "map key": "? {a: 1}\n: 1",
    "surrogate escape": 'task: "\\ud800"', "escape": 'task: "\\UFFFFFFFF"', "NUL": 'task: "\\0"',
    "two documents": "task: fill\n---\ntask: fill", "directive": "%YAML 9.9\n---\ntask: fill",
    "sixty": "task: " + "1:" * 300_000 + "1", "binary": "task: 0b" + "1" * 5_000, "tab": "\t- x",
    "hexadecimal": "task: 0x" + "f" * 5_000, "long key": "x" * 5_000 + ": 1", "quote": "task: 'x",
    "sections of text": "model: x\ndata: y\ntraining: z\ndecoding: w\ntask: fill",
    "sections of lists": "model: []\ndata: []\ntraining: []\ndecoding: []\ntask: fill",
}  # fmt: skip
VALUES = {
    "10^30": 10**30, "2^64": 2**64, "-1": -1, "0": 0, "1e300": 1e300, "-1e300": -1e300, "inf": float("inf"),
    "nan": float("nan"), "text": "x", "null": None, "list": [1], "section": {"a": 1}, "true": True,
    "lists": [[["a"]]], "10^6": 10**6, "10^9": 10**9,
}  # fmt: skip
SECTIONS = {"model": ModelConfig, "data": DataConfig, "training": TrainingConfig,
            "decoding": DecodingConfig}  # fmt: skip


def content(data):
    return lambda path: path.write_bytes(data if isinstance(data, bytes) else data.encode())


def instead(make):
    """Replace the file by the result of `make`."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


def sparse(path):
    with path.open("r+b") as file:
        file.truncate(20 * 2**30)


def loop(path):
    path.symlink_to(path.name)


KINDS = {
    **{name: content(data) for name, data in CONTENTS.items()},
    "missing": instead(lambda path: None), "folder": instead(lambda path: path.mkdir()),
    "pipe": instead(os.mkfifo), "/dev/zero": instead(lambda path: path.symlink_to("/dev/zero")),
    "/dev/null": instead(lambda path: path.symlink_to("/dev/null")), "loop": instead(loop),
    "/dev/tty": instead(lambda path: path.symlink_to("/dev/tty")), "sparse": sparse,
    "/proc": instead(lambda path: path.symlink_to("/proc/self/maps")),
    "dangling": instead(lambda path: path.symlink_to("nowhere")),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "twice": lambda path: path.write_bytes(path.read_bytes() * 2),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}  # fmt: skip


def option(folder, section, name, value):
    values = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    values[section][name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")


def changed(folder, file, **changes):
    whole = json.loads((folder / file).read_text("utf-8")) | changes
    (folder / file).write_text(json.dumps(whole), encoding="utf-8")


def tensors(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in sorted(weights) if weights[name].dim() == 2)
    save_file(change(weights, name), path)


def header(folder, change):
    """Change the header of the weights. `change` returns the JSON, optionally with a false length."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    text = change(json.loads(whole[8:end]))
    length = len(text) if isinstance(text, bytes) else text[1]
    text = text if isinstance(text, bytes) else text[0]
    path.write_bytes(struct.pack("<Q", length) + text + whole[end:])


def dumped(change):
    def changes(whole):
        name = next(name for name in sorted(whole) if name != "__metadata__")
        change(whole, whole[name])
        return json.dumps(whole).encode()

    return changes


def filled(value):
    def change(weights, name):
        weights[name].view(-1)[3] = value
        return weights

    return change


HEADERS = {
    "length of 2^63": lambda whole: (json.dumps(whole).encode(), 2**63),
    "length of 90 MB": lambda whole: (json.dumps(whole).encode(), 90 * 10**6),
    "shape of 10^18": dumped(lambda whole, entry: entry.update(shape=[10**18, 10**18])),
    "shape of 5,000 digits": dumped(lambda whole, entry: entry.update(shape=[10**4000])),
    "negative shape": dumped(lambda whole, entry: entry.update(shape=[-1, 4])),
    "shape of texts": dumped(lambda whole, entry: entry.update(shape=["4", "4"])),
    "no shape": dumped(lambda whole, entry: entry.pop("shape")),
    "other type": dumped(lambda whole, entry: entry.update(dtype="I64")),
    "no type": dumped(lambda whole, entry: entry.update(dtype=None)),
    "offsets": dumped(lambda whole, entry: entry.update(data_offsets=[0, 2**62])),
    "offsets of text": dumped(lambda whole, entry: entry.update(data_offsets="all")),
    "metadata of numbers": dumped(lambda whole, entry: whole.update(__metadata__={"sha256": 1})),
    "metadata of lists": dumped(lambda whole, entry: whole.update(__metadata__=[1])),
    "files that are no JSON": dumped(lambda whole, entry: whole.update(__metadata__={"files": "{"})),
    "files that are a list": dumped(lambda whole, entry: whole.update(__metadata__={"files": "[]"})),
    "files elsewhere": dumped(lambda whole, entry: whole.update(
        __metadata__={"files": json.dumps({"../../etc/passwd": "0" * 64})})),
    "a list": lambda whole: b"[]" + b" " * 1000, "no JSON": lambda whole: b"x" * 1000,
    "brackets": lambda whole: b"[" * 100_000, "lists": lambda whole: b"[" + b"[]," * 3_000_000 + b"[]]",
}  # fmt: skip
WEIGHTS = {
    "NaN": filled(float("nan")), "infinity": filled(float("inf")), "-infinity": filled(-float("inf")),
    "one missing": lambda weights, name: {k: v for k, v in weights.items() if k != name},
    "one more": lambda weights, name: weights | {"x" * 5_000: torch.zeros(3)},
    "transposed": lambda weights, name: weights | {name: weights[name].T.contiguous()},
    "bytes without scales": lambda weights, name: weights | {name: weights[name].to(torch.int8)},
    "integers": lambda weights, name: weights | {name: weights[name].long()},
    "complex": lambda weights, name: weights | {name: weights[name].to(torch.complex64)},
    "one dimension": lambda weights, name: weights | {name: weights[name].flatten()},
    "scale of infinity": lambda weights, name: weights | {
        name: torch.full_like(weights[name], 100).to(torch.int8),
        f"{name}.scale": torch.full((len(weights[name]),), 3e38)},
}  # fmt: skip
TOKENIZERS = {
    "millions of merges": ["a b"] * 2_000_000, "more merges": [f"{a} {b}" for a in "abcdefgh" for b in
                                                               "abcdefgh"] * 40,
    "no merges": [], "not a list": {"a": 1}, "numbers": [1, 2], "no space": ["ab"], "surrogates": ["\ud800 a"],
    "doubling": ["a" * 2**n + " " + "a" * 2**n for n in range(20)], "long": ["a" * 3_000_000],
    "duplicates": ["a b", "a b"], "nested": [[["a"]]], "control": ["\0 \x1b"],
}  # fmt: skip
LABELS = {
    "one": ["a"], "none": [], "numbers": [1, 2], "duplicates": ["a", "a"], "nested": [["a"], ["b"]],
    "surrogates": ["\ud800", "b"], "control": ["a\n", "\x1b[2J"], "tab": ["a\tb", "c"], "null": None,
    "long": ["a" * 1_000_000, "b"], "many": [str(i) for i in range(200_000)], "three": ["a", "b", "c"],
    "an object": {"a": 1, "b": 2},
}  # fmt: skip
TEMPERATURES = {"1e300": 1e300, "0": 0, "-1": -1, "NaN": float("nan"), "infinity": float("inf"), "text": "NaN",
                "null": None, "list": [], "true": True, "10^400": 10**400}  # fmt: skip

VARIANTS = {
    **{f"{file}: {kind}": lambda folder, file=file, damage=damage: damage(folder / file)
       for file in FILES for kind, damage in KINDS.items()},
    **{f"config.yaml: {name}": lambda folder, text=text: content(text)(folder / "config.yaml")
       for name, text in YAML.items()},
    **{f"{section}.{field.name}={kind}": partial(option, section=section, name=field.name, value=value)
       for section, cls in SECTIONS.items() for field in fields(cls) for kind, value in VALUES.items()},
    **{f"header: {name}": partial(header, change=change) for name, change in HEADERS.items()},
    **{f"weights: {name}": partial(tensors, change=change) for name, change in WEIGHTS.items()},
    **{f"entries: {name}": partial(changed, file="tokenizer.json", entries=entries)
       for name, entries in TOKENIZERS.items()},
    **{f"labels: {name}": partial(changed, file="labels.json", labels=labels)
       for name, labels in LABELS.items()},
    **{f"temperature: {name}": partial(changed, file="labels.json", temperature=value)
       for name, value in TEMPERATURES.items()},
}  # fmt: skip
