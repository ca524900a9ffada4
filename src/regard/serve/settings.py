"""The settings of a service: its address, its limits, and who may use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, and all requests together, may use. `regard serve` has an option for each.

    A request beyond a limit gets an error; it is never shortened.
    """

    body_bytes: int = 2_000_000  # of a request
    characters: int = 20_000  # of all texts of a request
    items: int = 256  # texts of a request
    new_tokens: int = 1_000  # tokens that a model writes for one prompt
    documents: int = 2_000  # lines that a search reads
    seconds: float = 60.0  # of a request, including the time in the queue
    body_seconds: float = 10.0  # until the whole body of a request has arrived
    streams: int = 64  # responses that are streamed at the same time
    queue_tokens: int = 200_000  # accepted and not yet decoded: inputs and largest outputs
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
    drain: float = 30.0  # seconds for accepted requests after SIGTERM
    workers: int = 1  # processes
    log_text: bool = False  # write the texts of requests to the log
    certificate: Path | None = None  # TLS certificate and key
    private_key: Path | None = None
