"""Marian and Bergamot models: parity with an independent implementation, files, and the engine."""

import struct

import numpy as np
import pytest
import torch

import regard
from regard import InputError, Packed, Transformer
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.interop.conversion import import_model
from regard.interop.marian import read as marian
from regard.interop.marian.file import read_marian
from tests.interop.spm_file import letters

D, HEADS, F, V = 8, 2, 12, 11
OPTIONS = {
    "type": "transformer", "dim-emb": D, "dim-vocabs": [V, V], "enc-depth": 2, "dec-depth": 2,
    "transformer-heads": HEADS, "transformer-dim-ffn": F, "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "relu", "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "tied-embeddings-all": True,
    "tied-embeddings": False, "tied-embeddings-src": False, "layer-normalization": False,
}  # fmt: skip


# ---- a Marian model in NumPy, from the formulas of Marian's own layers ------------------------


def random_tensors(options, seed=1):
    """Random float32 tensors with the names and shapes of Marian."""
    draw = np.random.default_rng(seed)
    tensors = {}

    def add(name, *shape, scale=0.4):
        tensors[name] = (scale * draw.standard_normal(shape)).astype(np.float32)

    def norm(name):
        add(f"{name}_ln_scale", 1, D)
        tensors[f"{name}_ln_scale"] += 1
        add(f"{name}_ln_bias", 1, D)

    def attention(name):
        for part in "qkvo":
            add(f"{name}_W{part}", D, D)
            add(f"{name}_b{part}", 1, D)
        norm(f"{name}_Wo")

    source, target = options["dim-vocabs"]
    if options["tied-embeddings-all"] or options["tied-embeddings-src"]:
        add("Wemb", target, D)
    else:
        add("encoder_Wemb", source, D)
        add("decoder_Wemb", target, D)
    if not (options["tied-embeddings-all"] or options["tied-embeddings"]):
        add("decoder_ff_logit_out_W", D, target)
    add("decoder_ff_logit_out_b", 1, target)
    for stack in ("encoder", "decoder"):
        for layer in range(1, options["enc-depth" if stack == "encoder" else "dec-depth"] + 1):
            name = f"{stack}_l{layer}"
            if stack == "encoder" or options["transformer-decoder-autoreg"] == "self-attention":
                attention(f"{name}_self")
            else:
                add(f"{name}_rnn_W", D, D)
                add(f"{name}_rnn_Wf", D, D)
                add(f"{name}_rnn_bf", 1, D)
                norm(f"{name}_rnn_ffn")
            if stack == "decoder":
                attention(f"{name}_context")
            add(f"{name}_ffn_W1", D, F)
            add(f"{name}_ffn_b1", 1, F)
            add(f"{name}_ffn_W2", F, D)
            add(f"{name}_ffn_b2", 1, D)
            norm(f"{name}_ffn_ffn")
    return tensors


class NumpyMarian:
    """The logits of a Marian Transformer for one sentence, in float64."""

    def __init__(self, tensors, options):
        self.t = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.options = options

    def norm(self, x, name):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        normal = (x - mean) / np.sqrt(variance + 1e-6)
        return normal * self.t[f"{name}_ln_scale"] + self.t[f"{name}_ln_bias"]

    def affine(self, x, name, weight, bias):
        return x @ self.t[f"{name}_{weight}"] + self.t[f"{name}_{bias}"]

    def attention(self, x, memory, name, causal=False):
        q = self.affine(x, name, "Wq", "bq")
        k, v = (self.affine(memory, name, f"W{n}", f"b{n}") for n in "kv")
        size, parts = D // HEADS, []
        for head in range(HEADS):
            columns = slice(head * size, (head + 1) * size)
            scores = q[:, columns] @ k[:, columns].T / np.sqrt(size)
            if causal:
                scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            parts.append(weights / weights.sum(-1, keepdims=True) @ v[:, columns])
        joined = self.affine(np.concatenate(parts, -1), name, "Wo", "bo")
        return self.norm(joined + x, f"{name}_Wo")

    def recurrence(self, x, name):
        state, outputs = np.zeros(D), []
        for token in x:
            forget = 1 / (1 + np.exp(-self.affine(token[None], name, "Wf", "bf")[0]))
            state = forget * state + (1 - forget) * (token @ self.t[f"{name}_W"])
            outputs.append(np.maximum(state, 0))
        return self.norm(np.stack(outputs) + x, f"{name}_ffn")

    def feed_forward(self, x, name):
        inner = self.affine(x, name, "W1", "b1")
        swish = self.options["transformer-ffn-activation"] == "swish"
        inner = inner / (1 + np.exp(-inner)) if swish else np.maximum(inner, 0)
        return self.norm(self.affine(inner, name, "W2", "b2") + x, f"{name}_ffn")

    @staticmethod
    def positions(length):
        half = D // 2
        rates = np.exp(-np.arange(half) * np.log(10_000.0) / (half - 1))
        angles = np.arange(length)[:, None] * rates
        return np.concatenate((np.sin(angles), np.cos(angles)), -1)

    def logits(self, source, target):
        """source ends with </s>; target: the tokens that were produced so far."""
        x = self.t.get("Wemb", self.t.get("encoder_Wemb"))[source] * np.sqrt(D)
        x = x + self.positions(len(source))
        for layer in range(1, self.options["enc-depth"] + 1):
            x = self.attention(x, x, f"encoder_l{layer}_self")
            x = self.feed_forward(x, f"encoder_l{layer}_ffn")
        table = self.t.get("Wemb", self.t.get("decoder_Wemb"))
        y = np.concatenate((np.zeros((1, D)), table[target])) * np.sqrt(D)
        y = y + self.positions(len(y))
        for layer in range(1, self.options["dec-depth"] + 1):
            name = f"decoder_l{layer}"
            if self.options["transformer-decoder-autoreg"] == "rnn":
                y = self.recurrence(y, f"{name}_rnn")
            else:
                y = self.attention(y, y, f"{name}_self", causal=True)
            y = self.attention(y, x, f"{name}_context")
            y = self.feed_forward(y, f"{name}_ffn")
        output = self.t.get("decoder_ff_logit_out_W", table.T)
        return y @ output + self.t["decoder_ff_logit_out_b"]


