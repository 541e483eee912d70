"""Access: at which address a node listens, and what a client has to show.

Without a token and TLS everybody who can reach the port can read and write the log, so that is allowed on the loopback interface only,
unless the operator insists.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.network import TlsFiles
from wal.secret import Secret

__all__ = ["Access"]

LISTEN: Final = "127.0.0.1:8810"
_ADDRESS: Final = re.compile(r"(?P<host>[^:\[\]/]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")
_PORT_MAX: Final = 65_535


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """`listen` is `HOST:PORT`, port 0 a free one. A client has to show one of `tokens`, if there are any."""

    listen: str = LISTEN
    tls: TlsFiles | None = None
    tokens: Sequence[Secret] = ()
    insecure: bool = False
    """Allows other interfaces than loopback without TLS and a token."""

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for an address that is none, or that must not be served with so little protection."""
        found = _ADDRESS.fullmatch(self.listen)
        if found is None or int(found["port"]) > _PORT_MAX:
            raise InvalidArgumentError(
                f"listen={self.listen!r} is no address: write HOST:PORT, for example {LISTEN}, with a port up to {_PORT_MAX}; "
                "an IPv6 host in brackets"
            )
        missing = [name for name, value in (("TLS", self.tls), ("token", self.tokens)) if not value]
        if missing and not self.insecure and not _is_loopback(found["host"].strip("[]")):
            raise InvalidArgumentError(
                f"listen={self.listen!r} can be reached from other machines, and there is no {' and no '.join(missing)}: everybody there "
                "could read and write the log. Give a certificate, its key and a token, listen on 127.0.0.1, or insist with --insecure"
            )

    def address(self, port: int) -> str:
        """Returns the address with the port that was found."""
        return f"{self.listen.rpartition(':')[0]}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
