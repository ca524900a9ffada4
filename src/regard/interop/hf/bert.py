"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT of Hugging Face.

All of them are post-norm encoders with learned positions and a normalised embedding sum. The token
type of every token is 0, so its vector becomes part of the positions. RoBERTa counts positions from
the id of the padding token plus 1, so the rows before that are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.config.model import ModelConfig
from regard.interop.hf import names as layer_names
from regard.interop.hf.common import Builder, Recipe, Source, read_labels
from regard.interop.hf.names import Names
from regard.interop.tensors import TensorReader

# Tensors of a file that a model without this head does not need.
HEADS = (r"(^|\.)pooler\.", r"^cls\.", r"^lm_head\.", r"^vocab_(transform|layer_norm|projector)\.")
BUFFERS = (r"position_ids$", r"token_type_ids$")


@dataclass(frozen=True)
class Family:
    """The differences between the encoders.

    Attributes:
        prefix: the prefix of the tensors if the model has a head.
        layers: the prefix of the layers.
        names: the names of the tensors of a layer.
        tasks: the task of each class.
        words: the names of the masked-word head: matrix, norm, output matrix, biases.
        classes: the names of the matrices of the classifier.
    """

    prefix: str
    layers: str
    names: Names
    tasks: dict[str, str]
    words: tuple[str, str, str, tuple[str, ...]]
    classes: tuple[str, str]


BERT = Family(
    "bert.", "encoder.layer", layer_names.BERT,
    {"BertModel": "embed", "BertForMaskedLM": "fill", "BertForPreTraining": "fill",
     "BertForSequenceClassification": "classify"},
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
     "cls.predictions.decoder.weight", ("cls.predictions.bias", "cls.predictions.decoder.bias")),
    ("bert.pooler.dense", "classifier"),
)  # fmt: skip
ROBERTA = Family(
    "roberta.", "encoder.layer", layer_names.BERT,
    {f"{name}{head}": task for name in ("Roberta", "XLMRoberta") for head, task in (
        ("Model", "embed"), ("ForMaskedLM", "fill"), ("ForSequenceClassification", "classify"))},
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight",
     ("lm_head.bias", "lm_head.decoder.bias")),
    ("classifier.dense", "classifier.out_proj"),
)  # fmt: skip
DISTILBERT = Family(
    "distilbert.", "transformer.layer", layer_names.DISTILBERT,
    {"DistilBertModel": "embed", "DistilBertForMaskedLM": "fill",
     "DistilBertForSequenceClassification": "classify"},
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.weight", ("vocab_projector.bias",)),
    ("pre_classifier", "classifier"),
)  # fmt: skip


def bert(source: Source) -> Recipe:
    """How to import a model with model_type bert."""
    return _encoder(
        source, BERT, _bert_sizes(source, 1e-12), types=source.integer("type_vocab_size", 2)
    )


def roberta(source: Source) -> Recipe:
    """How to import a model with model_type roberta or xlm-roberta."""
    offset = source.integer("pad_token_id", 1) + 1
    types = source.integer("type_vocab_size", 2)
    return _encoder(source, ROBERTA, _bert_sizes(source, 1e-12), types, offset)


def distilbert(source: Source) -> Recipe:
    """How to import a model with model_type distilbert."""
    sizes = {
        "vocabulary_size": source.integer("vocab_size", 30_522),
        "d_model": source.integer("dim", 768),
        "encoder_layers": source.integer("n_layers", 6), "heads": source.integer("n_heads", 12),
        "d_ff": source.integer("hidden_dim", 3_072), "norm_epsilon": 1e-12,
        "activation": source.activation("activation", "gelu"),
        "max_length": source.integer("max_position_embeddings", 512),
        "dropout": source.number("dropout", 0.1),
        "attention_dropout": source.number("attention_dropout", 0.1),
    }  # fmt: skip
    return _encoder(source, DISTILBERT, sizes, types=0)


def _bert_sizes(source: Source, epsilon: float) -> dict[str, Any]:
    source.refuse(
        position_embedding_type="absolute", is_decoder=False, add_cross_attention=False,
        is_encoder_decoder=False,
    )  # fmt: skip
    return {
        "vocabulary_size": source.integer("vocab_size"), "d_model": source.integer("hidden_size"),
        "encoder_layers": source.integer("num_hidden_layers"),
        "heads": source.integer("num_attention_heads"), "d_ff": source.integer("intermediate_size"),
        "norm_epsilon": source.number("layer_norm_eps", epsilon),
        "activation": source.activation("hidden_act", "gelu"),
        "max_length": source.integer("max_position_embeddings", 512),
        "dropout": source.number("hidden_dropout_prob", 0.1),
        "attention_dropout": source.number("attention_probs_dropout_prob", 0.1),
    }  # fmt: skip


