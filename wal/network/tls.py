"""TlsFiles: the files of a TLS connection, for a client and for a server.

They are read off the loop, and no key is kept longer than it takes to pass it on.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import msgspec

from wal.errors import InvalidArgumentError

__all__ = ["TlsFiles"]


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files of one side. `ca`: the authority that signed the other side's certificate. `certificate` with `key`: this side's own.

    A client without `ca` trusts the system's authorities. A server with `ca` refuses clients without a certificate of that authority
    (mutual TLS), and one without takes every client.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgumentError("a certificate and its key belong together: give both or none")

    async def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a client's channel. Raises InvalidArgumentError when a file cannot be read."""
        ca, key, certificate = await self._read()
        return grpc.ssl_channel_credentials(ca, key, certificate)

    async def server_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials for a server's port. Raises InvalidArgumentError without a certificate, or if a file cannot be read."""
        if self.certificate is None:
            raise InvalidArgumentError("a server with TLS needs a certificate and its key: give both")
        ca, key, certificate = await self._read()
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=ca is not None)

    async def _read(self) -> list[bytes | None]:
        return await asyncio.to_thread(lambda: [_read(path) for path in (self.ca, self.key, self.certificate)])


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"the TLS file {os.fspath(path)!r} cannot be read: {error.strerror}") from error
