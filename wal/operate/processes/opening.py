"""The first steps of a coordinator and a node: they load the record of the cluster, and open its log, its metadata and its settings.

Settings that concern the log are the cluster's; a process that contradicts them gets an error. Settings that concern a process, such as its
token for Pulsar, are its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from wal.channels.cluster import FORMAT, LOG_KEY, ClusterRecord
from wal.channels.metadata import open_metadata
from wal.errors import FormatError, InvalidArgumentError
from wal.location import check_archive, parse_location, parse_root
from wal.network import TlsFiles
from wal.node.local.storage import Storage, Undo, open_storage
from wal.requests.log import LogSettings
from wal.requests.rights import Right
from wal.rpc.connection import Connection
from wal.runtime.secret import Secret
from wal.serve.access import Access
from wal.settings import Settings
from wal.storage.kv.etcd import EtcdKV

PROCESS_SETTINGS: Final = frozenset(("in_flight_bytes_max",))
"""Settings of a log that each process may choose for itself."""
CALL_S: Final = 10.0
"""The deadline of a server's call to another one."""
_OF_PULSAR: Final = ("pchannels", "pulsar_admin_url", "allow_message_ttl", "allow_backlog_quota")
_SAVED: Final = tuple(sorted({*LogSettings.__struct_fields__, *_OF_PULSAR} - PROCESS_SETTINGS))
"""The settings that belong to the log of a cluster."""
_log: Final = logging.getLogger("wal.cluster")


def check_root(root: str) -> str:
    """Returns the root of a cluster; raises InvalidArgumentError unless it is `etcd://host[:port]/path`."""
    parse_root(root)
    return root


async def open_root(root: str | Secret) -> EtcdKV:
    """Opens the metadata at the root of a cluster."""
    kv = await open_metadata(root)
    assert isinstance(kv, EtcdKV), "the root is in etcd"
    return kv


def check_log(log: str) -> str:
    """Returns the location of a cluster's log in its long form. Raises InvalidArgumentError unless it is on Pulsar."""
    location = parse_location(log)
    if location.pulsar is None:
        raise InvalidArgumentError(
            f"--log {log!r} is not on Pulsar: the nodes of a cluster share one log, as pulsar://host:6650/tenant/namespace"
        )
    return str(location)


def saved_settings(settings: Settings) -> dict[str, Any]:
    """Returns the settings that belong to the log."""
    return {name: getattr(settings, name) for name in _SAVED}


def check_format(record: ClusterRecord) -> ClusterRecord:
    """Returns the record of a cluster; raises FormatError if its format is newer than this version."""
    if record.format > FORMAT:
        raise FormatError(f"the cluster at {LOG_KEY} writes format {record.format}, and this version supports {FORMAT}: update it first")
    return record


def settings_for(record: ClusterRecord, own: Settings, root: str | Secret) -> Settings:
    """Returns the settings of a process of this cluster: the cluster's where they concern the log, its own elsewhere.

    Raises FormatError for a cluster of a newer format, InvalidArgumentError for a setting that contradicts the cluster's, or an archive.
    """
    check_format(record)
    check_archive(parse_location(record.log), own.archive)
    defaults = Settings()
    for name in _SAVED:
        chosen, saved = getattr(own, name), record.settings.get(name, getattr(defaults, name))
        if chosen not in (getattr(defaults, name), saved):
            raise InvalidArgumentError(f"{name}={chosen} contradicts the cluster, which was made with {name}={saved}: leave it out here")
    changes = {name: record.settings[name] for name in _SAVED if name in record.settings}
    return msgspec.structs.replace(own, kv=root, **changes)


async def connected(access_now: Callable[[], Access], *addresses: str) -> Connection:
    """Returns a connection to servers of this cluster at these addresses, with the certificate that the servers share, and the token of
    each moment, which SIGHUP changes.
    """
    files = access_now().tls
    tls = None if files is None else TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)
    return await Connection.open(addresses, tls=tls, token=lambda: shared_token(access_now(), Right.SERVER), timeout_s=CALL_S)


def shared_token(access: Access, right: Right) -> Secret | None:
    """Returns a token of the servers of this cluster with this right: that for calls between them if it has the right."""
    tokens = sorted([token for token in access.tokens if right in token.rights], key=lambda token: Right.SERVER not in token.rights)
    return tokens[0].secret if tokens else None


async def open_log(log: str, settings: Settings, undo: Undo, *, create: bool) -> Storage:
    """Opens the log of a cluster and its metadata; `undo` gets the functions that close them."""
    return await open_storage(parse_location(log), settings, undo, create=create)
