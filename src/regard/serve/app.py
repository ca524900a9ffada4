"""The application: all endpoints, with the pool of models and the settings that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette

from regard.serve import api, api_page, deepl, libretranslate, openai, openapi
from regard.serve.api_search import DocumentCache
from regard.serve.endpoint import Endpoint, make_route
from regard.serve.events import StreamCount
from regard.serve.gateway import Gateway
from regard.serve.models import ModelPool
from regard.serve.settings import Settings

ENDPOINTS: list[Endpoint] = [
    *api.ENDPOINTS, *openai.ENDPOINTS, *libretranslate.ENDPOINTS, *deepl.ENDPOINTS,
    *openapi.ENDPOINTS, *api_page.ENDPOINTS,
]  # fmt: skip
Walk = Callable[..., Mapping[str, Any]]


def create_app(pool: ModelPool, settings: Settings, walk: Walk | None = None) -> Gateway:
    """Create the application.

    Args:
        pool: the models; they may be loaded later.
        settings: the settings.
        walk: computes the walk through a model for the page (`regard.view` is above this package).

    Returns:
        An ASGI application.
    """
    gateway = Gateway(settings)
    gateway.open(create_endpoints(pool, gateway, walk), pool, ENDPOINTS)
    return gateway


def create_endpoints(pool: ModelPool, gateway: Gateway, walk: Walk | None = None) -> Starlette:
    """Create the part of the application behind the gateway."""
    app = Starlette(routes=[make_route(endpoint) for endpoint in ENDPOINTS])
    app.router.redirect_slashes = False
    app.state.pool, app.state.settings = pool, gateway.settings
    app.state.shared = {
        "walk": walk, "endpoints": ENDPOINTS, "documents": DocumentCache(),
        "streams": StreamCount(), "metrics": gateway.metrics,
    }  # fmt: skip
    return app
