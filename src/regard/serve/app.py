"""The application: all endpoints, with the pool of models and the settings that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette

from regard.serve import api, deepl, libretranslate
from regard.serve.endpoint import Endpoint, make_route
from regard.serve.models import ModelPool
from regard.serve.settings import Settings

ENDPOINTS: list[Endpoint] = [*api.ENDPOINTS, *libretranslate.ENDPOINTS, *deepl.ENDPOINTS]


def create_app(
    pool: ModelPool, settings: Settings, walk: Callable[..., Mapping[str, Any]] | None = None
) -> Starlette:
    """Create the application.

    Args:
        pool: the models; they may be loaded later.
        settings: the settings.
        walk: computes the walk through a model for the page (`regard.view` is above this package).

    Returns:
        An ASGI application.
    """
    app = Starlette(routes=[make_route(endpoint) for endpoint in ENDPOINTS])
    app.state.pool, app.state.settings = pool, settings
    app.state.shared = {"walk": walk}
    return app
