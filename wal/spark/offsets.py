"""StreamOffset: how far a Spark query has got, as the JSON that Spark keeps in its checkpoint and shows in its progress. Pure.

Owns: one place for each pchannel, its text, and the order of places. A place is the id of the event that reading goes on with, whether
that is written already or not, and the tick up to which everything lies below it. Two offsets that mean the same are the same text:
Spark compares texts, and would run empty batches for ever between two spellings.

    {"lives": {"orders": 3},                                      # of the vchannels that were named: the life that is read
     "pchannels": {"pchannel-0": {"id": "pchannel-0:5f3a…:81920:0", "tick": 117…}, …},
     "pinned": 1,                                                 # 0 only before the first batch, see `wal.spark.stream_reader`
     "version": 1}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, MessageID, Origin

__all__ = ["PChannelOffset", "Place", "StreamOffset"]

Place: TypeAlias = tuple[int, int]
"""(position, index): in one life of a pchannel the smaller one comes first. An event lies below a place if its own is smaller."""

VERSION: Final = 1


class PChannelOffset(msgspec.Struct, frozen=True):
    """A place in one life of one pchannel. Everything at or below `time_tick` lies below it."""

    pchannel: str
    incarnation: int
    place: Place
    time_tick: int
    form: int = FORM_JOURNAL

    @property
    def message_id(self) -> MessageID:
        """The id of the event that reading goes on with, once there is one."""
        return MessageID(self.pchannel, self.incarnation, *self.place, self.form)

    @property
    def origin(self) -> Origin:
        """What names the log."""
        return Origin(self.pchannel, self.incarnation, 0, self.form)

    def same_log(self, other: PChannelOffset) -> bool:
        """Whether both lie in the same life of the same pchannel, so that their places can be compared."""
        return (self.pchannel, self.incarnation, self.form) == (other.pchannel, other.incarnation, other.form)

    def moved(self, place: Place, time_tick: int) -> PChannelOffset:
        """The same log, elsewhere."""
        return PChannelOffset(self.pchannel, self.incarnation, place, time_tick, self.form)

    @classmethod
    def of(cls, message_id: MessageID, time_tick: int) -> PChannelOffset:
        """The place of this id."""
        place = (message_id.position, message_id.index)
        return cls(message_id.pchannel, message_id.incarnation, place, time_tick, message_id.form)


class StreamOffset(msgspec.Struct, frozen=True):
    """The place in each pchannel by its name; `lives` is the incarnation of each vchannel that was asked for by name and is known."""

    pchannels: Mapping[str, PChannelOffset] = {}
    lives: Mapping[str, int] = {}
    pinned: bool = True

    def to_json(self) -> dict[str, Any]:
        """What Spark is given: plain values, every object sorted by its keys."""
        return {
            "lives": dict(sorted(self.lives.items())),
            "pchannels": {
                name: {"id": str(offset.message_id), "tick": offset.time_tick}
                for name, offset in sorted(self.pchannels.items())
            },
            "pinned": int(self.pinned),
            "version": VERSION,
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json())

    @classmethod
    def parse(cls, source: str | Mapping[str, Any]) -> StreamOffset:
        """The offset in this JSON, or in what was parsed of it. Anything else is an InvalidArgumentError."""
        try:
            data = json.loads(source) if isinstance(source, str) else source
            version = data["version"]
            if version != VERSION:
                raise InvalidArgumentError(
                    f"an offset of version {version!r} is not known here (known: {VERSION}): upgrade to go on with this checkpoint"
                )
            pchannels = {name: parse_place(name, place) for name, place in data["pchannels"].items()}
            lives = {str(name): int(life) for name, life in data["lives"].items()}
            return cls(pchannels, lives, bool(data["pinned"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(
                f"{str(source)[:200]!r} is no offset of a wal source: it is the JSON that a query's progress shows as endOffset"
            ) from error


def parse_place(pchannel: str, place: Any) -> PChannelOffset:
    """One pchannel's place: `{"id": …, "tick": …}`; the tick may be missing. Anything else is an InvalidArgumentError."""
    if not isinstance(place, Mapping) or set(place) - {"id", "tick"} or "id" not in place:
        raise InvalidArgumentError(
            f'{place!r} is no place in pchannel {pchannel!r}: expected {{"id": message id, "tick": time tick}}'
        )
    tick = place.get("tick", 0)
    if not isinstance(tick, int) or isinstance(tick, bool) or not 0 <= tick < 1 << 64:
        raise InvalidArgumentError(f"{tick!r} is no time tick: expected a number from 0 to 2**64 - 1")
    try:
        message_id = MessageID.parse(place["id"])
    except TypeError as error:
        raise InvalidArgumentError(f"{place['id']!r} is no message id: expected its text") from error
    if message_id.pchannel != pchannel:
        raise InvalidArgumentError(
            f"message id {message_id} does not lie in pchannel {pchannel!r}, under whose name it stands"
        )
    return PChannelOffset.of(message_id, tick)
