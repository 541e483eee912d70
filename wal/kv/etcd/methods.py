"""The methods of etcd's API that are called here: paths, and the types that go there and come back. A table, nothing else."""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, TypeVar

from wal.kv.etcd.api import rpc_pb2 as rpc

__all__ = ["AUTHENTICATE", "GRANT", "KEEP_ALIVE", "RANGE", "REVOKE", "TXN", "WATCH", "Method"]

Request = TypeVar("Request")
Response = TypeVar("Response")


class Method(NamedTuple, Generic[Request, Response]):
    """`path` is how gRPC finds it."""

    path: str
    request: type[Request]
    response: type[Response]

    def serializers(self) -> dict[str, Any]:
        """As a channel wants them."""
        request, response = self.request, self.response
        return {
            "request_serializer": request.SerializeToString,  # type: ignore[attr-defined]
            "response_deserializer": response.FromString,  # type: ignore[attr-defined]
        }


RANGE: Final = Method("/etcdserverpb.KV/Range", rpc.RangeRequest, rpc.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", rpc.TxnRequest, rpc.TxnResponse)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", rpc.WatchRequest, rpc.WatchResponse)
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantRequest, rpc.LeaseGrantResponse)
REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse)
KEEP_ALIVE: Final = Method("/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse)
AUTHENTICATE: Final = Method("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateRequest, rpc.AuthenticateResponse)
