"""GPT-2 of Hugging Face: a pre-norm decoder with learned positions.

Its matrices are stored as [inputs, outputs]; queries, keys and values share one matrix.
"""

from __future__ import annotations

from torch import Tensor

from regard.config.model import ModelConfig
from regard.interop.hf.common import Builder, Recipe, Source
from regard.interop.tensors import TensorReader

CLASSES = ("GPT2LMHeadModel", "GPT2Model")
MASKS = (r"h\.\d+\.attn\.(masked_)?bias$",)  # buffers with the causal mask


def gpt2(source: Source) -> Recipe:
    """How to import a model with model_type gpt2."""
    if source.architecture and source.architecture not in CLASSES:
        raise source.error(
            f"{source.architecture} cannot be imported: regard imports {', '.join(CLASSES)}"
        )
    source.refuse(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    d_model = source.integer("n_embd", 768)
    tied = source.flag("tie_word_embeddings", True) or source.architecture == "GPT2Model"
    config = source.model(
        style="decoder", vocabulary_size=source.integer("vocab_size", 50_257), d_model=d_model,
        decoder_layers=source.integer("n_layer", 12), heads=source.integer("n_head", 12),
        d_ff=source.integer("n_inner", 4 * d_model), norm_first=True,
        norm_epsilon=source.number("layer_norm_epsilon", 1e-5),
        activation=source.activation("activation_function", "gelu_new"), positions="learned",
        max_length=source.integer("n_positions", 1_024), scale_embeddings=False,
        tie_embeddings="all" if tied else "none", dropout=source.number("resid_pdrop", 0.1),
        attention_dropout=source.number("attn_pdrop", 0.1),
    )  # fmt: skip
    notes = source.dropout_note("embd_pdrop", 0.1, config.dropout)
    return Recipe(
        "generate", config, lambda reader: _tensors(reader, config, tied), config.max_length, MASKS,
        options=notes,
    )  # fmt: skip


def _tensors(reader: TensorReader, config: ModelConfig, tied: bool) -> dict[str, Tensor]:
    d, f, size = config.d_model, config.d_ff, config.vocabulary_size
    prefix = "transformer." if reader.has("transformer.wte.weight") else ""
    build = Builder(reader, config)
    build.table("embeddings.shared", f"{prefix}wte", size)
    build.table("decoder.positions", f"{prefix}wpe", config.max_length)
    for i in range(config.decoder_layers):
        target, source = f"decoder.layers.{i}", f"{prefix}h.{i}"
        build.norm(f"{target}.self_attention_norm.norm", f"{source}.ln_1")
        build.norm(f"{target}.feed_forward_norm.norm", f"{source}.ln_2")
        for name, own, inputs, outputs in (
            ("self_attention.query_key_value", "attn.c_attn", d, 3 * d),
            ("self_attention.output", "attn.c_proj", d, d),
            ("feed_forward.inner", "mlp.c_fc", d, f),
            ("feed_forward.outer", "mlp.c_proj", f, d),
        ):
            matrix = reader(f"{source}.{own}.weight", inputs, outputs)
            build.tensors[f"{target}.{name}.weight"] = matrix.T
            build.tensors[f"{target}.{name}.bias"] = reader(f"{source}.{own}.bias", outputs)
    build.norm("decoder.final_norm", f"{prefix}ln_f")
    if tied:
        reader.copy_of("lm_head.weight", f"{prefix}wte.weight", size, d)
    else:
        build.table("head.output", "lm_head", size)
    return build.tensors
