"""Chat completions with the unmodified `openai` client and a model trained on dialogues."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import openai
import pytest

import regard
from regard.config.sections import Config
from regard.tasks.chatting import chat_prompt
from regard.text.chat import ChatTemplate
from serve.live import boxed, serve

COLOURS = ("red", "green", "blue", "black", "white", "brown")
DIALOGUES = [f"say {a}\nfine: {a}\nnow {b}\nalso {b}" for a in COLOURS for b in COLOURS]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = {"d_model": 48, "heads": 2, "d_ff": 96, "decoder_layers": 2, "positions": "rotary"}
    return regard.train(
        "generate", DIALOGUES, out=tmp_path_factory.mktemp("dialogues") / "run", steps=100,
        warmup=20, learning_rate=4e-3, batch_tokens=600, dropout=0.0, quiet=True, device="cpu",
        settings={
            "data": {"dialogue": True, "vocabulary": "character", "max_length": 64},
            "model": sizes,
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def client(model):
    models = {"dialogue": model, "generate": boxed("generate")}
    with (
        serve(models=models) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def chat(client):
    def call(*turns, model="dialogue", first="user", **options):
        roles = ["user", "assistant"] * len(turns) if first == "user" else ["system", "user"]
        messages = [
            {"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)
        ]
        return client.chat.completions.create(model=model, messages=messages, **options)

    return call


def test_option_is_recorded(model):
    config = Config.load(model.folder / "config.yaml")
    assert config.data.dialogue
    assert "dialogue" in repr(config.data)
    assert not boxed("generate").config.data.dialogue  # its config.yaml does not have the option


def test_reply_is_one_turn(chat):
    response = chat("say blue", temperature=0)
    [choice] = response.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "fine: blue")
    assert (choice.finish_reason, choice.message.refusal, choice.logprobs) == ("stop", None, None)
    assert (response.object, response.model) == ("chat.completion", "dialogue")
    usage = response.usage  # with the line breaks
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, 11, 20)


def test_reply_depends_on_all_turns(chat):
    response = chat("say red", "fine: red", "now white", temperature=0)
    assert response.choices[0].message.content == "also white"


@pytest.mark.parametrize(
    "content", ["say\nblue", " say \r\n blue\n", [{"type": "text", "text": "say"}, {"type": "text", "text": "blue"}]]
)  # fmt: skip
def test_message_is_one_line(chat, content):
    response = chat(content, temperature=0)
    assert response.choices[0].message.content == "fine: blue"
    assert response.usage.prompt_tokens == len("say blue\n")


def test_system_message_is_a_line(chat):
    response = chat("say black", "fine: black", first="system", temperature=0)
    assert response.usage.prompt_tokens == len("say black\nfine: black\n")
    assert response.choices[0].message.content.startswith("now ")
    empty = chat("", "say green", first="system", temperature=0)  # an empty message is no turn
    assert empty.choices[0].message.content == "fine: green"


def test_stream(chat):
    options = {"temperature": 1.2, "seed": 5, "n": 2}
    whole = chat("say blue", **options)
    chunks = list(chat("say blue", stream=True, stream_options={"include_usage": True}, **options))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1].usage == whole.usage
    for i in range(2):
        deltas = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == i]
        assert (deltas[0].delta.role, deltas[0].delta.content) == ("assistant", "")
        assert deltas[-1].finish_reason == whole.choices[i].finish_reason
        assert deltas[-1].delta.content is None
        assert {each.finish_reason for each in deltas[:-1]} == {None}
        assert {each.delta.role for each in deltas[1:]} == {None}
        text = "".join(each.delta.content for each in deltas[:-1])
        assert text == whole.choices[i].message.content
        assert len(deltas) > 5


def test_length_and_stop(chat):
    short = chat("say blue", temperature=0, max_completion_tokens=4).choices[0]
    assert (short.message.content, short.finish_reason) == ("fine", "length")
    assert chat("say blue", temperature=0, max_tokens=4).choices[0] == short
    assert chat("say blue", temperature=0, stop=": ").choices[0].message.content == "fine"


def test_logprobs(chat):
    choice = chat("say blue", temperature=0, logprobs=True, top_logprobs=2).choices[0]
    content = choice.logprobs.content
    assert "".join(each.token for each in content) == "fine: blue"
    assert [each.bytes for each in content] == [[ord(character)] for character in "fine: blue"]
    for each in content:
        assert [each.top_logprobs[0].token, each.top_logprobs[0].logprob] == [
            each.token, each.logprob,
        ]  # fmt: skip
        assert each.top_logprobs[1].logprob < each.logprob <= 0
    assert chat("say blue", logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    chunks = chat("say blue", temperature=0, logprobs=True, top_logprobs=2, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    tokens = [each.token for part in parts if part for each in part.content]
    assert tokens == [each.token for each in content]


def test_model_without_dialogues(chat):
    with pytest.raises(openai.BadRequestError, match="was not trained on conversations") as error:
        chat("say blue", model="generate")
    assert error.value.param == "model"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"), ({"max_tokens": 1001}, "max_tokens"),
        ({"max_completion_tokens": 1001}, "max_completion_tokens"),
        ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x" * 20_001}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\n" * 20_001}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * 4_097}, "messages"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
    ],
)  # fmt: skip
def test_invalid_requests_name_the_field(client, options, field):
    messages = [{"role": "user", "content": "say blue"}]
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(**{"model": "dialogue", "messages": messages, **options})
    assert error.value.status_code in (400, 413)
    assert error.value.param == field


def test_end_of_a_long_message_is_read(chat, model):
    long, whole = "say red, or " * 9 + "say blue", chat("say blue", temperature=0)
    response = chat(long, temperature=0)
    assert whole.usage.prompt_tokens < response.usage.prompt_tokens < model.longest
    assert response.choices[0].finish_reason in ("stop", "length")


def test_templates_are_not_rendered_in_the_event_loop(chat, monkeypatch):
    loops = []

    def render(*arguments):
        with suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())
        return chat_prompt(*arguments)

    monkeypatch.setattr("regard.serve.openai_chat.chat_prompt", render)
    assert chat("say blue", temperature=0).choices[0].message.content == "fine: blue"
    assert loops == []


def test_model_with_a_chat_template(model):
    """A model with a template and two tokens that end a turn: both end the reply."""
    tokenizer = model.tokenizer
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.content + '<sep>' }}{% endfor %}"
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    task = replace(model.task, template=ChatTemplate(source), dialogue=False)
    chatty = regard.Model(model.config, model.transformer, task)
    assert chatty.chat_template.turn_ends(tokenizer).ids == (tokenizer.sep, tokenizer.eos)
    with (
        serve(models={"chat": chatty}) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        create = client.chat.completions.create
        messages = [{"role": "user", "content": "say <sep> blue"}]
        options = {"model": "chat", "messages": messages, "temperature": 0, "max_tokens": 8}
        whole = create(**options)
        assert whole.usage.prompt_tokens == len("say <sep> blue")  # without special tokens
        assert whole.choices[0].message.content == chatty.chat(
            messages, temperature=0, max_length=8
        )
        parts = [chunk.choices[0].delta.content or "" for chunk in create(**options, stream=True)]
        assert "".join(parts) == whole.choices[0].message.content
        for wrong, message in (
            (
                [{"role": "system", "content": "x"}, *messages],
                "refuses the conversation: no system",
            ),
            ([{"role": "user", "content": "x" * 99}], "the last message has 101 tokens"),
        ):
            with pytest.raises(openai.BadRequestError, match=message) as error:
                create(**{**options, "messages": wrong})
            assert error.value.param == "messages"
