"""StreamProducers: the channels that a stream writes to, and the distribution of a pack over them.

A message's hash keys decide: the bucket of a key is key % number of producers. A RepackFunc gets messages of one type and, for each of
them, the buckets of its keys. It returns the messages of each bucket. The functions for this are pure.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.runtime.user_code import shown
from wal.streams.msgstream.errors import PartialSendError, ProduceError, cause_of
from wal.streams.msgstream.medium import Medium, MediumProducer, Outgoing, send_parts
from wal.streams.msgstream.messages import DeleteMsg, InsertMsg, RowsMsg
from wal.streams.msgstream.ts_msg import MsgPack, MsgPosition, TsMsg
from wal.streams.msgstream.types import MsgType

RepackFunc = Callable[[list[TsMsg], list[list[int]]], Mapping[int, MsgPack]]
"""Gets messages of one type and, for each, the buckets of its hash keys. Returns the packs by bucket, which is the index of a producer.

Parts of one message that go to the same producer must not have the same `source_id` and `id`, unless the `id` is 0. A time-ticked stream
takes them for one message that was sent twice, and drops all but the first. `produce` rejects them.
"""


def insert_repack(msgs: list[TsMsg], buckets: list[list[int]]) -> dict[int, MsgPack]:
    """Splits each InsertMsg by rows: row i goes to bucket i of its message. Rows of one message and bucket stay one message."""
    return _by_rows(msgs, buckets, InsertMsg)


def delete_repack(msgs: list[TsMsg], buckets: list[list[int]]) -> dict[int, MsgPack]:
    """Splits each DeleteMsg by primary keys: key i goes to bucket i of its message."""
    return _by_rows(msgs, buckets, DeleteMsg)


def default_repack(msgs: list[TsMsg], buckets: list[list[int]]) -> dict[int, MsgPack]:
    """Sends each message, which must have exactly one hash key, to the bucket of its key."""
    bucket_msgs: dict[int, list[TsMsg]] = {}
    for message, row in zip(msgs, buckets, strict=True):
        if len(row) != 1:
            raise InvalidArgumentError(
                f"a message of type {message.msg_type!r} has {len(row)} hash keys: give hash_keys=[key], or set a repack function"
            )
        bucket_msgs.setdefault(row[0], []).append(message)
    return {bucket: MsgPack(one) for bucket, one in bucket_msgs.items()}


def distribute(msgs: Sequence[TsMsg], producers: int, repack: RepackFunc | None = None) -> dict[int, list[TsMsg]]:
    """Returns the messages for each producer that gets some, by its index, in the order of `msgs`.

    `repack` is called for each run of messages of one type; None chooses by the type. Raises InvalidArgumentError for hash keys that do not
    fit the message, and for an index of `repack` without a producer. It also raises it for a message split into several with one
    `source_id` and `id` for one producer. Raises TypeError if `repack` returns anything but packs.
    """
    producer_msgs: dict[int, list[TsMsg]] = {}
    for msg_type, run in groupby(msgs, attrgetter("msg_type")):
        same = list(run)
        buckets = [[key % producers for key in message.hash_keys] for message in same]
        chosen = repack or _BY_TYPE.get(msg_type, default_repack)
        try:
            packs = chosen(same, buckets)
        except (CancelledError, StopIteration, StopAsyncIteration) as error:  # this call never waits, so no caller was cancelled
            raise InvalidArgumentError(f"the repack function raised {type(error).__name__}: let it raise another error") from error
        if not isinstance(packs, Mapping):
            raise TypeError(f"a repack function must return a mapping of indices to MsgPacks, not {shown(packs)}")
        for index, pack in packs.items():
            if not isinstance(index, int) or not 0 <= index < producers:
                raise InvalidArgumentError(
                    f"the repack function chose producer {shown(index)}, and there are {producers}: choose 0 to {producers - 1}"
                )
            if not isinstance(pack, MsgPack):
                raise TypeError(f"a repack function must return a mapping of indices to MsgPacks, not to {shown(pack)}")
            for message in pack.msgs:
                if not isinstance(message, TsMsg):
                    raise TypeError(f"a repack function must return MsgPacks of TsMsgs, not of {shown(message)}")
            if pack.msgs:
                producer_msgs.setdefault(index, []).extend(pack.msgs)
        if repack is not None:
            _check_ids(same, packs)
    return producer_msgs


def _check_ids(msgs: Sequence[TsMsg], packs: Mapping[int, MsgPack]) -> None:
    """Raises InvalidArgumentError if a pack has several messages of one `source_id` and `id`, and more than `msgs` has."""
    msg_counts = Counter((msg.source_id, msg.id) for msg in msgs)
    for index, pack in packs.items():
        for (source_id, number), count in Counter((msg.source_id, msg.id) for msg in pack.msgs).items():
            if number and count > max(1, msg_counts[source_id, number]):
                raise InvalidArgumentError(
                    f"the repack function gave producer {index} {count} messages with source_id {source_id} and id {number}, of which a "
                    "time-ticked stream drops all but the first as sent twice: give each part of a message an id of its own, or id 0"
                )


def _by_rows(msgs: list[TsMsg], buckets: list[list[int]], kind: type[RowsMsg]) -> dict[int, MsgPack]:
    bucket_msgs: dict[int, list[TsMsg]] = {}
    for message, row in zip(msgs, buckets, strict=True):
        if not isinstance(message, kind):
            raise InvalidArgumentError(f"{message.msg_type!r} is not a {kind.__name__}: only those are split by rows")
        if len(row) != len(message.timestamps):
            raise InvalidArgumentError(
                f"a {kind.__name__} of {len(message.timestamps)} rows has {len(row)} hash keys: give one for each row"
            )
        if row.count(row[0]) == len(row):
            bucket_msgs.setdefault(row[0], []).append(message)
            continue
        message.read()
        for bucket in dict.fromkeys(row):
            rows = [at for at, chosen in enumerate(row) if chosen == bucket]
            part = {name: [getattr(message, name)[at] for at in rows] for name in ("timestamps", *message.columns)}
            bucket_msgs.setdefault(bucket, []).append(msgspec.structs.replace(message, **part))
    return {bucket: MsgPack(one) for bucket, one in bucket_msgs.items()}


_BY_TYPE: Final[Mapping[int, RepackFunc]] = {MsgType.INSERT: insert_repack, MsgType.DELETE: delete_repack}


class StreamProducers:
    """The producers of a stream, in the order of the calls that added them: bucket i is producer i."""

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
        return await _positions(parts, send_parts(sends))

    async def broadcast(self, pack: MsgPack) -> dict[str, list[MsgPosition]]:
        """Sends all messages to all channels and returns their positions by channel, all durable."""
        self._channels()
        part = _encoded(pack.msgs)
        sending = self._medium.broadcast(self._by_channel, [out for _, out in part])
        return await _positions(dict.fromkeys(self._by_channel, part), sending)

    async def close(self) -> None:
        for producer in self._by_channel.values():
            await producer.close()

    def _channels(self) -> list[str]:
        if not self._by_channel:
            raise InvalidArgumentError("the stream has no producers: call as_producer([channel, …]) first")
        return list(self._by_channel)


def _encoded(msgs: Sequence[TsMsg]) -> list[tuple[TsMsg, Outgoing]]:
    return [(msg, Outgoing(msg.marshal(), msg.msg_type)) for msg in msgs]


async def _positions(
    parts: Mapping[str, Sequence[tuple[TsMsg, Outgoing]]], sending: Awaitable[Mapping[str, Sequence[bytes]]]
) -> dict[str, list[MsgPosition]]:
    """Returns the positions of the sent messages, by channel. If the sending failed, it raises a ProduceError with the durable ones."""

    def at(channel: str, msg_ids: Sequence[bytes | None]) -> list[MsgPosition | None]:
        return [
            None if msg_id is None else MsgPosition(channel, msg_id, timestamp=msg.begin_ts)
            for (msg, _), msg_id in zip(parts[channel], msg_ids, strict=True)
        ]

    try:
        ids = await sending
    except Exception as error:
        cause = cause_of(error)
        durable = error.durable if isinstance(error, PartialSendError) else {}
        results = {channel: at(channel, msg_ids) for channel, msg_ids in durable.items()}
        raise ProduceError.of(cause if isinstance(cause, Exception) else error, results) from cause
    return {channel: at(channel, ids[channel]) for channel in parts}  # type: ignore[misc]  # no id is None
