"""Metadata in etcd: EtcdKV, its sessions and elections. Needs the extra `etcd` (grpcio and protobuf).

Files:

* Pure: ranges, refusals (what a status means), watch_position, methods (the table of calls); wire: endpoints,
  connection (what may be sent twice), token, tls, api/ (generated)
* Kv; watcher (feeds one watch), session (a lease), election
* kv: metadata in etcd, shared by every process that names the same cluster and root path
"""

from wal.installation import install_hint

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"metadata in etcd needs grpcio and protobuf, and {_missing.name} is not installed: {install_hint('etcd')}",
        name=_missing.name,
    ) from _missing

from wal.kv.etcd.election import EtcdElection, Leader, Leadership
from wal.kv.etcd.kv import EtcdKV
from wal.kv.etcd.session import EtcdSession
from wal.kv.etcd.tls import EtcdTls

__all__ = ["EtcdElection", "EtcdKV", "EtcdSession", "EtcdTls", "Leader", "Leadership"]
