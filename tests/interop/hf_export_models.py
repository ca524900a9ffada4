"""Random models for the tests of the export to Hugging Face, and helpers that widen `transformers`
to float64 where it computes in float32."""

from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch import nn

from regard import Transformer
from regard.config.model import ModelConfig
from regard.interop.hf.write import write
from regard.model.positions import sinusoids
from regard.predictor.model import Model
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.text.builtin import builtin_corpus
from regard.text.tokenizer import Tokenizer

SIZES = {"d_model": 16, "heads": 2, "d_ff": 24, "max_length": 40}  # sqrt(16) is a power of two
TASKS = {
    "language-model": "generate", "masked-language-model": "fill", "classifier": "classify",
    "pooling": "embed",
}  # fmt: skip


def lines(count):
    return [text for pair in builtin_corpus("train", count) for text in pair]


_LEARNED = {}


def learned(kind="bpe", size=300):
    """A tokenizer of real text."""
    if (kind, size) not in _LEARNED:
        _LEARNED[kind, size] = Tokenizer.learn(lines(200), kind, size, quiet=True)
    return _LEARNED[kind, size]


def make(style, tokenizers=None, longest=40, task=None, seed=0, **options):
    """A model with random weights in every parameter, in float32."""
    source, target = tokenizers or (learned(),) * 2
    layers = {f"{stack}_layers": 2 for stack in style.split("-")}
    values = {**SIZES, **layers, "vocabulary_size": target.size, "style": style, **options}
    if style == "encoder-decoder":
        values["source_vocabulary_size"] = source.size
    model = ModelConfig.from_dict(values)
    task = task or ("translate" if style == "encoder-decoder" else TASKS[model.head])
    data = {"max_length": longest}
    if source is not target:
        data["shared_vocabulary"] = False
    config = make_config(task, values={"data": data, "model": {"style": style}})
    known = {"labels": ["bad", "good"]} if task == "classify" else {}
    config = replace(config, model=model)
    made = find_task(task).make(config, (source, target), **known)
    transformer = Transformer(model).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in transformer.named_parameters():
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            x.copy_(mean + 0.3 * torch.randn(x.shape, generator=random))
    return Model(config, transformer, made)


def exported(model, folder):
    """The folder of the exported model."""
    folder = Path(folder, "exported")
    folder.mkdir()
    write(model, folder)
    return folder


def automatic(head, style):
    name = {
        "masked-language-model": "AutoModelForMaskedLM", "pooling": "AutoModel",
        "classifier": "AutoModelForSequenceClassification",
    }.get(head, "AutoModelForCausalLM")  # fmt: skip
    return getattr(transformers, "AutoModelForSeq2SeqLM" if "-" in style else name)


def loaded(folder, config):
    """The model in `transformers`, in float64, and the names that did not match."""
    hf, info = automatic(config.head, config.style).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    unmatched = {key: value for key, value in info.items() if value}
    return widened(hf.eval().double(), config), unmatched


class Angles(nn.Module):
    """The cosines and sines of rotary positions, in float64."""

    def __init__(self, size, base):
        super().__init__()
        self.frequencies = base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(self, x, position_ids, layer_type=None):
        angles = position_ids[..., None].double() * self.frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()


def widened(hf, config):
    """Replace what `transformers` computes in float32 in every dtype: RMSNorm, the angles of rotary
    positions, and tables of sinusoids. The formulas and the weights stay those of the folder."""
    for name, module in list(hf.named_modules()):
        parent = hf.get_submodule(name.rpartition(".")[0])
        child = name.rpartition(".")[2]
        if type(module).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(len(module.weight), eps=config.norm_epsilon).double()
            norm.weight = module.weight
            setattr(parent, child, norm)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            setattr(parent, child, Angles(config.head_size, config.position_base))
        elif config.positions == "sinusoidal" and child in (
            "embed_positions", "position_embeddings", "wpe",
        ):  # fmt: skip
            offset = 2 if type(module).__name__.endswith("LearnedPositionalEmbedding") else 0
            rows = sinusoids(torch.arange(len(module.weight) - offset), config.d_model,
                             config.position_base)  # fmt: skip
            if type(module).__name__.endswith("SinusoidalPositionalEmbedding"):
                rows = torch.cat((rows[:, 0::2], rows[:, 1::2]), 1)
            with torch.no_grad():
                assert torch.equal(module.weight[offset:].float(), rows.float())
                module.weight[offset:] = rows
    return hf
