"""Small tokenizers of the library `tokenizers` with the special tokens of other toolkits."""

import json
from functools import cache

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.text.builtin import builtin_corpus
from regard.text.imported import ImportedTokenizer, SpecialTokens

KINDS = ("bert", "gpt2", "llama", "marian", "bart")


def corpus(count=120):
    return [text for pair in builtin_corpus("train", count) for text in pair]


def word_piece():
    """WordPiece with the special tokens of BERT."""
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return library


def byte_level():
    """Byte-level BPE with one special token, as GPT-2."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator(corpus(), trainer)
    return library


def unigram(names=("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<sep>")):
    """Unigram with Metaspace, as a SentencePiece model."""
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=list(names), unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(corpus(), trainer)
    return library


def byte_fallback():
    """BPE with "▁" for spaces and bytes for unknown characters, as Llama 2."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "t", "h", "e", "c", "a", "s", "l", "p", "."]
    merged = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "c"), ("▁c", "a"), ("▁ca", "t")]
    tokens = [*names, *words, *("".join(pair) for pair in merged)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    model = models.BPE(vocabulary, merged, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    library = tokenizers.Tokenizer(model)
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return library


@cache
def imported(kind):
    """A tokenizer with the special tokens of a model from another toolkit."""
    if kind == "bert":
        specials = SpecialTokens(unk=1, cls=2, sep=3, mask=4, begin=(2,), end=(3,))
        return ImportedTokenizer(word_piece(), specials, 404)
    if kind == "gpt2":
        specials = SpecialTokens(unk=0, bos=0, eos=0)
        return ImportedTokenizer(byte_level(), specials, 400)
    if kind == "llama":
        return ImportedTokenizer(
            byte_fallback(), SpecialTokens(unk=0, bos=1, eos=2, begin=(1,)), 280
        )
    library = unigram()
    size = library.get_vocab_size()
    if kind == "marian":
        return ImportedTokenizer(library, SpecialTokens(unk=3, bos=1, eos=2, end=(2,)), size)
    specials = SpecialTokens(
        unk=3, bos=2, eos=2, cls=0, sep=5, mask=4, begin=(0,), end=(2,), target=(0,)
    )
    return ImportedTokenizer(library, specials, size)


def damaged(tokenizer, **changes):
    """The file of a tokenizer with other values; a value of None removes a key."""
    content = json.loads(tokenizer._content)
    for key, value in changes.items():
        *path, last = key.split("__")
        place = content
        for name in path:
            place = place[name]
        place.pop(last) if value is None else place.update({last: value})
    return json.dumps(content)
