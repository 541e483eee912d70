"""The options of a read: where it begins (deliver policies), which messages it wants (deliver filters), and both in `ReadOptions`.

Everything is checked here once, for every reader: a scanner on a loop, the bridge without one, and Spark.

`Reached` is the position within a read. A `ReadPosition` is the position outside of it, which a caller stores and resumes from. Everything
is pure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError, shortened
from wal.frame import FrameView, RunKind, RunRow
from wal.message import LogPosition, MessageID, MessageType, type_properties
from wal.message.matching import Matching
from wal.storage.base import FramePage
from wal.timestamp.checks import check_tick, number_text

READ_TAKES: Final = (
    "a read takes the name of a vchannel, several names on one pchannel, or a pattern, as in read('orders') or read(Matching('account-*'))"
)
"""The text of the error for a caller that names no vchannel."""


# -- where a read begins


class All(msgspec.Struct, frozen=True):
    """From the oldest message that has not been truncated."""


class Latest(msgspec.Struct, frozen=True):
    """Only messages that become durable after the read began."""


class _At(msgspec.Struct, frozen=True):
    message_id: MessageID

    def __post_init__(self) -> None:
        if not isinstance(self.message_id, MessageID):
            raise TypeError(
                f"{type(self).__name__} takes a MessageID, not {type(self.message_id).__name__}: "
                "use MessageID.parse(text) or MessageID.from_bytes(data)"
            )


class StartFrom(_At, frozen=True):
    """From this message, inclusive. The id of a body stands for its transaction."""


class StartAfter(_At, frozen=True):
    """From the message after this one. The id of a body stands for its transaction."""


class StartAt(msgspec.Struct, frozen=True):
    """Messages of this time or later, exact to the millisecond; the time of a transaction is its commit's.

    `moment` must have a time zone. A moment in the future is fine: nothing before it is delivered.
    """

    moment: datetime

    def __post_init__(self) -> None:
        _ = self.time_tick

    @property
    def time_tick(self) -> int:
        """The first tick of the millisecond that holds the moment."""
        from wal.timestamp.timestamp import from_datetime  # most readers begin otherwise, and import less

        return from_datetime(self.moment)


class Last(msgspec.Struct, frozen=True):
    """The last `count` messages that are durable when the read begins, and what follows. A transaction is one message.

    Only messages that pass the filters of the read count. If the log has fewer, the read begins at the oldest.
    """

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool):
            raise TypeError(f"Last takes a number of messages (int), not {type(self.count).__name__}")
        if self.count < 1:
            raise InvalidArgumentError(f"Last({number_text(self.count)}) is out of range: 1 or more, or Latest() for only what follows")


DeliverPolicy = All | Latest | StartFrom | StartAfter | StartAt | Last


# -- which messages it wants; all filters of a read must hold


class _Tick(msgspec.Struct, frozen=True):
    time_tick: int

    def __post_init__(self) -> None:
        if not isinstance(self.time_tick, int) or isinstance(self.time_tick, bool):
            raise TypeError(f"{type(self).__name__} takes a time tick (int), not {type(self.time_tick).__name__}")
        if not 0 <= self.time_tick < 1 << 64:
            raise InvalidArgumentError(f"time tick {self.time_tick} is out of range: ticks are 0 to 2**64 - 1")


class TimeTickGT(_Tick, frozen=True):
    """Messages with a tick above this one; the tick of a transaction is its commit's."""


class TimeTickGTE(_Tick, frozen=True):
    """Messages with a tick at or above this one; the tick of a transaction is its commit's."""


class MessageTypes:
    """Messages of these types. A transaction is delivered with the bodies that match, and not at all if none does.

    Naming a system type (TIME_TICK, TXN, …) raises InvalidArgumentError.
    """

    __slots__ = ("types",)

    def __init__(self, *types: MessageType) -> None:
        for message_type in types:
            if not isinstance(message_type, MessageType):
                raise TypeError(f"MessageTypes takes MessageType values, not {message_type!r}")
            if type_properties(message_type).system:
                raise InvalidArgumentError(f"{message_type.name} is a system type and cannot be filtered for: name types that users append")
        if not types:
            raise InvalidArgumentError("MessageTypes() names no type and would match nothing: name at least one")
        self.types: frozenset[MessageType] = frozenset(types)

    def __repr__(self) -> str:
        return f"MessageTypes({', '.join(sorted(t.name for t in self.types))})"


