"""The location of the demo's log, passed to its processes: a directory, a server, or a namespace of a real Pulsar with metadata in etcd."""

from __future__ import annotations

import json
import os
import secrets
import urllib.error
import urllib.request
from typing import Final, TypedDict

import msgspec

from wal import open_wal
from wal.api.opening import LogOpening
from wal.settings import Settings

ON_PULSAR: Final = "pulsar"
"""The value of `--location` for a log on Pulsar."""
ON_CLUSTER: Final = "cluster"
"""The value of `--location` for a log that coordinators and nodes serve."""
STANDALONE: Final = "standalone"
"""The value of `--location` for a log over the network."""
PULSAR, ADMIN, ETCD = "WAL_TEST_PULSAR", "WAL_TEST_PULSAR_ADMIN", "WAL_TEST_ETCD"
"""The variables that `python -m tests.servers etcd pulsar -- …` sets; if Pulsar requires a token, it is in WAL_PULSAR_TOKEN."""


class PlaceSettings(TypedDict, total=False):
    """Returns the settings that a log on Pulsar needs."""

    kv: str
    pulsar_admin_url: str
    pulsar_token: str


class Place(msgspec.Struct, frozen=True):
    """A location and the settings that it needs; `rows` is the number of rows of the CSV in the log (None: all)."""

    location: str
    settings: PlaceSettings = {}
    rows: int | None = None

    def open(self) -> LogOpening:
        """Opens the log for writing."""
        return open_wal(self.location, settings=Settings().replace(**self.settings))

    @property
    def spark_options(self) -> dict[str, str]:
        """Returns the options of the log for Spark."""
        if self.location.startswith("wal://"):
            return {"address": self.location}
        if not self.settings:
            return {"path": self.location}
        names = {"kv": "kv", "pulsar_admin_url": "admin.url", "pulsar_token": "token"}
        return {"service.url": self.location, **{names[name]: str(value) for name, value in self.settings.items()}}


def on_pulsar(rows: int | None) -> Place:
    """Creates a namespace and chooses a root path on the servers that the environment names."""
    missing = [name for name in (PULSAR, ADMIN, ETCD) if not os.environ.get(name)]
    if missing:
        raise SystemExit(
            f"this location needs servers, and {', '.join(missing)} names none: run `make demo LOCATION=pulsar` (or cluster), or "
            "`python -m tests.servers etcd pulsar -- python -m examples.flights --location pulsar`"
        )
    name = f"flights-{secrets.token_hex(4)}"
    admin, token = os.environ[ADMIN].rstrip("/"), os.environ.get("WAL_PULSAR_TOKEN")
    make_namespace(admin, f"public/{name}", token)
    settings: PlaceSettings = {"kv": f"etcd://{os.environ[ETCD]}/{name}", "pulsar_admin_url": admin}
    if token:
        settings["pulsar_token"] = token
    return Place(f"{os.environ[PULSAR]}/public/{name}", settings, rows)


def make_namespace(admin: str, name: str, token: str | None) -> None:
    """Creates an empty namespace of Pulsar."""
    request = urllib.request.Request(f"{admin}/admin/v2/namespaces/{name}", method="PUT", data=json.dumps({}).encode())
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.URLError as error:
        raise SystemExit(f"the namespace {name} could not be made at {admin}: {error}") from error
