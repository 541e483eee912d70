"""VChannelDirectory: the vchannels of a log. The KV is the only source of truth, and the directory is its only writer.

Owns the records (name → pchannel, incarnation), the counter of incarnations, and the order in which both are saved. A vchannel's record is
durable before its first frame is written. The changes of a turn are saved together, in as few operations as the KV's bound allows. A change
is one operation, whose records are all saved or none; changes are independent of each other. No record is saved before a counter above its
incarnation. An incarnation is never reused, even after a drop, so that a recreated vchannel shows nothing of its former incarnation.

The counter's record also counts the turns that removed records, if maps of the vchannels are written. So the map of a pchannel with both
numbers of the metadata shows the same vchannels, and a vchannel that the metadata lack is damage.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from actors import Actor
from wal.channels.owners import OWNERS_MAX, OwnerDescription
from wal.channels.vchannel_map import VChannelMap, VChannelView
from wal.channels.vchannels import VChannelBegin, VChannelInfo, check_vchannel
from wal.errors import StorageError, WALError, caused, corruption

if TYPE_CHECKING:
    from wal.storage.kv import KVBase


PREFIX: Final = "vchannels/"
NEXT_KEY: Final = "vchannel-incarnations"
BOTH: Final = "vchannel"
"""The beginning of the keys of the records and of the counter: one query reads both at one moment."""
_CHANGES_A_TURN: Final = 512
"""The number of changes that are saved and answered before other tasks get their turn: about 20 ms."""


class RecordCounter(msgspec.Struct, frozen=True):
    """The content of the counter's record: the next incarnation, and the number of turns that have removed records; None if not counted."""

    next_incarnation: int
    removals: int | None = None

    @classmethod
    def parse(cls, text: str) -> RecordCounter:
        """Returns the counter in this text. Raises ValueError for any other text."""
        following, counted, removals = text.partition(" ")
        return cls(int(following), int(removals) if counted else None)

    def __str__(self) -> str:
        return f"{self.next_incarnation}" if self.removals is None else f"{self.next_incarnation} {self.removals}"


class SavedVChannels(msgspec.Struct, frozen=True):
    """The vchannels in the KV at one moment: the existing ones by name, their known beginnings, and the counter."""

    records: dict[str, VChannelInfo] = {}
    begins: dict[str, VChannelBegin] = {}
    counter: RecordCounter = RecordCounter(1, 0)

    @classmethod
    def of(cls, keys: Iterable[str], values: Iterable[str]) -> SavedVChannels:
        """Returns the content of these entries of the KV, which begin with BOTH. Raises CorruptionError if they cannot be read."""
        saved, counter = cls(), cls().counter
        for key, value in zip(keys, values, strict=True):
            if key == NEXT_KEY:
                with corruption("the vchannel records in the KV cannot be read", expected=key):
                    counter = RecordCounter.parse(value)
            elif key.startswith(PREFIX):
                info = record_from(key, value)
                saved.records[info.name] = info
                if (begin := _decoder.decode(value).begin) is not None:
                    saved.begins[info.name] = begin
        return msgspec.structs.replace(saved, counter=counter)

    def view(self, incarnations: Mapping[str, int]) -> VChannelView:
        """Returns the vchannels for readers of these pchannels, which have these incarnations."""
        records: dict[str, dict[str, int]] = {pchannel: {} for pchannel in incarnations}
        for info in self.records.values():
            if info.pchannel in records:
                records[info.pchannel][info.name] = info.incarnation
        following = self.counter.next_incarnation
        maps = {pchannel: VChannelMap(incarnation, following, records[pchannel]) for pchannel, incarnation in incarnations.items()}
        return VChannelView(self.records, maps, self.begins)


class RecordChange(msgspec.Struct, gc=False):
    """Records to save, or to remove, all or none of them; `done` is called with None, or with the error.

    If another change of the same turn has one of the names, the later change decides what is saved under it, in the same operation.
    """

    infos: tuple[VChannelInfo, ...]
    remove: bool
    done: Callable[[WALError | None], None]


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    pchannel: str
    incarnation: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    """A frame has 32 bits for the incarnation."""
    owner: OwnerDescription | None = None
    begin: VChannelBegin | None = None
    """None for a vchannel of an earlier version, and where its creator does not host the pchannel, as in a cluster."""