# ---- files ------------------------------------------------------------------------------------


def binary(items):
    """The content of a file of (name, type, shape, data)."""
    start = struct.pack("<2Q", 1, len(items))
    for name, kind, shape, data in items:
        start += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data))
    start += b"".join(name.encode() + b"\0" for name, *_ in items)
    start += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(start) + 8) % 256
    return start + struct.pack("<Q", padding) + bytes(padding) + b"".join(i[3] for i in items)


def to_yaml(options):
    return "".join(f"{name}: {value!r}\n" for name, value in options.items()).replace(
        "True", "true").replace("False", "false").replace("''", '""')  # fmt: skip


def items_of(tensors, options):
    text = to_yaml(options).encode() + b"\0"
    items = [(name, 0x404, array.shape, array.tobytes()) for name, array in tensors.items()]
    return [*items, ("special:model.yml", 0x101, (len(text),), text)]


def write(folder, tensors, options):
    """A folder with a float32 model and its vocabularies."""
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(binary(items_of(tensors, options)))
    source, target = options["dim-vocabs"]
    if source == target:
        (folder / "vocab.spm").write_bytes(letters(target))
    else:
        (folder / "srcvocab.spm").write_bytes(letters(source))
        (folder / "trgvocab.spm").write_bytes(letters(target))
    return folder


def load(imported):
    net = Transformer(imported.config).double().eval()
    net.load_state_dict(imported.tensors)
    return net


