"""Converters: the types of this library as messages of the protocol, and back. Pure.

Positions, ids, the identity of a log, vchannels and their owners; the results of appends; and what a log reports of itself:
settings, counts of broadcasts, the tail. A proto from the network that violates the protocol is an InvalidArgumentError.

Most results of one turn are events of one frame: their ids and ticks ascend by one, so a range describes all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.any_pb2 import Any as AnyProto

from wal.errors import InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, Lineage, LogPosition, MessageID, Origin, Restore, TxnContext
from wal.message.wire_fields import txn_from_proto, txn_to_proto
from wal.rpc.api import pchannel_pb2, result_pb2
from wal.storage.base import LogSnapshot
from wal.write.operations import Together

_LOW = (1 << 64) - 1


def position_to_proto(position: int) -> pchannel_pb2.Position:
    """Returns a frame's position as protobuf. Raises InvalidArgumentError past 128 bits, which no log reaches, but a request can."""
    if position > _LOW:
        if position >> 128:
            raise InvalidArgumentError(f"position {position} is past the last one, 2**128 - 1: send a position of the log")
        return pchannel_pb2.Position(low=position & _LOW, high=position >> 64)
    return pchannel_pb2.Position(low=position)


def position_from_proto(position: pchannel_pb2.Position) -> int:
    """Returns the position; 0 for an absent one."""
    return position.high << 64 | position.low


def event_to_proto(event: LogPosition | None) -> pchannel_pb2.EventPosition | None:
    """Returns the message of an event's position, None for None: a field that is set to None is absent."""
    return None if event is None else pchannel_pb2.EventPosition(frame=position_to_proto(event[0]), index=event[1])


def event_from_proto(event: pchannel_pb2.EventPosition) -> LogPosition:
    """Returns the (position, index) of an event. The caller asks first whether the field is present."""
    return (position_from_proto(event.frame), event.index)


def identity_to_proto(log: Origin, *, term: int = 0, lineage: Lineage | None = None) -> pchannel_pb2.LogIdentity:
    """Returns the message that identifies a log; `term` is the one in which it is written."""
    restores = [
        pchannel_pb2.LogRestore(parent=restore.parent, fork=position_to_proto(restore.fork), newest=event_to_proto(restore.newest))
        for restore in (() if lineage is None else lineage.restores)
    ]
    return pchannel_pb2.LogIdentity(
        pchannel=pchannel_pb2.PChannelInfo(name=log.pchannel, term=term), incarnation=log.incarnation, form=log.form, restores=restores
    )


def lineage_from_proto(log: pchannel_pb2.LogIdentity) -> Lineage:
    """Returns the lineage of a log."""
    return Lineage(
        log.incarnation,
        tuple(
            Restore(
                restore.parent, position_from_proto(restore.fork), event_from_proto(restore.newest) if restore.HasField("newest") else None
            )
            for restore in log.restores
        ),
    )


def snapshot_to_proto(snapshot: LogSnapshot) -> pchannel_pb2.LogState:
    """Returns the message of a log at one moment."""
    log = identity_to_proto(snapshot.origin, term=snapshot.term, lineage=snapshot.lineage)
    return pchannel_pb2.LogState(log=log, tail=tail_to_proto(snapshot))


def snapshot_from_proto(state: pchannel_pb2.LogState) -> LogSnapshot:
    """Returns a log at one moment."""
    log = state.log
    return tail_from_proto(state.tail, identity_from_proto(log), lineage_from_proto(log), term=log.pchannel.term)


def identity_from_proto(log: pchannel_pb2.LogIdentity, position: int = 0) -> Origin:
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


Numbered = tuple[int, AppendResult | ForgottenResult]
"""The number of a request, and its result."""


def ranges_of(results: Iterable[Numbered]) -> list[result_pb2.AppendedRange]:
    """Returns the messages of these results, in their order."""
    ranges: list[result_pb2.AppendedRange] = []
    next_request = next_index = next_tick = -1
    frame: MessageID | None = None
    duplicate = False
    for request_id, result in results:
        message_id, tick = result.message_id, result.time_tick
        if message_id is None or tick is None:
            ranges.append(result_pb2.AppendedRange(first_request_id=request_id, count=1, duplicate=result.duplicate))
            frame = None
            continue
        alone = result.txn_context is not None or result.extra is not None or result.last_confirmed != message_id
        if (
            frame is not None
            and not alone
            and request_id == next_request
            and message_id.index == next_index
            and tick == next_tick
            and message_id.position == frame.position
            and result.duplicate is duplicate
            and message_id.same_log(frame)
        ):
            ranges[-1].count += 1
        else:
            ranges.append(_range(request_id, message_id, tick, result) if alone else _plain(request_id, message_id, tick, result.duplicate))
            frame, duplicate = None if alone else message_id, result.duplicate
        next_request, next_index, next_tick = request_id + 1, message_id.index + 1, tick + 1
    return ranges


