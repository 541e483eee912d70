"""Places for logs on the session's Pulsar, with their metadata in etcd."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tests.spark.place import Place
from tests.storage.pulsar.conftest import token_of
from wal import Secret
from wal.storage.pulsar.address import PulsarAddress


class PulsarPlace(Place):
    """A namespace and a root path, empty at first."""

    def __init__(self, address: PulsarAddress, kv: str) -> None:
        self.address = address
        self.kv = kv

    @property
    def location(self) -> str:
        return f"{self.address.service_url}/{self.address.path}"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"kv": self.kv, "pulsar_admin_url": self.address.admin, "pulsar_token": token_of(self.address)}

    @property
    def options(self) -> dict[str, str]:
        token = {} if self.address.token is None else {"token": self.address.token.reveal()}
        return {"service.url": self.location, "kv": self.kv, "admin.url": self.address.admin, **token}

    @property
    def secrets(self) -> Sequence[str]:
        return [self.kv, *([] if self.address.token is None else [self.address.token.reveal()])]


def new_place(host: str, admin_host: str, token: str, namespace: str, etcd_address: str) -> PulsarPlace:
    """Returns an empty namespace, as the fixtures of the session's servers name it, with an empty root path in etcd."""
    tenant, _, name = namespace.partition("/")
    secret = Secret(token) if token else None
    address = PulsarAddress(f"pulsar://{host}", tenant, name, f"http://{admin_host}", secret)
    return PulsarPlace(address, f"etcd://{etcd_address}/spark-{secrets.token_hex(4)}")
