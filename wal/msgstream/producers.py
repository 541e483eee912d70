"""Producers: the channels that a stream writes to, and how a pack is distributed over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal.errors import InvalidArgumentError
from wal.msgstream.errors import PartialSendError, ProduceError
from wal.msgstream.medium import Medium, MediumProducer, Outgoing
from wal.msgstream.pack import MsgPack
from wal.msgstream.position import MsgPosition
from wal.msgstream.repack import RepackFunc, distribute
from wal.msgstream.sending import send_parts
from wal.msgstream.ts_msg import TsMsg

__all__ = ["Producers"]


class Producers:
    """The producers of a stream. Their order is that of the calls that added them: bucket i is producer i."""

    def __init__(self, medium: Medium) -> None:
        self.repack_func: RepackFunc | None = None
        self._medium = medium
        self._by_channel: dict[str, MediumProducer] = {}

    def __contains__(self, channel: str) -> bool:
        return channel in self._by_channel

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels, in order."""
        return tuple(self._by_channel)

    def add(self, opened: Mapping[str, MediumProducer]) -> None:
        self._by_channel.update(opened)

    async def produce(self, pack: MsgPack) -> dict[str, list[MsgPosition]]:
        """Distributes the messages by their hash keys and returns their positions by channel, all durable."""
        channels = self._channels()
        distributed = distribute(pack.msgs, len(channels), self.repack_func)
        parts = {channels[bucket]: _encoded(msgs) for bucket, msgs in sorted(distributed.items())}
        sends = {channel: (self._by_channel[channel], [out for _, out in part]) for channel, part in parts.items()}
        try:
            ids = await send_parts(sends)
        except Exception as error:
            raise _failed(error, parts) from _cause(error)
        return {channel: _positions(channel, part, ids[channel]) for channel, part in parts.items()}

    async def broadcast(self, pack: MsgPack) -> dict[str, list[MsgPosition]]:
        """Sends all messages to all channels and returns their positions by channel, all durable."""
        self._channels()
        part = _encoded(pack.msgs)
        try:
            ids = await self._medium.broadcast(self._by_channel, [out for _, out in part])
        except Exception as error:
            raise _failed(error, dict.fromkeys(self._by_channel, part)) from _cause(error)
        return {channel: _positions(channel, part, ids[channel]) for channel in self._by_channel}

    async def close(self) -> None:
        for producer in self._by_channel.values():
            await producer.close()

    def _channels(self) -> list[str]:
        if not self._by_channel:
            raise InvalidArgumentError("the stream has no producers: call as_producer([channel, …]) first")
        return list(self._by_channel)


def _encoded(msgs: Sequence[TsMsg]) -> list[tuple[TsMsg, Outgoing]]:
    return [(msg, Outgoing(msg.marshal(), msg.msg_type)) for msg in msgs]


def _positions(channel: str, part: Sequence[tuple[TsMsg, Outgoing]], msg_ids: Sequence[bytes]) -> list[MsgPosition]:
    return [
        MsgPosition(channel, msg_id, timestamp=msg.begin_ts) for (msg, _), msg_id in zip(part, msg_ids, strict=True)
    ]


def _cause(error: Exception) -> BaseException:
    return error.__cause__ if isinstance(error, PartialSendError) and error.__cause__ is not None else error


def _failed(error: Exception, parts: Mapping[str, Sequence[tuple[TsMsg, Outgoing]]]) -> ProduceError:
    """Returns the error for a call that failed while it sent."""
    cause = _cause(error)
    durable = error.durable if isinstance(error, PartialSendError) else {}
    results = {
        channel: [
            None if msg_id is None else MsgPosition(channel, msg_id, timestamp=msg.begin_ts)
            for (msg, _), msg_id in zip(parts[channel], msg_ids, strict=True)
        ]
        for channel, msg_ids in durable.items()
    }
    return ProduceError.of(cause if isinstance(cause, Exception) else error, results)
