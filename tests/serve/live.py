"""A service on 127.0.0.1 for tests: uvicorn in a thread, with the models in the box."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from functools import cache

from regard import load
from regard.serve.app import create_app
from regard.serve.models import ModelPool
from regard.serve.scheduler import Scheduler
from regard.serve.server import Server
from regard.serve.settings import Settings


@cache
def boxed(task):
    """A model in the box, loaded once."""
    return load(f"box:{task}", device="cpu")


BOX = ("translate", "generate", "classify", "fill", "embed")


@contextmanager
def serve(settings=None, models=BOX, **options):
    """Run a service; yields its address. `models` are names in the box, or a dict of models."""
    settings = settings or Settings()
    scheduler = Scheduler(settings.limits.queue_tokens)
    pool = ModelPool(scheduler, settings.limits)
    for name in models:
        pool.add(name, models[name] if isinstance(models, dict) else boxed(name))
    pool.ready = True
    scheduler.start()
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:  # asyncio then sets TCP_NODELAY
        listening.bind(("127.0.0.1", 0))
        server = Server(create_app(pool, settings, **options))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            scheduler.stop()
