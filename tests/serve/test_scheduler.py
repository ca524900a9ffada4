"""The scheduler: requests that run together, alone, and cancelled ones."""

from __future__ import annotations

import json
import urllib.request

from serve.live import serve


def test_live_service_classifies():
    with serve(models=("classify",)) as url:
        body = json.dumps({"texts": ["A wonderful film."]}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{url}/api/classify", body, headers)
        with urllib.request.urlopen(request, timeout=20) as response:
            result = json.load(response)
    assert result["results"][0]["label"] == "positive"
