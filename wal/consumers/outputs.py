"""OutputRouter: the pchannel of each output of a consumer, and the form of a dead letter.

Owns the pchannel of each vchannel that handlers append to. An output on the pchannel of the cursor's home is committed in the frame that
saves the cursor: both are in the log, or neither is. An output on another pchannel is appended before that commit with an idempotency key
made of the cursor, the id of the input and the number of the output. So it is in the log once, as long as the log remembers the key (the
settings `idempotency_window_s` and `idempotency_window_count`), whatever crashes between the two.

An output with a time of delivery is scheduled before that commit by such a key too, wherever its vchannel is.

An output for a missing vchannel creates it on the pchannel of the home, if the log creates vchannels at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from wal.consumers.delivery import Delivery, Outputs, cut_reason
from wal.consumers.plan import Dead
from wal.errors import ChannelExistError, ChannelNotExistError, InvalidArgumentError, WouldBlockError
from wal.message import ImmutableMessage, Message, MessageType, type_properties
from wal.requests.appends import WriteOptions
from wal.requests.schedule import ScheduleMessage
from wal.requests.vchannels import CreateVChannel, ListVChannels
from wal.write.checks import LETTER_BYTES, check_size
from wal.write.txn_table import BODY_OVERHEAD

if TYPE_CHECKING:
    from wal.engine import WritableEngine
    from wal.read.cursors.cursor import CursorKey

DEAD_LETTER: Final = "dead_letter_"
"""The prefix of the keys of a dead letter's own properties."""
REDRIVE_CURSOR: Final = "redrive_cursor"
"""The property of a redriven dead letter with the cursor whose consumer handles it. Consumers of other cursors finish it unread."""


class EarlyOutput(msgspec.Struct, frozen=True, gc=False):
    """An output that is appended before the commit, with its idempotency key; `due_ms` is its time of delivery, in ms since 1970."""

    message: Message
    key: str
    due_ms: int | None = None


class OutputRoom:
    """The room of one commit for outputs, within the limits of a transaction. The outputs of the first message always have room."""

    __slots__ = ("_bodies", "_bytes", "_is_empty")

    def __init__(self, bodies: int, size: int) -> None:
        self._bodies = bodies
        self._bytes = size
        self._is_empty = True

    def take(self, count: int, size: int) -> bool:
        """Takes room for the outputs of one more message; returns False if there is not enough left."""
        self._bodies -= count
        self._bytes -= size
        has_room = self._is_empty or (self._bodies >= 0 and self._bytes >= 0)
        self._is_empty = False
        return has_room


