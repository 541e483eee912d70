"""PatternPins: what the cursors of patterns hold back in a cluster, where other nodes truncate than the one that has the cursors.

The cursor of a pattern is a position on all pchannels. Its record is in the log of one, the home (`pattern_home`); retention of each
pchannel runs on the node that has it. Both sides meet in etcd, below `PATTERN_ROOT`:

    copies/<cursor>      a position that is never after the durable one of the cursor
    floors/<pchannel>    up to where a pchannel is truncated, or is about to be
    floors-seen/<…>      the term of the pchannel with which the home has seen its floor

How a truncation never passes a cursor:

* The home stores a copy before the first record of a cursor, and then reads the floors. It refuses a save below a floor. A node stores
  the floor before it truncates, and then reads the copies. So one of the two always sees the other.
* A copy follows the durable record, about every `PUBLISH_S`. A save in front of the newest one is written as it is; any other save first
  lowers the copy and reads the floors again, and the copy does not move until that save is settled (`lowered`).
* The copy is removed after the record: a cursor with a record has a copy.
* Every write compares what is stored with what this process has stored. The next home takes the copies over, so the last one, if it still
  runs, changes none of them any more.
* After a restore of etcd copies may be missing, or be after their cursors. The home makes them right when it opens its pchannel. Until it
  has seen the floor of a pchannel in its present term, which is higher than any in a restored copy, the pchannel is not truncated.

A process that dies between two steps leaves a copy that holds back too much, or a floor that refuses too much. The next owner of the
pchannel, which compares both with its log, repairs that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from wal.errors import ChannelFencedError, InvalidArgumentError, UnavailableError, WALError, corruption
from wal.message import LogPosition, Natural
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.records import CursorRecord
from wal.read.options import ReadPosition, TickPosition
from wal.runtime.tasks import keep_task
from wal.storage.kv import KVBase
from wal.write.cursor_table import CursorChange

PATTERN_ROOT: Final = "patterns"
"""The root path of these keys."""
PUBLISH_S: Final = 0.25
"""The pause between two writes of the copies, and two looks at the floors."""
COPIES_LAG_S: Final = 3 * PUBLISH_S
"""The longest time until a copy follows its cursor, while the home and etcd answer."""
SEEN_S: Final = 5.0
"""How long a truncation by a caller waits for the home to have seen the floor of its pchannel."""
SETTLED_S: Final = 1.0
"""How long a new cursor waits for truncations that are under way: later they count as carried out."""
_COPIES: Final = "copies/"
_FLOORS: Final = "floors"
_FLOOR: Final = "floors/"
_SEEN: Final = "floors-seen/"
_POLL_S: Final = 0.05
_ATTEMPTS: Final = 8
"""How often a write is repeated that found another value than expected."""
_log: Final = logging.getLogger("wal.cursors")


class UncoveredError(UnavailableError):
    """The cursor has no copy that holds back what the change needs: the copy has to be stored first."""


class Truncation(msgspec.Struct, frozen=True):
    """A truncation of a pchannel: all its events with ticks up to `tick` are dropped, and the first one left is at (position, index)."""

    tick: Natural = 0
    position: str = "0"
    """A position of Pulsar has more digits than a number in JSON."""
    index: Natural = 0

    @property
    def first(self) -> LogPosition:
        return int(self.position), self.index


class _Floor(msgspec.Struct, frozen=True):
    """The truncation of a pchannel that was carried out, and the one that was begun; `term` is that of the writer."""

    term: Natural
    done: Truncation
    begun: Truncation | None = None

    @property
    def newest(self) -> Truncation:
        return self.begun or self.done


class _Copy(msgspec.Struct, frozen=True):
    """The stored copy of a cursor, written by its home in this term. Each write has another `number`."""

    term: Natural
    number: Natural
    name: str
    pattern: str
    position: str


class _OwnCopy:
    """A cursor of this home: the text of its copy as it was last stored here (None: that is not known), and the position in it."""

    __slots__ = ("at", "floors", "text")

    def __init__(self, text: str | None, at: TickPosition) -> None:
        self.text = text
        self.at = at
        self.floors: Mapping[str, Truncation] | None = None
        """How far the pchannels were truncated when the copy was lowered, None if they were not read since. Later truncations have
        respected the copy, also a copy of an earlier home.
        """


class PatternPins:
    """See the top of the file. `kv` has the metadata of the cluster; `home` is the pchannel that has the cursors.

    `check_format` raises UnavailableError as long as nodes of the cluster do not respect copies.
    """

    def __init__(self, kv: KVBase, home: str, *, check_format: Callable[[], Awaitable[None]]) -> None:
        self.home: str = home
        self._kv = kv.under(PATTERN_ROOT)
        self._check_format = check_format
        self._first = TickPosition.at(0, home)
        """A position before every event."""
        self._term = 0
        """The term of the home here, 0 where it is not."""
        self._own: dict[CursorKey, _OwnCopy] = {}
        self._locks: dict[CursorKey, asyncio.Lock] = {}
        self._lowered: dict[CursorKey, CursorChange | None] = {}
        """The save of each cursor whose copy stands still for it."""
        self._moved: dict[CursorKey, TickPosition] = {}
        """The durable positions of cursors that are not in the copies yet."""
        self._unremoved: set[CursorKey] = set()
        self._number = 0
        self._publishing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: dict[str, tuple[str, _Floor]] = {}
        """The floors of the pchannels that are here, as they were last stored, with their texts."""
        self._seen: set[str] = set()
        """The pchannels whose floors the home has seen."""

    # -- a node that truncates

    async def open_floor(self, pchannel: str, term: int, earliest: LogPosition) -> None:
        """Takes over the floor of a pchannel that begins at this event. Raises ChannelFencedError if a higher term has it."""
        self._seen.discard(pchannel)
        for _ in range(_ATTEMPTS):
            text = await self._kv.find(_FLOOR + pchannel)
            before = _Floor(0, Truncation()) if text is None else _floor_in(pchannel, text)
            if before.term > term:
                raise ChannelFencedError(f"pchannel {pchannel} is written in term {before.term}, above {term}", term=before.term)
            begun = before.begun
            floor = _Floor(term, begun if begun is not None and begun.first <= earliest else before.done)
            stored = _encode(floor)
            if await self._kv.compare_and_swap(_FLOOR + pchannel, text, stored):
                self._begun[pchannel] = stored, floor
                return
        raise UnavailableError(f"the floor of pchannel {pchannel} changes all the time: try again")

    def forget_floor(self, pchannel: str) -> None:
        """Forgets a pchannel that is here no more."""
        self._begun.pop(pchannel, None)
        self._seen.discard(pchannel)

    async def intend(self, pchannel: str, tick: int, first: LogPosition) -> None:
        """Stores that a pchannel is about to be truncated: all events up to this tick, so that this one is the first.

        Raises UnavailableError if the home of the cursors does not see the floor in this term, and ChannelFencedError if a higher term has
        the pchannel.
        """
        deadline = asyncio.get_running_loop().time() + SEEN_S
        while not await self.is_seen(pchannel):
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(
                    f"pchannel {pchannel} cannot be truncated yet: pchannel {self.home}, which has the cursors of patterns, has not shown "
                    "what they need since this pchannel was opened; try again when it is open"
                )
            await asyncio.sleep(_POLL_S)
        done = self._floor(pchannel).done
        await self._store_floor(pchannel, Truncation(max(tick, done.tick), str(first[0]), first[1]))

    async def settle(self, pchannel: str, *, is_truncated: bool) -> None:
        """Stores whether the truncation that was begun was carried out. Best effort: without it saves below are refused for longer."""
        if (entry := self._begun.get(pchannel)) is None or entry[1].begun is None:
            return
        floor = entry[1]
        if is_truncated:
            self._begun[pchannel] = entry[0], _Floor(floor.term, floor.newest, floor.begun)
        try:
            await self._store_floor(pchannel, None)
        except WALError as error:
            _log.debug("the floor of pchannel %s could not be stored: %s", pchannel, error)

    async def copies(self) -> list[Cursor]:
        """Returns the copies of all cursors, as cursors: they hold back what the cursors hold back, and perhaps more."""
        keys, texts = await self._kv.load_with_prefix(_COPIES)
        return [_cursor_in(key, text) for key, text in zip(keys, texts, strict=True)]

    async def is_seen(self, pchannel: str) -> bool:
        """Returns whether the home has seen the floor of a pchannel in its present term, so that it may be truncated."""
        if pchannel not in self._seen and await self._kv.find(_SEEN + pchannel) == str(self._floor(pchannel).term):
            self._seen.add(pchannel)
        return pchannel in self._seen

    def _floor(self, pchannel: str) -> _Floor:
        if (entry := self._begun.get(pchannel)) is None:
            raise UnavailableError(f"pchannel {pchannel} is not open here: try again when it is")
        return entry[1]

    async def _store_floor(self, pchannel: str, begun: Truncation | None) -> None:
        for _ in range(_ATTEMPTS):
            floor = self._floor(pchannel)
            text, changed = self._begun[pchannel][0], _Floor(floor.term, floor.done, begun)
            stored = _encode(changed)
            if await self._kv.compare_and_swap(_FLOOR + pchannel, text, stored):
                if pchannel in self._begun:
                    self._begun[pchannel] = stored, changed
                return
            present = await self._kv.find(_FLOOR + pchannel)  # of an earlier attempt without an answer, or of another term
            if present is None or _floor_in(pchannel, present).term != floor.term:
                raise ChannelFencedError(f"pchannel {pchannel} has another owner than term {floor.term}")
            if pchannel in self._begun:
                self._begun[pchannel] = present, floor
        raise UnavailableError(f"the floor of pchannel {pchannel} changes all the time: try again")

    # -- the home

    async def take_over(self, term: int, records: Iterable[CursorRecord]) -> None:
        """Makes this process the home, in this term, and the copies those of these records."""
        self.leave()
        self._term = term
        keys, texts = await self._kv.load_with_prefix(_COPIES)
        stored: dict[CursorKey, tuple[str, Cursor]] = {}
        for path, text in zip(keys, texts, strict=True):
            copy = _cursor_in(path, text)
            stored[copy.key] = text, copy
            self._check_term(copy.key, text)
        claimed: list[_OwnCopy] = []
        for record in records:
            if record.deleted or record.is_stale:
                continue
            text_before, before = stored.pop(record.key, (None, None))
            at = self._first if record.cursor is None else _at(record.cursor)
            if before is not None:
                at = min(at, _at(before), key=_order)
            own = self._own[record.key] = _OwnCopy(text_before, at)
            await self._store(record.key, own, at)
            if record.cursor is None:
                claimed.append(own)
            else:
                self.moved(record.key, record.cursor, record.cursor)
        for key in stored:
            await self._remove(key)
        if claimed:  # what is truncated was so when they were claimed
            floors = await self._read_floors()
            for own in claimed:
                own.floors = floors
        self._publishing = asyncio.get_running_loop().create_task(self._publish(), name="copies of the cursors of patterns")

    def leave(self) -> None:
        """Ends the home here, if it is: another process may have it from now on. Idempotent."""
        self._term = 0
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.cancel()
            keep_task(self._tasks, publishing)
        for state in (self._own, self._moved, self._unremoved):
            state.clear()

    async def close(self) -> None:
        """Ends the home here, and waits for what is under way. Idempotent."""
        self.leave()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    @contextlib.asynccontextmanager
    async def lowered(self, key: CursorKey, change: CursorChange) -> AsyncIterator[None]:
        """A block in which the save of a cursor may be written, wherever its position is; it ends when the save is settled."""
        assert change.cursor is not None
        async with self._lock(key):
            await self._cover(key, _at(change.cursor))
            self._lowered[key] = change
            try:
                yield
            except BaseException:
                self._moved.pop(key, None)  # the record may be in the log
                raise
            finally:
                del self._lowered[key]

    async def cover(self, key: CursorKey, *, newest: Cursor | None) -> None:
        """Returns when a cursor has a copy, in front of every event unless there is a newest position. Raises UnavailableError if none can
        be stored now."""
        if key not in self._own or (newest is None and not self._covers(key, self._first)):
            async with self._lock(key):
                await self._cover(key, self._first)

    def check(self, key: CursorKey, change: CursorChange | None = None, *, newest: Cursor | None) -> None:
        """Raises UncoveredError unless the copy of a cursor covers this save, which is written now (None: a claim, which saves nothing);
        InvalidArgumentError for a save by a consumer or transaction that moves the cursor back from the newest position."""
        if change is not None and self._lowered.get(key) is change:
            return
        at = None if change is None or change.cursor is None else change.cursor
        if not self._term or key not in self._own or (newest is None and not self._covers(key, self._first if at is None else _at(at))):
            raise UncoveredError(f"{key} does not hold back the log yet: try again")
        if newest is not None and at is not None and newest.order > at.order:
            raise InvalidArgumentError(f"{key} is at {newest.position}, and cannot move back to {at.position} with a transaction: seek it")

    def _covers(self, key: CursorKey, at: TickPosition) -> bool:
        """Returns whether the copy of a cursor is known to be at or before a position."""
        own = self._own.get(key)
        return own is not None and own.text is not None and _order(own.at) <= _order(at)

    def floors(self, key: CursorKey) -> Mapping[str, Truncation]:
        """Returns how far the pchannels are truncated, by name, as far as that matters to this cursor."""
        own = self._own.get(key)
        return {} if own is None else own.floors or {}

    def moved(self, key: CursorKey, durable: Cursor, newest: Cursor | None) -> None:
        """Notes the durable position of a cursor, which its copy follows, and the newest one that was submitted, None without one."""
        if newest is None:
            self._moved.pop(key, None)
        elif key in self._own:
            self._moved[key] = min(_at(durable), _at(newest), key=_order)

    def drop(self, key: CursorKey) -> None:
        """Removes the copy of a cursor without a record, or of one that holds back nothing."""
        self._moved.pop(key, None)
        if self._own.pop(key, None) is not None:
            self._unremoved.add(key)
            keep_task(self._tasks, asyncio.get_running_loop().create_task(self._remove_dropped(key), name=f"copy of {key}"))

    async def remove_left(self, name: str) -> None:
        """Removes the copies of cursors of this name that have no record: processes that died have left them."""
        for copy in await self.copies():
            if copy.key.name == name:
                async with self._lock(copy.key):
                    if copy.key not in self._own:
                        await self._remove(copy.key)

    def _lock(self, key: CursorKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _cover(self, key: CursorKey, at: TickPosition) -> None:
        """Lowers the copy of a cursor to this position unless it is there, and reads the floors after that. It holds the lock."""
        if not self._term:
            raise UnavailableError(f"pchannel {self.home}, which has {key}, is not open here: try again when it is")
        own = self._own.get(key)
        if self._covers(key, at):
            assert own is not None
            if own.floors is not None:
                return
        else:
            self._moved.pop(key, None)
            if own is None:
                await self._check_format()
                own = _OwnCopy(None, at)
            await self._store(key, own, at)
        own.floors = await self._read_floors()
        if not self._term:
            raise UnavailableError(f"pchannel {self.home}, which has {key}, was moved: try again")
        self._own[key] = own
        self._unremoved.discard(key)

    async def _store(self, key: CursorKey, own: _OwnCopy, at: TickPosition) -> None:
        """Stores a copy. Raises ChannelFencedError if another process is the home by now."""
        for _ in range(_ATTEMPTS):
            if not (term := self._term):
                raise UnavailableError(f"pchannel {self.home}, which has {key}, was moved: try again")
            before, own.text = own.text, None  # without an answer either may be there
            if before is None and (before := await self._kv.find(_path(key))) is not None:
                self._check_term(key, before)
            self._number += 1
            stored = _encode(_Copy(term, self._number, key.name, key.pattern, str(at)))
            if await self._kv.compare_and_swap(_path(key), before, stored):
                own.text, own.at = stored, at
                return
        raise UnavailableError(f"the copy of {key} changes all the time: try again")

    async def _remove(self, key: CursorKey) -> None:
        """Removes a copy, unless another process has changed it meanwhile."""
        path = _path(key)
        if self._term and (text := await self._kv.find(path)) is not None:
            self._check_term(key, text)
            await self._kv.change_if({path: text}, removals=[path])

    def _check_term(self, key: CursorKey, text: str) -> None:
        """Raises ChannelFencedError for a copy that a later home has stored."""
        if (term := _decode(_Copy, text, _path(key)).term) > self._term:
            raise ChannelFencedError(f"{key} has its home in term {term} of pchannel {self.home}, above {self._term}", term=term)

    async def _remove_dropped(self, key: CursorKey) -> None:
        try:
            async with self._lock(key):
                if key not in self._own:
                    await self._remove(key)
                self._unremoved.discard(key)
        except WALError as error:  # the next round removes it
            _log.debug("the copy of %s could not be removed yet: %s", key, error)

    async def _read_floors(self) -> dict[str, Truncation]:
        """Returns how far the pchannels are truncated. A truncation that has been under way for `SETTLED_S` counts as carried out."""
        deadline = asyncio.get_running_loop().time() + SETTLED_S
        while True:
            keys, texts = await self._kv.load_with_prefix(_FLOOR)
            names = [key.removeprefix(_FLOOR) for key in keys]
            floors = {name: _floor_in(name, text) for name, text in zip(names, texts, strict=True)}
            if all(floor.begun is None for floor in floors.values()) or asyncio.get_running_loop().time() > deadline:
                return {name: floor.newest for name, floor in floors.items()}
            await asyncio.sleep(_POLL_S)

    async def _publish(self) -> None:
        """Has the copies follow their cursors, and shows that the home has seen the floors, again and again."""
        is_failing = False
        while True:
            try:
                await self._note_floors()
                for key in list(self._moved):
                    await self._follow(key)
                for key in list(self._unremoved):
                    await self._remove_dropped(key)
                is_failing = False
            except WALError as error:
                if not is_failing:
                    _log.warning("what cursors of patterns hold back is not up to date, and is tried again: %s", error)
                is_failing = True
            except Exception:
                _log.exception("what cursors of patterns hold back is not up to date, and is tried again")
            await asyncio.sleep(PUBLISH_S)

    async def _follow(self, key: CursorKey) -> None:
        async with self._lock(key):
            own, at = self._own.get(key), self._moved.get(key)
            if own is not None and at is not None and own.at != at:
                await self._store(key, own, at)
            if self._moved.get(key) is at:
                self._moved.pop(key, None)

    async def _note_floors(self) -> None:
        keys, texts = await self._kv.load_with_prefix(_FLOORS)
        stored = dict(zip(keys, texts, strict=True))
        for key, text in stored.items():
            if key.startswith(_FLOOR):
                name = key.removeprefix(_FLOOR)
                term = str(_floor_in(name, text).term)
                if stored.get(_SEEN + name) != term:
                    await self._kv.save(_SEEN + name, term)


def _at(cursor: Cursor) -> TickPosition:
    position = cursor.tick_position
    assert position is not None, "a cursor of names has no copy here"
    return position


def _order(at: TickPosition) -> tuple[int, str]:
    return at.time_tick, at.pchannel


def _path(key: CursorKey) -> str:
    """Returns the key of a cursor's copy."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (key.name, key.pattern):
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return f"{_COPIES}{digest.hexdigest()}"


def _cursor_in(key: str, text: str) -> Cursor:
    copy = _decode(_Copy, text, key)
    with corruption("the copy of a cursor cannot be read", expected=key):
        at = ReadPosition.parse(copy.position)
        if not isinstance(at, TickPosition):
            raise ValueError(f"{at} is a position of names")
    return Cursor(CursorKey(copy.name, (), copy.pattern), (), at.pchannel, 0, (0, 0), None, at.time_tick, 0.0, begun=at.begun)


def _floor_in(pchannel: str, text: str) -> _Floor:
    floor: _Floor = _decode(_Floor, text, _FLOOR + pchannel)
    return floor


def _encode(value: _Floor | _Copy) -> str:
    return msgspec.json.encode(value).decode()


def _decode(kind: Any, text: str, key: str) -> Any:
    with corruption("a record of the cursors of patterns cannot be read", expected=key):
        return msgspec.json.decode(text, type=kind)
