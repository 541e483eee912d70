"""Cursors, as messages, and back. Pure."""

from __future__ import annotations

from wal.cursors import Cursor, CursorInfo, CursorKey
from wal.errors import InvalidArgumentError
from wal.message import Origin
from wal.message.wire_pb2 import MessageID as MessageIDProto
from wal.reading import ReadPosition
from wal.rpc.api import pchannel_calls_pb2 as calls_proto
from wal.rpc.positions import event_from_proto, event_to_proto, id_from_bytes, identity_from_proto, identity_to_proto

__all__ = ["cursor_from_proto", "cursor_to_proto", "info_from_proto", "info_to_proto", "key_from_proto", "key_to_proto"]


def key_to_proto(key: CursorKey) -> calls_proto.CursorKey:
    """Returns the message of the key of a cursor."""
    return calls_proto.CursorKey(name=key.name, vchannels=key.vchannels)


def key_from_proto(key: calls_proto.CursorKey) -> CursorKey:
    """Returns the key of a cursor. Raises InvalidArgumentError without a name or vchannels."""
    if not key.name or not key.vchannels:
        raise InvalidArgumentError("a cursor needs a name and at least one vchannel: set both")
    return CursorKey.of(key.name, key.vchannels)


def cursor_to_proto(cursor: Cursor) -> calls_proto.Cursor:
    """Returns the message of a cursor."""
    return calls_proto.Cursor(
        key=key_to_proto(cursor.key),
        incarnations=[calls_proto.CursorIncarnation(incarnation=incarnation) for incarnation in cursor.incarnations],
        log=identity_to_proto(Origin(cursor.pchannel, cursor.incarnation, 0, cursor.form)),
        start=event_to_proto(cursor.start),
        event=event_to_proto(cursor.event),
        time_tick=cursor.time_tick,
        saved_at=cursor.saved_at,
        stale=cursor.stale,
    )


def cursor_from_proto(cursor: calls_proto.Cursor) -> Cursor:
    """Returns the cursor of a message. Raises InvalidArgumentError if it has not one incarnation for each of its vchannels."""
    key, log = key_from_proto(cursor.key), identity_from_proto(cursor.log)
    if len(cursor.incarnations) != len(key.vchannels):
        raise InvalidArgumentError(
            f"{key} has {len(cursor.incarnations)} incarnations: one for each of its {len(key.vchannels)} vchannels is needed"
        )
    return Cursor(
        key,
        tuple([one.incarnation if one.HasField("incarnation") else None for one in cursor.incarnations]),
        log.pchannel,
        log.incarnation,
        event_from_proto(cursor.start),
        event_from_proto(cursor.event) if cursor.HasField("event") else None,
        cursor.time_tick,
        cursor.saved_at,
        log.form,
        cursor.stale,
    )


def info_to_proto(info: CursorInfo) -> calls_proto.CursorState:
    """Returns the message of a cursor as `log.cursors()` shows it."""
    at = info.position
    return calls_proto.CursorState(
        key=calls_proto.CursorKey(name=info.name, vchannels=info.vchannels),
        event=None if at is None else MessageIDProto(id=bytes(at.message_id)),
        time_tick=0 if at is None else at.time_tick,
        lag_bytes=info.lag_bytes,
        stale=info.stale,
        held_bytes=info.held_bytes,
    )


def info_from_proto(state: calls_proto.CursorState) -> CursorInfo:
    """Returns the cursor as `log.cursors()` shows it."""
    position = (
        ReadPosition(id_from_bytes("event", state.event.id), state.time_tick) if state.HasField("event") else None
    )
    return CursorInfo(
        state.key.name, tuple(state.key.vchannels), position, state.lag_bytes, state.stale, state.held_bytes
    )
