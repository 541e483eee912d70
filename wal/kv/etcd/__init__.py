"""Metadata in etcd: EtcdKV, its sessions and elections. Needs the extra `etcd` (grpcio and protobuf).

Files, from the bottom up:

* api/:        generated code for the part of etcd's API that is used here
* requests:    the table of etcd's methods; requests for keys, prefixes and pages. Pure
* refusals:    the meaning of a status of etcd, and its error. Pure
* access:      the token of a user
* connection:  calls with a deadline; which of them may be sent twice
* calls:       the calls of one KV in progress, shared by the KV, its sessions and its elections
* session:     EtcdSession, a lease that is kept alive
* watcher:     the task that feeds one watch, over broken streams
* kv:          EtcdKV
* election:    EtcdElection, leadership with a fencing token"""

from wal.installation import install_hint

try:
    import google.protobuf  # noqa: F401

    import wal.network  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"metadata in etcd needs grpcio and protobuf, and {_missing.name} is not installed: {install_hint('etcd')}",
        name=_missing.name,
    ) from _missing

from wal.kv.etcd.election import EtcdElection, Leader, Leadership
from wal.kv.etcd.kv import EtcdKV
from wal.kv.etcd.session import EtcdSession

__all__ = ["EtcdElection", "EtcdKV", "EtcdSession", "Leader", "Leadership"]
