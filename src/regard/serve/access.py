"""Access control: the addresses of clients, the keys in requests, and the rate of requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import parse_qs

import msgspec

from regard.errors import InputError

SCHEMES = ("bearer", "deepl-auth-key")  # of the header Authorization
MOST_CLIENTS = 10_000  # clients whose rate is stored
LOCAL = ("127.0.0.1", "::1", "localhost")


class ProxyList:
    """The addresses of reverse proxies whose header X-Forwarded-For is trusted.

    Args:
        addresses: addresses or networks (`10.0.0.0/8`).

    Raises:
        InputError: one of them is not valid.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.networks: list[IPv4Network | IPv6Network] = []
        for text in addresses:
            try:
                self.networks.append(ip_network(text, strict=False))
            except ValueError:
                raise InputError(
                    f"--proxy {text!r}: write an address or a network such as 10.0.0.0/8"
                ) from None

    def trusts(self, address: str) -> bool:
        """Whether this is the address of a proxy."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def client_address(self, peer: str, forwarded: str) -> str:
        """The address of the client: the peer of the connection or, if that is a proxy, the last
        address of `forwarded` that is not a proxy.

        Args:
            peer: the address of the other end of the connection.
            forwarded: the header X-Forwarded-For, to which each proxy appends the address of its
                own peer.
        """
        address = peer
        for text in reversed(forwarded.split(",")):
            if not self.trusts(address):
                break
            try:
                address = str(ip_address(text.strip().strip("[]")))
            except ValueError:
                break
        return address


class RateLimit:
    """A limit on the requests per minute of each client. A burst may use all of them at once.

    Each client has a bucket of tokens: a request takes one, and they are refilled at a constant
    rate. The table has a bounded size: the clients that were not seen for the longest time are
    forgotten.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, time

    def wait(self, client: str, now: float | None = None) -> float:
        """Count a request. Returns 0, or the seconds until the next request is allowed."""
        if not self.per_minute:
            return 0.0
        now = time.monotonic() if now is None else now
        full, rate = float(self.per_minute), self.per_minute / 60
        tokens, before = self._buckets.pop(client, (full, now))
        tokens = min(full, tokens + (now - before) * rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - allowed, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / rate


def rate_group(address: str) -> str:
    """The name under which the requests of an address are counted: the address itself, or the /64
    network of an IPv6 address, because one client owns all of it."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed)


def is_local(host: str) -> bool:
    """Whether only this computer can reach a service that listens at this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOCAL


def header_key(headers: Mapping[str, str]) -> str | None:
    """The API key in the headers of a request."""
    scheme, _, value = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() in SCHEMES and value.strip():
        return value.strip()
    return headers.get("x-api-key")


class _Body(msgspec.Struct):
    api_key: str | None = None


def body_key(headers: Mapping[str, str], body: bytes) -> str | None:
    """The field `api_key` of a body in JSON or of a form, as clients of LibreTranslate send it."""
    try:
        if headers.get("content-type", "").lower().startswith("application/x-www-form-urlencoded"):
            return parse_qs(body.decode(), max_num_fields=1_000).get("api_key", [None])[0]
        return msgspec.json.decode(body, type=_Body).api_key
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None  # the handler reports that the body is not valid