def _encoder(
    source: Source, family: Family, sizes: dict[str, Any], types: int, offset: int = 0
) -> Recipe:
    task = "embed" if source.pooling else family.tasks.get(source.architecture or "embed", "embed")
    if source.architecture and source.architecture not in family.tasks:
        raise source.error(
            f"{source.architecture} cannot be imported: regard imports {', '.join(family.tasks)}"
        )
    rows = sizes["max_length"]
    if rows <= offset:
        raise source.error(f"max_position_embeddings={rows} is too small")
    values: dict[str, Any] = {
        **sizes, "style": "encoder", "positions": "learned", "embedding_norm": True,
        "scale_embeddings": False, "max_length": rows - offset,
    }  # fmt: skip
    labels: Sequence[str] = ()
    tied = source.flag("tie_word_embeddings", True)
    if task == "fill":
        values["tie_embeddings"] = "all" if tied else "none"
        if family is not ROBERTA and sizes["activation"] != "gelu":
            raise source.error(
                f"activation {sizes['activation']} in the masked-word head cannot be imported: "
                "regard supports only gelu there"
            )
    elif task == "classify":
        labels = read_labels(source)
        values |= {"head": "classifier", "classes": len(labels)}
        values["classifier_activation"] = "relu" if family is DISTILBERT else "tanh"
    else:
        values |= {"head": "pooling", "pooling": source.pooling or "mean"}
    config = source.model(**values)
    return Recipe(
        task, config,
        lambda reader: _tensors(reader, config, family, task, types, rows, offset, tied),
        config.max_length, (*BUFFERS, *_unused(task)), labels,
        options=_notes(source, family, task, config.dropout),
    )  # fmt: skip


def _unused(task: str) -> tuple[str, ...]:
    if task == "embed":
        return HEADS
    # The matrix of a next-sentence head, and the pooler of a model that does not use it.
    return (r"^cls\.seq_relationship\.", r"^(bert|roberta)\.pooler\.") if task == "fill" else (
        r"^roberta\.pooler\.",
    )  # fmt: skip


def _notes(source: Source, family: Family, task: str, dropout: float) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    if task == "classify":
        distil = family is DISTILBERT
        name = "seq_classif_dropout" if distil else "classifier_dropout"
        notes = source.dropout_note(name, 0.2 if distil else dropout, dropout)
    if task == "embed" and source.pooling is None:
        notes["pooling"] = "mean: the folder has no sentence-transformers files"
    if source.architecture == "BertForPreTraining":
        notes["seq_relationship"] = "the next-sentence head is not imported"
    return notes


def _tensors(
    reader: TensorReader, config: ModelConfig, family: Family, task: str, types: int, rows: int,
    offset: int, tied: bool,
) -> dict[str, Tensor]:  # fmt: skip
    d, size = config.d_model, config.vocabulary_size
    words = "embeddings.word_embeddings"
    prefix = (
        family.prefix if task != "embed" or reader.has(f"{family.prefix}{words}.weight") else ""
    )
    build = Builder(reader, config)
    build.table("embeddings.shared", prefix + words, size)
    positions = reader(f"{prefix}embeddings.position_embeddings.weight", rows, d)[offset:]
    if types:
        positions = (
            positions + reader(f"{prefix}embeddings.token_type_embeddings.weight", types, d)[0]
        )
    build.tensors["encoder.positions.weight"] = positions
    build.norm("encoder.embedding_norm", f"{prefix}embeddings.LayerNorm")
    for i in range(config.encoder_layers):
        build.layer(f"encoder.layers.{i}", f"{prefix}{family.layers}.{i}.", family.names)
    if task == "classify":
        assert config.classes is not None
        build.linear("head.transform", family.classes[0], d)
        build.linear("head.classes", family.classes[1], config.classes)
    if task == "fill":
        transform, norm, output, biases = family.words
        build.linear("head.transform", transform, d)
        build.norm("head.norm", norm)
        # One bias has two names; if the matrix is not tied, the bias of the matrix applies.
        order = biases if tied else biases[::-1]
        name = next((name for name in order if reader.has(name)), order[0])
        build.tensors["head.bias"] = reader(name, size)
        for copy in biases:
            reader.copy_of(copy, name, size) if tied else reader.skip(copy)
        if tied:
            reader.copy_of(output, f"{prefix}{words}.weight", size, d)
        else:
            build.tensors["head.output.weight"] = reader(output, size, d)
    return build.tensors
