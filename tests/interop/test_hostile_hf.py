"""Hostile Hugging Face folders: one clear error each, little memory, and nothing is executed."""

import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
from contextlib import suppress

import pytest
import torch
import transformers
from safetensors.torch import load_file

from interop.hf_export_models import exported, make
from interop.hf_models import BERT_NAMES, save_model, save_tokenizer, wordpiece
from interop.test_hf_import import BERT
from regard.errors import InputError
from regard.interop.hf.read import oracle, read

MEMORY = 100 * 2**20  # bytes that an error may take
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "bert"
    save_model(folder, ("BertConfig", "BertModel"), BERT)
    save_tokenizer(folder, wordpiece(), **BERT_NAMES)
    return folder


@pytest.fixture
def folder(template, tmp_path):
    shutil.copytree(template, tmp_path / "bert")
    return tmp_path / "bert"


def refused(folder, message=None):
    """Reading the folder gives one line and takes little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with pytest.raises(InputError, match=message) as error:
        read(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MEMORY


def header(changes, data=b""):
    """A safetensors file with this header."""
    text = json.dumps(changes).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


SAFETENSORS = {
    "empty": b"", "short": b"\0\0\0", "zeros": b"\0" * 100, "text": b"x" * 1000,
    "header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "header of 10^12 bytes": struct.pack("<Q", 10**12) + b"{}",
    "no tensors": header({}), "a list": header([1, 2]), "a number": header({"x": 1}),
    "shape of 10^12": header({"embeddings.word_embeddings.weight": entry([10**12], 0, 4)}, b"\0" * 4),
    "negative shape": header({"x": entry([-1], 0, 4)}, b"\0" * 4),
    "backwards": header({"x": entry([1], 8, 4)}, b"\0" * 4),
    "overlap": header({"x": entry([2], 0, 8), "y": entry([2], 0, 8)}, b"\0" * 8),
    "far offsets": header({"x": entry([1], 10**15, 10**15 + 4)}, b"\0" * 4),
    "unknown type": header({"x": entry([1], 0, 4, "F31")}, b"\0" * 4),
    "huge product": header({"x": entry([2**40, 2**40], 0, 4)}, b"\0" * 4),
    "nested": struct.pack("<Q", 20_000) + b"[" * 20_000,
    "duplicates": struct.pack("<Q", 14) + b'{"x":1,"x":2} ',
}  # fmt: skip


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(name, folder):
    (folder / WEIGHTS).write_bytes(SAFETENSORS[name])
    refused(folder)


@pytest.mark.parametrize("part", [0.001, 0.5, 0.999])
def test_truncated(part, folder):
    path = folder / WEIGHTS
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    refused(folder, "model.safetensors")


CONFIGS = {
    "layers": {"num_hidden_layers": 10**9}, "many layers": {"num_hidden_layers": 1_000},
    "width": {"hidden_size": 10**9}, "vocabulary": {"vocab_size": 9_999_999},
    "vocabulary of 2^64": {"vocab_size": 2**64}, "positions": {"max_position_embeddings": 99_999_999},
    "types": {"type_vocab_size": 10**9}, "epsilon": {"layer_norm_eps": -1.0},
    "heads": {"num_attention_heads": 0}, "list": {"hidden_size": [384]}, "true": {"hidden_size": True},
    "architectures": {"architectures": {"a": 1}}, "no name": {"architectures": [3]},
    "activation": {"hidden_act": {"a": "gelu"}}, "dropout": {"hidden_dropout_prob": "x"},
    "code": {"model_type": "../../x"}, "tie": {"architectures": ["BertForMaskedLM"],
                                              "tie_word_embeddings": "yes"},
    "labels": {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "7": "b"}},
    "labels of lists": {"architectures": ["BertForSequenceClassification"], "id2label": [["a"]]},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_config(name, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | CONFIGS[name]))
    refused(folder)


CONTENTS = {
    "empty": b"", "null": b"null", "list": b"[]", "text": b'"x"', "zeros": b"\0" * 1000,
    "brackets": b"[" * 100_000, "objects": b'{"a":' * 100_000, "not UTF-8": b'{"a": "\xff"}',
    "commas": b"[" + b"0," * 1_500_000 + b"0]", "large": 2**30,
    "digits": b'{"vocab_size": ' + b"9" * 100_000 + b"}", "NaN": b'{"vocab_size": NaN}',
    "surrogate": b'{"model_type": "\\ud800"}',
}  # fmt: skip


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"]
)
@pytest.mark.parametrize("name", CONTENTS)
def test_json(name, file, folder):
    content = CONTENTS[name]
    if isinstance(content, int):  # a sparse file of this size
        (folder / file).touch()
        os.truncate(folder / file, content)
    else:
        (folder / file).write_bytes(content)
    refused(folder)


TOKENIZERS = {
    "unknown model": {"type": "Magic"}, "ids": {"type": "WordPiece", "vocab": {"a": -1}},
    "large id": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                 "max_input_chars_per_word": 100, "vocab": {"a": 4_000_000_000}},
    "merges": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]},
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer(name, folder):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": TOKENIZERS[name]}))
    refused(folder)


@pytest.mark.parametrize("vocabulary", [b"", b"\xff\xfe\n", b"a\n" * 1_100_000])
def test_vocab_txt(vocabulary, folder):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_bytes(vocabulary)
    refused(folder)


@pytest.mark.parametrize("shard", [
    "../../../../etc/passwd", "/etc/passwd", "../bert/model.safetensors", "a/../../b.safetensors",
    "x\0.safetensors", "", 3, None, ["a"], "missing.safetensors", "/dev/zero.safetensors",
])  # fmt: skip
def test_index(shard, folder):
    (folder / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder)


def test_index_of_many_files(folder):
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {str(i): f"{i}.safetensors" for i in range(1_001)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "weight_map names 1,001 files, but at most 1,000 are allowed")


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "/dev/zero", "loop"])
@pytest.mark.parametrize(
    "file", [WEIGHTS, "config.json", "tokenizer.json", "generation_config.json"]
)
def test_links(file, target, folder):
    (folder.parent / "outside").write_text("{}")
    path = folder / file
    path.unlink(missing_ok=True)
    os.symlink(file if target == "loop" else target, path)
    refused(folder)


def test_link_inside_the_folder(folder):
    os.rename(folder / WEIGHTS, folder / "weights")
    os.symlink("weights", folder / WEIGHTS)
    assert read(folder).task == "embed"


def test_pipe(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, "pipe")


class Code:
    """A pickle of this object runs a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def pickled(folder, value=None, **options):
    """Write pytorch_model.bin instead of the safetensors file."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors if value is None else value, folder / "pytorch_model.bin", **options)
    return folder / "pytorch_model.bin"


def test_pickle_with_code(folder, tmp_path):
    pickled(folder, {"x": Code(tmp_path / "executed")})
    refused(folder, "no code was executed")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Code(tmp_path / "executed")))
    refused(folder, "not a PyTorch file")
    value = {"x": Code(tmp_path / "executed")}
    torch.save(value, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    refused(folder, "no code was executed")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("part", [0.01, 0.3, 0.9])
def test_truncated_pickle_of_the_old_format(part, folder):
    path = pickled(folder, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    refused(folder)


def test_pickle_of_the_old_format_with_a_large_size(folder):
    """The pickle states a size of eight gigabytes for a small tensor."""
    path = pickled(folder, {"x": torch.zeros(70_000)}, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    number = struct.pack("<i", 70_000)
    assert content.count(number) >= 2
    path.write_bytes(content.replace(number, struct.pack("<i", 2**31 - 1)))
    refused(folder)


@pytest.mark.parametrize("value", [[1, 2], {"x": 1}, {1: torch.zeros(1)}, torch.zeros(3), "x"])
def test_pickle_of_other_values(value, folder):
    pickled(folder, value)
    refused(folder, "not a dictionary of tensors")


def test_pickle_with_an_expanded_tensor(folder):
    """A tensor that repeats one number claims a large shape in a small file."""
    tensors = load_file(folder / WEIGHTS)
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(1).expand(10**7, 10**5)
    pickled(folder, tensors)
    refused(folder, "larger than the file")


@pytest.mark.parametrize("damage", ["truncated", "compressed", "two pickles", "swapped"])
def test_damaged_pickle(damage, folder):
    path = pickled(folder)
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "swapped":
        path.write_bytes(
            content[: len(content) // 3] + b"\0" * 5_000 + content[len(content) // 3 + 5_000 :]
        )
        with suppress(InputError):  # only numbers of a tensor may have changed
            read(folder)
        return
    else:
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        kind = zipfile.ZIP_DEFLATED if damage == "compressed" else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", kind) as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
            if damage == "two pickles":
                archive.writestr("other/data.pkl", b"x")
    refused(folder)


def test_bomb(folder):
    """A compressed part that is far larger than the file."""
    path = pickled(folder)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 5_000_000)
    assert path.stat().st_size < 100_000
    refused(folder, "compressed")


def test_code_in_the_folder_is_ignored(folder, tmp_path):
    """auto_map names a Python file of the folder; it is not imported."""
    path = folder / "config.json"
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    values = json.loads(path.read_text()) | {"auto_map": {"AutoModel": "modeling.Model"}}
    path.write_text(json.dumps(values))
    assert read(folder).task == "embed"
    assert not (tmp_path / "executed").exists()


def test_code_in_an_exported_folder_is_ignored(tmp_path, monkeypatch):
    """The engine that verifies an import gets only local files and runs no code from them."""
    folder = exported(make("decoder", norm_first=True), tmp_path)
    options = []
    for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        load = kind.from_pretrained
        monkeypatch.setattr(
            kind, "from_pretrained",
            lambda *args, load=load, **arguments: options.append(arguments) or load(*args, **arguments),
        )  # fmt: skip
    oracle(folder, read(folder)).tokenize(["A dog."])
    assert len(options) == 2
    assert all(arguments["trust_remote_code"] is False for arguments in options)
    assert all(arguments["local_files_only"] is True for arguments in options)


ODD_OPTIONS = {
    "name of a chat template": {"chat_template": [{"name": [], "template": "x"}]},
    "chat template of a list": {"chat_template": [[[]]]},
    "chat template of null": {"chat_template": [None, {"name": "default", "template": []}]},
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_OPTIONS)
def test_odd_options_of_a_tokenizer_are_ignored(name, folder):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ODD_OPTIONS[name]))
    assert read(folder).chat_template is None


@pytest.mark.parametrize("section", [
    {}, {"model": [["x"]]}, {"model": {"style": []}}, {"labels": 3, "positions": "x"},
])  # fmt: skip
def test_section_of_regard(section, folder):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | {"regard": {"version": 1, **section}}
    path.write_text(json.dumps(values))
    refused(folder, "damaged section 'regard'")
