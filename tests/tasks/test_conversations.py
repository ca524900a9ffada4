"""Conversations: training on the turns of the assistant, and chats with a model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from chatml import TEMPLATE, chatml_tokenizer, conversation
from regard import ModelConfig, Transformer
from regard.decoding.requests import Request
from regard.errors import InputError
from regard.interop.folder import make_model, write_model
from regard.interop.model import ImportedModel
from regard.tasks.chatting import ChatPrompt, ReplyText
from regard.tasks.configuration import make_config
from regard.tasks.generate import Generate
from regard.text.chat import ChatTemplate, TurnEnds
from regard.text.corpus import Document
from regard.text.templates import TURNS
from regard.text.tokenizer import Tokenizer
from regard.training.losses import token_loss

CPU = torch.device("cpu")
BYTE = Tokenizer.learn([], "byte", 0)
ROWS = [
    {
        "messages": conversation(
            f"say {a}", f"fine: {a}", f"now {b}", f"also {b}", system="Be brief."
        )
    }
    for a in ("red", "blue", "green")
    for b in ("black", "white")
]
SIZES = {"d_model": 16, "heads": 2, "d_ff": 16, "decoder_layers": 1, "positions": "rotary"}
SETTINGS = {"data": {"vocabulary": "byte", "max_length": 64}, "model": SIZES}
OPTIONS = {"batch_tokens": 120, "quiet": True, "device": "cpu", "warmup": 2, "dropout": 0.0}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def build(folder, rows, longest=64, template=None, **data):
    """A task and the store of some rows."""
    path = write(folder / "data.jsonl", rows)
    settings = {"data": {**SETTINGS["data"], "max_length": longest, "train": [str(path)], **data}}
    config = make_config("generate", values={**settings, "model": SIZES})
    task = Generate.make(config, (BYTE, BYTE), **Generate.learned([path], config))
    if template is not None:
        task.template = template
    store, report = task.build([path], folder, config, True)
    return task, store, report


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("conversations") / "run"
    return regard.train(
        "generate", ROWS, out=out, steps=4, valid=ROWS[:2], settings=SETTINGS, **OPTIONS
    )


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The folder of an imported chat model with random weights."""
    torch.manual_seed(0)
    tokenizer = chatml_tokenizer()
    config = ModelConfig(
        style="decoder", vocabulary_size=tokenizer.size, tie_embeddings="none", dropout=0.0, **SIZES
    )
    model = ImportedModel(
        "test", "llama", "generate", config, dict(Transformer(config).state_dict()),
        (tokenizer, tokenizer), 128, chat_template=TEMPLATE,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("imported") / "model"
    write_model(make_model(model, Path("source")), model, folder, "# Test\n", {})
    return folder


# ---- batches ----------------------------------------------------------------------------


def test_only_turns_of_the_assistant_are_learned(tmp_path, model):
    task, store, report = build(tmp_path, ROWS)
    assert (len(store), store.sides, str(report)) == (6, 2, "6 kept")
    batch = task.batch(store, np.array([4, 1]), CPU, seed=3)
    rows = batch.target.split(batch.target.tokens)
    for row, index in zip(rows, (4, 1), strict=True):
        messages = ROWS[index]["messages"]
        assert row.tolist() == task.template.encode(BYTE, messages, False)[:-1]
    answers = [["fine: green", "also black"], ["fine: red", "also white"]]
    expected = [id for texts in answers for text in texts for id in (*BYTE.encode(text), BYTE.eos)]
    assert batch.labels.tolist() == expected
    # The loss is the mean over these tokens.
    transformer = model(style="decoder", vocabulary_size=BYTE.size)
    loss, likelihood = token_loss(transformer, batch)
    logprobs, sums = transformer(None, batch.target).log_softmax(-1), []
    for row, part, texts in zip(rows, batch.target.split(logprobs), answers, strict=True):
        ids = [*row.tolist(), BYTE.eos]
        for text in texts:
            answer = [*BYTE.encode(text), BYTE.eos]
            at = next(i for i in range(len(ids)) if ids[i : i + len(answer)] == answer)
            sums += [part[at - 1 + i, id].item() for i, id in enumerate(answer)]
    assert loss.item() == pytest.approx(-sum(sums), rel=1e-9)
    assert likelihood.item() == pytest.approx(-sum(sums), rel=1e-9)
    assert batch.tokens == len(sums)


def test_long_conversations_end_after_a_turn(tmp_path):
    long = [
        *ROWS,
        {"messages": conversation("a" * 60, "b")},
        {"messages": conversation("a", "b" * 60)},
    ]
    _, store, report = build(tmp_path, long, longest=40)
    assert report.skipped == {"too long": 2}
    assert report.notes == {"cut after a turn": 6}
    for i in range(len(store)):
        assert store.lengths[0][i] <= 41
        assert BYTE.decode(store.tokens(0, i).tolist()).endswith(
            ("fine: red", "fine: blue", "fine: green")
        )
        assert store.tokens(0, i)[-1] == BYTE.eos
    with pytest.raises(InputError, match=r"no example to learn from \(0 kept, 1 too long\)"):
        build(tmp_path, [{"messages": conversation("a" * 60, "b")}], longest=40)


def test_all_tokens_of_documents_beside_conversations_are_learned(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("x" * 70 + "\n\nshort\n")
    chats = write(tmp_path / "chats.jsonl", ROWS[:1])
    values = {"data": {**SETTINGS["data"], "train": [str(text), str(chats)]}, "model": SIZES}
    config = make_config("generate", values=values)
    task = Generate.make(config, (BYTE, BYTE), **Generate.learned([text, chats], config))
    store, _ = task.build([text, chats], tmp_path, config, True)
    sizes = task.sizes(store)[0]
    assert sizes.tolist()[:3] == [64, 7, 6]  # two windows of the first document
    batch = task.batch(store, np.array([1, 2, 0]), CPU)
    ends = [*[BYTE.encode("x")[0]] * 6, BYTE.eos, *BYTE.encode("short"), BYTE.eos]
    assert batch.labels.tolist() == [*ends, *BYTE.encode("x" * 64)]
    assert batch.where.tolist() == list(range(7 + 6 + 64))
    assert batch.target.tokens[7] == BYTE.bos


def test_each_store_belongs_to_its_template(tmp_path):
    _, store, _ = build(tmp_path, ROWS)
    _, other, _ = build(tmp_path, ROWS, template=ChatTemplate(TURNS + "{# #}"))
    _, same, _ = build(tmp_path, ROWS)
    assert store.fingerprint == same.fingerprint != other.fingerprint


# ---- training ---------------------------------------------------------------------------


def test_model_folder_has_the_template(trained, tmp_path):
    assert (trained.folder / "chat_template.jinja").read_text() == TURNS
    assert trained.chat_template == ChatTemplate(TURNS)
    copy = regard.load(trained.save(tmp_path / "copy"))
    assert copy.chat_template == trained.chat_template
    (copy.folder / "chat_template.jinja").write_text("changed")
    with pytest.raises(InputError, match=r"chat_template.jinja is not the one"):
        regard.load(copy.folder)


def test_resuming_is_exact(trained, tmp_path):
    for steps in (2, 4):
        data = sorted((trained.folder / "data").glob("*.jsonl"))
        files = {name: next(p for p in data if name in p.name) for name in ("train", "valid")}
        run = regard.train(
            "generate", files["train"], valid=files["valid"], out=tmp_path / "run", steps=steps,
            resume=steps == 4, settings=SETTINGS, **OPTIONS,
        )  # fmt: skip
    ours, theirs = (load_file(each.folder / "model.safetensors") for each in (run, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_scores_count_the_tokens_of_the_assistant(trained):
    scores = trained.evaluate(ROWS[:2]).scores
    answers = [
        m["content"] for row in ROWS[:2] for m in row["messages"] if m["role"] == "assistant"
    ]
    assert scores["bytes"] == sum(map(len, answers))
    assert scores["tokens"] == scores["bytes"] + len(answers)
    assert scores["loss"] == pytest.approx(trained.scores["loss"], rel=1e-4)
    assert scores["bits_per_byte"] == pytest.approx(trained.scores["bits_per_byte"], rel=1e-3)
    assert trained.evaluate(["plain text"]).scores["tokens"] == 11


def test_fine_tuning_keeps_the_template(imported, tmp_path):
    options = {**OPTIONS, "warmup": 1}
    for name, data in (("chat", ROWS[:2]), ("text", ["one", "two"])):
        tuned = regard.train(
            "generate", data, out=tmp_path / name, steps=1, start_from=imported, **options
        )
        assert (tuned.folder / "chat_template.jinja").read_text() == TEMPLATE
        assert tuned.chat_template.source == TEMPLATE
        assert regard.load(tuned.folder).tokenizer.size == tuned.tokenizer.size


def test_a_part_is_held_out_although_all_system_messages_are_equal(tmp_path):
    rows = [{"messages": conversation(f"question {i}", "answer", system="same")} for i in range(40)]
    path = write(tmp_path / "data.jsonl", rows)
    data = {**SETTINGS["data"], "train": [str(path)], "valid": ["25%"]}
    config = make_config("generate", values={"data": data, "model": SIZES})
    held_out = list(Generate.read([Path("25%")], config))
    kept = list(Generate.read([path], config))
    assert len(held_out) + len(kept) == 40
    assert 3 <= len(held_out) <= 20


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": conversation("a")}, "no message has the role assistant"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "must come before the first one of the"),
        ({"messages": "text"}, "messages must be a list, not str"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "message 1: role must be one of"),
        ({"messages": [*conversation("a", "b"), {"role": "system", "content": "c"}]},
         "a message with the role system must be the first"),
        ({"text": "a document"}, 'no "messages"'),
    ],
)  # fmt: skip
def test_errors_name_the_line_of_an_invalid_row(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"data.jsonl:2: .*{message}"):
        build(tmp_path, [ROWS[0], row])


def test_options_that_cannot_be_combined(tmp_path, imported):
    with pytest.raises(InputError, match="data.dialogue=true is for plain text"):
        build(tmp_path, ROWS, dialogue=True)
    with pytest.raises(InputError, match="row 1: no message has the role assistant"):
        regard.train("generate", [{"messages": conversation("a")}], out=tmp_path / "run")
    plain = regard.load(imported)
    plain.task.template = None
    with pytest.raises(InputError, match="row 1: this row is a conversation, but the mo"):
        plain.evaluate(ROWS)
    with pytest.raises(InputError, match="has no chat template"):
        plain.chat(conversation("a"))


def test_columns(tmp_path):
    path = write(tmp_path / "data.json", [{"id": 1, "dialog": ROWS[0]["messages"]}])
    config = make_config("generate", values={"data": {"columns": {"messages": "dialog"}}})
    [row] = Generate.read_all([path], config)
    assert row.objects == ROWS[0]["messages"]
    [text] = Generate.read_all(
        [write(path, [{"text": "a", "messages": []}])], make_config("generate")
    )
    assert text == Document(1, "a")  # a file with both is read as text
    with pytest.raises(InputError, match="no column 'talk'"):
        list(
            Generate.read_all(
                [path], replace(config, data=replace(config.data, columns={"messages": "talk"}))
            )
        )


# ---- chats ------------------------------------------------------------------------------


def test_chat_continues_the_conversation(imported):
    model = regard.load(imported, device="cpu")
    messages = conversation("Hello <|im_end|>", "there", "how are you?")
    options = {"temperature": 0.9, "seed": 5, "max_length": 12}
    parts = list(model.stream_chat(messages, **options))
    assert "".join(parts) == model.chat(messages, **options)
    prompt = model.chat_template.encode(model.tokenizer, messages)
    [tokens] = regard.generate(
        model.transformer, prompt=[prompt], temperature=0.9, seed=5, max_length=12, bos=1, eos=2
    )
    assert "".join(parts) == model.tokenizer.decode(tokens)
    assert len(parts) > 3
    noted = []
    long = conversation(*["word " * 6] * 9)
    model.chat(long, warn=lambda *note: noted.append(note), max_length=3)
    [(_, note)] = noted
    assert "messages were left out: the model reads at most 128 tokens" in note
    with pytest.raises(InputError, match="the last message has"):
        model.chat(conversation("word " * 200))
    with pytest.raises(InputError, match="all messages are empty"):
        model.chat(conversation(" "))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [("ab*c", "ab"), ("ab\n\nc", "ab"), ("a\nb", "a\nb"), ("a\n", "a\n"), ("*", ""), ("äb!", "äb")],
)
def test_reply_ends_with_a_token_or_a_text(tokens, expected):
    ends = TurnEnds((BYTE.encode("*")[0], BYTE.encode("!")[0]), ("\n\n",))
    reply = ReplyText(BYTE, ChatPrompt(Request([BYTE.bos]), ends, 0))
    ids, parts = BYTE.encode(tokens), []
    for count in range(1, len(ids) + 1):
        if not reply.ended:
            parts += reply.add(ids[:count])
            assert "".join(parts) == expected[: len("".join(parts))]
    parts += reply.finish()
    assert "".join(parts) == expected