DeliverFilter = TimeTickGT | TimeTickGTE | MessageTypes


class EventFilter(msgspec.Struct, frozen=True):
    """All filters of a read in one: the smallest tick and, unless None, the types (as numbers)."""

    tick_min: int = 0
    types: frozenset[int] | None = None

    @classmethod
    def of(cls, filters: DeliverFilter | Iterable[DeliverFilter]) -> EventFilter:
        """Returns the conjunction of these filters. Raises TypeError for a value that is not a deliver filter."""
        tick_min = 0
        types: frozenset[int] | None = None
        if isinstance(filters, TimeTickGT | TimeTickGTE | MessageTypes):
            parts: Sequence[DeliverFilter] = (filters,)
        elif isinstance(filters, Iterable):
            parts = tuple(filters)
        else:
            raise TypeError(
                f"filters must be deliver filters, which need no message (TimeTickGT, TimeTickGTE, MessageTypes), "
                f"not {filters!r:.80}: filter by payload or properties in the loop"
            )
        for one in parts:
            if isinstance(one, TimeTickGT):
                tick_min = max(tick_min, one.time_tick + 1)
            elif isinstance(one, TimeTickGTE):
                tick_min = max(tick_min, one.time_tick)
            elif isinstance(one, MessageTypes):
                numbers = _numbers(one.types)
                types = numbers if types is None else types & numbers
            else:
                raise TypeError(f"{one!r} is not a deliver filter: use TimeTickGT, TimeTickGTE or MessageTypes")
        return cls(tick_min, types) if parts else _EVERYTHING


_EVERYTHING: Final = EventFilter()
"""The filter of a read without filters; most readers share this one."""


@lru_cache(maxsize=64)
def _numbers(types: frozenset[MessageType]) -> frozenset[int]:
    """The types as numbers; readers with the same filter share them."""
    return frozenset(int(message_type) for message_type in types)


# -- all of it


