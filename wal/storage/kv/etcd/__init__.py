"""Metadata in etcd: EtcdKV, its sessions and elections. Needs the extra `etcd` (grpcio and protobuf).

A `Connection` makes calls with a deadline, and knows which may be sent twice and what a refusal means. `EtcdKV` is the KV over it, with a
`Watcher` for each watch that survives broken streams. An `EtcdSession` keeps a lease alive, and an `EtcdElection` makes one of them the
leader, with a fencing token; a `LedKV` changes the KV only while that one leads.
"""

from wal.runtime.installation import install_hint, missing_package

try:
    import google.protobuf  # noqa: F401

    import wal.network  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"metadata in etcd needs grpcio and protobuf, and {missing_package(_missing)} is not installed: {install_hint('etcd')}",
        name=_missing.name,
    ) from _missing

from wal.storage.kv.etcd.election import EtcdElection, Leader, Leadership
from wal.storage.kv.etcd.kv import EtcdKV
from wal.storage.kv.etcd.session import EtcdSession

__all__ = ["EtcdElection", "EtcdKV", "EtcdSession", "Leader", "Leadership"]