VARIANTS = [
    {},
    {"transformer-decoder-autoreg": "self-attention"},
    {"transformer-ffn-activation": "swish", "enc-depth": 1},
    {"tied-embeddings-all": False, "tied-embeddings": True, "dim-vocabs": [7, V]},
    {"tied-embeddings-all": False, "tied-embeddings-src": True},
    {"tied-embeddings-all": False, "dim-vocabs": [9, V]},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_equal_those_of_an_independent_implementation(changes, tmp_path):
    options = OPTIONS | changes
    tensors = random_tensors(options)
    imported = marian.read(write(tmp_path / "model", tensors, options))
    net, reference = load(imported), NumpyMarian(tensors, options)
    start = imported.tokenizers[1].bos
    for source, target in (([3, 4, 2, 0], [5, 2, 6, 6, 0]), ([0], []), ([6, 5, 4, 3, 2, 0], [4])):
        with torch.no_grad():
            results = net(Packed.of([source]), Packed.of([[start, *target]])).numpy()
        expected = reference.logits(source, target)
        known = [token for token in range(V) if token != 1]  # all but <unk>
        np.testing.assert_allclose(results[:, known], expected[:, known], rtol=0, atol=1e-9)
        assert results.shape == (len(target) + 1, V + 1)
        assert results[:, [1, V]].max() < -900  # <unk> and the start are never produced


def test_greedy_decoding_equals_that_of_the_independent_implementation(tmp_path):
    tensors = random_tensors(OPTIONS, seed=5)
    imported = marian.read(write(tmp_path / "model", tensors, OPTIONS))
    net, reference = load(imported), NumpyMarian(tensors, OPTIONS)
    tokenizer = imported.tokenizers[1]
    source, tokens = tokenizer.frame(tokenizer.encode("abc d"), "encoder-decoder"), []
    assert source[-1] == tokenizer.eos == 0
    while len(tokens) < 12 and tokens[-1:] != [0]:
        logits = reference.logits(source, tokens)[-1]
        logits[1] = -np.inf
        tokens.append(int(logits.argmax()))
    request = Request(source, (), 12, tokenizer.bos, tokenizer.eos)
    assert decode(net, [request], DecodingConfig(beam=1))[0].token_ids == tokens


def test_a_quantised_file(tmp_path):
    """int8 matrices are stored transposed, with their factor; the embeddings are not."""
    tensors = random_tensors(OPTIONS)
    items, expected = [], dict(tensors)
    for name, kind, shape, data in items_of(tensors, OPTIONS):
        if ("_W" in name and "_ln_" not in name) or name == "Wemb":
            factor = np.float32(127 / np.abs(tensors[name]).max())
            integers = np.rint(tensors[name] * factor).astype(np.int8)
            expected[name] = integers.astype(np.float32) / factor
            stored = integers if name == "Wemb" else integers.T
            data, kind = stored.tobytes() + factor.tobytes() + bytes(60), 0x4101
            scale = np.float32(3.5).tobytes() + bytes(252)
            items.append((f"{name}_QuantMultA", 0x404, (1, 1), scale))
        items.append((name, kind, shape, data))
    folder = write(tmp_path / "model", tensors, OPTIONS)
    (folder / "model.bin").write_bytes(binary(items))
    imported = marian.read(folder)
    read, _ = read_marian(folder / "model.bin")
    for name, array in expected.items():
        np.testing.assert_allclose(read[name], array, rtol=0, atol=1e-7)
    with torch.no_grad():
        results = load(imported)(Packed.of([[3, 0]]), Packed.of([[V, 4]])).numpy()
    np.testing.assert_allclose(
        results[:, 2:V], NumpyMarian(expected, OPTIONS).logits([3, 0], [4])[:, 2:], atol=1e-6
    )
    assert "int8" in imported.options["activations"]


def test_the_configuration_of_an_engine_names_the_files(tmp_path):
    folder = write(tmp_path / "model", random_tensors(OPTIONS), OPTIONS)
    (folder / "lex.bin").write_bytes(b"shortlist")
    (folder / "other.spm").write_bytes(letters(5))
    with pytest.raises(InputError, match="must contain one vocabulary"):
        marian.read(folder)
    lines = (
        "models:\n- model.bin\nvocabs:\n- vocab.spm\n- vocab.spm\nbeam-size: 6\nnormalize: 0.8\n"
    )
    (folder / "config.yml").write_text(lines)
    for path in (folder, folder / "model.bin"):
        imported = marian.read(path)
        assert imported.decoding == {"beam": 6, "length_penalty": 0.8, "length_offset": 0.0}
        names = {file.name for file in imported.files}
        assert names == {"model.bin", "vocab.spm", "config.yml"}
        assert marian.oracle(path, imported) is None
    (folder / "config.yml").write_text(lines.partition("beam-size")[0])  # the defaults of Marian
    defaults = {"beam": 12, "length_penalty": 0.0, "length_offset": 0.0}
    assert marian.read(folder).decoding == defaults
    (folder / "config.yml").write_text(lines.replace("vocab.spm", "../../etc/passwd"))
    with pytest.raises(InputError, match="not the name of a file in the same folder"):
        marian.read(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"type": "amun"}, "type='amun'"),
        ({"transformer-postprocess": "dhn"}, "transformer-postprocess='dhn'"),
        ({"transformer-preprocess": "n"}, "transformer-preprocess='n'"),
        ({"dec-cell": "gru"}, "does not support dec-cell='gru'$"),
        ({"layer-normalization": True}, "does not support layer-normalization=True$"),
        ({"transformer-decoder-autoreg": "average-attention"}, "autoreg='average-attention'"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation='gelu'"),
        ({"transformer-ffn-activation": ["relu"]}, "transformer-ffn-activation="),
        ({"dim-emb": 10**15}, "dim-emb=1000000000000000 is not an even number"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers"),
        ({"factors-dim-emb": 8, "lemma-dim-emb": 4}, "factors-dim-emb=8, lemma-dim-emb=4"),
        ({"transformer-train-position-embeddings": True}, "train-position-embeddings=True"),
        ({"dim-vocabs": [V, V, V]}, "dim-vocabs is not two numbers"),
        ({"dim-emb": 7}, "dim-emb=7"),
        ({"enc-depth": 0}, "enc-depth is 0"),
        ({"enc-depth": None}, "enc-depth is missing"),
        ({"enc-depth": 3}, "encoder_l3_self_Wq is missing"),
        ({"enc-depth": 1}, "does not support the tensor encoder_l2_"),
        ({"transformer-dim-ffn": 13}, r"ffn_W1 has the shape \[8, 12\], not \[8, 13\]"),
    ],
)
def test_options_that_regard_cannot_express_are_refused_by_name(changes, reason, tmp_path):
    folder = write(tmp_path / "model", random_tensors(OPTIONS), OPTIONS)
    options = {name: x for name, x in (OPTIONS | changes).items() if x is not None}
    (folder / "model.bin").write_bytes(binary(items_of(random_tensors(OPTIONS), options)))
    with pytest.raises(InputError, match=reason):
        marian.read(folder)