class ReadOptions(msgspec.Struct, frozen=True):
    """The options of a read; see `WALAccesser.read`."""

    vchannels: tuple[str, ...]
    """The names, none for a read with a pattern."""
    policy: DeliverPolicy
    event_filter: EventFilter
    follow: bool = True
    until_time_tick: int | None = None
    resume: ReadPosition | None = None
    include_time_ticks: bool = False
    pattern: Matching | None = None

    def adopted(self, current: Callable[[MessageID], MessageID]) -> ReadOptions:
        """Returns these options with the ids that `current` returns for theirs, see `Lineage.current`."""
        policy, resume = self.policy, self.resume
        if isinstance(policy, _At):
            policy = type(policy)(current(policy.message_id))
        if resume is not None:
            resume = ReadPosition(current(resume.message_id), resume.time_tick)
        return msgspec.structs.replace(self, policy=policy, resume=resume)

    def with_moment(self) -> ReadOptions:
        """Returns these options; with `StartAt` as their policy, filters that also drop everything before its moment."""
        if not isinstance(self.policy, StartAt):
            return self
        event_filter = EventFilter(max(self.event_filter.tick_min, self.policy.time_tick), self.event_filter.types)
        return msgspec.structs.replace(self, event_filter=event_filter)

    @classmethod
    def of(
        cls,
        vchannels: tuple[str, ...] | Matching,
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        include_time_ticks: bool = False,
    ) -> ReadOptions:
        """Returns a caller's options. Raises TypeError for a wrong type, InvalidArgumentError for a wrong value.

        The names of the vchannels have been checked before.
        """
        pattern = vchannels if isinstance(vchannels, Matching) else None
        if not vchannels:
            raise InvalidArgumentError("read([]) names no vchannel: name at least one")
        if deliver_policy is not None and not isinstance(deliver_policy, DeliverPolicy):
            policies = "All(), Latest(), StartFrom(id), StartAfter(id), StartAt(moment) or Last(count)"
            raise TypeError(f"deliver_policy must be {policies}, not {deliver_policy!r}")
        if resume is not None and not isinstance(resume, ReadPosition):
            raise TypeError(f"resume must be a ReadPosition, not {type(resume).__name__}: use ReadPosition.parse(text)")
        if resume is not None and isinstance(resume, TickPosition) != (pattern is not None):
            one, other = ("a read with a pattern", "names vchannels") if pattern is None else ("a read of names", f"reads {pattern}")
            raise InvalidArgumentError(
                f"resume={resume} is a position of {one}, and this read {other}, which it does not cover: give a position of the same read"
            )
        if resume is not None and deliver_policy is not None:
            raise InvalidArgumentError("resume=… and deliver_policy=… both say where to begin: give one of them")
        for flag, value in (("follow", follow), ("include_time_ticks", include_time_ticks)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be a bool, not {value!r}")
        if until_time_tick is not None:
            check_tick("until_time_tick", until_time_tick)
        policy, event_filter = deliver_policy or All(), EventFilter.of(filters)
        if pattern is not None and isinstance(policy, Last):
            raise InvalidArgumentError(
                f"Last({policy.count}) cannot be read with {pattern}, whose messages may lie on any pchannels: begin with StartAt(moment), "
                "or read names"
            )
        names = () if isinstance(vchannels, Matching) else vchannels
        return cls(names, policy, event_filter, follow, until_time_tick, resume, include_time_ticks, pattern)


BoundNames = frozenset[tuple[str, int]]
"""The vchannels of a reader: the name and the incarnation of each."""

NAMES_MAX: Final = 5


class Selection:
    """The vchannels that a reader reads, and the incarnation of each.

    A vchannel that is dropped and recreated under its name is another vchannel: its runs carry another incarnation. A reader is bound to
    the incarnation that was current when it began. A name that did not exist then is bound to the first incarnation created afterwards.

    `bound` maps each name to its incarnation, or to None if the name does not exist yet; such a name is bound to the first incarnation at
    or above `floor` whose run is met.
    """

    __slots__ = ("_bound", "_bound_names", "_floor", "begin", "names")

    def __init__(self, bound: Mapping[str, int | None], *, floor: int, begin: int = 0) -> None:
        self._bound = dict(bound)
        self._floor = floor
        self.names: frozenset[str] | None = frozenset(bound)
        """The vchannels; None: all of the pchannel."""
        self.begin: int = begin
        """A position below which none of them has an event."""
        self._bound_names: BoundNames | None = None

    def runs(self, view: FrameView) -> list[RunRow]:
        """Returns the runs of this frame that the reader sees, including those for every reader."""
        return [run for run in view.runs.find(self._bound) if run.kind == RunKind.PCHANNEL or self._accepts(run.name, run.incarnation)]

    def accepts(self, name: str, incarnation: int) -> bool:
        """Returns whether the reader sees the runs of this vchannel, and binds a name that was not bound yet."""
        return name in self._bound and self._accepts(name, incarnation)

    @property
    def bound(self) -> BoundNames | None:
        """The names with their incarnations, so that readers which read the same are equal in it; None while a name is not bound."""
        bound = self._bound_names
        if bound is None and None not in self._bound.values():
            bound = self._bound_names = frozenset(self._bound.items())  # type: ignore[arg-type]
        return bound

    def incarnation(self, name: str) -> int | None:
        """Returns the incarnation of this vchannel that the reader is bound to, or None."""
        return self._bound[name]

    async def page(self, fetch: Callable[[frozenset[str] | None], Awaitable[FramePage]]) -> FramePage:
        """Returns the page that `fetch` returns for the vchannels."""
        return await fetch(self.names)

    def forget(self) -> None:
        """Drops the state of the last frame after all its messages were handed over."""

    def ended(self) -> list[tuple[str, int]]:
        """Returns the vchannels of the last frame that have ended since. A reader of names gets an error instead."""
        return []

    def bind(self, name: str, incarnation: int) -> None:
        """Binds a name that was not bound yet."""
        self._bound[name] = incarnation

    def _accepts(self, name: str, incarnation: int) -> bool:
        bound = self._bound[name]
        if bound is None and incarnation >= self._floor:
            bound = self._bound[name] = incarnation
        return incarnation == bound


class MatchingSelection(Selection):
    """The vchannels of a pchannel whose names match, in each incarnation that lives when a frame of it is read.

    The names are those in the frames, so a vchannel that is created later joins with its first event. `is_live` returns whether an
    incarnation (name, number) has not ended, as far as that is known.

    A page of the log is fetched for the names that match now, so that the others cost nothing. `known` returns the names of
    the pchannel, each before its first frame is written: so if the same names match after a fetch, the page has all frames that matter.
    `version` returns another number whenever there may be more of them, so that the names are matched once.
    """

    __slots__ = ("_is_live", "_known", "_matched", "_matched_version", "_seen", "_version", "pattern")

    def __init__(
        self,
        pattern: Matching,
        is_live: Callable[[str, int], bool],
        known: Callable[[], Iterable[str]] | None = None,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__({}, floor=0)
        self.names = None
        self.pattern: Matching = pattern
        self._is_live = is_live
        self._known = known
        self._version = version
        self._matched: frozenset[str] = frozenset()
        """The known names that match, as of `_matched_version`."""
        self._matched_version = -1
        self._seen: list[RunRow] = []
        """The runs of the last frame that the reader saw."""

    def runs(self, view: FrameView) -> list[RunRow]:
        """Returns the runs of this frame that the reader sees, including those for every reader."""
        live = self._is_live
        names: Container[str] | None = self._matching_names()
        if names is None and self.pattern.pattern != "*":
            names = self.pattern
        runs = [run for run in view.runs.find(names) if run.kind == RunKind.PCHANNEL or live(run.name, run.incarnation)]
        self._seen = runs
        return runs

    async def page(self, fetch: Callable[[frozenset[str] | None], Awaitable[FramePage]]) -> FramePage:
        """Returns the page that `fetch` returns for the names that match."""
        names = self._matching_names()
        while True:
            page = await fetch(names)
            before, names = names, self._matching_names()
            if before is names or before is None or (names is not None and names <= before):
                return page  # otherwise it may lack the frames of a vchannel that has joined meanwhile

    def _matching_names(self) -> frozenset[str] | None:
        """Returns the names that match now; None for all, where the pattern is "*" or the names are not known."""
        if self._known is None or self.pattern.pattern == "*":
            return None
        if self._matched_version != (version := self._version()):
            self._matched, self._matched_version = frozenset(filter(self.pattern.__contains__, self._known())), version
        return self._matched

    def forget(self) -> None:
        """Forgets the runs of the last frame."""
        self._seen = []

    def ended(self) -> list[tuple[str, int]]:
        """Returns the vchannels of the last frame that have ended since."""
        names = [(run.name, run.incarnation) for run in self._seen if run.kind != RunKind.PCHANNEL]
        return [each for each in names if not self._is_live(*each)]

    def indices_of(self, name: str, incarnation: int) -> range:
        """Returns a range that has the indices of the last frame that messages of this incarnation have, and no later one of the name."""
        indices = {run.incarnation: run.index for run in self._seen if run.name == name}
        if incarnation not in indices:
            return range(0)
        return range(min([index for other, index in indices.items() if other > incarnation], default=1 << 32))

    def accepts(self, name: str, incarnation: int) -> bool:
        """Returns whether the reader sees the runs of this vchannel."""
        return name in self.pattern and self._is_live(name, incarnation)

    @property
    def bound(self) -> None:
        """None: the existing vchannels may change from frame to frame, so such readers share no messages."""
        return

    def incarnation(self, name: str) -> int | None:
        """Returns None: it is bound to no incarnation."""
        return None


class ServedSelection(MatchingSelection):
    """The same, of a log on the network: its server has the names, and selects the frames of a page by the `pattern`."""

    __slots__ = ()


class WholePChannel(Selection):
    """Everything on a pchannel: all vchannels, in every incarnation."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__({}, floor=0)
        self.names = None

    def runs(self, view: FrameView) -> list[RunRow]:
        """Returns the runs of this frame that hold messages."""
        return [run for run in view.runs if run.kind in _WITH_MESSAGES]

    @property
    def bound(self) -> None:
        """None: such readers share no messages."""
        return

    def accepts(self, name: str, incarnation: int) -> bool:
        """Returns True: it has every vchannel."""
        return True

    def incarnation(self, name: str) -> int | None:
        """Returns None: it is bound to no incarnation."""
        return None


_WITH_MESSAGES: Final = (RunKind.VCHANNEL, RunKind.PCHANNEL, RunKind.COPY)


def unmatched(pattern: Matching, place: str) -> InvalidArgumentError:
    """Returns the error of a read by a pattern where the log at this location cannot be read so."""
    return InvalidArgumentError(
        f"the log at {place} cannot be read with {pattern} by this process yet: read it in the process that opened it for writing, or name "
        "the vchannels, which log.vchannels() lists"
    )


def named(vchannels: Sequence[str]) -> str:
    """Returns the names of vchannels as text for errors: quoted, and only the first few of many."""
    more = len(vchannels) - NAMES_MAX
    return ", ".join(map(repr, vchannels[:NAMES_MAX])) + (f" and {more} more" if more > 0 else "")


class Reached(msgspec.Struct, frozen=True, gc=False):
    """The progress of a read. Everything before it was handed over, or held nothing for this reader.

    `event` is the newest event passed (None before any). Nothing is left for the reader up to `tick`, and below the log position
    `position`.
    """

    event: LogPosition | None = None
    tick: int = 0
    position: LogPosition = (0, 0)

    def later(self, other: Reached) -> Reached:
        """Returns the later of the two, field by field."""
        event = self.event
        if other.event is not None and (event is None or other.event >= event):
            if other.tick >= self.tick and other.position >= self.position:
                return other  # the usual case, frame after frame
            event = other.event
        return Reached(event, max(self.tick, other.tick), max(self.position, other.position))


NOTHING: Final = Reached()


class ReadPosition(msgspec.Struct, frozen=True):
    """Everything up to the event `message_id`, and every tick up to `time_tick`, has been handed over.

    `message_id` is the newest event that was passed, whether it was for this reader or not, so a position also advances over ranges of
    the log that hold nothing for its reader. The text form is `message_id@time_tick`. A read with a pattern has a `TickPosition`.
    """

    message_id: MessageID
    time_tick: int

    def __repr__(self) -> str:
        return f"ReadPosition.parse({str(self)!r})"

    def __str__(self) -> str:
        return f"{self.message_id}@{self.time_tick}"

    @classmethod
    def parse(cls, text: str) -> ReadPosition:
        """Returns the position that `str()` printed. Raises InvalidArgumentError for any other text."""
        if not isinstance(text, str):
            raise TypeError(f"ReadPosition.parse() takes the text of a position (str), not {type(text).__name__}")
        message_id, at, tick = text.rpartition("@")
        if at and _is_tick(message_id) and (position := _tick_position(int(message_id), tick)) is not None:
            return position
        if not at or not _is_tick(tick):
            raise InvalidArgumentError(
                f"{shortened(text)} is not the text of a ReadPosition: expected message_id@time_tick as str() prints it"
            )
        return cls(MessageID.parse(message_id), int(tick))


class TickPosition(ReadPosition, frozen=True):
    """The position of a read with a pattern, on all pchannels at once: everything below `time_tick` has been handed over, and what has this
    tick itself on the pchannels up to `pchannel`, by name.

    Pchannels that come later, or move to other nodes, do not change it. Its `message_id` names that pchannel, and no event.

    `begun` has the pchannels that were already truncated past this tick when the read began, each with the position and index of its first
    event then: so a position separates truncation before the read from truncation since. The text form is
    `time_tick@pchannel`, followed by `+pchannel:position:index` for each of those.
    """

    begun: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def at(cls, time_tick: int, pchannel: str, begun: tuple[tuple[str, int, int], ...] = ()) -> TickPosition:
        """Returns the position at this tick."""
        return cls(MessageID(pchannel, 0, 0, 0), time_tick, begun)

    @property
    def pchannel(self) -> str:
        """The last pchannel, by name, whose event with `time_tick` was handed over."""
        return self.message_id.pchannel

    def __str__(self) -> str:
        return f"{self.time_tick}@{self.pchannel}" + "".join(f"+{name}:{position}:{index}" for name, position, index in self.begun)

    def first_of(self, pchannel: str) -> LogPosition:
        """Returns the first event of a pchannel when the read began, as far as that matters; (0, 0) if nothing was truncated."""
        return next(((position, index) for name, position, index in self.begun if name == pchannel), (0, 0))

    def covered(self, pchannel: str) -> int:
        """Returns the tick up to which everything on this pchannel was handed over."""
        return self.time_tick if pchannel <= self.pchannel else self.time_tick - 1


def _tick_position(time_tick: int, text: str) -> TickPosition | None:
    """Returns the position at this tick with this rest of its text, None for an invalid text."""
    pchannel, *begun = text.split("+")
    parts = [part.rsplit(":", 2) for part in begun]
    if not pchannel or not all(len(part) == 3 and part[0] and _is_number(part[1]) and _is_number(part[2]) for part in parts):
        return None
    return TickPosition.at(time_tick, pchannel, tuple([(name, int(position), int(index)) for name, position, index in parts]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(1 << 128)) and str(int(text)) == text


def _is_tick(text: str) -> bool:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 64))):
        return False
    return str(int(text)) == text and int(text) < 1 << 64
