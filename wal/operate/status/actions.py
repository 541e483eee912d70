"""The actions of the status service: each changes one object of a log by its public calls, and is confirmed by the name of that object.

`perform` takes the name of an action and its arguments as JSON. Every destructive action needs `confirm`, the name of the object; a wrong
name is rejected before any change.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from wal.errors import ChannelExistError, InvalidArgumentError, shortened
from wal.message import Message, MessageID
from wal.read.options import All, Latest, StartFrom
from wal.timestamp.checks import TICK_MAX, whole_number
from wal.timestamp.timestamp import due_of


class AppendArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`payload` is a text, `payload_base64` any bytes; exactly one of them is set. `create`: also the vchannel, if it is missing.

    With `deliver_at` the message is delivered then; the `message_id` of the answer is None while it waits.
    """

    vchannel: str
    payload: str | None = None
    payload_base64: str | None = None
    properties: dict[str, str] = {}
    key: str | None = None
    create: bool = False
    deliver_at: datetime | None = None


class CreateAction(msgspec.Struct, forbid_unknown_fields=True):
    """`pchannel` None: the one with the fewest vchannels."""

    vchannel: str
    pchannel: str | None = None


class DropAction(msgspec.Struct, forbid_unknown_fields=True):
    """A vchannel to drop, with its messages and cursors."""

    vchannel: str
    confirm: str


class CancelAction(msgspec.Struct, forbid_unknown_fields=True):
    """The scheduled message with this key; the answer is whether it still waited."""

    vchannel: str
    key: str
    confirm: str


class SetCursor(msgspec.Struct, forbid_unknown_fields=True):
    """`to` is "earliest", "latest", or the id of the first message to read; with `reset` a stale cursor begins again there."""

    cursor: str
    vchannels: list[str]
    to: str
    confirm: str
    reset: bool = False


class RemoveCursor(msgspec.Struct, forbid_unknown_fields=True):
    """`vchannels` None: all cursors of that name."""

    cursor: str
    confirm: str
    vchannels: list[str] | None = None


class RedriveAction(msgspec.Struct, forbid_unknown_fields=True):
    """`dead_letter` is the vchannel that a consumer names as its dead letter. With `limit_s` the action ends after so many seconds, and is
    repeated until it has redriven none.
    """

    dead_letter: str
    confirm: str
    limit_s: float | None = None


class AbortAction(msgspec.Struct, forbid_unknown_fields=True):
    """`broadcast_id` is a text of digits, as in the JSON of the service; a number is accepted too, but many parsers round it."""

    broadcast_id: int | str
    reason: str
    confirm: str


class TruncateAction(msgspec.Struct, forbid_unknown_fields=True):
    """`up_to` is an id, inclusive."""

    up_to: str
    confirm: str


async def perform(log: Any, name: str, body: bytes) -> dict[str, Any]:
    """Performs an action, and returns its result. Raises InvalidArgumentError for wrong arguments, and the errors of the log."""
    if name not in _ACTIONS:
        raise InvalidArgumentError(f"no action {shortened(name)}: {', '.join(sorted(_ACTIONS))}")
    kind, action = _ACTIONS[name]
    try:
        arguments = msgspec.json.decode(body, type=kind)
        json.loads(body, object_pairs_hook=_check_once, parse_int=str)  # for a duplicate name, msgspec takes the last value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"the arguments of {name} are wrong: {error}") from error
    return await action(log, arguments)


async def _append(log: Any, call: AppendArguments) -> dict[str, Any]:
    if (call.payload is None) == (call.payload_base64 is None):
        raise InvalidArgumentError("append takes payload or payload_base64")
    try:
        payload = call.payload.encode() if call.payload is not None else base64.b64decode(call.payload_base64 or "", validate=True)
    except ValueError as error:
        raise InvalidArgumentError(f"payload_base64 {shortened(call.payload_base64 or '')} is not base64: {error}") from error
    message = Message(call.vchannel, payload, properties=call.properties)
    if call.deliver_at is not None:
        due_of(call.deliver_at)
    if call.create:
        with contextlib.suppress(ChannelExistError):
            await log.create_vchannel(call.vchannel)
    if call.deliver_at is None:
        result = await log.raw_append(message, idempotency_key=call.key)
        return {"message_id": str(result.message_id), "time_tick": result.time_tick, "duplicate": result.duplicate}
    scheduled = await log.append(call.vchannel, payload, properties=call.properties, idempotency_key=call.key, deliver_at=call.deliver_at)
    return {
        "message_id": None if scheduled.appended is None else str(scheduled.appended.message_id),
        "time_tick": None if scheduled.appended is None else scheduled.appended.time_tick,
        "duplicate": scheduled.duplicate,
        "key": scheduled.key,
        "deliver_at": scheduled.deliver_at.isoformat(),
    }


