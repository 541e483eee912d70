"""StreamOffset: the progress of a Spark query, as the JSON in Spark's checkpoint and progress reports. Pure.

Owns one log position for each pchannel, its text, and the order of positions. The position is the id of the event at which reading
continues, whether or not that event is written already, and comes with a tick: everything up to that tick is below the position. Equal
offsets have the same text: Spark compares texts, and would run empty batches for ever between two spellings.

    {"lives": {"orders": 3},                                      # the incarnation of each vchannel that the query names
     "pchannels": {"pchannel-0": {"id": "pchannel-0:5f3a…:81920:0", "tick": 117…}, …},
     "pinned": 1,                                                 # 0 only before the first batch, see `wal.spark.stream_reader`
     "version": 1}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, Lineage, LogPosition, MessageID, Origin
from wal.timestamp.checks import TICK_MAX, whole_number

VERSION: Final = 1


class PChannelOffset(msgspec.Struct, frozen=True):
    """A log position in one incarnation of one pchannel. Invariant: events at or below `time_tick` are below the position."""

    pchannel: str
    incarnation: int
    log_position: LogPosition
    time_tick: int
    form: int = FORM_JOURNAL

    @property
    def message_id(self) -> MessageID:
        """The id of the event at which reading continues, once that event is written."""
        return MessageID(self.pchannel, self.incarnation, *self.log_position, self.form)

    @property
    def origin(self) -> Origin:
        """The identity of the log."""
        return Origin(self.pchannel, self.incarnation, 0, self.form)

    def same_log(self, other: PChannelOffset) -> bool:
        """Returns whether both are in the same incarnation of the same pchannel, so that their positions can be compared."""
        return (self.pchannel, self.incarnation, self.form) == (other.pchannel, other.incarnation, other.form)

    def current(self, lineage: Lineage) -> PChannelOffset:
        """Returns the offset in the log's current incarnation, if the offset is of an earlier one, before a restore; otherwise unchanged.

        Raises LogWentBackError if a restore lost events below the offset.
        """
        restore = lineage.since(self.incarnation)
        if restore is None:
            return self
        if self.log_position > (restore.fork, 0):
            raise lineage.lost(f"the offset {self.message_id}", self.pchannel, restore, self.form)
        return PChannelOffset(self.pchannel, lineage.incarnation, self.log_position, self.time_tick, self.form)

    def moved(self, place: LogPosition, time_tick: int) -> PChannelOffset:
        """Returns this offset at another position in the same log."""
        return PChannelOffset(self.pchannel, self.incarnation, place, time_tick, self.form)

    @classmethod
    def of(cls, message_id: MessageID, time_tick: int) -> PChannelOffset:
        """Returns the log position with this id."""
        place = (message_id.position, message_id.index)
        return cls(message_id.pchannel, message_id.incarnation, place, time_tick, message_id.form)


class StreamOffset(msgspec.Struct, frozen=True):
    """The log position in each pchannel, by its name. `incarnations` has the incarnation of each known vchannel that the query names.

    An offset is `pinned` from the first batch on, see `wal.spark.stream_reader`.
    """

    pchannels: Mapping[str, PChannelOffset] = {}
    incarnations: Mapping[str, int] = {}
    pinned: bool = True

    def current(self, lineages: Mapping[str, Lineage]) -> StreamOffset:
        """Returns the offsets in the current incarnations of the logs, see `PChannelOffset.current`. `lineages` maps pchannels to
        lineages.
        """
        places = {name: place.current(lineages[name]) if name in lineages else place for name, place in self.pchannels.items()}
        return StreamOffset(places, self.incarnations, self.pinned)

    def to_json(self) -> dict[str, Any]:
        """Returns the offset in Spark's form: plain values, every object sorted by its keys.

        Ticks and incarnations are texts, because other JSON parsers round large numbers.
        """
        return {
            "lives": {name: str(incarnation) for name, incarnation in sorted(self.incarnations.items())},
            "pchannels": {
                name: {"id": str(offset.message_id), "tick": str(offset.time_tick)} for name, offset in sorted(self.pchannels.items())
            },
            "pinned": int(self.pinned),
            "version": VERSION,
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json())

    @classmethod
    def parse(cls, source: str | Mapping[str, Any]) -> StreamOffset:
        """Returns the offset in this JSON, as text or parsed. Raises InvalidArgumentError for anything else."""
        try:
            data = json.loads(source) if isinstance(source, str) else source
            version = data["version"]
            if version != VERSION:
                raise InvalidArgumentError(
                    f"offset version {version!r} is unknown (known: {VERSION}): upgrade to continue with this checkpoint"
                )
            pchannels = {name: parse_pchannel_offset(name, place) for name, place in data["pchannels"].items()}
            incarnations = {str(name): int(incarnation) for name, incarnation in data["lives"].items()}
            return cls(pchannels, incarnations, bool(data["pinned"]))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(
                f"{str(source)[:200]!r} is not an offset of a wal source: give the JSON that a query's progress shows as endOffset"
            ) from error


def parse_pchannel_offset(pchannel: str, place: Any) -> PChannelOffset:
    """Returns one pchannel's position from `{"id": …, "tick": …}`; the tick, a text of digits or a number, is optional.

    Raises InvalidArgumentError for anything else.
    """
    if not isinstance(place, Mapping) or set(place) - {"id", "tick"} or "id" not in place:
        raise InvalidArgumentError(
            f'{place!r} is not a position in pchannel {pchannel!r}: expected {{"id": message id, "tick": time tick}}'
        )
    tick = place.get("tick", 0)
    if isinstance(tick, str):
        tick = whole_number("tick", tick, 0, TICK_MAX)
    elif not isinstance(tick, int) or isinstance(tick, bool) or not 0 <= tick <= TICK_MAX:
        raise InvalidArgumentError(f"{tick!r} is not a time tick: expected a number from 0 to 2**64 - 1")
    try:
        message_id = MessageID.parse(place["id"])
    except TypeError as error:
        raise InvalidArgumentError(f"{place['id']!r} is not a message id: expected its text") from error
    if message_id.pchannel != pchannel:
        raise InvalidArgumentError(f"message id {message_id} does not lie in pchannel {pchannel!r}, under whose name it is given")
    return PChannelOffset.of(message_id, tick)