class PChannelCounts:
    """Counts vchannels per pchannel and finds the least loaded one in O(log n)."""

    def __init__(self, pchannels: Iterable[str] = ()) -> None:
        """`pchannels` are those of the existing vchannels, each as often as it has one."""
        self._counts = Counter(pchannels)
        self._order: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Counts with the number and the name of their pchannel. Invariant: every pchannel is here with its current count; its entries with
        other counts are outdated.
        """

    def add(self, pchannel: str, count: int) -> None:
        """Adds this number of vchannels to a pchannel."""
        self._counts[pchannel] += count
        if pchannel in self._order:
            heapq.heappush(self._heap, (self._counts[pchannel], self._order[pchannel], pchannel))

    def fewest(self, pchannels: Mapping[str, object], preferred: str) -> str:
        """Returns the pchannel with the fewest vchannels: of several the preferred one if it is among them, or else the first."""
        if len(self._order) != len(pchannels) or len(self._heap) > 4 * len(pchannels) + 64:
            self._order = {name: number for number, name in enumerate(pchannels)}
            self._heap = [(self._counts[name], number, name) for name, number in self._order.items()]
            heapq.heapify(self._heap)
        while self._heap[0][0] != self._counts[self._heap[0][2]]:
            heapq.heappop(self._heap)
        count, _, name = self._heap[0]
        return preferred if self._counts[preferred] == count else name


class VChannelDirectory(Actor):
    """The records in memory, changed at once by `admit` and `forget`, and saved by the actor's turns."""

    def __init__(self, kv: KVBase) -> None:
        self._kv = kv
        self.next_incarnation: int = 1
        self.records: dict[str, VChannelInfo] = {}
        self.begins: dict[str, VChannelBegin] = {}
        """The known beginnings of the vchannels in `records`."""
        self.counts: PChannelCounts = PChannelCounts()
        """The number of vchannels in `records`, by pchannel."""
        self.counts_removals: bool = False
        """Whether the removals are counted, for the maps."""
        self.saved_next: int = 0
        """The counter for `saved`: every incarnation below it is in `saved`, or has ended."""
        self.saved_removals: int = 0
        """The count of the removals for `saved`."""
        self.saved: dict[str, VChannelInfo] = {}
        """The saved records, which may be shown to other processes."""
        self.on_saved: Callable[[set[str], set[str]], None] | None = None
        """Called after each save with the pchannels whose records changed, and the names whose former incarnation ended."""
        self.watchers: dict[Callable[[list[tuple[VChannelInfo, bool]]], None], None] = {}
        """Each is called after each save with the vchannels that changed, and whether they exist now. A caller may add and remove one."""
        self.end_of: Callable[[str], VChannelBegin | None] = lambda pchannel: None
        """Returns the incarnation of a pchannel and the end of its log, for a vchannel that begins there; None if unknown."""
        self._counter: int = 0
        """The counter in the KV; it is above `saved_next` while a turn's records are being saved in parts."""
        self._removals: int = 0
        """The count of the removals in the KV, above `saved_removals` like the counter."""

    async def load(self) -> None:
        """Reads all records. Call it once, before the first turn. Raises CorruptionError if they cannot be read."""
        saved = SavedVChannels.of(*await self._kv.load_with_prefix(BOTH))
        self.records, self.begins, counter = saved.records, saved.begins, saved.counter
        self._counter = self.saved_next = self.next_incarnation = counter.next_incarnation
        # Without a count, a map may be older than removals: it gets the count 1 below, which no such map has.
        self._removals = self.saved_removals = 1 if counter.removals is None else counter.removals
        newest = max((info.incarnation for info in self.records.values()), default=0)
        with corruption("the vchannel records in the KV cannot be read", expected=PREFIX):
            if not newest < self.next_incarnation < 1 << 32:
                raise ValueError(f"the next incarnation is {self.next_incarnation}, and there is one of {newest}")
        self.saved = dict(self.records)
        self.counts = PChannelCounts(info.pchannel for info in self.records.values())

    def admit(self, name: str, pchannel: str, owner: OwnerDescription | None = None) -> VChannelInfo:
        """Returns a new vchannel with a new incarnation; its record must still be saved by sending a `RecordChange`."""
        if (before := self.records.get(name)) is not None:
            self.counts.add(before.pchannel, -1)
        info = self.records[name] = VChannelInfo(name, pchannel, self.next_incarnation, owner)
        self._begin(name, self.end_of(pchannel))
        self.counts.add(pchannel, 1)
        self.next_incarnation += 1
        return info

    def forget(self, info: VChannelInfo) -> None:
        """Removes the record from memory, unless another incarnation of the name has replaced it."""
        if self.records.get(info.name) == info:
            del self.records[info.name]
            self.begins.pop(info.name, None)
            self.counts.add(info.pchannel, -1)

    def restore(self, info: VChannelInfo) -> None:
        """Adds a record that is still saved to memory again, unless another incarnation of the name has replaced it."""
        if info.name not in self.records and self.saved.get(info.name) == info:
            self.records[info.name] = info
            self.counts.add(info.pchannel, 1)

    def _begin(self, name: str, begin: VChannelBegin | None) -> None:
        if begin is None:
            self.begins.pop(name, None)
        else:
            self.begins[name] = begin

    async def receive(self, batch: list[Any]) -> None:
        """Saves all changes of the batch; the last change of a name counts.

        If an operation fails, the changes of the operations before it are saved, and all other changes get its error.
        """
        error: WALError | None = None
        for first in range(0, len(batch), _CHANGES_A_TURN):
            if first:
                await asyncio.sleep(0)
            error = await self._save_all(batch[first : first + _CHANGES_A_TURN], error)

    async def _save_all(self, batch: list[RecordChange], error: WALError | None) -> WALError | None:
        """Saves these changes, or none after an `error` before; returns the first error."""
        last: dict[str, tuple[VChannelInfo, bool]] = {}
        for change in batch:
            for info in change.infos:
                if not change.remove or info.name not in self.records:  # else the new record replaces the old one
                    last[info.name] = info, change.remove
        waiting = _units(batch, last)
        counted = self.counts_removals and any(remove for _, remove in last.values())
        following = RecordCounter(self.next_incarnation, self._removals + counted if self.counts_removals else None)
        saved: dict[str, tuple[VChannelInfo, bool]] = {}
        at = 0
        while error is None and at < len(waiting):
            room = (self._kv.operations_max or sys.maxsize) - self._is_behind(following)
            part = waiting[at]
            owners = _owners(part, last)
            at += 1
            while at < len(waiting) and len(part) + len(waiting[at]) <= room:
                owners += _owners(waiting[at], last)
                if owners > OWNERS_MAX:
                    break
                part += waiting[at]
                at += 1
            error = await self._save([last[name] for name in part], following)
            if error is None:
                saved.update((name, last[name]) for name in part)
        if saved:
            self._note_saved(saved)
        for change in batch:
            settled = all(info.name in saved or info.name not in last for info in change.infos)
            change.done(None if settled else error)
        return error

    def _is_behind(self, following: RecordCounter) -> bool:
        """Returns whether the counter in the KV is not this one yet."""
        return self._counter != following.next_incarnation or self._removals != (following.removals or self._removals)

    async def _save(self, changes: list[tuple[VChannelInfo, bool]], following: RecordCounter) -> WALError | None:
        """Saves these changes in one operation, with the counter if it has grown. Returns the error, or None if they are durable."""
        saves = {NEXT_KEY: str(following)} if self._is_behind(following) else {}
        removals: list[str] = []
        for info, remove in changes:
            if remove:
                removals.append(PREFIX + info.name)
            else:
                begin = self.begins.get(info.name) if self.records.get(info.name) == info else None
                record = _Record(info.pchannel, info.incarnation, info.owner, begin)
                saves[PREFIX + info.name] = _encoder.encode(record).decode()
        try:
            await self._kv.multi_save_and_remove(saves, removals)
        except WALError as failure:
            return failure
        except Exception as failure:
            return unsaved_records(failure)
        self._counter = following.next_incarnation
        self._removals = following.removals or self._removals
        return None

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Handles a defect in this actor: no more records are saved, and the waiting callers get an error."""
        for change in unhandled:
            change.done(unsaved_records(cause))

    def _note_saved(self, changes: dict[str, tuple[VChannelInfo, bool]]) -> None:
        self.saved_next, self.saved_removals = self._counter, self._removals
        pchannels: set[str] = set()
        ended: set[str] = set()
        announced: list[tuple[VChannelInfo, bool]] = []
        for name, (info, remove) in changes.items():
            before = self.saved.pop(name, None)
            if not remove:
                self.saved[name] = info
            pchannels.add(info.pchannel)
            if not remove or before is not None:
                announced.append((info, not remove))
            if before is not None and (remove or before != info):
                pchannels.add(before.pchannel)
                ended.add(name)
        if self.on_saved is not None:
            self.on_saved(pchannels, ended)
        for watcher in list(self.watchers):
            watcher(announced)


def _units(batch: list[RecordChange], last: Collection[str]) -> list[list[str]]:
    """Returns the names whose records are saved, each once: a list for each change, which one operation saves."""
    units: list[list[str]] = []
    placed: set[str] = set()
    for change in batch:
        unit = [info.name for info in change.infos if info.name in last and info.name not in placed]
        if unit:
            placed.update(unit)
            units.append(unit)
    return units


def _owners(names: list[str], changes: Mapping[str, tuple[VChannelInfo, bool]]) -> int:
    """Returns how many of these changes save an owner."""
    return sum(not remove and info.owner is not None for info, remove in map(changes.__getitem__, names))


def infos_in(metadata: Mapping[str, str]) -> list[VChannelInfo]:
    """Returns the vchannels that are among these records of the metadata; raises as `record_from` does."""
    return [record_from(key, value) for key, value in metadata.items() if key.startswith(PREFIX)]


def record_from(key: str, value: str) -> VChannelInfo:
    """Returns the vchannel whose record is `value` on `key`. Raises CorruptionError if it cannot be read."""
    with corruption("the vchannel records in the KV cannot be read", expected=key):
        record = _decoder.decode(value)
        name = check_vchannel(key.removeprefix(PREFIX))
    return VChannelInfo(name, record.pchannel, record.incarnation, record.owner)


def record_text(info: VChannelInfo) -> str:
    """Returns the record of a vchannel without any further fields."""
    return _encoder.encode(_Record(info.pchannel, info.incarnation, info.owner)).decode()


def unsaved_records(cause: BaseException) -> StorageError:
    """Returns the error for a change that was not saved because of `cause`."""
    return caused(StorageError(f"the vchannel records could not be saved: {cause!r}; open the log again"), cause)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Record)
