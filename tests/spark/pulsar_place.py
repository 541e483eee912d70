"""Places for logs on the session's Pulsar, with their metadata in etcd, and the options with which Spark finds them."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from tests.pulsar.conftest import token_of
from tests.spark.queries import Row, row_of
from wal import Secret, bridge
from wal.backends.pulsar import PulsarAddress
from wal.bridge import BlockingOpening, BlockingWAL

__all__ = ["Place", "new_place", "rows_of"]


class Place(msgspec.Struct, frozen=True):
    """A namespace and a root path, empty at first; a way to open a log there, and the options with which Spark finds it."""

    address: PulsarAddress
    kv: str

    @property
    def location(self) -> str:
        return f"{self.address.service_url}/{self.address.path}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"kv": self.kv, "pulsar_admin_url": self.address.admin, "pulsar_token": token_of(self.address)}

    @property
    def options(self) -> dict[str, str]:
        token = {} if self.address.token is None else {"token": self.address.token.reveal()}
        return {"service.url": self.location, "kv": self.kv, "admin.url": self.address.admin, **token}

    def open(self, **settings: Any) -> BlockingOpening:
        return bridge.blocking(self.location, **self.settings, **settings)

    def expected(self, *names: str) -> list[Row]:
        """Returns the messages that the log's own readers deliver of these vchannels. It takes over the log."""
        with self.open() as log:
            return [row for name in names for row in rows_of(log, name)]


def rows_of(log: BlockingWAL, name: str) -> list[Row]:
    with log.read(name, follow=False) as scanner:
        return [row_of(body) for message in scanner for body in message.bodies()]


def new_place(host: str, admin_host: str, token: str, namespace: str, etcd_address: str) -> Place:
    """Returns an empty namespace, as the fixtures of the session's servers name it, with an empty root path in etcd."""
    tenant, _, name = namespace.partition("/")
    secret = Secret(token) if token else None
    address = PulsarAddress(f"pulsar://{host}", tenant, name, f"http://{admin_host}", secret)
    return Place(address, f"etcd://{etcd_address}/spark-{secrets.token_hex(4)}")
