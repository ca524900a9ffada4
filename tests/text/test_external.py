"""External tokenizers: user-defined objects, `tokenizers` and `transformers`."""

import pytest
import tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.trainers import BpeTrainer

from regard import InputError
from regard.text.external import as_tokenizer, as_tokenizers
from regard.text.loading import load_tokenizer
from regard.text.tokenizer import SPECIALS, Tokenizer

LINES = ["the cat sat on the mat", "a dog ran to the cat", "the dog sat"]


def hugging_face():
    library = tokenizers.Tokenizer(BPE())
    library.pre_tokenizer = ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(LINES, trainer)
    return library


def fast():
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=hugging_face(), bos_token="<s>", eos_token="</s>"
    )


class Letters:
    vocab_size = 27

    def encode(self, text):
        return [ord(sign) - 97 if sign != " " else 26 for sign in text]

    def decode(self, ids):
        return "".join(chr(97 + i) if i < 26 else " " for i in ids)


@pytest.mark.parametrize("make", [hugging_face, fast, Letters])
def test_decoding_restores_the_text_and_no_text_becomes_a_special_token(make):
    tokenizer = as_tokenizer(make())
    for text in LINES:
        ids = tokenizer.encode(text)
        assert min(ids) >= len(SPECIALS)
        assert max(ids) < tokenizer.size
        assert tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos]) == text
    assert tokenizer.tokens([0, 2]) == ["<unk>", "<eos>"]
    assert tokenizer.encode_batch(["", "a"])[0] == []
    if make is not Letters:
        assert min(tokenizer.encode("<s> </s> <eos>")) >= len(SPECIALS)
        assert tokenizer.decode(tokenizer.encode("<s> </s> <eos>")) == "<s> </s> <eos>"


def test_tokenizer_of_the_caller_is_not_changed():
    library = hugging_face()
    library.enable_truncation(2)
    library.enable_padding(length=8)
    before = library.to_str()
    assert len(as_tokenizer(library).encode(LINES[0])) > 2
    assert library.to_str() == before


@pytest.mark.parametrize("make", [hugging_face, fast])
def test_a_hugging_face_tokenizer_is_saved_as_its_own_file(make, tmp_path):
    tokenizer, path = as_tokenizer(make()), tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = load_tokenizer(path, tokenizer.size)
    assert again.encode(LINES[0]) == tokenizer.encode(LINES[0])
    assert again.fingerprint == tokenizer.fingerprint
    library = tokenizers.Tokenizer.from_file(str(path))  # other programs can open it
    assert library.get_vocab_size() == tokenizer.size - len(SPECIALS)
    with pytest.raises(InputError, match="but the model needs 5"):
        load_tokenizer(path, 5)
    path.write_text('{"model": 1, "version": "1.0"}')
    with pytest.raises(InputError, match="not a Hugging Face tokenizer"):
        load_tokenizer(path)


def test_an_object_is_not_saved_and_must_be_passed_again(tmp_path):
    tokenizer, path = as_tokenizer(Letters()), tmp_path / "tokenizer.json"
    tokenizer.save(path)
    with pytest.raises(InputError, match="pass the same object as tokenizer="):
        load_tokenizer(path)
    assert load_tokenizer(path, 33, as_tokenizer(Letters())).encode("ab") == [6, 7]

    class Reversed(Letters):
        def decode(self, ids):
            return super().decode([25 - i if i < 26 else i for i in ids])

    with pytest.raises(InputError, match="trained with a different tokenizer"):
        load_tokenizer(path, 33, as_tokenizer(Reversed()))


def test_slow_transformers_tokenizer_is_supported():
    class Slow:
        """The interface of a slow tokenizer of transformers."""

        all_special_ids = (0,)

        def __len__(self):
            return 4

        def encode(self, text, add_special_tokens=True):
            return [0] * add_special_tokens + [int(word) for word in text.split()]

        def decode(self, ids, skip_special_tokens=False):
            return " ".join(str(i) for i in ids if i or not skip_special_tokens)

    tokenizer = as_tokenizer(Slow())
    assert tokenizer.size == 10
    assert tokenizer.encode("1 3") == [7, 9]
    assert tokenizer.decode([7, 9]) == "1 3"


def test_ids_with_gaps_are_inside_the_vocabulary():
    library = tokenizers.Tokenizer(WordLevel({"a": 0, "b": 9}, unk_token="a"))
    library.pre_tokenizer = Whitespace()
    tokenizer = as_tokenizer(library)
    assert tokenizer.size == 16
    assert tokenizer.encode("b") == [15]


class NoSize:
    def encode(self, text):
        return [1]

    def decode(self, ids):
        return ""


class Outside(NoSize):
    vocab_size = 1


class Failing(NoSize):
    vocab_size = 1

    def encode(self, text):
        raise KeyError("ß")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (object(), "a tokenizer needs the methods encode and decode"),
        ("a text", "a tokenizer needs the methods encode and decode"),
        (NoSize(), "NoSize needs vocab_size"),
        ((Letters(),), "must be one object or two, not 1"),
    ],
)
def test_invalid_tokenizer_object_is_refused(tokenizer, message):
    with pytest.raises(InputError, match=message):
        as_tokenizers(tokenizer)


def test_wrong_ids_and_failures_name_the_text():
    with pytest.raises(InputError, match="returned the id 1 for 'x': its ids must be from 0 to 0"):
        as_tokenizer(Outside()).encode("x")
    with pytest.raises(InputError, match="the tokenizer cannot encode 'x' .KeyError"):
        as_tokenizer(Failing()).encode("x")


def test_regard_tokenizer_is_returned_unchanged():
    tokenizer = Tokenizer("byte")
    assert as_tokenizers(tokenizer) == (tokenizer, tokenizer)
