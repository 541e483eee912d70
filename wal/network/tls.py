"""TlsFiles: the files of a TLS connection, for a client and for a server. ServerCertificate: a server's certificate, which can be renewed.

The files are read off the loop, and a key stays in memory only until gRPC has it.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import grpc
import msgspec

from wal.errors import InvalidArgumentError
from wal.runtime.threads import in_thread


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files of one side. `ca`: the authority that signed the other side's certificate. `certificate` with `key`: this side's own.

    A client without `ca` trusts the system's authorities. A server with `ca` refuses clients without a certificate of that authority
    (mutual TLS); a server without `ca` accepts every client.
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

    async def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """Returns the current content of the files, for a server.

        Raises InvalidArgumentError without a certificate, for a file that cannot be read or used, and for a key of another certificate.
        """
        if self.certificate is None:
            raise InvalidArgumentError("a server with TLS needs a certificate and its key: give both")
        ca, key, certificate = await self._read()
        await in_thread(self._check, ca, key, certificate)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def _check(self, ca: bytes | None, key: bytes | None, certificate: bytes | None) -> None:
        """Raises InvalidArgumentError for files that no server can use. gRPC would only report that it cannot listen."""
        from wal.runtime.system import file_of  # clients have no such files, and load no part of that room

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Python's ssl reads a certificate and a key from files only.
            with file_of(certificate or b"") as certificate_path, file_of(key or b"") as key_path:
                context.load_cert_chain(certificate_path, key_path, password="")  # refuses an encrypted key, without a prompt
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"the TLS files {_shown(self.certificate)} and {_shown(self.key)} are not a PEM certificate with its unencrypted key "
                f"({error.reason or error}): give the certificate and the key that belong together"
            ) from error
        try:
            if ca is not None:
                context.load_verify_locations(cadata=ca.decode())
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"the TLS file {_shown(self.ca)} holds no PEM certificate: give that of an authority") from error

    async def _read(self) -> list[bytes | None]:
        return await in_thread(lambda: [_read(path) for path in (self.ca, self.key, self.certificate)])


class ServerCertificate:
    """A server's certificate, which can be renewed while the server runs: connections that begin later get the new one."""

    def __init__(self, now: grpc.ServerCertificateConfiguration, *, asks_clients: bool) -> None:
        self._renewed: grpc.ServerCertificateConfiguration | None = None
        """The configuration that was read last, until gRPC has taken it."""
        self._asks_clients = asks_clients
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(now, self._take, asks_clients)

    @classmethod
    async def of(cls, tls: TlsFiles) -> ServerCertificate:
        """Reads the files. Raises the errors of `TlsFiles.server_configuration`."""
        return cls(await tls.server_configuration(), asks_clients=tls.ca is not None)

    async def renew(self, tls: TlsFiles) -> None:
        """Reads the files. Raises the errors of `TlsFiles.server_configuration`; then nothing changes.

        Also raises InvalidArgumentError if it would change whether clients need a certificate: that is settled at the start of a server.
        """
        if (tls.ca is not None) != self._asks_clients:
            raise InvalidArgumentError(
                "whether clients have to show a certificate (tls_ca) is settled when the server starts: start it again"
            )
        self._renewed = await tls.server_configuration()

    def _take(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns a renewed configuration that gRPC has not taken yet, or None. gRPC calls it at each handshake, in a thread of its own."""
        renewed, self._renewed = self._renewed, None
        return renewed


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"the TLS file {_shown(path)} cannot be read: {error.strerror}") from error


def _shown(path: str | os.PathLike[str] | None) -> str:
    return repr(os.fspath(path or ""))
