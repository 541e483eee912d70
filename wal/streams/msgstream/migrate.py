"""migrate: copies message streams of another system into a log, each message once; translate: moves their consumers after it.

Each message in the log stores its original position, and the log is the only record of the copy. `migrate` reads the last position from the
log, and continues there. So neither a crash nor a failed acknowledgement loses or repeats a message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from wal.api.accesser import WALAccesser
from wal.errors import InvalidArgumentError, LockedError, TruncatedError
from wal.message import ImmutableMessage, Message
from wal.read.options import ReadPosition
from wal.streams.msgstream.checks import check_channels, check_name
from wal.streams.msgstream.media.wal import MSG_TYPE, stored_type
from wal.streams.msgstream.media.wal_ids import WalId
from wal.streams.msgstream.stream import MsgStream
from wal.streams.msgstream.ts_msg import MsgPosition, TsMsg
from wal.streams.msgstream.tt_stream import TtMsgStream
from wal.streams.msgstream.types import MsgType
from wal.write.idempotency.keys import ProducerKey

MIGRATION: Final = "migration"
"""The property with the name of the migration that wrote the message."""
OLD_POSITION: Final = "old_position"
"""The property with the text of the OldPosition."""


class OldPosition(msgspec.Struct, frozen=True):
    """The original position of a migrated message, as its message in the log stores it. Pure.

    `sequence` is the number of the transaction that wrote it among those of this migration and channel. Its text is
    `sequence:begin_ts:end_ts:msg_id:channel`, the id hexadecimal.
    """

    sequence: int
    begin_ts: int
    end_ts: int
    msg_id: bytes
    channel_name: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.begin_ts}:{self.end_ts}:{self.msg_id.hex()}:{self.channel_name}"

    @property
    def position(self) -> MsgPosition:
        """The position, to seek to."""
        return MsgPosition(self.channel_name, self.msg_id, timestamp=self.begin_ts)

    @classmethod
    def of(cls, msg: TsMsg, position: MsgPosition, sequence: int) -> OldPosition:
        """Returns the position of a message that was consumed at `position`."""
        return cls(sequence, msg.begin_ts, msg.end_ts, position.msg_id, position.channel_name)

    @classmethod
    def of_copy(cls, message: ImmutableMessage, name: str, channel: str) -> OldPosition | None:
        """Returns the original position in a message of the log, or None if this migration did not write the message for this channel."""
        properties = message.properties
        if properties.get(MIGRATION) != name:
            return None
        try:
            sequence, begin_ts, end_ts, msg_id, channel_name = properties.get(OLD_POSITION, "").split(":", 4)
            position = cls(int(sequence), int(begin_ts), int(end_ts), bytes.fromhex(msg_id), channel_name)
        except ValueError:
            return None  # a property of another program
        return position if channel_name == channel else None


T = TypeVar("T")
TXN_BYTES: Final = 1 << 20
"""The approximate size of a transaction's payloads; a larger message has one of its own. By default a log takes 4 MiB with all
properties.
"""
SAVE_EVERY: Final = 64
"""The number of transactions between two saves of the cursor. A restart reads from the cursor to find the last message."""


async def migrate(
    stream: MsgStream, log: WALAccesser, *, channels: Mapping[str, str] | Sequence[str], name: str, idle_s: float | None = None
) -> int:
    """Copies these channels of a stream into vchannels of the log, in order and each message once. Returns the number of copied messages.

    `channels` maps them to vchannels, or names both. The copy subscribes as `name`, and continues where an earlier call with this name
    stopped or was killed. It runs until it is cancelled, the stream is closed, or nothing has come for `idle_s` seconds. Messages keep
    their payload; their old position is in the properties `migration` and `old_position`. TIME_TICK messages are left out, since the log
    has its own ticks.

    The stream must not receive yet, and must have no time ticks. In the log, `name/channel` is a cursor and a producer; delete both after
    the migration. Calls with the same name must not overlap. A second call in this process raises LockedError, and so does a call that
    detects writes of another process.
    """
    if not isinstance(stream, MsgStream) or isinstance(stream, TtMsgStream):
        raise TypeError(f"migrate() copies a MsgStream, in the order of its channels, not {type(stream).__name__}")
    _check_log(log)
    check_name("name", name)
    if idle_s is not None and not isinstance(idle_s, int | float):
        raise TypeError(f"idle_s must be a number of seconds or None, not {idle_s!r}")
    if idle_s is not None and not idle_s > 0:
        raise InvalidArgumentError(f"idle_s={idle_s!r}: give a number of seconds above 0, or None to run until it is cancelled")
    if not isinstance(channels, Mapping):
        channels = {channel: channel for channel in check_channels(channels)}
    targets = dict(channels)
    check_channels([*targets])
    check_channels([*targets.values()])
    with _running(log, [f"{name}/{channel}" for channel in targets]):
        return await _migrate(stream, log, targets, name, idle_s)


async def _migrate(stream: MsgStream, log: WALAccesser, targets: Mapping[str, str], name: str, idle_s: float | None) -> int:
    copies = {channel: _ChannelCopy(log, name, channel, vchannel) for channel, vchannel in targets.items()}
    for copy in copies.values():
        await copy.find_last()
    await stream.as_consumer([*targets], name)
    for copy in copies.values():
        if copy.last is not None:
            # If it was dropped, then all subscriptions had handled it, and the remaining messages follow it.
            with contextlib.suppress(TruncatedError):
                await stream.seek(copy.last.position)
    copied = 0
    while True:
        try:
            async with asyncio.timeout(idle_s) as waiting:
                pack = await stream.consume()
        except TimeoutError:
            if waiting.expired():
                return copied
            raise
        if pack is None:
            return copied
        channel = pack.end_positions[0].channel_name
        if channel not in copies:
            raise InvalidArgumentError(
                f"the stream consumes channel {channel!r}, which is not among those to migrate: give a stream without consumers"
            )
        copied += await copies[channel].copy(pack.msgs)


async def translate(
    log: WALAccesser, old_position: MsgPosition, *, name: str, vchannel: str | None = None, time_ticked: bool = False
) -> MsgPosition:
    """Returns the position in the log for a consumer that had handled everything up to `old_position`.

    `name` is the migration's. `vchannel` is the target of the copy, if its name differs from the channel's. For a stream without time ticks
    the position has to be that of a copied message, and a consumer at the new position gets exactly what followed. With `time_ticked` the
    position is of a pack that ended at its timestamp. The consumer gets everything above that timestamp, and again the messages that came
    out of order below it. Raises InvalidArgumentError if the message was not copied, or nothing was.
    """
    _check_log(log)
    check_name("name", name)
    if not isinstance(old_position, MsgPosition):
        raise TypeError(f"translate takes the MsgPosition of a message, not {old_position!r}")
    channel = old_position.channel_name
    target = channel if vchannel is None else vchannel
    after: MsgPosition | None = None
    async with log.read(target, follow=False) as scanner:
        async for message in scanner:
            bodies = message.bodies()
            for body in bodies:
                origin = OldPosition.of_copy(body, name, channel)
                if origin is None:
                    continue
                at = message.message_id if body is bodies[-1] else body.message_id
                if time_ticked and origin.end_ts > old_position.timestamp:
                    tick = message.time_tick - 1
                    return MsgPosition(target, bytes(WalId(target, at, tick, before=True)), timestamp=tick)
                after = MsgPosition(target, bytes(WalId(target, at)), timestamp=message.time_tick)
                if not time_ticked and origin.msg_id == old_position.msg_id:
                    return after
    if after is None or not time_ticked:
        raise InvalidArgumentError(
            f"the message of {old_position} is not among those that migration {name!r} copied to {target!r}: give the position of a "
            "message that it copied, time_ticked=True for a position of a time-ticked stream, or vchannel=… if that has another name"
        )
    return after


def _check_log(log: object) -> None:
    if not isinstance(log, WALAccesser):
        raise TypeError(f"a migration is into an open log, as open_wal(…) gives it, not {log!r}")


class _ChannelCopy:
    """The copy of one channel: its state in the log, and the writes."""

    def __init__(self, log: WALAccesser, name: str, channel: str, vchannel: str) -> None:
        self.last: OldPosition | None = None
        self._log = log
        self._name = name
        self._channel = channel
        self._vchannel = vchannel
        self._key = f"{name}/{channel}"
        self._sequence = 0
        self._positions: list[ReadPosition] = []
        """The positions after the last two transactions. The cursor is saved at the first, because the next call has to find the last
        one.
        """

    async def find_last(self) -> None:
        """Reads the last copied message from the log, from the cursor on."""
        async with self._log.read(self._vchannel, cursor=self._key, follow=False) as scanner:
            async for message in scanner:
                origins = [OldPosition.of_copy(body, self._name, self._channel) for body in message.bodies()]
                if positions := [one for one in origins if one is not None]:
                    self.last, self._sequence = positions[-1], positions[-1].sequence
                    self._written(ReadPosition(message.message_id, message.time_tick))
        await self._save()

    async def copy(self, msgs: Sequence[TsMsg]) -> int:
        """Writes these messages in transactions; returns their number without ticks."""
        count = 0
        for part in _parts([msg for msg in msgs if msg.msg_type != MsgType.TIME_TICK]):
            self._sequence += 1
            bodies = [self._message(msg, payload) for msg, payload in part]
            key = ProducerKey(self._key, self._sequence)
            result = await _finished(self._log.append_txn(self._vchannel, bodies, idempotency_key=key))
            if result.duplicate or result.message_id is None:
                raise LockedError(
                    f"transaction {self._sequence} of {self._key!r} is in the log already, written by another migrate() of this name, or "
                    "by a process before this one whose last write arrived only now: end the other, and call it again"
                )
            self._written(ReadPosition(result.message_id, result.time_tick))
            count += len(bodies)
            if self._sequence % SAVE_EVERY == 0:
                await self._save()
        return count

    def _message(self, msg: TsMsg, payload: bytes) -> Message:
        assert msg.position is not None
        properties = {
            MSG_TYPE: str(int(msg.msg_type)),
            MIGRATION: self._name,
            OLD_POSITION: str(OldPosition.of(msg, msg.position, self._sequence)),
        }
        return Message(self._vchannel, payload, message_type=stored_type(msg.msg_type), properties=properties)

    def _written(self, position: ReadPosition) -> None:
        self._positions = [*self._positions[-1:], position]

    async def _save(self) -> None:
        if len(self._positions) > 1:
            async with self._log.read(self._vchannel, cursor=self._key) as scanner:
                await scanner.save(self._positions[0])


async def _finished(append: Coroutine[Any, Any, T]) -> T:
    """Awaits an append, even for a cancelled caller: the append cannot be undone, and the next call has to find it in the log."""
    appending = asyncio.ensure_future(append)
    try:
        return await asyncio.shield(appending)
    except asyncio.CancelledError:
        await asyncio.wait((appending,))
        if not appending.cancelled():
            appending.exception()  # the caller gets the cancellation instead
        raise


def _parts(msgs: Sequence[TsMsg]) -> Iterator[list[tuple[TsMsg, bytes]]]:
    """Yields the messages with their payloads, in parts for one transaction each."""
    part: list[tuple[TsMsg, bytes]] = []
    size = 0
    for msg in msgs:
        payload = msg.marshal()
        if part and size + len(payload) > TXN_BYTES:
            yield part
            part, size = [], 0
        part.append((msg, payload))
        size += len(payload)
    if part:
        yield part


@contextlib.contextmanager
def _running(log: WALAccesser, keys: Sequence[str]) -> Iterator[None]:
    """Records that these copies run; raises LockedError if one of them runs already."""
    running = _by_log.setdefault(log, set())
    for key in keys:
        if key in running:
            raise LockedError(f"a migration of {key!r} runs in this process: end it, or choose another name")
    running.update(keys)
    try:
        yield
    finally:
        running.difference_update(keys)


_by_log: MutableMapping[WALAccesser, set[str]] = WeakKeyDictionary()
