"""Requests of a Produce stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from wal.message import Message
from wal.requests.appends import Append, WriteOptions
from wal.rpc.api import append_pb2
from wal.rpc.appends import append_to_proto, rows_to_proto
from wal.write.idempotency.keys import Key


def request_of(first: int, appends: Sequence[tuple[Message, int, Key | None]], *, seen_time_tick: int = 0) -> append_pb2.ProducerRequest:
    """Returns the request for messages with their barriers and keys; they are numbered from `first` on."""
    rows = Append.of([message for message, _, _ in appends])
    if any(barrier or key is not None for _, barrier, key in appends):
        rows = structs.replace(rows, options=[WriteOptions(barrier, key) for _, barrier, key in appends])
    return request(first, append=append_to_proto(rows), seen_time_tick=seen_time_tick)


def columns_of(messages: Sequence[Message]) -> append_pb2.MessageColumns:
    """Returns the columns of the bodies of a transaction."""
    return rows_to_proto(Append.of(messages))


def request(number: int, **content: Any) -> append_pb2.ProducerRequest:
    """Returns a request with this number."""
    return append_pb2.ProducerRequest(request_id=number, **content)
