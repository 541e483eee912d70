"""Metadata in etcd: EtcdKV, its sessions and elections. Needs the extra `etcd` (grpcio)."""

try:
    import grpc  # noqa: F401
except ImportError as error:
    raise ImportError("metadata in etcd needs grpcio: pip install 'wal-runtime[etcd]'") from error

from wal.kv.etcd.election import EtcdElection, Leader, Leadership
from wal.kv.etcd.kv import EtcdKV
from wal.kv.etcd.session import EtcdSession
from wal.kv.etcd.tls import EtcdTls

__all__ = ["EtcdElection", "EtcdKV", "EtcdSession", "EtcdTls", "Leader", "Leadership"]