def range_of(first_request_id: int, together: Together) -> result_pb2.AppendedRange:
    """Returns the message of the results of consecutive requests."""
    first = together.origin.message_id(together.first_index)
    return result_pb2.AppendedRange(
        first_request_id=first_request_id, count=together.count, first_id=bytes(first), first_time_tick=together.first_tick
    )


def results_of(appended: result_pb2.AppendedRange) -> Iterator[Numbered]:
    """Yields the results of a range. Raises InvalidArgumentError for a range that contradicts itself."""
    number, count, duplicate = appended.first_request_id, appended.count, appended.duplicate
    if not appended.first_id:
        for request_id in range(number, number + count):
            yield request_id, AppendResult(None, None, None, None, None, duplicate)
        return
    first = id_from_bytes("first_id", appended.first_id)
    tick = appended.first_time_tick
    alone = bool(appended.last_confirmed) or appended.HasField("txn_context") or appended.HasField("extra")
    if alone:
        if count != 1:
            raise InvalidArgumentError(f"a range of {count} results has fields of one result: a server sends such a result alone")
        confirmed = id_from_bytes("last_confirmed", appended.last_confirmed) if appended.last_confirmed else first
        context: TxnContext | None = txn_from_proto(appended.txn_context) if appended.HasField("txn_context") else None
        extra: AnyProto | None = appended.extra if appended.HasField("extra") else None
        yield number, AppendResult(first, tick, confirmed, context, extra, duplicate)
        return
    pchannel, incarnation, position, index, form = (first.pchannel, first.incarnation, first.position, first.index, first.form)
    for step in range(count):
        message_id = MessageID(pchannel, incarnation, position, index + step, form)
        yield number + step, AppendResult(message_id, tick + step, message_id, None, None, duplicate)


def _extra(extra: object) -> AnyProto | None:
    if extra is None or isinstance(extra, AnyProto):
        return extra
    raise InvalidArgumentError(f"the extra {extra!r} of a result has no wire form: it must be a google.protobuf.Any")


def _plain(request_id: int, message_id: MessageID, tick: int, duplicate: bool) -> result_pb2.AppendedRange:
    return result_pb2.AppendedRange(
        first_request_id=request_id, count=1, first_id=bytes(message_id), first_time_tick=tick, duplicate=duplicate
    )


def _range(request_id: int, message_id: MessageID, tick: int, result: AppendResult | ForgottenResult) -> result_pb2.AppendedRange:
    """Returns the range of one result that shares none."""
    alone = _plain(request_id, message_id, tick, result.duplicate)
    if result.last_confirmed is not None and result.last_confirmed != message_id:
        alone.last_confirmed = bytes(result.last_confirmed)
    if result.txn_context is not None:
        alone.txn_context.CopyFrom(txn_to_proto(result.txn_context))
    if (extra := _extra(result.extra)) is not None:
        alone.extra.CopyFrom(extra)
    return alone


def tail_to_proto(snapshot: LogSnapshot) -> pchannel_pb2.TailState:
    """Returns the message of the end of a log at one moment."""
    return pchannel_pb2.TailState(
        durable_end=position_to_proto(snapshot.durable_end),
        promised_tick=snapshot.promised_tick,
        newest=event_to_proto(snapshot.newest),
        earliest=event_to_proto(snapshot.earliest),
        last_truncated=event_to_proto(snapshot.last_truncated),
        truncated_tick=snapshot.truncated_tick,
    )


def tail_from_proto(tail: pchannel_pb2.TailState, origin: Origin, lineage: Lineage, *, term: int) -> LogSnapshot:
    """Returns the end of this log at one moment."""
    return LogSnapshot(
        origin,
        lineage,
        term,
        position_from_proto(tail.durable_end),
        event_from_proto(tail.earliest),
        tail.promised_tick,
        False,
        event_from_proto(tail.newest) if tail.HasField("newest") else None,
        event_from_proto(tail.last_truncated) if tail.HasField("last_truncated") else None,
        tail.truncated_tick if tail.HasField("truncated_tick") else None,
    )
