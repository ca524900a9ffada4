"""Services are compared only if every answer is right, and a refusal must be a proper one."""

import argparse
import asyncio
import json
import threading

import pytest
import torch

from benchmarks import copying, overload, serve
from benchmarks.limits import Limit
from benchmarks.load import Answer, Load, closed_loop, in_order, message, open_loop, watch_health
from benchmarks.overload import Outcome, wrong_refusal
from benchmarks.ratios import RatioLog
from benchmarks.serve import Result, check, show_goals, show_overhead
from regard import load
from regard.decoding.requests import Request
from regard.decoding.search import decode

EXPECTED = ["Ja.", "Nein."]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copying") / "model"
    copying.save("tiny", 500, 4, folder)
    return load(folder, "cpu", "float32")


@pytest.fixture(scope="module")
def port():
    """An HTTP service that answers every third request with 429, and /health."""
    loop, count, ports = asyncio.new_event_loop(), [0], []

    async def respond(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(size or 0))
            status, body = "200 OK", b'{"translatedText": "Ja."}'
            if b"/health" not in head:
                count[0] += 1
                if count[0] % 3 == 0:
                    status, body = "429 Too Many Requests\r\nRetry-After: 2", b'{"error": "busy"}'
            start = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(start.encode() + body[:5])
            await writer.drain()
            writer.write(body[5:])

    async def start():
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield ports[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def answer(status=200, text="Ja.", index=0, seconds=1.0, **headers):
    body = {"translatedText": text} if status == 200 else {"error": text}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(index, 0.0, seconds, status, named, json.dumps(body).encode())


# ---- the model that copies ------------------------------------------------------------------


def test_every_translation_is_its_source_and_ends_by_itself(model):
    texts = copying.sentences(model.tokenizer, 40)
    for beam in (1, 4):
        predictions = model.predict(texts, beam=beam, history=True)
        assert [prediction.text for prediction in predictions] == texts
        lengths = [len(model.tokenizer.encode(text)) + 1 for text in texts]
        steps = [len(prediction.history) for prediction in predictions]
        # the other hypotheses of a beam may take one more step
        assert all(0 <= more <= 1 for more in map(int.__sub__, steps, lengths))
    assert max(lengths) > 2 * min(lengths)


def test_the_converted_model_copies_too(model):
    pytest.importorskip("transformers")
    tokens = [*model.tokenizer.encode(copying.sentences(model.tokenizer, 1)[0]), 2]
    with torch.no_grad():
        logits = copying.marian(model.transformer)(
            torch.tensor([tokens]), decoder_input_ids=torch.tensor([[1, *tokens[:-1]]])
        ).logits
    assert logits[0].argmax(-1).tolist() == tokens
    [own] = decode(model.transformer, [Request(source=tokens)], model.config.decoding)
    assert own.token_ids == tokens


# ---- the load generator ---------------------------------------------------------------------


def test_clients_wait_for_their_answers_and_share_the_requests(port):
    contents = [message("/translate", b"{}"), message("/translate", b'{"q": ""}')]
    load = closed_loop(port, contents, clients=3, seconds=0.3, warm_up=0.05)
    assert {each.index for each in load.answers} == {0, 1}
    assert {each.status for each in load.answers} == {200, 429}
    assert 0 < len(load.measured) < len(load.answers)
    assert load.rate == pytest.approx(len(load.measured) / 0.3, rel=0.5)
    assert all(json.loads(each.body) for each in load.answers)


def test_requests_of_an_open_loop_do_not_wait(port):
    content = [message("/translate", b"{}")]
    load = open_loop(port, content, rate=200, seconds=0.5, connections=20)
    assert 80 <= len(load.answers) + load.unsent <= 100
    refused = [each for each in load.answers if each.status == 429]
    assert len(refused) == pytest.approx(len(load.answers) / 3, abs=2)
    assert {each.headers["retry-after"] for each in refused} == {"2"}


def test_health_is_requested_ten_times_a_second(port):
    health = watch_health(port, seconds=0.5)
    assert [each.status for each in health] == [200] * len(health)
    assert 2 <= len(health) <= 5


def test_a_closed_connection_is_an_answer_without_a_status():
    async def work():
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        return await asyncio.to_thread(in_order, port, [message("/translate", b"{}")])

    [closed] = asyncio.run(work())
    assert closed.status == 0
    assert wrong_refusal(closed) == "a connection that was closed without an answer"


# ---- the comparison -------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [answer(text="Nein."), answer(429), answer(index=1)])
def test_a_program_with_a_different_answer_ends_the_benchmark(wrong):
    check("regard", [answer()], EXPECTED)
    with pytest.raises(SystemExit, match="peer returned a different answer"):
        check("peer", [answer(), wrong], EXPECTED)


def test_goals_compare_with_the_better_number_of_workers(capsys):
    def result(rate, p99):
        return Result([rate], [p99])

    results = {
        serve.OURS: result(30.0, 1.0),
        serve.ASYNCHRONOUS: result(10.0, 0.5),
        f"{serve.ASYNCHRONOUS}, two workers": result(15.0, 2.0),
    }
    show_goals(results)
    out = capsys.readouterr().out
    assert "2.00x CTranslate2 int8, asynchronous, two workers, goal 1.5x: reached" in out
    assert "1000 ms and 2000 ms, goal no more: reached" in out
    show_goals(results | {serve.OURS: result(20.0, 3.0)})
    assert capsys.readouterr().out.count("NOT REACHED") == 2


def test_the_overhead_is_the_median_of_the_differences(capsys, tmp_path):
    options = argparse.Namespace(keep=False, ratios=tmp_path / "ratios.json")
    log = RatioLog("serve", [], options, "cpu")
    show_overhead("work", [(0.012, 0.010), (0.052, 0.051), (0.030, 0.020)], False, log)
    assert "2.00 ms more, goal at most 3 ms: reached" in capsys.readouterr().out
    assert [(row.value, row.peer_value) for row in log.rows] == [(30.0, 20.0)]
    show_overhead("work", [(0.014, 0.010)], True, log)
    assert "4.00 ms more, goal at most 3 ms: NOT REACHED" in capsys.readouterr().out
    assert len(log.rows) == 1  # a noisy measurement is not stored


def test_the_service_is_measured_in_a_process_of_its_own(monkeypatch, capsys, tmp_path):
    limit = Limit(1, 1, 1.0, 1e9)
    monkeypatch.setattr(Limit, "measure", classmethod(lambda *arguments: limit))
    code = serve.main([
        "--presets", "tiny", "--vocabulary", "500", "--beams", "4", "--clients", "1", "3",
        "--seconds", "0.5", "--warm-up", "0.1", "--repeats", "1", "--peers",
        "--ratios", str(tmp_path / "ratios.json"),
    ])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "tiny, 3 clients, beam 4" in out
    assert "Model.translate" in out


# ---- overload -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "problem"),
    [
        (answer(429, "busy", retry_after="3"), None),
        (answer(503, "busy", retry_after="3"), None),
        (answer(429, "busy"), "status 429 with Retry-After ''"),
        (answer(429, "busy", retry_after="0"), "status 429 with Retry-After '0'"),
        (answer(429, "busy", retry_after="500"), "Retry-After is above 60 s"),
        (answer(500, "failed", retry_after="3"), "status 500"),
        (answer(503, "it was stopped after 60 s", retry_after="3"), "an accepted request that was"),
        (Answer(0, 0.0, 1.0, 429, {"retry-after": "3"}, b"busy"), "without an error in JSON"),
    ],
)
def test_refusals_that_are_not_proper(refusal, problem):
    reason = wrong_refusal(refusal)
    assert reason is None if problem is None else problem in str(reason)


def test_answers_of_an_overload_are_compared_with_those_of_texts_alone(capsys):
    answers = [answer(), answer(429, "busy", retry_after="3"), answer(index=1)]
    outcome = Outcome.of(Load(answers, 0.0, 1.0, 0.0), EXPECTED)
    assert (len(outcome.accepted), len(outcome.refused), len(outcome.wrong)) == (1, 1, 1)
    assert not overload.show_answers(Load(answers, 0.0, 1.0, 0.0), outcome, [100, 100], 100.0)
    assert "1 times: a translation that differs" in capsys.readouterr().out
    outcome.wrong.clear()
    assert overload.show_answers(Load(answers, 0.0, 1.0, 0.0), outcome, [100, 100], 100.0)


def test_memory_that_grows_after_the_first_fifth_fails():
    assert overload.show_memory([100, 200, 200, 200, 200, 200, 200, 200, 200, 205])
    assert not overload.show_memory([100, 200, 200, 200, 200, 200, 200, 200, 200, 230])
