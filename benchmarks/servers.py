"""HTTP services for the service benchmarks: regard and its peers, each in a process of its own.

All of them answer POST /translate {"q", "source", "target"} with {"translatedText"}, run in uvicorn
and use the same tokenizer. The handlers of the peers are as short as possible.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.programs import begin, ctranslate2_model, share
from regard.config.sections import DecodingConfig
from regard.text.tokenizer import Tokenizer

Translate = Callable[[str], Awaitable[str]]
Ready = Callable[[int], None]  # called with the port when the service listens
Program = Callable[..., None]  # runs a service, in its process; the first argument is a Ready
THREADS = len(os.sched_getaffinity(0))  # Linux
PENALTY = DecodingConfig.length_penalty


class TranslateRequest(msgspec.Struct):
    """The fields of LibreTranslate that the benchmark sends."""

    q: str
    source: str
    target: str


class BareRequest(msgspec.Struct):
    """Texts to translate without the service."""

    texts: list[str]


@dataclass(frozen=True)
class Server:
    """The process of a service."""

    port: int
    pid: int

    def processor_seconds(self) -> float:
        """The processor time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """The resident memory of the process in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096


@contextmanager
def running(program: Program, *arguments: Any) -> Iterator[Server]:
    """Run a service in a new process until the end of the block."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=program, args=(there.send, *arguments), daemon=True)
    process.start()
    there.close()
    try:
        port = here.recv()
    except EOFError:
        raise SystemExit("the process of a service ended; its messages are above") from None
    assert process.pid is not None
    try:
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.join()


def host(translate: Translate, ready: Ready) -> None:
    """Run a service with one endpoint."""
    import uvicorn

    async def respond(http: Request) -> Response:
        request = msgspec.json.decode(await http.body(), type=TranslateRequest)
        body = {"translatedText": await translate(request.q)}
        return Response(msgspec.json.encode(body), media_type="application/json")

    app = Starlette(routes=[Route("/translate", respond, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        ready(listening.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(config).run([listening])


def regard_service(ready: Ready, model: str, dtype: str) -> None:
    """The service of regard, with POST /bare, which measures the model without it."""
    from regard.serve import app, server
    from regard.serve.api import API
    from regard.serve.endpoint import Call, Endpoint
    from regard.serve.settings import ModelName, Settings

    [listening] = server.listen("127.0.0.1", 0)
    service = server.Service(
        Settings(access_log=False), [ModelName("en-de", model)], "cpu", dtype,
        report=lambda message: ready(listening.getsockname()[1]),  # called when the model is loaded
    )  # fmt: skip

    async def bare(call: Call, request: BareRequest) -> list[float]:
        served = call.pool.models["en-de"]
        translate = served.model.translate
        return await served.call(lambda: [timed(translate, text) for text in request.texts], 1)

    app.ENDPOINTS.append(Endpoint(API, "POST", "/bare", bare, "", BareRequest))
    service.run([listening])


def timed(function: Callable[[Any], Any], argument: Any) -> float:
    """The seconds of one call."""
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Peer:
    """CTranslate2 in int8 with a tokenizer."""

    translator: Any
    tokenizer: Tokenizer
    words: list[str]  # the name of each token in CTranslate2
    beam: int

    @classmethod
    def load(cls, folder: str, converted: str, beam: int, workers: int) -> Peer:
        tokenizer = Tokenizer.load(Path(folder) / "tokenizer.json")
        translator = ctranslate2_model("Translator", converted, "int8", THREADS, workers)
        return cls(translator, tokenizer, [str(i) for i in range(tokenizer.size)], beam)

    def encode(self, text: str) -> list[str]:
        ids = [*self.tokenizer.encode(text), Tokenizer.eos]
        return [self.words[i] for i in ids]

    def decode(self, words: list[str]) -> str:
        return self.tokenizer.decode([int(word) for word in words])

    def start(self, sources: list[list[str]], **options: Any) -> Any:
        return self.translator.translate_batch(
            sources, beam_size=self.beam, length_penalty=PENALTY, **options
        )


def per_request(ready: Ready, folder: str, converted: str, beam: int) -> None:
    """One call of CTranslate2 for each request."""
    peer = Peer.load(folder, converted, beam, workers=1)

    async def translate(text: str) -> str:
        [result] = await asyncio.to_thread(peer.start, [peer.encode(text)])
        return peer.decode(result.hypotheses[0])

    host(translate, ready)


def asynchronous(ready: Ready, folder: str, converted: str, beam: int, workers: int) -> None:
    """The asynchronous calls of CTranslate2, with its own queue."""
    peer = Peer.load(folder, converted, beam, workers)

    async def translate(text: str) -> str:
        [waiting] = peer.start([peer.encode(text)], asynchronous=True)
        result = await asyncio.to_thread(waiting.result)
        return peer.decode(result.hypotheses[0])

    host(translate, ready)


def merged(ready: Ready, folder: str, converted: str, beam: int, workers: int) -> None:
    """A thread that translates all requests that are waiting in one call of CTranslate2."""
    peer = Peer.load(folder, converted, beam, workers)
    waiting: list[tuple[list[str], asyncio.Future[list[str]]]] = []
    arrived = threading.Condition()

    def work() -> None:
        while True:
            with arrived:
                while not waiting:
                    arrived.wait()
                batch = waiting[:]
                waiting.clear()
            results = peer.start(
                [source for source, _ in batch], max_batch_size=share(len(batch), workers)
            )
            for (_, future), result in zip(batch, results, strict=True):
                future.get_loop().call_soon_threadsafe(future.set_result, result.hypotheses[0])

    async def translate(text: str) -> str:
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        source = peer.encode(text)
        with arrived:
            waiting.append((source, future))
            arrived.notify()
        return peer.decode(await future)

    threading.Thread(target=work, daemon=True).start()
    host(translate, ready)


def hugging_face(ready: Ready, folder: str, converted: str, beam: int) -> None:
    """One call of `generate` for each request, in float32."""
    from concurrent.futures import ThreadPoolExecutor

    import torch
    from transformers import GenerationConfig

    from benchmarks.copying import marian
    from regard import load

    begin(THREADS)
    own = load(folder, "cpu", "float32")
    tokenizer, model = own.tokenizer, marian(own.transformer)
    search = {"length_penalty": PENALTY, "early_stopping": False} if beam > 1 else {}
    options = GenerationConfig(
        num_beams=beam, do_sample=False, use_cache=True, max_new_tokens=128, pad_token_id=0,
        eos_token_id=Tokenizer.eos, decoder_start_token_id=Tokenizer.bos, **search,
    )  # fmt: skip
    thread = ThreadPoolExecutor(1)

    @torch.inference_mode()
    def generate(text: str) -> str:
        source = torch.tensor([[*tokenizer.encode(text), Tokenizer.eos]])
        mask = torch.ones_like(source)
        output = model.generate(source, attention_mask=mask, generation_config=options)
        return tokenizer.decode(output[0, 1:].tolist())

    async def translate(text: str) -> str:
        return await asyncio.get_running_loop().run_in_executor(thread, generate, text)

    host(translate, ready)
