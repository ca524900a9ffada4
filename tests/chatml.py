"""A byte-level tokenizer with the special tokens of ChatML, for tests of conversations."""

import json

from tokenizers import AddedToken
from tokenizers.decoders import ByteLevel

from regard.text.byte_level import SIGNS, byte_level_bpe
from regard.text.imported import ImportedTokenizer, SpecialTokens
from regard.text.tokenizer import Tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = ["assistant\nHello there, how are you?\nuser\nThe answer is 42.\n"] * 4
TEMPLATE = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}\
{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def chatml_tokenizer() -> ImportedTokenizer:
    """The tokenizer; <|im_end|> is its eos."""
    merges = json.loads(Tokenizer.learn(TEXT, "bpe", 330)._library.to_str())["model"]["merges"]
    tokens = [*SPECIAL, *SIGNS, *("".join(merge) for merge in merges)]
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    library = byte_level_bpe(vocabulary, [tuple(merge) for merge in merges])
    library.decoder = ByteLevel()
    library.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in SPECIAL]
    )
    return ImportedTokenizer(library, SpecialTokens(bos=1, eos=2), len(vocabulary))


def conversation(*turns: str, system: str | None = None) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
