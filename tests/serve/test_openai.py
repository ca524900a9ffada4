"""The OpenAI interface with the unmodified client: completions, embeddings, models and errors."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import numpy as np
import openai
import pytest
import torch

from regard import Model, Transformer
from regard.serve.settings import Limits, Settings
from regard.tasks.configuration import make_config
from regard.tasks.generate import Generate
from regard.text.tokenizer import SPECIALS, Tokenizer
from serve.live import boxed, serve

PROMPT = "ROMEO:\nO, "


def byte_model():
    """A model of bytes with random weights: it writes many bytes that are not UTF-8."""
    sizes = {"d_model": 32, "heads": 2, "d_ff": 32, "decoder_layers": 1, "vocabulary_size": 262}
    values = {"data": {"vocabulary": "byte"}, "model": sizes}
    config, tokenizer = make_config("generate", "tiny", values), Tokenizer.learn([], "byte", 0)
    torch.manual_seed(0)
    return Model(config, Transformer(config.model), Generate.make(config, (tokenizer, tokenizer)))


@pytest.fixture(scope="module")
def models():
    names = ("generate", "embed", "classify", "translate")
    return {name: boxed(name) for name in names} | {"bytes": byte_model()}


@pytest.fixture(scope="module")
def url(models):
    with serve(Settings(limits=Limits(items=60)), models) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def complete(client):
    def call(prompt=PROMPT, model="generate", **options):
        return client.completions.create(model=model, prompt=prompt, **options)

    return call


def streamed(chunks):
    """The texts, reasons to finish, and usage of a stream of completions."""
    texts, reasons, usage = {}, {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            reasons[choice.index] = choice.finish_reason
    return [texts[i] for i in range(len(texts))], [reasons[i] for i in range(len(texts))], usage


def test_models(client, models):
    listed = client.models.list()
    assert [model.id for model in listed] == list(models)
    assert {(model.object, model.owned_by) for model in listed} == {("model", "regard")}
    assert client.models.retrieve("embed").id == "embed"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt")
    assert error.value.code == "model_not_found"


def test_greedy_completion_is_that_of_the_model(complete):
    response = complete(temperature=0, max_tokens=40)
    expected = boxed("generate").generate(PROMPT, temperature=0.0, beam=1, max_length=40)
    [choice] = response.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (expected, "length", None)
    assert response.object == "text_completion"
    assert response.id.startswith("cmpl-")
    usage = response.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 40, 50)


def test_sampling_has_the_options_of_the_request_only(complete):
    expected = boxed("generate").generate(PROMPT, temperature=0.7, top_p=0.8, seed=5, max_length=30)
    assert complete(temperature=0.7, top_p=0.8, seed=5, max_tokens=30).choices[0].text == expected


def test_16_tokens_are_the_default(complete):
    response = complete()
    assert response.usage.completion_tokens == 16
    assert response.choices[0].finish_reason == "length"


def test_seed_makes_a_completion_reproducible(complete):
    texts = [complete(seed=seed, max_tokens=30).choices[0].text for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert complete(max_tokens=30).choices[0].text != complete(max_tokens=30).choices[0].text
    assert complete(seed=-1, max_tokens=30).choices[0].text


def test_choice_i_has_seed_plus_i(complete):
    response = complete([PROMPT, "JULIET:"], n=2, seed=3, max_tokens=20)
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    alone = [
        complete(prompt, seed=3 + i, max_tokens=20).choices[0].text
        for i, prompt in enumerate([PROMPT, PROMPT, "JULIET:", "JULIET:"])
    ]
    assert [choice.text for choice in response.choices] == alone
    assert response.usage.prompt_tokens == len(PROMPT) + len("JULIET:")
    assert response.usage.completion_tokens == 80


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1}, {"temperature": 0}, {"n": 3, "seed": 2}, {"stop": ["e", "\n\n"], "seed": 3},
        {"model": "bytes", "seed": 4, "n": 4}, {"echo": True, "seed": 5},
        {"model": "bytes", "seed": 6, "n": 4, "stop": ["\ufffd\ufffd", "a"], "echo": True},
        {"logprobs": 1, "seed": 7, "n": 2},
    ],
)  # fmt: skip
def test_stream_has_the_same_text(complete, options):
    whole = complete(max_tokens=60, **options)
    chunks = list(
        complete(max_tokens=60, stream=True, stream_options={"include_usage": True}, **options)
    )
    texts, reasons, usage = streamed(chunks)
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert len(chunks) > len(texts) + 2  # it is not sent at once
    assert chunks[-1].choices == []
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_stream_without_usage(complete):
    assert all(chunk.usage is None and chunk.choices for chunk in complete(stream=True))


def test_prompts_of_token_ids(complete):
    ids = boxed("generate").tokenizer.encode(PROMPT)
    text = complete(seed=1).choices[0].text
    assert complete(ids, seed=1).choices[0].text == text
    lists = complete([ids, ids[:3]], seed=1)
    assert lists.choices[0].text == text
    assert lists.usage.prompt_tokens == len(ids) + 3


@pytest.mark.parametrize("prompt", ["", None, [""], [[]]])
def test_an_empty_prompt(complete, prompt):
    response = complete(prompt, temperature=0, max_tokens=10)
    expected = boxed("generate").generate("", temperature=0.0, beam=1, max_length=10)
    assert (response.choices[0].text, response.usage.prompt_tokens) == (expected, 0)


def test_long_prompt_is_read_from_its_end(complete):
    response = complete("x" * 500 + PROMPT, temperature=0)
    assert response.usage.prompt_tokens == boxed("generate").longest


def test_stop_cuts_before_the_first_stop_text(complete):
    text = complete(temperature=0, max_tokens=100).choices[0].text
    stop = text[20:25]  # several tokens, as this model has characters
    response = complete(temperature=0, max_tokens=100, stop=["never!", stop])
    [choice] = response.choices
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")
    assert response.usage.completion_tokens == text.index(stop) + len(stop)
    assert complete(temperature=0, stop=text[0]).choices[0].text == ""


def test_stream_never_shows_a_part_of_a_stop_text(complete):
    text = complete(temperature=0, max_tokens=100).choices[0].text
    stop = text[30:38]
    so_far = ""
    for chunk in complete(temperature=0, max_tokens=100, stop=stop, stream=True):
        so_far += chunk.choices[0].text
        assert text[: text.index(stop)].startswith(so_far)
    assert so_far == text[: text.index(stop)]


def test_echo(complete):
    choice = complete(temperature=0, max_tokens=5, echo=True, stop="ROMEO").choices[0]
    assert choice.text == PROMPT + complete(temperature=0, max_tokens=5).choices[0].text


def test_logprobs(complete):
    response = complete(temperature=0, max_tokens=12, logprobs=3)
    [prediction] = boxed("generate").predict([PROMPT], temperature=0.0, beam=1, max_length=12)
    [choice] = response.choices
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == list(range(12))
    assert logprobs.token_logprobs == pytest.approx(prediction.logprobs, abs=1e-4)
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert len(top) == 3
        assert top[token] == logprob == max(top.values())
    none = complete(temperature=0, max_tokens=12, logprobs=0).choices[0].logprobs
    assert none.top_logprobs is None
    assert none.token_logprobs == logprobs.token_logprobs


def test_logprobs_contain_the_sampled_token(complete):
    logprobs = complete(seed=2, temperature=2, max_tokens=20, logprobs=1).choices[0].logprobs
    sizes = {len(top) for top in logprobs.top_logprobs}
    assert sizes == {1, 2}
    pairs = zip(logprobs.tokens, logprobs.top_logprobs, strict=True)
    assert all(token in top for token, top in pairs)


def test_logprobs_of_an_echoed_prompt(complete):
    response = complete(max_tokens=0, echo=True, logprobs=1)
    [choice] = response.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert response.usage.completion_tokens == 0
    assert "".join(choice.logprobs.tokens) == PROMPT
    assert all(-20 < logprob < 0 for logprob in choice.logprobs.token_logprobs)
    long = complete("x" * 300, max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
    unknown = [logprob is None for logprob in long.token_logprobs]
    assert unknown == [True] * (301 - boxed("generate").longest) + [False] * (
        boxed("generate").longest - 1
    )


def test_streamed_logprobs_are_those_of_the_text(complete):
    options = {"seed": 3, "max_tokens": 60, "logprobs": 2, "echo": True, "stop": "the"}
    whole = complete(**options).choices[0].logprobs
    parts = [chunk.choices[0] for chunk in complete(stream=True, **options)]
    assert [token for part in parts for token in part.logprobs.tokens] == whole.tokens
    assert [offset for part in parts for offset in part.logprobs.text_offset] == whole.text_offset
    values = [value for part in parts for value in part.logprobs.token_logprobs]
    assert values == pytest.approx(whole.token_logprobs, abs=1e-4)


def test_tokens_that_are_not_characters(complete):
    choice = complete(model="bytes", seed=1, max_tokens=60, logprobs=0).choices[0]
    assert any(token.startswith("bytes:\\x") for token in choice.logprobs.tokens)
    assert "\ufffd" in choice.text
    for token, start in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        if not token.startswith("bytes:") and token not in SPECIALS:
            assert token in choice.text[start : start + 4]  # after an incomplete character


@pytest.mark.parametrize("stop", [None, "\ufffd"])
def test_prompt_of_an_incomplete_character(complete, stop):
    options = {"model": "bytes", "echo": True, "logprobs": 1, "seed": 1, "stop": stop}
    choice = complete([70, 6 + 0xC3], **options).choices[0]
    assert choice.text.startswith("@")
    assert choice.logprobs.tokens[0] == "@"
    assert stop is None or stop not in choice.text
    texts, _, _ = streamed(complete([70, 6 + 0xC3], stream=True, **options))
    assert texts == [choice.text]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"suffix": "x"}, "suffix"), ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"), ({"logit_bias": {"7": 1}}, "logit_bias"),
        ({"best_of": 4}, "best_of"), ({"max_tokens": 1001}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"), ({"n": 61}, "n"), ({"n": 0}, "n"),
        ({"n": 9, "echo": True, "prompt": "a" * 3_000}, "n"),
        ({"prompt": ["a"] * 61}, "prompt"), ({"prompt": "a" * 20_001}, "prompt"),
        ({"prompt": [7] * 20_001}, "prompt"), ({"prompt": [2]}, "prompt"),
        ({"prompt": [71]}, "prompt"), ({"prompt": [[7], "a"]}, "prompt"), ({"prompt": []}, "prompt"),
        ({"stop": ["a"] * 5}, "stop"), ({"stop": ""}, "stop"), ({"stop": "a" * 257}, "stop"),
        ({"logprobs": 6}, "logprobs"), ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"extra_body": {"top_p": "1"}}, "top_p"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"top_k": 5}}, "top_k"), ({"model": "classify"}, "model"),
        ({"seed": "x"}, "seed"),
    ],
)  # fmt: skip
def test_invalid_requests_name_the_field(complete, options, field):
    with pytest.raises(openai.APIStatusError) as error:
        complete(**options)
    assert error.value.status_code in (400, 413)
    assert (error.value.param, error.value.type) == (field, "invalid_request_error")
    assert field in error.value.message or field == "model"


def test_penalties_of_zero_are_allowed(complete):
    assert complete(presence_penalty=0, frequency_penalty=0, logit_bias={}, best_of=1, user="me")


def test_unknown_model(complete):
    with pytest.raises(openai.NotFoundError) as error:
        complete(model="gpt")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


def test_errors_of_the_gateway_have_the_format_of_the_interface(tmp_path, models):
    keys = tmp_path / "keys"
    keys.write_text(f"me {sha256(b'secret').hexdigest()}\n", encoding="utf-8")
    settings = Settings(keys=keys, requests_per_minute=2, limits=Limits(body_bytes=1_000))
    with serve(settings, models) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as error:
                client.models.list()
            assert error.value.type == "authentication_error"
            assert error.value.request_id
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
            assert client.models.retrieve("generate")._request_id
            with pytest.raises(openai.APIStatusError) as error:
                client.completions.create(model="generate", prompt="a" * 1_000)
            assert (error.value.status_code, error.value.type) == (413, "invalid_request_error")
            with pytest.raises(openai.RateLimitError) as error:
                client.models.list()
            assert error.value.type == "rate_limit_error"
            assert int(error.value.response.headers["retry-after"]) > 1


def test_50_concurrent_requests_have_the_answers_of_sequential_ones(url, complete):
    requests = [
        {"prompt": f"{name}:\n", "seed": i, "temperature": 0.3 * (i % 4), "max_tokens": 5 + i // 2}
        | ({"stop": ["."]} if i % 3 else {}) | ({"n": 2} if i % 10 == 0 else {})
        for i, name in enumerate(["ROMEO", "KING HENRY", "First Citizen", "JULIET", "Nurse"] * 10)
    ]  # fmt: skip
    expected = [[choice.text for choice in complete(**each).choices] for each in requests]

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

            async def one(i, options):
                response = await client.completions.create(
                    model="generate", stream=i % 2 == 0, **options
                )
                if i % 2:
                    return [choice.text for choice in response.choices]
                return streamed([chunk async for chunk in response])[0]

            return await asyncio.gather(*(one(*each) for each in enumerate(requests)))

    assert asyncio.run(run()) == expected


TEXTS = ["A cat sleeps on the sofa.", "The stock market fell.", ""]


def test_embeddings(client, models):
    expected = models["embed"].embed(TEXTS)
    base64 = client.embeddings.create(model="embed", input=TEXTS)
    numbers = client.embeddings.create(model="embed", input=TEXTS, encoding_format="float")
    for response in (base64, numbers):
        vectors = np.array([entry.embedding for entry in response.data], np.float32)
        np.testing.assert_array_equal(vectors, expected)
        assert [entry.index for entry in response.data] == [0, 1, 2]
        count = sum(map(len, models["embed"].tokenizer.encode_batch(TEXTS)))
        assert (response.usage.prompt_tokens, response.usage.total_tokens) == (count, count)


def test_embeddings_of_token_ids(client, models):
    rows = models["embed"].tokenizer.encode_batch(TEXTS[:2])
    response = client.embeddings.create(model="embed", input=rows)
    vectors = np.array([entry.embedding for entry in response.data], np.float32)
    np.testing.assert_array_equal(vectors, models["embed"].embed(TEXTS[:2]))
    one = client.embeddings.create(model="embed", input=rows[0]).data[0].embedding
    np.testing.assert_array_equal(np.array(one, np.float32), vectors[0])


def test_embeddings_of_other_tasks(client, models):
    vector = client.embeddings.create(model="classify", input="A film.").data[0].embedding
    np.testing.assert_array_equal(np.array(vector, np.float32), models["classify"].embed("A film."))
    with pytest.raises(openai.BadRequestError, match="cannot embed") as error:
        client.embeddings.create(model="translate", input="A film.")
    assert error.value.param == "model"


def test_long_text_is_embedded_from_its_beginning(client, models):
    text = "cat " * 3_000
    response = client.embeddings.create(model="embed", input=text)
    assert response.usage.prompt_tokens == models["embed"].longest - 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dimensions": 8}, "dimensions"), ({"input": []}, "input"), ({"input": [1]}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"), ({"input": ["a"] * 61}, "input"),
    ],
)  # fmt: skip
def test_invalid_embedding_requests(client, options, field):
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(**{"model": "embed", "input": "a", **options})
    assert error.value.param == field


def test_dimensions_of_the_model_are_allowed(client, models):
    size = models["embed"].transformer.config.d_model
    response = client.embeddings.create(model="embed", input="a", dimensions=size)
    assert len(response.data[0].embedding) == size
