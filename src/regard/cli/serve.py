"""`regard serve`: an HTTP service for trained models, with a web page."""

from __future__ import annotations

import argparse
import re
import signal
from dataclasses import fields
from typing import Any

from regard.cli import options as shared
from regard.config.sections import DTYPES
from regard.console import warn
from regard.errors import InputError
from regard.serve.settings import Limits, ModelName, Settings

PACKAGES = ("msgspec", "py3langid", "starlette", "uvicorn")  # of the extra [serve]
LIMITS = {
    "body_bytes": "size of a request in bytes",
    "characters": "characters of all texts of a request",
    "items": "texts of a request",
    "new_tokens": "tokens that a model writes for one prompt",
    "documents": "lines that a search reads",
    "seconds": "seconds for a request, including the time in the queue",
    "body_seconds": "seconds until a request has arrived completely",
    "streams": "responses that are streamed at the same time",
    "queue_tokens": "tokens that are accepted and not yet decoded",
    "connections": "open connections",
}


def serve_options(verb: argparse.ArgumentParser) -> None:
    defaults = Settings()
    verb.add_argument(
        "-m", "--model", action="append", default=[], dest="models", metavar="[NAME=]MODEL",
        help="model folder or box:NAME; NAME= sets its name in requests; may be repeated (default: "
        "all models in the box)",
    )  # fmt: skip
    verb.add_argument(
        "--host", default=defaults.host, help=f"address to listen at (default: {defaults.host})"
    )
    verb.add_argument(
        "--port", type=shared.bounded(int, 0, 65_535), default=defaults.port, metavar="N",
        help=f"port to listen at; 0: any free port (default: {defaults.port})",
    )  # fmt: skip
    verb.add_argument(
        "--dtype", default="auto", choices=DTYPES,
        help="data type of the weights (default: auto, bfloat16 on CUDA, otherwise float32)",
    )  # fmt: skip
    verb.add_argument(
        "--device", default="auto", type=shared.device_name, metavar="DEVICE",
        help="auto, cpu, cuda, cuda:INDEX or mps (default: auto, a GPU if available)",
    )  # fmt: skip
    verb.add_argument("--quiet", action="store_true", help="do not log requests")
    verb.add_argument(
        "--drain", type=shared.SECONDS, default=defaults.drain, metavar="SECONDS",
        help=f"time for accepted requests after SIGTERM (default: {defaults.drain:g})",
    )  # fmt: skip
    verb.add_argument(
        "--workers", type=shared.bounded(int, 1, 256), default=defaults.workers, metavar="N",
        help="processes that share the port and the weights, on a CPU; each has its own queue and "
        f"limits (default: {defaults.workers})",
    )  # fmt: skip
    access = verb.add_argument_group("access")
    access.add_argument(
        "--keys", type=shared.file_path, metavar="FILE",
        help="file with the hashes of API keys; every request needs one (default: no keys)",
    )  # fmt: skip
    access.add_argument(
        "--new-key", metavar="NAME",
        help="create a key, add its hash to the file of --keys, and print it",
    )  # fmt: skip
    access.add_argument(
        "--requests-per-minute", type=shared.bounded(int, 0, 10**9), default=0, metavar="N",
        help="limit for each key, or for each address without a key; 0: no limit (default: 0)",
    )  # fmt: skip
    access.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN",
        help="origin whose pages may call the service, for example https://example.org; may be "
        "repeated (default: none)",
    )  # fmt: skip
    access.add_argument(
        "--proxy", action="append", default=[], dest="proxies", metavar="ADDRESS",
        help="address or network of a reverse proxy whose X-Forwarded-For is trusted; may be "
        "repeated (default: none)",
    )  # fmt: skip
    access.add_argument(
        "--certificate", type=shared.file_path, metavar="FILE",
        help="TLS certificate (default: no TLS)",
    )  # fmt: skip
    access.add_argument(
        "--private-key", type=shared.file_path, metavar="FILE",
        help="private key of the certificate (default: in the same file)",
    )  # fmt: skip
    limits = verb.add_argument_group("limits", "A request beyond a limit gets an error.")
    for field in fields(Limits):
        default = getattr(defaults.limits, field.name)
        number: Any = shared.SECONDS
        if isinstance(default, int):
            number = shared.bounded(int, 1, 10**9)
        limits.add_argument(
            f"--max-{field.name.replace('_', '-')}", type=number, default=default, metavar="N",
            dest=field.name, help=f"{LIMITS[field.name]} (default: {default:,.0f})",
        )  # fmt: skip


def serve(options: argparse.Namespace) -> int:
    """Serve models over HTTP, with a web page."""
    check_packages()
    if options.new_key is not None:
        return make_key(options)
    names = [ModelName.parse(text) for text in options.models] or ModelName.all_in_box()
    check_models(names)
    settings = chosen_settings(options)
    from regard.serve.access import is_local
    from regard.serve.server import Service, listen, url_of
    from regard.serve.workers import run_workers

    models = names, options.device, options.dtype
    service = Service(settings, *models, walk=walk, report=warn)
    sockets = listen(settings.host, settings.port)
    if settings.keys is None and not is_local(settings.host):
        warn("everyone who can reach this computer can use the service: set --keys to require keys")
    with service.server.capture_signals():  # before the first line is printed
        warn(f"listening at {url_of(sockets[0], settings.certificate is not None)}")
        warn(f"loading {', '.join(each.name for each in names)}")
        if settings.workers > 1:
            return run_workers(settings, *models, sockets, walk)
        ended = service.run(sockets)
    return 130 if ended == signal.SIGINT else 0


def walk(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The walk through a model, for the page; see `walk_json`."""
    from regard.view.walk_json import walk_json

    return walk_json(*arguments, **options)


def check_packages() -> None:
    """Refuse to start without the packages of the extra [serve]."""
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"regard serve needs {', '.join(missing)}: install it with pip install 'regard[serve]'"
        )


def check_models(names: list[ModelName]) -> None:
    """Refuse models that do not exist or have the same name, before anything starts."""
    from regard.training.names import CONFIG
    from regard.training.shipped import folder_of, no_model

    if not names:
        raise InputError("-m is required: the box has no models")
    for each in names:
        if sum(other.name == each.name for other in names) > 1:
            raise InputError(
                f"two models have the name {each.name!r}: write -m NAME=MODEL for one of them"
            )
        folder = folder_of(each.path)
        if not (folder / CONFIG).is_file():
            raise no_model(folder)


def make_key(options: argparse.Namespace) -> int:
    """Create an API key, add its hash to the file, and print it."""
    from regard.serve.keys import new_key

    if options.keys is None:
        raise InputError(
            "--new-key needs --keys FILE, the file in which the hash of the key is stored"
        )
    print(new_key(options.keys, options.new_key))
    return 0


def chosen_settings(options: argparse.Namespace) -> Settings:
    """The settings that the options describe."""
    if options.private_key is not None and options.certificate is None:
        raise InputError("--private-key needs --certificate FILE")
    for origin in options.cors:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise InputError(
                f"--cors {origin!r}: write an origin such as https://example.org, without a path"
            )
    limits = Limits(**{field.name: getattr(options, field.name) for field in fields(Limits)})
    return Settings(
        host=options.host, port=options.port, limits=limits, keys=options.keys,
        requests_per_minute=options.requests_per_minute, cors=tuple(options.cors),
        proxies=tuple(options.proxies), drain=options.drain, workers=options.workers,
        access_log=not options.quiet, json_log=options.json,
        certificate=options.certificate, private_key=options.private_key,
    )  # fmt: skip