def test_options_of_the_model_that_cannot_be_combined_name_the_file(tmp_path):
    folder = write(tmp_path / "model", random_tensors(OPTIONS), OPTIONS)
    content = binary(items_of(random_tensors(OPTIONS), OPTIONS | {"transformer-heads": 3}))
    (folder / "model.bin").write_bytes(content)
    with pytest.raises(InputError, match=rf"^{folder / 'model.bin'}: .*model\.heads"):
        marian.read(folder)


def damaged():
    """Damaged files, and a part of the message that each gives."""
    good = binary(items_of(random_tensors(OPTIONS), OPTIONS))
    one = ("special:model.yml", 0x101, (2,), b"{}")
    yield b"", "damaged|empty|not a Marian"
    yield b"\1" + bytes(7), "not a Marian"
    yield struct.pack("<2Q", 2, 0) + bytes(8), "version 2"
    yield struct.pack("<2Q", 1, 2**60), "the header declares 1,152,921"
    yield good[:-1], "beyond the end"
    yield good[:400], "not a Marian"
    yield (
        good[:16] + struct.pack("<Q", 2**63) + good[24:],
        "the header declares a name of 9,223,372",
    )
    yield good[:32] + struct.pack("<Q", 2**62) + good[40:], "dimensions, but 1 to 4 are"
    yield good[:40] + struct.pack("<Q", 2**62) + good[48:], "beyond the end"
    yield binary([("a", 0x404, (2, 2), bytes(16))]), "it has no special:model.yml"
    yield binary([("a", 0x404, (2**30, 2**30), bytes(16)), one]), r"has the shape \[1073741824"
    yield binary([("a", 0x404, (-2, -2), bytes(16)), one]), r"has the shape \[-2, -2\]"
    yield binary([("a", 0x5101, (2, 2), bytes(16)), one]), "has the type 0x5101"
    yield binary([("a", 0x404, (1,), np.float32("nan").tobytes()), one]), "NaN"
    yield binary([("a", 0x4101, (1, 1), bytes(5)), one]), "factor 0.0"
    yield binary([("a", 0x404, (1,), bytes(4)), ("a", 0x404, (1,), bytes(4)), one]), "duplicated"
    yield binary([("special:model.yml", 0x101, (4,), b"[1]\0")]), "not a mapping of options"
    yield binary([("special:model.yml", 0x101, (2,), b"{:")]), "not valid YAML"


@pytest.mark.parametrize(("content", "reason"), list(damaged()))
def test_a_damaged_file_is_refused(content, reason, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as error:
        read_marian(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_folder_without_a_model_or_vocabulary(tmp_path):
    with pytest.raises(InputError, match="must contain one Marian model"):
        marian.read(tmp_path)
    (tmp_path / "model.bin").write_bytes(binary(items_of(random_tensors(OPTIONS), OPTIONS)))
    with pytest.raises(InputError, match="must contain one vocabulary"):
        marian.read(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_marian(tmp_path)


def test_a_model_becomes_a_folder_that_translates(tmp_path):
    tensors = random_tensors(OPTIONS, seed=5)
    folder = write(tmp_path / "source", tensors, OPTIONS)
    receipt = import_model(folder, tmp_path / "model", agreement=0)
    assert not receipt.failures
    model = regard.load(tmp_path / "model")
    [expected] = marian.read(folder).tokenizers[0].encode_batch(["abc d"])
    tokens, reference = [], NumpyMarian(tensors, OPTIONS)
    while len(tokens) < 12 and tokens[-1:] != [0]:
        logits = reference.logits([*expected, 0], tokens)[-1]
        logits[1] = -np.inf
        tokens.append(int(logits.argmax()))
    result = model.translate("abc d", beam=1, max_length=12 - len(expected) - 1)
    assert result == model.target_tokenizer.decode(tokens)
    weights = model.attention("abc d")
    assert weights.decoder is None
    assert weights.cross.shape[:2] == (2, HEADS)
    assert weights.target_tokens == weights.stacks["cross"].rows