async def _create(log: Any, call: CreateAction) -> dict[str, Any]:
    info = await log.create_vchannel(call.vchannel, pchannel=call.pchannel)
    return {"vchannel": info.name, "pchannel": info.pchannel, "incarnation": info.incarnation}


async def _drop(log: Any, call: DropAction) -> dict[str, Any]:
    _confirmed(call.confirm, call.vchannel)
    await log.drop_vchannel(call.vchannel)
    return {"vchannel": call.vchannel}


async def _cancel(log: Any, call: CancelAction) -> dict[str, Any]:
    _confirmed(call.confirm, call.key)
    schedule = await log.scheduled(call.vchannel)
    return {"vchannel": call.vchannel, "key": call.key, "cancelled": await schedule.cancel(call.key)}


async def _set_cursor(log: Any, call: SetCursor) -> dict[str, Any]:
    _confirmed(call.confirm, call.cursor)
    policy = {"earliest": All(), "latest": Latest()}.get(call.to) or StartFrom(MessageID.parse(call.to))
    await log.seek(call.cursor, to=policy, vchannels=call.vchannels, reset=call.reset)
    return {"cursor": call.cursor, "to": call.to}


async def _remove_cursor(log: Any, call: RemoveCursor) -> dict[str, Any]:
    _confirmed(call.confirm, call.cursor)
    vchannels = None if call.vchannels is None else tuple(sorted(set(call.vchannels)))
    for consumer in log.consumers():
        if consumer.cursor == call.cursor and vchannels in (None, tuple(sorted(consumer.vchannels))):
            raise InvalidArgumentError(
                f"cursor {call.cursor!r} has a consumer that runs in this process, and would create it again: close the consumer first, "
                "or move the cursor"
            )
    await log.delete_cursor(call.cursor, vchannels=call.vchannels)
    return {"cursor": call.cursor}


async def _redrive(log: Any, call: RedriveAction) -> dict[str, Any]:
    _confirmed(call.confirm, call.dead_letter)
    return {"dead_letter": call.dead_letter, "redriven": await log.redrive(call.dead_letter, limit_s=call.limit_s)}


async def _abort(log: Any, call: AbortAction) -> dict[str, Any]:
    broadcast_id = whole_number("broadcast_id", str(call.broadcast_id), 0, TICK_MAX)
    _confirmed(call.confirm, str(call.broadcast_id))
    await log.broadcast().abort(broadcast_id, call.reason)
    return {"broadcast_id": broadcast_id}


async def _truncate(log: Any, call: TruncateAction) -> dict[str, Any]:
    _confirmed(call.confirm, call.up_to)
    await log.truncate(up_to=MessageID.parse(call.up_to))
    return {"up_to": call.up_to}


def _confirmed(confirm: str, name: str) -> None:
    if confirm != name:
        raise InvalidArgumentError(
            f"confirm is {shortened(confirm)}: repeat {shortened(name)} there, so that nothing else is changed by mistake"
        )


def _check_once(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise InvalidArgumentError(f"{shortened(name)} is in the arguments twice: write it once")
        names.add(name)


_ACTIONS: Final[dict[str, tuple[Any, Callable[[Any, Any], Awaitable[dict[str, Any]]]]]] = {
    "append": (AppendArguments, _append),
    "create": (CreateAction, _create),
    "drop": (DropAction, _drop),
    "scheduled-cancel": (CancelAction, _cancel),
    "cursor-set": (SetCursor, _set_cursor),
    "cursor-rm": (RemoveCursor, _remove_cursor),
    "redrive": (RedriveAction, _redrive),
    "broadcast-abort": (AbortAction, _abort),
    "truncate": (TruncateAction, _truncate),
}
