"""A model that copies its input, for programs that must translate the same texts in the same number
of steps, without a limit on the length of the output.

The weights are random, except for one circuit: the cross-attention of the last decoder layer
compares positions, and reads the source token at the position of the next target token. So every
translation is equal to its source, including its end, in every program and precision, and a wrong
answer is noticed. The amount of computation does not depend on the weights.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.step import marian_config
from regard import ModelConfig, Transformer
from regard.config.sections import Config, DataConfig, DecodingConfig, TrainingConfig
from regard.model.positions import sinusoids
from regard.predictor.model import Model
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer

MEAN, SPREAD, SHORTEST, LONGEST = 26, 0.5, 4, 60  # tokens of a sentence, log-normal
MARGIN = 20.0  # attention score of the right position above that of any other
TOKEN = 3.0  # size of an embedding, compared with that of a position
COPY, REST = 8.0, 0.02  # size of the copied vector, and of the output of all other sub-layers
NAMES = {  # parts of parameter names: of regard, and of Hugging Face
    "embeddings.shared": "model.shared", "encoder.": "model.encoder.", "decoder.": "model.decoder.",
    "self_attention_norm.norm": "self_attn_layer_norm", "self_attention.": "self_attn.",
    "cross_attention_norm.norm": "encoder_attn_layer_norm", "cross_attention.": "encoder_attn.",
    "feed_forward_norm.norm": "final_layer_norm", "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2", ".output.": ".out_proj.",
}  # fmt: skip


def save(preset: str, vocabulary: int, beam: int, folder: Path) -> Model:
    """Write a model folder for the command line, and return the model."""
    tokenizer = Tokenizer.learn(words(2 * vocabulary), size=vocabulary, quiet=True)
    if tokenizer.size != vocabulary:
        raise SystemExit(f"the vocabulary has {tokenizer.size:,} tokens, not {vocabulary:,}")
    config = Config(
        task="translate",
        model=ModelConfig.preset(preset, vocabulary_size=vocabulary, dropout=0.0),
        data=DataConfig(train=["text.en", "text.de"], vocabulary_size=vocabulary),
        training=TrainingConfig(),
        decoding=DecodingConfig(beam=beam),
    )
    model = Model(config, copying(config.model), Translate(tokenizer, tokenizer))
    model.save(folder)
    return model


@torch.no_grad()
def copying(config: ModelConfig) -> Transformer:
    """A model with random weights whose output is its input."""
    torch.manual_seed(0)
    model = Transformer(config).eval()
    assert model.decoder is not None
    size, width, positions = config.head_size, config.d_model, config.d_model // 16
    # The first features contain only the position, with the highest frequencies. Another one, the
    # sine of the lowest frequency, is almost zero: its value is what LayerNorm subtracts.
    table = model.table("target").weight
    table[:, :positions] = table[:, -2] = 0.0
    table *= TOKEN / table.norm(dim=1, keepdim=True)
    for name, parameter in model.named_parameters():
        if name.endswith(("output.weight", "outer.weight")):
            parameter.mul_(REST)
            parameter[:positions] = parameter[-2] = 0.0
    features = torch.zeros(size, width)
    features[:positions, :positions] = torch.eye(positions)
    features[:positions, -2] = -1.0
    rows = sinusoids(torch.arange(2 * LONGEST), width, config.position_base).float() @ features.T
    products = rows[0] @ rows.T
    factor = TOKEN * math.sqrt(MARGIN * math.sqrt(size) / float(products[0] - products[1:].max()))
    cross: Any = model.decoder.layers[-1].cross_attention
    query, key, value = cross.query_key_value.weight.chunk(3)
    query.copy_(factor * features.repeat(config.heads, 1))
    key.copy_(query)
    value.copy_(torch.eye(width))
    cross.output.weight.copy_(COPY * torch.diag((torch.arange(width) >= positions).float()))
    return model


def words(number: int) -> list[str]:
    """Different words of two to four random syllables."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    unique = dict.fromkeys(
        "".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(4 * number)
    )
    return list(unique)[:number]


def sentences(tokenizer: Tokenizer, number: int) -> list[str]:
    """Sentences of random words whose numbers of tokens are log-normal."""
    rng = random.Random(1)
    known = words(tokenizer.size)
    result = []
    for _ in range(number):
        length = rng.lognormvariate(math.log(MEAN) - SPREAD**2 / 2, SPREAD)
        length = round(min(max(length, SHORTEST), LONGEST))
        text = [rng.choice(known).capitalize()]
        while len(tokenizer.encode(" ".join(text))) + 4 < length:  # a word, the full stop, <eos>
            text.append(rng.choice(known))
        result.append(" ".join(text) + ".")
    return result


def marian(model: Transformer) -> Any:
    """The same model in Hugging Face transformers (Any: see `decoder_programs`)."""
    from transformers import MarianMTModel

    config = model.config
    # Its position encoding has all sines before all cosines; ours alternates them.
    order = torch.arange(config.d_model).reshape(-1, 2).T.flatten()
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        if tensor.shape[-1] == config.d_model and "out_proj.weight" not in name:
            tensor = tensor[..., order] if "query_key_value.bias" not in name else tensor
        if name.endswith(("out_proj.weight", "fc2.weight")):
            tensor = tensor[order]
        if "query_key_value" in name:
            for kind, part in zip("qkv", tensor.chunk(3), strict=True):
                weights[name.replace("query_key_value", f"{kind}_proj")] = part.contiguous()
        else:
            weights[name] = tensor
    theirs = MarianMTModel(
        marian_config(config, end=Tokenizer.eos, use_cache=True)
    ).eval()  # fmt: skip
    missing, unknown = theirs.load_state_dict(weights, strict=False)
    tied = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight", "final_logits_bias")
    if unknown or not all(name.endswith(tied) for name in missing):
        raise SystemExit(
            f"the names of the weights do not match: unknown {unknown}, missing {missing}"
        )
    return theirs


def convert(model: Transformer, folder: Path) -> None:
    """Write the model for CTranslate2, with the ids as words."""
    from ctranslate2.converters.transformers import MarianMTLoader

    loader = MarianMTLoader()
    loader._remove_pad_weights = lambda spec: None  # see `decoder_programs.convert`
    with torch.no_grad():
        spec = loader.get_model_spec(marian(model))
    vocabulary = [str(i) for i in range(model.config.vocabulary_size)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.decoder_start_token = spec.config.bos_token = str(Tokenizer.bos)
    spec.config.eos_token, spec.config.unk_token = str(Tokenizer.eos), str(Tokenizer.unk)
    spec.validate()
    spec.optimize()
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
