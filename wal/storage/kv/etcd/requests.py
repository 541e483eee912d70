"""The requests to etcd: the methods of its API with their types, and keys, prefixes and pages as etcd has them. Pure.

Owns: turning a prefix into a range of bytes, and the number of keys in the next page of a range. The range of a prefix ends at the
prefix with its last byte plus one; UTF-8 never uses the byte 255, so that byte always exists.
"""

from __future__ import annotations

from typing import Final

from wal.errors import CorruptionError
from wal.network import Method
from wal.storage.kv.etcd.api import rpc_pb2 as rpc

RANGE: Final = Method("/etcdserverpb.KV/Range", rpc.RangeRequest, rpc.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", rpc.TxnRequest, rpc.TxnResponse)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", rpc.WatchRequest, rpc.WatchResponse)
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantRequest, rpc.LeaseGrantResponse)
REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse)
KEEP_ALIVE: Final = Method("/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse)
TIME_TO_LIVE: Final = Method("/etcdserverpb.Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest, rpc.LeaseTimeToLiveResponse)
AUTHENTICATE: Final = Method("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateRequest, rpc.AuthenticateResponse)


PAGE_BYTES: Final = 1 << 20
"""The intended size of a page of a range, small enough that neither side holds it for long."""
PAGE_KEYS_MAX: Final = 8192
_FIRST_PAGE_KEYS: Final = 32
_EVERYTHING: Final = b"\0"


def range_of(prefix: str) -> tuple[bytes, bytes]:
    """Returns the first key of the keys that start with `prefix`, and the first key after them; `""` means all keys."""
    if not prefix:
        return _EVERYTHING, _EVERYTHING
    encoded = prefix.encode()
    return encoded, encoded[:-1] + bytes((encoded[-1] + 1,))


def page_limit(keys: int, size: int) -> int:
    """Returns the number of keys to request for the next page, when the previous one had `keys` keys of `size` bytes in all."""
    if not keys:
        return _FIRST_PAGE_KEYS
    return max(1, min(PAGE_KEYS_MAX, 16 * keys, PAGE_BYTES * keys // max(1, size)))


def decoded(what: str, data: bytes) -> str:
    """Returns text from the store. Raises CorruptionError for bytes that no KV of this project has written."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(
            f"the {what} {data[:100]!r} is not UTF-8: another program writes under this root path; give each its own", expected="UTF-8"
        ) from error
