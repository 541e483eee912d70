"""Positions, the identity of a log, vchannels and the owners of channels: as messages, and back. Pure.

A message from the network that is not as the protocol says is an InvalidArgumentError.

Cursors, as messages, and back. Pure.
"""

from __future__ import annotations

from wal.channels.vchannels import OwnerDescription, VChannelInfo
from wal.errors import InvalidArgumentError
from wal.message import Lineage, LogPosition, MessageID, Origin, Restore
from wal.message.wire_pb2 import MessageID as MessageIDProto
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey
from wal.read.options import ReadPosition
from wal.rpc.api import pchannel_calls_pb2 as calls_proto
from wal.rpc.api import pchannel_pb2 as proto

__all__ = [
    "cursor_from_proto",
    "cursor_to_proto",
    "event_from_proto",
    "event_to_proto",
    "id_from_bytes",
    "id_or_none",
    "id_to_bytes",
    "identity_from_proto",
    "identity_to_proto",
    "info_from_proto",
    "info_to_proto",
    "key_from_proto",
    "key_to_proto",
    "lineage_from_proto",
    "owner_from_proto",
    "owner_to_proto",
    "position_from_proto",
    "position_to_proto",
    "vchannel_from_proto",
    "vchannel_to_proto",
]

_LOW = (1 << 64) - 1


def position_to_proto(position: int) -> proto.Position:
    """Returns a frame's position as protobuf. Raises InvalidArgumentError past 128 bits, which no log reaches, but a request can."""
    if position > _LOW:
        if position >> 128:
            raise InvalidArgumentError(
                f"position {position} is past the last one, 2**128 - 1: send one that the log gave"
            )
        return proto.Position(low=position & _LOW, high=position >> 64)
    return proto.Position(low=position)


def position_from_proto(position: proto.Position) -> int:
    """Returns the position; 0 for an absent one."""
    return position.high << 64 | position.low


def event_to_proto(event: LogPosition | None) -> proto.EventPosition | None:
    """Returns the message of an event's position, None for None: a field that is set to None is absent."""
    return None if event is None else proto.EventPosition(frame=position_to_proto(event[0]), index=event[1])


def event_from_proto(event: proto.EventPosition) -> LogPosition:
    """Returns the (position, index) of an event. The caller asks first whether the field is present."""
    return (position_from_proto(event.frame), event.index)


def identity_to_proto(log: Origin, *, term: int = 0, lineage: Lineage | None = None) -> proto.LogIdentity:
    """Returns the message that identifies a log; `term` is the one in which it is written."""
    restores = [
        proto.LogRestore(
            parent=restore.parent, fork=position_to_proto(restore.fork), newest=event_to_proto(restore.newest)
        )
        for restore in (() if lineage is None else lineage.restores)
    ]
    return proto.LogIdentity(
        pchannel=proto.PChannelInfo(name=log.pchannel, term=term),
        incarnation=log.incarnation,
        form=log.form,
        restores=restores,
    )


def lineage_from_proto(log: proto.LogIdentity) -> Lineage:
    """Returns the lineage of a log."""
    return Lineage(
        log.incarnation,
        tuple(
            Restore(
                restore.parent,
                position_from_proto(restore.fork),
                event_from_proto(restore.newest) if restore.HasField("newest") else None,
            )
            for restore in log.restores
        ),
    )


def identity_from_proto(log: proto.LogIdentity, position: int = 0) -> Origin:
    """Returns the origin of the frame at this position of a log."""
    return Origin(log.pchannel.name, log.incarnation, position, log.form)


def id_from_bytes(what: str, data: bytes) -> MessageID:
    """Returns the message id of these bytes. Raises InvalidArgumentError, with the name of the field, for any others."""
    try:
        return MessageID.from_bytes(data)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: {error}") from error


def id_to_bytes(message_id: MessageID | None) -> bytes:
    """Returns the bytes of a message id, none for None."""
    return b"" if message_id is None else bytes(message_id)


def id_or_none(what: str, data: bytes) -> MessageID | None:
    """Returns the message id of these bytes, None for none; raises as `id_from_bytes` does."""
    return id_from_bytes(what, data) if data else None


def vchannel_to_proto(info: VChannelInfo) -> proto.VChannelState:
    """Returns the message of a vchannel that exists."""
    return proto.VChannelState(
        name=info.name,
        pchannel=info.pchannel,
        incarnation=info.incarnation,
        state=proto.VChannelState.EXISTS,
        owner=None if info.owner is None else owner_to_proto(info.owner),
    )


def vchannel_from_proto(state: proto.VChannelState) -> VChannelInfo:
    """Returns the vchannel, whatever its state."""
    owner = owner_from_proto(state.owner) if state.HasField("owner") else None
    return VChannelInfo(state.name, state.pchannel, state.incarnation, owner)


def owner_to_proto(owner: OwnerDescription) -> proto.OwnerDescription:
    """Returns the message of the owner of channels."""
    return proto.OwnerDescription(role=owner.role, address=owner.address, description_text=owner.description_text)


def owner_from_proto(owner: proto.OwnerDescription) -> OwnerDescription:
    """Returns the owner of channels. Raises InvalidArgumentError for one without a role, or with a text that is too long."""
    return OwnerDescription(owner.role, owner.address, owner.description_text)


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
