"""A service with several processes and without models, for tests: `python -m serve.small_service
MODE COUNT`. It prints its port; every connection gets the index and the PID of a worker."""

import asyncio
import os
import signal
import socket
import sys
import time
from functools import partial

from regard.errors import InputError
from regard.serve.processes import Worker, run_processes
from regard.serve.shared import SharedNumbers

DRAIN = 1.0


async def answer(worker, reader, writer):
    worker.shared.row(worker.index)[0] += 1
    writer.write(f"{worker.index} {os.getpid()}\n".encode())
    await writer.drain()
    writer.close()


async def accept(worker):
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(partial(answer, worker), sock=worker.fair_sockets()[0])
    worker.report_ready()
    await ended.wait()
    server.close()


def serve(mode, worker: Worker) -> int:
    if mode == "fails":
        return 3
    if mode == "bad input":
        raise InputError("there is no such model")
    if mode == "fails later" and worker.index:
        return 3
    if mode == "never ends":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker.sockets[0].close()
        worker.report_ready()
        time.sleep(60)
    asyncio.run(accept(worker))
    return 0


def count_up(numbers, times):
    for _ in range(times):
        with numbers.lock():
            numbers.row(1)[2] += 1


def use_rates(rates, allowed):
    for _ in range(40):
        allowed.send(not rates.wait("a client"))
    allowed.close()


def main():
    mode, count = sys.argv[1], int(sys.argv[2])
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    numbers = SharedNumbers(count, 1)
    return run_processes(
        count, [listening], partial(serve, mode), numbers, drain=DRAIN,
        ended=lambda index: print("ended", index, int(numbers.row(index)[0]), flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
