"""EtcdTls: the files of a TLS connection to etcd. Reads them off the loop; keeps no key longer than it takes to hand it on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import msgspec

from wal.errors import InvalidArgumentError

__all__ = ["EtcdTls"]


class EtcdTls(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files. `ca`: who signed etcd's certificate; None: the authorities of the system. `certificate` with `key`: this client's own."""

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgumentError("a client certificate and its key belong together: give both or none")

    async def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. InvalidArgumentError when a file cannot be read."""
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
