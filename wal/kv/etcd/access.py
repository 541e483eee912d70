"""EtcdTls: the files of a TLS connection to etcd; Token: identifies this client to an etcd with authentication.

TLS files are read off the loop, and no key is kept longer than it takes to pass it on. A Token owns the token that etcd issued for a name
and a password. It runs one renewal at a time, however many calls were refused, and never shows the password.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import msgspec

from wal.errors import InvalidArgumentError

__all__ = ["EtcdTls", "Token"]


class EtcdTls(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files. `ca`: the authority that signed etcd's certificate; None: the system's. `certificate` with `key`: this client's own."""

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgumentError("a client certificate and its key belong together: give both or none")

    async def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a channel. Raises InvalidArgumentError when a file cannot be read."""
        ca, key, certificate = await asyncio.to_thread(
            lambda: [_read(path) for path in (self.ca, self.key, self.certificate)]
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"the TLS file {os.fspath(path)!r} cannot be read: {error.strerror}") from error


class Token:
    """`authenticate` returns a new token; None if etcd runs without authentication."""

    def __init__(self, authenticate: Callable[[], Awaitable[str | None]]) -> None:
        self._authenticate = authenticate
        self._lock = asyncio.Lock()
        self._known = False
        self.value: str | None = None

    async def get(self) -> str | None:
        """Returns the token for the next call."""
        if not self._known:
            await self._renew(None, first=True)
        return self.value

    async def renew(self, refused: str | None) -> None:
        """Gets another token than `refused`, unless another caller renewed it meanwhile."""
        await self._renew(refused, first=False)

    async def _renew(self, refused: str | None, *, first: bool) -> None:
        async with self._lock:
            if (first and self._known) or self.value != refused:
                return
            self.value = await self._authenticate()
            self._known = True
