"""The meaning of an answer with which etcd refuses a call. Pure.

Owns: the table from a gRPC status and etcd's text to a Refusal, and from there to an error of `wal.errors`. It guarantees that only a call
which etcd certainly did not carry out counts as refused; a status that is not in the table counts as "may have been carried out". It does
not use gRPC itself, so that it can be tested without a server.
"""

from __future__ import annotations

import enum
from typing import Final

from wal.errors import CorruptionError, InvalidArgumentError, NoSpaceError, TruncatedError, UnavailableError, UnknownOutcomeError, WALError


class Refusal(enum.Enum):
    """The meaning of a failed call."""

    AWAY = "the connection or the member failed: a read is sent to another member, a write may have been carried out"
    BUSY = "the member refused before it did anything: the same call may be made again"
    TOKEN = "the server does not know the token any more: renew it, then make the same call again"
    COMPACTED = "the revision asked for is gone"
    AHEAD = "the revision asked for has not been reached"
    LEASE_GONE = "the lease expired or was revoked"
    TOO_LARGE = "the request is larger than the server takes"
    NO_SPACE = "the server's quota is used up"
    CORRUPT = "the server found its data damaged"
    DENIED = "the user may not do this, or the password is wrong"
    WRONG = "the request is not one that this server understands or allows"


class CompactedError(TruncatedError):
    """A call asked for a revision below the compaction."""


class RevisionAheadError(TruncatedError):
    """A call asked for a revision above the store's: its data was replaced."""


# gRPC's numbers of its status codes (https://grpc.github.io/grpc/core/md_doc_statuscodes.html)
_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED, _FAILED_PRECONDITION = 3, 5, 7, 8, 9
_OUT_OF_RANGE, _UNIMPLEMENTED, _UNAVAILABLE, _DATA_LOSS, _UNAUTHENTICATED = 11, 12, 14, 15, 16

_TEXTS: Final[tuple[tuple[int, str, Refusal], ...]] = (
    # etcd's texts: api/v3rpc/rpctypes/error.go, the same in 3.4, 3.5 and 3.6
    (_UNAUTHENTICATED, "invalid auth token", Refusal.TOKEN),
    (_INVALID_ARGUMENT, "revision of auth store is old", Refusal.TOKEN),
    (_INVALID_ARGUMENT, "user name is empty", Refusal.DENIED),
    (_INVALID_ARGUMENT, "authentication failed", Refusal.DENIED),
    (_INVALID_ARGUMENT, "request is too large", Refusal.TOO_LARGE),
    (_RESOURCE_EXHAUSTED, "message larger than max", Refusal.TOO_LARGE),
    (_RESOURCE_EXHAUSTED, "database space exceeded", Refusal.NO_SPACE),
    (_RESOURCE_EXHAUSTED, "too many requests", Refusal.BUSY),
    # Our calls ask for a leader, which is checked before anything else.
    (_UNAVAILABLE, "etcdserver: no leader", Refusal.BUSY),
    (_OUT_OF_RANGE, "has been compacted", Refusal.COMPACTED),
    (_OUT_OF_RANGE, "future revision", Refusal.AHEAD),
    (_NOT_FOUND, "lease not found", Refusal.LEASE_GONE),
    (_FAILED_PRECONDITION, "not supported for learner", Refusal.BUSY),
)
_CODES: Final[dict[int, Refusal]] = {
    _INVALID_ARGUMENT: Refusal.WRONG,
    _NOT_FOUND: Refusal.WRONG,
    _FAILED_PRECONDITION: Refusal.WRONG,
    _OUT_OF_RANGE: Refusal.WRONG,
    _UNIMPLEMENTED: Refusal.WRONG,
    _PERMISSION_DENIED: Refusal.DENIED,
    _DATA_LOSS: Refusal.CORRUPT,
}


def classify(code: int, text: str) -> Refusal:
    """Returns the meaning of a status: its number and its details."""
    for status, part, refusal in _TEXTS:
        if code == status and part in text:
            return refusal
    return _CODES.get(code, Refusal.AWAY)


def explain(refusal: Refusal, what: str, text: str, *, writing: bool) -> WALError:
    """Returns the error for a call that is not retried.

    `what` names the call and its destination; `writing` is True if it could change data.
    """
    said = f"{what}: {text or refusal.value}"
    if refusal is Refusal.AWAY and writing:
        return UnknownOutcomeError(
            f"{said}; it was sent and no answer came, so it may have been carried out, or may still be within seconds: "
            f"load the keys to find out"
        )
    if refusal in (Refusal.AWAY, Refusal.BUSY, Refusal.TOKEN):
        return UnavailableError(f"{said}; nothing was changed: try again")
    if refusal is Refusal.COMPACTED:
        return CompactedError(f"{said}; load the keys again and watch them again")
    if refusal is Refusal.AHEAD:
        return RevisionAheadError(f"{said}; the data was replaced: load the keys again and watch them again")
    if refusal is Refusal.NO_SPACE:
        return NoSpaceError(f"{said}; nothing was changed: compact and defragment etcd, or raise --quota-backend-bytes")
    if refusal is Refusal.CORRUPT:
        return CorruptionError(f"{said}; restore that etcd member", expected="members that agree")
    if refusal is Refusal.TOO_LARGE:
        return InvalidArgumentError(
            f"{said}; etcd takes 1.5 MiB in one request by default (--max-request-bytes): save less at once, nothing was changed"
        )
    if refusal is Refusal.DENIED:
        return InvalidArgumentError(f"{said}; nothing was changed: check the user, the password and the user's roles")
    return InvalidArgumentError(f"{said}; nothing was changed")
