"""Results of appends as messages, many in one, and back. Pure.

Most results of one turn are events of one frame: their ids and ticks ascend by one, so a range describes all of them. The contract's form
has one message for each result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.any_pb2 import Any as AnyProto

from wal.errors import InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, MessageID, TxnContext
from wal.message.wire_fields import txn_from_proto, txn_to_proto
from wal.message.wire_pb2 import MessageID as MessageIDProto
from wal.rpc.api import result_pb2 as result_proto
from wal.rpc.api.streaming_pb2 import ProduceMessageResponseResult
from wal.rpc.positions import id_from_bytes
from wal.write.operations import Together

__all__ = ["Numbered", "range_of", "ranges_of", "result_from_proto", "result_to_proto", "results_of"]

Numbered = tuple[int, AppendResult | ForgottenResult]
"""The number of a request, and its result."""


def ranges_of(results: Iterable[Numbered]) -> list[result_proto.AppendedRange]:
    """Returns the messages of these results, in their order."""
    ranges: list[result_proto.AppendedRange] = []
    next_request = next_index = next_tick = -1
    frame: MessageID | None = None
    duplicate = False
    for request_id, result in results:
        message_id, tick = result.message_id, result.time_tick
        if message_id is None or tick is None:
            ranges.append(result_proto.AppendedRange(first_request_id=request_id, count=1, duplicate=result.duplicate))
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
            ranges.append(
                _range(request_id, message_id, tick, result)
                if alone
                else _plain(request_id, message_id, tick, result.duplicate)
            )
            frame, duplicate = None if alone else message_id, result.duplicate
        next_request, next_index, next_tick = request_id + 1, message_id.index + 1, tick + 1
    return ranges


def range_of(first_request_id: int, together: Together) -> result_proto.AppendedRange:
    """Returns the message of the results of consecutive requests."""
    first = together.origin.message_id(together.first_index)
    return result_proto.AppendedRange(
        first_request_id=first_request_id,
        count=together.count,
        first_id=bytes(first),
        first_time_tick=together.first_tick,
    )


def results_of(appended: result_proto.AppendedRange) -> Iterator[Numbered]:
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
            raise InvalidArgumentError(
                f"a range of {count} results has fields of one result: a server sends such a result alone"
            )
        confirmed = id_from_bytes("last_confirmed", appended.last_confirmed) if appended.last_confirmed else first
        context: TxnContext | None = txn_from_proto(appended.txn_context) if appended.HasField("txn_context") else None
        extra: AnyProto | None = appended.extra if appended.HasField("extra") else None
        yield number, AppendResult(first, tick, confirmed, context, extra, duplicate)
        return
    pchannel, incarnation, position, index, form = (
        first.pchannel,
        first.incarnation,
        first.position,
        first.index,
        first.form,
    )
    for step in range(count):
        message_id = MessageID(pchannel, incarnation, position, index + step, form)
        yield number + step, AppendResult(message_id, tick + step, message_id, None, None, duplicate)


def result_to_proto(result: AppendResult | ForgottenResult) -> ProduceMessageResponseResult:
    """Returns the message of one result, in the form of the contract."""
    message_id, confirmed = result.message_id, result.last_confirmed
    return ProduceMessageResponseResult(
        id=None if message_id is None else MessageIDProto(id=bytes(message_id)),
        time_tick=result.time_tick or 0,
        txn_context=None if result.txn_context is None else txn_to_proto(result.txn_context),
        extra=_extra(result.extra),
        last_confirmed=None if confirmed is None else MessageIDProto(id=bytes(confirmed)),
        duplicate=result.duplicate,
    )


def result_from_proto(result: ProduceMessageResponseResult) -> AppendResult | ForgottenResult:
    """Returns one result of a message in the form of the contract. A server of the contract sends no more than the id."""
    if not result.HasField("id"):
        return AppendResult(None, None, None, None, None, result.duplicate)
    message_id = id_from_bytes("id", result.id.id)
    return AppendResult(
        message_id,
        result.time_tick,
        id_from_bytes("last_confirmed", result.last_confirmed.id) if result.HasField("last_confirmed") else message_id,
        txn_from_proto(result.txn_context) if result.HasField("txn_context") else None,
        result.extra if result.HasField("extra") else None,
        result.duplicate,
    )


def _extra(extra: object) -> AnyProto | None:
    if extra is None or isinstance(extra, AnyProto):
        return extra
    raise InvalidArgumentError(f"the extra {extra!r} of a result has no wire form: it must be a google.protobuf.Any")


def _plain(request_id: int, message_id: MessageID, tick: int, duplicate: bool) -> result_proto.AppendedRange:
    return result_proto.AppendedRange(
        first_request_id=request_id, count=1, first_id=bytes(message_id), first_time_tick=tick, duplicate=duplicate
    )


def _range(
    request_id: int, message_id: MessageID, tick: int, result: AppendResult | ForgottenResult
) -> result_proto.AppendedRange:
    """Returns the range of one result that shares none."""
    alone = _plain(request_id, message_id, tick, result.duplicate)
    if result.last_confirmed is not None and result.last_confirmed != message_id:
        alone.last_confirmed = bytes(result.last_confirmed)
    if result.txn_context is not None:
        alone.txn_context.CopyFrom(txn_to_proto(result.txn_context))
    if (extra := _extra(result.extra)) is not None:
        alone.extra.CopyFrom(extra)
    return alone
