"""Calls of a live service with urllib."""

from __future__ import annotations

import json
import urllib.error
import urllib.request


def get(address):
    """The body of a response to a GET request, as text."""
    with urllib.request.urlopen(address, timeout=30) as response:
        return response.read().decode()


def post(address, **fields):
    """The JSON value of a response to a POST request."""
    body = json.dumps(fields).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def error_of(address, **fields):
    """The status and the error of a request that is refused."""
    try:
        post(address, **fields)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]
    raise AssertionError("the request was accepted")
