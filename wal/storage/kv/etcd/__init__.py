"""Metadata in etcd: EtcdKV, its sessions and elections. Needs the extra `etcd` (grpcio and protobuf).

A `Connection` makes calls with a deadline, and decides which may be sent twice and what a refusal means. `EtcdKV` is the KV over it, with a
`Watcher` for each watch that survives broken streams. An `EtcdSession` keeps a lease alive, and an `EtcdElection` makes one session the
leader, with a fencing token; a `LedKV` changes the KV only while that session leads.
"""

from wal.runtime.installation import Needed

with Needed("metadata in etcd needs", "etcd"):
    import google.protobuf  # noqa: F401

    import wal.network  # noqa: F401

from wal.storage.kv.etcd.election import EtcdElection, Leader, Leadership
from wal.storage.kv.etcd.kv import EtcdKV
from wal.storage.kv.etcd.session import EtcdSession

__all__ = ["EtcdElection", "EtcdKV", "EtcdSession", "Leader", "Leadership"]
