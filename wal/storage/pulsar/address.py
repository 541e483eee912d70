"""PulsarAddress: the address of a Pulsar, and the credentials of a client. Pure.

Owns: the names of topics, and the admin REST's address, which is derived from the service URL unless it is set. The token is a
`Secret`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.runtime.secret import Secret

ADMIN_PORT: Final = 8080
ADMIN_TLS_PORT: Final = 8443
"""Pulsar's default ports."""
LOG_SUBSCRIPTION: Final = "wal"
"""The durable cursor in the topics of logs and of checkpoints: it keeps their messages, and marks a topic as a log's."""


class PulsarAddress(msgspec.Struct, frozen=True):
    """`service_url`: `pulsar://host:port[,host:port…]` or `pulsar+ssl://…`. `admin_url`: that of the admin REST (None: the first host,
    Pulsar's default port). `token`: a JSON Web Token. `tls_authority`: path of the certificates against which the server's is checked
    (None: the system's).
    """

    service_url: str
    tenant: str = "public"
    namespace: str = "default"
    admin_url: str | None = None
    token: Secret | None = None
    tls_authority: str | None = None

    @property
    def is_tls(self) -> bool:
        return self.service_url.startswith("pulsar+ssl://")

    @property
    def admin(self) -> str:
        """The address of the admin REST, without a slash at its end."""
        if self.admin_url is not None:
            return self.admin_url.rstrip("/")
        host = self.service_url.partition("://")[2].split(",")[0].rpartition(":")[0]
        return f"https://{host}:{ADMIN_TLS_PORT}" if self.is_tls else f"http://{host}:{ADMIN_PORT}"

    @property
    def path(self) -> str:
        """The namespace: tenant/namespace."""
        return f"{self.tenant}/{self.namespace}"

    def topic(self, channel: str, what: str = "pchannel") -> str:
        """Returns the topic of this channel. Raises InvalidArgumentError, which calls it `what`, for a name that cannot name a topic."""
        if not isinstance(channel, str):
            raise TypeError(f"a {what}'s name is a str, not {type(channel).__name__}")
        if not channel or not all(each.isascii() and (each.isalnum() or each in "-_.") for each in channel):
            raise InvalidArgumentError(
                f"{what} name {channel!r} cannot name a topic of Pulsar: use ASCII letters, digits, '-', '_' and '.'"
            )
        return f"persistent://{self.path}/{channel}"

    def checkpoints(self, pchannel: str) -> str:
        """Returns the topic of this pchannel's checkpoints."""
        return f"{self.topic(pchannel)}-checkpoints"

    @property
    def probe(self) -> str:
        """A topic that keeps nothing, for finding the largest message that the broker accepts."""
        return f"non-persistent://{self.path}/wal-probe"

    def __repr__(self) -> str:
        return f"PulsarAddress({self.service_url!r}, {self.path!r})"

    __str__ = __repr__
