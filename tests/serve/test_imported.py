"""The service with the tokenizer of a model from another toolkit: texts, offsets and token ids."""

from types import SimpleNamespace

import pytest

from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import DecodingPlan
from regard.serve.alignment import last_characters
from regard.serve.api_common import token_spans
from regard.serve.errors import ServiceError
from regard.serve.openai_choices import Choice, GrowingText, spelling
from regard.serve.openai_format import check_ids
from tests.imported import KINDS, imported

TEXT = "the cat. the cat"
LIMITS = SimpleNamespace(items=8, characters=100)
CALL = SimpleNamespace(
    settings=SimpleNamespace(limits=LIMITS), http=SimpleNamespace(state=SimpleNamespace())
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", range(4))
def test_a_text_grows_to_the_decoded_text(kind, cut):
    tokenizer = imported(kind)
    ids = tokenizer.encode(TEXT)
    with_prompt = GrowingText(tokenizer, [], ids[:cut])
    without = GrowingText(tokenizer, [], (), ids[:cut])
    for text in (with_prompt, without):
        for token in ids[cut:]:
            text.add(token)
        text.end()
    assert with_prompt.text == tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(ids[:cut]) + without.text == TEXT
    assert len(with_prompt.starts) == len(ids)


def test_a_text_ends_before_a_stop_text():
    tokenizer = imported("llama")
    ids = tokenizer.encode(TEXT)
    text = GrowingText(tokenizer, [". the"], (), tokenizer.encode("the"))
    for token in ids:
        if not text.stopped:
            text.add(token)
    assert text.stopped
    assert text.text == " the cat"


@pytest.mark.parametrize("kind", KINDS)
def test_spans_cover_the_text(kind):
    tokenizer = imported(kind)
    ids = tokenizer.frame(tokenizer.encode(TEXT), "encoder")
    spans = token_spans(tokenizer, ids)
    assert "".join(TEXT[start:end] for start, end in spans) == TEXT
    ends = last_characters(tokenizer, ids)
    for token, (start, end), last in zip(ids, spans, ends, strict=True):
        special = token in tokenizer.special_ids
        assert special == (last == -1)
        if end > start:
            assert last == end - 1


@pytest.mark.parametrize(("kind", "begin"), [("gpt2", 0), ("llama", 1)])
def test_special_tokens_of_a_prompt_are_not_counted(kind, begin):
    tokenizer = imported(kind)
    prompt = [20, 21, 22]
    for longest, read in ((10, 3), (3, 3 - begin)):
        request = Request(tokenizer.prompt(prompt, longest))
        plan = DecodingPlan([request], DecodingConfig(), (tokenizer, tokenizer), list)
        assert Choice(None, prompt, plan).read == read
    plan = DecodingPlan(
        [Request(tokenizer.prompt([], 3))], DecodingConfig(), (tokenizer, tokenizer), list
    )
    assert Choice(None, [], plan).read == 0


def test_ids_of_special_tokens_are_refused():
    llama, bert = imported("llama"), imported("bert")
    assert check_ids(CALL, [[5, 9]], llama, "prompt") == [[5, 9]]
    with pytest.raises(ServiceError, match="token id 1 is not from 3 to 279"):
        check_ids(CALL, [[1]], llama, "prompt")
    with pytest.raises(ServiceError, match="token id 280 is not from"):
        check_ids(CALL, [[280]], llama, "prompt")
    with pytest.raises(ServiceError):
        check_ids(CALL, [[bert.mask]], bert, "input")
    late = imported("gpt2")
    late_ids = late.text_ids
    assert spelling(late, 0) == ("<|endoftext|>", b"")
    assert spelling(late, int(late_ids[0]))[1] == late.pieces[int(late_ids[0])]