class OutputRouter:
    """The outputs of one consumer. `home` is the pchannel of the cursor's home."""

    def __init__(self, engine: WritableEngine, cursor: CursorKey, home: str, dead_letter: str | None) -> None:
        self._engine = engine
        self._cursor = cursor
        self._home = home
        self._dead_letter = dead_letter
        self._pchannels: dict[str, str] = {}
        self.unlocated: set[str] = set()
        """The vchannels of outputs that are not located yet; if their attempts have failed, they never will be."""
        self._locating = asyncio.Lock()
        self.is_split: bool = False
        """Whether an output is not on the home, or has a time of delivery."""
        settings = engine.settings
        self._message_bytes_max = engine.appends.message_bytes_max
        self.bodies_max: int = settings.txn_bodies_max
        self.bytes_max: int = min(settings.txn_bytes_max, engine.frame_bytes_max // 2)
        """The limits of one commit's outputs: their number, and their bytes."""
        self._creates = settings.create_vchannels

    # -- adding

    def add(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False, due_ms: int | None = None) -> Outputs:
        """Adds an output of one input to the earlier ones, with its time of delivery; raises InvalidArgumentError above a limit.

        A dead letter, original or redriven, may exceed `message_bytes_max` by its added properties.
        """
        size = message.estimate_size()
        if size > self._message_bytes_max:
            check_size(message, bytes_max=self._message_bytes_max + (LETTER_BYTES if is_letter else 0))
        size += BODY_OVERHEAD
        if outputs is None:
            outputs = Outputs([])
        if len(outputs.messages) >= self.bodies_max or outputs.size + size > self.bytes_max:
            raise InvalidArgumentError(
                f"the outputs of one message exceed the bounds of a transaction: {len(outputs.messages) + 1} messages of "
                f"{outputs.size + size} bytes, and at most txn_bodies_max={self.bodies_max} of {self.bytes_max} bytes can be committed "
                "together; append less for each message, or raise the settings"
            )
        if message.vchannel not in self._pchannels:
            self.unlocated.add(message.vchannel)
        if due_ms is not None:
            outputs.due_ms = {**(outputs.due_ms or {}), len(outputs.messages): due_ms}
            self.is_split = True
        outputs.messages.append(message)
        outputs.size += size
        return outputs

    # -- locating

    def unknown(self, outputs: Outputs) -> set[str] | None:
        """Returns the vchannels of these outputs that are not located yet, None if all are."""
        located = self._pchannels
        for message in outputs.messages:
            if message.vchannel not in located:
                return {message.vchannel for message in outputs.messages if message.vchannel not in located}
        return None

    async def locate(self, names: Iterable[str]) -> None:
        """Locates the pchannels of these vchannels. Raises ChannelNotExistError for a missing one if the log creates none."""
        async with self._locating:
            missing = [name for name in names if name not in self._pchannels]
            infos = {info.name: info.pchannel for info in await self._engine.submit(ListVChannels())} if missing else {}
            for name in missing:
                self._pchannels[name] = infos[name] if name in infos else await self._create(name)
                self.is_split = self.is_split or self._pchannels[name] != self._home
                self.unlocated.discard(name)

    async def _create(self, name: str) -> str:
        if not self._creates:
            raise ChannelNotExistError(
                f"a handler appended to vchannel {name!r}, which does not exist, and create_vchannels=False: create it before"
            )
        try:
            return (await self._engine.submit(CreateVChannel(name, self._home))).pchannel
        except ChannelExistError:  # another process has created it: the list of a client may lag by a moment
            async with asyncio.timeout(LISTED_S):
                while True:
                    for info in await self._engine.submit(ListVChannels()):
                        if info.name == name:
                            return info.pchannel
                    await asyncio.sleep(0.02)

    # -- committing

    def room(self) -> OutputRoom:
        """Returns the room of a commit that has no outputs yet."""
        return OutputRoom(self.bodies_max, self.bytes_max)

    def split(self, delivery: Delivery, outputs: Outputs) -> tuple[list[Message], list[EarlyOutput]]:
        """Returns the outputs of this input that its commit writes, and the outputs that are appended before it."""
        if not self.is_split:
            return outputs.messages, []
        home, pchannels, due_ms = self._home, self._pchannels, outputs.due_ms or {}
        here: list[Message] = []
        early: list[EarlyOutput] = []
        for number, message in enumerate(outputs.messages):
            if number not in due_ms and pchannels[message.vchannel] == home:
                here.append(message)
            else:
                early.append(EarlyOutput(message, self._key(delivery.message, number), due_ms.get(number)))
        return here, early

    def _key(self, message: ImmutableMessage, number: int) -> str:
        return f"consume:{self._cursor.name}:{message.message_id}:{number}"

    async def append(self, early: Sequence[EarlyOutput]) -> None:
        """Appends or schedules outputs before the commit; they are durable when the call returns, each once."""
        await asyncio.gather(*map(self._append, early))

    async def _append(self, output: EarlyOutput) -> None:
        appends, message, key = self._engine.appends, output.message, output.key
        if output.due_ms is not None:
            await self._engine.submit(ScheduleMessage(message.vchannel, message.payload, message.properties, output.due_ms, key, True))
            return
        options = WriteOptions(key=key)
        try:
            future = appends.append(message, options)
        except WouldBlockError:
            future = None
        await (future or appends.append_waiting(message, options))

    # -- dead letters

    def dead_letter(self, dead: Dead, key: str | bytes, now: datetime) -> Message:
        """Returns the dead letter of a message: its payload and its properties, and properties with its origin and the reason."""
        assert self._dead_letter is not None
        message = dead.delivery.message
        kind = message.message_type
        properties = {
            **message.properties,
            DEAD_LETTER + "cursor": self._cursor.name,
            DEAD_LETTER + "key": cut_reason(key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")),
            DEAD_LETTER + "vchannel": message.vchannel,
            DEAD_LETTER + "message_id": str(message.message_id),
            DEAD_LETTER + "attempts": str(dead.attempts),
            DEAD_LETTER + "reason": cut_reason(dead.reason),
            DEAD_LETTER + "at": now.isoformat(timespec="milliseconds"),
        }
        properties.pop(REDRIVE_CURSOR, None)
        if not type_properties(kind).dml:  # transactions do not accept it, and an exclusive one would end the open ones
            properties[DEAD_LETTER + "type"] = kind.name
            kind = MessageType.INSERT
        return Message(self._dead_letter, message.payload, message_type=kind, properties=properties)


def redriven(letter: ImmutableMessage) -> Message:
    """Returns the original message of a dead letter, to be appended again. Raises InvalidArgumentError for a message that is not a dead
    letter.
    """
    properties = letter.properties
    vchannel, cursor = properties.get(DEAD_LETTER + "vchannel"), properties.get(DEAD_LETTER + "cursor")
    if not vchannel or not cursor:
        raise InvalidArgumentError(
            f"message {letter.message_id} of {letter.vchannel!r} is not a dead letter, since it has no properties {DEAD_LETTER}vchannel "
            f"and {DEAD_LETTER}cursor: redrive takes the vchannel that a consumer names as its dead_letter"
        )
    own = {name: value for name, value in properties.items() if not name.startswith(DEAD_LETTER)}
    return Message(vchannel, letter.payload, message_type=letter.message_type, properties={**own, REDRIVE_CURSOR: cursor})


def is_for(message: ImmutableMessage, cursor: str) -> bool:
    """Returns whether consumers of this cursor handle the message: all do, unless it was redriven for another cursor."""
    return _REDRIVE not in message._properties or message.properties.get(REDRIVE_CURSOR, cursor) == cursor


LISTED_S: Final = 10.0
"""The time for which an existing vchannel may be missing in the list of a client."""
_REDRIVE: Final = REDRIVE_CURSOR.encode()
