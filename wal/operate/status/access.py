"""The access checks of the status service. Pure: they read headers only.

Guarantees: an action needs the token, in the header `Authorization: Bearer …`, which another site cannot make a browser send; there are no
cookies. A request from another origin is always rejected. Without a token a page on loopback answers only requests that name loopback as
their host, so that another site cannot point a name of its own at it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from wal.errors import AuthenticationError, InvalidArgumentError
from wal.runtime.secret import Secret

TOKEN_LENGTH_MIN: Final = 16


class StatusAccess:
    """`token` allows actions. With `open_reads` all other requests need no token. With `loopback` only this machine reaches the service."""

    def __init__(self, token: Secret | None, *, open_reads: bool, loopback: bool) -> None:
        if token is not None and len(token.reveal()) < TOKEN_LENGTH_MIN:
            raise InvalidArgumentError(
                f"the token of the status service is {len(token.reveal())} characters long: take one of at least {TOKEN_LENGTH_MIN}"
            )
        self.takes_actions: bool = token is not None
        self.open_reads: bool = open_reads
        self._token = token
        self._loopback = loopback

    def check_read(self, headers: Mapping[str, str]) -> None:
        """Raises AuthenticationError unless the request may read."""
        self._check_origin(headers)
        if not self.open_reads:
            self._check_token(headers)

    def check_action(self, headers: Mapping[str, str]) -> None:
        """Raises AuthenticationError unless the request may change something."""
        self._check_origin(headers)
        if self._token is None:
            raise AuthenticationError("this status service was started without a token, and takes no actions: give it one")
        self._check_token(headers)

    def _check_token(self, headers: Mapping[str, str]) -> None:
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if (
            self._token is None
            or scheme.lower() != "bearer"
            or not hmac.compare_digest(text.strip().encode(), self._token.reveal().encode())
        ):
            raise AuthenticationError("the token is missing or wrong: send it as 'Authorization: Bearer TOKEN'")

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        if self._loopback and not is_loopback(_parts(f"//{host}").hostname or ""):
            raise AuthenticationError(f"host {host!r} is not this machine: ask for localhost or 127.0.0.1")
        origin = headers.get("origin")
        if origin is not None and _parts(origin).netloc != host:
            raise AuthenticationError(f"origin {origin!r} is another site than {host!r}: its requests are refused")


def _parts(url: str) -> SplitResult:
    """Returns the parts of a URL in a header; for text that is not a URL, those of an empty text, which never match a host of ours."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine's own address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
