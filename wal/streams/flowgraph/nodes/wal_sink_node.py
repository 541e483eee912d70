"""WalSinkNode: writes the messages of each tick to a log, as one transaction, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from wal.api.accesser import WALAccesser
from wal.channels.vchannels import check_vchannels
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, Message, MessageType
from wal.streams.flowgraph.node import MAX_QUEUE_LENGTH, BaseNode, Msg
from wal.streams.flowgraph.nodes.function_node import batch_of
from wal.write.idempotency.keys import ProducerKey

UNRECORDED_TICKS_MAX: Final = 256
"""The number of ticks without messages after which the node writes a transaction anyway. A quiet stream with five ticks a second needs
about a minute for that.
"""
DELETE: Final = 401
"""The number of `wal.streams.msgstream.MsgType.DELETE`, which is not imported: a log alone needs no protobuf."""


@runtime_checkable
class _StreamMessage(Protocol):
    """The attributes of a TsMsg that the node needs."""

    @property
    def msg_type(self) -> int: ...

    def marshal(self) -> bytes: ...


class WalSinkStatistics(msgspec.Struct, frozen=True):
    """Counts since the node was created. `ticks` and `messages` were written; `duplicate_ticks` were in the log before.

    `recorded_tick` is the last tick of both kinds, None before any.
    """

    ticks: int
    messages: int
    duplicate_ticks: int
    recorded_tick: int | None


class WalSinkNode(BaseNode):
    """Appends each tick that has messages as a transaction under `ProducerKey(producer, tick)`, which the log remembers for good.

    A tick that is replayed after a crash or an error is in the log already, and is not written again. So each message is in the log exactly
    once, if its source replays a tick with the same messages. A producer belongs to one node of one graph, and its ticks ascend for ever: a
    lower tick counts as a duplicate, until `log.forget_producer(producer)`.

    A tick without messages is not written, and so not remembered. Sources commit it only after a later tick is recorded (`recorded_tick`).
    When a crash divides the commits of several sources or channels, the rest is replayed in ticks that are in the log already. After 256
    such ticks in a row the node writes a transaction without bodies, so that the uncommitted ticks stay bounded.
    """

    is_input: bool | None = False

    def __init__(
        self,
        name: str,
        log: WALAccesser,
        vchannel: str | Sequence[str],
        *,
        producer: str | None = None,
        to_messages: Callable[[Any], Iterable[Message | bytes]] | None = None,
        max_queue_length: int = MAX_QUEUE_LENGTH,
    ) -> None:
        """`vchannel` is a name, or several on one pchannel. `producer` defaults to the name of the node.

        `to_messages` returns the messages to write for one input message; several vchannels need it, as each written message names its
        vchannel. Without it, `Message`s and `bytes` are written unchanged, a message of a log with its bodies, and a `TsMsg` in its wire
        form.
        """
        super().__init__(name, max_queue_length=max_queue_length)
        if not isinstance(log, WALAccesser):
            raise TypeError(f"node {name!r} writes to an open log, as open_wal gives it, not to {type(log).__name__}")
        self._vchannels = check_vchannels(vchannel, "a WalSinkNode takes the name of a vchannel, or several")
        if not self._vchannels:
            raise InvalidArgumentError(f"node {name!r} names no vchannel: name at least one")
        if to_messages is not None and not callable(to_messages):
            raise TypeError(f"to_messages of node {name!r} must be a function of a message, not {to_messages!r}")
        self._only = self._vchannels[0] if len(self._vchannels) == 1 else None
        self._log = log
        self._producer = ProducerKey(name if producer is None else producer, 0).producer
        self._to_messages = to_messages
        self._ticks = self._messages = self._duplicates = self._unrecorded = 0
        self._recorded_tick: int | None = None

    async def operate(self, msgs: list[Msg]) -> None:
        tick = msgs[0].time_tick
        bodies: list[Message | bytes] = []
        for msg in msgs:
            for message in batch_of(msg, self.name):
                bodies += self._bodies(message)
        if not bodies:
            self._unrecorded += 1
            if self._unrecorded < UNRECORDED_TICKS_MAX:
                return
        self._unrecorded = 0
        key = ProducerKey(self._producer, tick)
        result = await self._log.append_txn(self._vchannels, bodies, idempotency_key=key)
        if result.duplicate:
            self._duplicates += 1
        else:
            self._ticks += 1
            self._messages += len(bodies)
        self._recorded_tick = tick

    def set_max_parallelism(self, n: int) -> None:
        """Rejects any other number than 1: a failed tick would count as written once a later one is."""
        if n != 1:
            raise InvalidArgumentError(
                f"max_parallelism={n} of node {self.name!r}: a WalSinkNode writes one tick after the other, leave it at 1"
            )
        super().set_max_parallelism(n)

    @property
    def recorded_tick(self) -> int | None:
        """The last tick that is recorded in the log: no tick up to it is written again. None before any."""
        return self._recorded_tick

    def _bodies(self, message: Any) -> Iterable[Message | bytes]:
        """Returns the bodies to write for one message."""
        if self._to_messages is not None:
            written = self._to_messages(message)
            if isinstance(written, str | bytes) or not isinstance(written, Iterable):
                raise TypeError(
                    f"to_messages of node {self.name!r} returned {written!r:.200}: return messages or bytes, as in [message], or []"
                )
            return written
        if isinstance(message, Message | bytes):
            return (message,)
        if isinstance(message, ImmutableMessage):
            return [self._copy(body) for body in message.bodies()]
        if isinstance(message, _StreamMessage) and self._only is not None:
            return (self._encoded(self._only, message),)
        raise TypeError(
            f"node {self.name!r} has no form of {type(message).__name__} for {', '.join(self._vchannels)}: give it "
            "to_messages=…, a function that returns wal.Message objects"
        )

    def _copy(self, body: ImmutableMessage) -> Message:
        return Message(
            vchannel=self._only or body.vchannel, payload=body.payload, message_type=body.message_type, properties=body.properties
        )

    def _encoded(self, vchannel: str, message: _StreamMessage) -> Message:
        return Message(
            vchannel=vchannel,
            payload=message.marshal(),
            message_type=MessageType.DELETE if message.msg_type == DELETE else MessageType.INSERT,
            properties={"msg_type": str(int(message.msg_type))},
        )

    def statistics(self) -> WalSinkStatistics:
        """Returns a snapshot of the node's counts."""
        return WalSinkStatistics(self._ticks, self._messages, self._duplicates, self._recorded_tick)
