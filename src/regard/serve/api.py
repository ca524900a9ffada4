"""The interface of regard itself, /api/...: what the interfaces of other services lack."""

from __future__ import annotations

from regard.serve import api_alternatives, api_read, api_search, api_translate, api_view
from regard.serve.api_common import API
from regard.serve.endpoint import Endpoint

__all__ = ["API", "ENDPOINTS"]

ENDPOINTS: list[Endpoint] = [
    *api_view.ENDPOINTS,
    *api_translate.ENDPOINTS,
    *api_alternatives.ENDPOINTS,
    *api_read.ENDPOINTS,
    *api_search.ENDPOINTS,
]
