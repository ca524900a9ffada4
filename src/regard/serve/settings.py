"""The settings of a service: its models, its address, its limits, and its access control."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import InputError
from regard.training.shipped import PREFIX, boxed, contents, is_boxed


@dataclass(frozen=True)
class ModelName:
    """A model as the command line names it: `[NAME=]MODEL`."""

    name: str  # in requests
    path: str  # a folder, or "box:translate"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parse `MODEL` or `NAME=MODEL`. The default name is the last part of the path."""
        name, equals, path = text.partition("=")
        if not equals:
            path = text
            name = text.removeprefix(PREFIX) if is_boxed(text) else Path(text).resolve().name
        if not name or not path:
            raise InputError(f"-m {text}: write MODEL or NAME=MODEL, for example en-de=runs/my-run")
        return cls(name, path)

    @classmethod
    def all_in_box(cls) -> list[ModelName]:
        """The models in the box. The translation model is first, as its tab is on the page."""
        tasks = sorted(contents(), key=lambda task: (task != "translate", task))
        return [cls(task, boxed(task)) for task in tasks]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, and all requests together, may use. `regard serve` has an option for each.

    A request beyond a limit gets an error; it is never shortened.
    """

    body_bytes: int = 2_000_000  # bytes of the body of a request
    characters: int = 20_000  # of all texts of a request
    items: int = 256  # texts of a request
    new_tokens: int = 1_000  # tokens that a model writes for one prompt
    documents: int = 2_000  # lines that a search reads
    seconds: float = 60.0  # of a request, including the time in the queue
    body_seconds: float = 10.0  # until the whole body of a request has arrived
    streams: int = 64  # responses that are streamed at the same time
    queue_tokens: int = 200_000  # tokens accepted and not yet decoded: inputs and largest outputs
    connections: int = 1_000  # open connections


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a service."""

    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    keys: Path | None = None  # file with the hashes of the API keys; None: no key is needed
    requests_per_minute: int = 0  # of one key, or of one address without a key; 0: no limit
    cors: tuple[str, ...] = ()  # origins whose pages may call the service
    proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For header is trusted
    drain: float = 30.0  # seconds after SIGTERM in which accepted requests may finish
    workers: int = 1  # processes
    access_log: bool = True  # write one line for each request to standard error
    json_log: bool = False  # write it as a JSON object
    certificate: Path | None = None  # file with a TLS certificate
    private_key: Path | None = None  # file with the private key of the certificate
