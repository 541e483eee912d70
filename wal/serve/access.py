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
from wal.rpc.auth import Token
from wal.settings import ServerBounds

LISTEN: Final = "127.0.0.1:8810"
_ADDRESS: Final = re.compile(r"(?P<host>[^:\[\]/]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")
_PORT_MAX: Final = 65_535


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """`listen` is `HOST:PORT`, port 0 a free one. A client has to show one of `tokens`, if there are any."""

    listen: str = LISTEN
    tls: TlsFiles | None = None
    tokens: Sequence[Token] = ()
    insecure: bool = False
    """Allows other interfaces than loopback without TLS and a token."""
    advertise: str = ""
    """The address that AssignmentDiscover tells to clients; empty for `listen`."""
    metrics: str = ""
    """The address at which the metrics of the process are served; empty for none."""
    status: str = ""
    """The address at which the status page of the log is served; empty for none."""
    bounds: ServerBounds = ServerBounds()
    """The bounds on running calls of clients."""

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for an invalid address, or for one beyond loopback without TLS and a token."""
        listen_address = _parsed("listen", self.listen)
        missing = [name for name, value in (("TLS", self.tls), ("token", self.tokens)) if not value]
        if missing and not self.insecure and not _is_loopback(listen_address["host"]):
            raise InvalidArgumentError(
                f"listen={self.listen!r} can be reached from other machines without {' or '.join(missing)}: everybody there "
                "could read and write the log. Give a certificate, its key and a token, listen on 127.0.0.1, or insist with --insecure"
            )
        for name in ("metrics", "status"):
            if getattr(self, name):
                _parsed(name, getattr(self, name))
        if self.advertise:
            advertised_address = _parsed("advertise", self.advertise)
            if int(advertised_address["port"]) == 0 or _is_wildcard(advertised_address["host"]):
                raise InvalidArgumentError(
                    f"advertise={self.advertise!r} cannot be connected to: name a host and a port that clients reach, for example "
                    "log.example:8810"
                )
        elif _is_wildcard(listen_address["host"]):
            raise InvalidArgumentError(
                f"listen={self.listen!r} is every interface, and clients have to be told one address: give it with --advertise, for "
                "example log.example:8810"
            )

    def address(self, port: int) -> str:
        """Returns the address with the port that was found."""
        return f"{self.listen.rpartition(':')[0]}:{port}"

    def advertised(self, port: int) -> str:
        """Returns the address that clients get; `port` is the port that the server listens on, in case of port 0."""
        return self.advertise or self.address(port)


def _parsed(name: str, address: str) -> re.Match[str]:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > _PORT_MAX:
        raise InvalidArgumentError(
            f"{name}={address!r} is not an address: write HOST:PORT, for example {LISTEN}, with a port up to {_PORT_MAX}; "
            "an IPv6 host in brackets"
        )
    return match


def _is_loopback(host: str) -> bool:
    ip = _ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


def _is_wildcard(host: str) -> bool:
    ip = _ip(host)
    return ip is not None and ip.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
