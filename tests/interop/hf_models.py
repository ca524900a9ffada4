"""Tiny models of `transformers` with random weights and their tokenizers, as folders."""

import json
import lzma
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

transformers = pytest.importorskip("transformers")

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LINES = [
    "Two young, white males are outside near many bushes.",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "A man's café costs 12.50 €, isn't it?",
    "Several men in hard hats are operating a giant pulley system.",
    "Eine Frau in einem grauen Mantel   spielt\tGitarre.",
    "她在北京。 नमस्ते 🙂",
] * 20  # fmt: skip
SIZE = 400  # tokens


def wordpiece():
    """A tokenizer like that of BERT."""
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.train_from_iterator(
        LINES,
        trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=BERT_TOKENS, show_progress=False),
    )
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return library


def byte_level(specials, pattern=None):
    """A tokenizer like that of GPT-2, RoBERTa or BART; with a pattern like that of Qwen2."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern:
        library.normalizer = normalizers.NFC()
        library.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator(LINES, trainer)
    if "<s>" in specials and "<mask>" in specials:
        library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    elif "<s>" in specials:
        library.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", specials.index("<s>"))]
        )
    return library


def save_tokenizer(folder, library, **names):
    """Write tokenizer.json and tokenizer_config.json."""
    library.save(str(folder / "tokenizer.json"))
    values = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


BERT_NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
              "mask_token": "[MASK]"}  # fmt: skip
FAIRSEQ_NAMES = {"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>",
                 "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}  # fmt: skip


def save_model(folder, name, options, seed=0, **save):
    """Write a model with random weights of a size that makes every part matter."""
    torch.manual_seed(seed)
    config = getattr(transformers, name[0])(**options)
    model = getattr(transformers, name[1])(config).eval()
    with torch.no_grad():
        for key, x in model.named_parameters():
            if "embed_positions" in key and name[0] == "MarianConfig":
                continue
            x.copy_(torch.randn(x.shape) * (0.3 if x.dim() > 1 else 0.5) + ("norm" in key.lower()))
            if "token_type" in key or "position_embeddings" in key:  # their sum is exact
                x.copy_((x * 1024).round() / 1024)
        bias = getattr(model, "final_logits_bias", None)
        if bias is not None:
            bias.copy_(torch.randn(bias.shape))
        model.tie_weights()
    model.save_pretrained(folder, **save)
    return model


@contextmanager
def float64():
    """Compute in float64 where `transformers` has float32 in its code."""
    kept = torch.float32, torch.float, torch.Tensor.float, torch.FloatTensor
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.FloatTensor = torch.DoubleTensor
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float, torch.FloatTensor = kept


def in_float64(model):
    """The model in float64, with its angles and sinusoids in float64 as well."""
    with float64():
        model = model.double()
        for module in model.modules():
            if hasattr(module, "compute_default_rope_parameters"):
                module.inv_freq = module.compute_default_rope_parameters(module.config)[0]
            if type(module).__name__ == "MarianSinusoidalPositionalEmbedding":
                module.weight.data = module.create_weight()
    return model


def text_lines(number):
    """Lines of real text: half English and half German from Multi30k, or else the documentation."""
    if "REGARD_DATA" not in os.environ:
        pages = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
        text = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
        return (LINES + [line.strip() for line in text if line.strip()])[:number]
    folder, lines = Path(os.environ["REGARD_DATA"]) / "multi30k", []
    for language in ("en", "de"):
        with lzma.open(folder / f"train.{language}.xz", "rt", encoding="utf-8") as file:
            lines += [line.rstrip("\n") for line, _ in zip(file, range(number // 2), strict=False)]
    return lines
