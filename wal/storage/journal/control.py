"""ControlPage: the few numbers of a pchannel's log that change with every frame, in a mapped page that other processes can read.

Owns: the file `control` (4 KiB) with its two slots, and the lock on it. The lock is on the separate file `fence`, because a process that
may read the page could also lock it, and so stop the writer. Each slot has its own sector, a sequence and a CRC, and a store overwrites the
older slot: whatever a crash leaves, one of the slots is valid. Recovery finds the frames without the page. The page has the durable
position (damage below it is not a torn tail), the term that owns the log, and the beginning of the log.

The lock (`locked`) makes "does this term still own the log?" and the store that depends on the answer one atomic step, across handles and
processes. Other processes see a store at once, and it survives a crash of the process; only `sync` makes it survive a power cut. A process
that only reads maps the page as a `ControlView`, takes no lock and never writes: it trusts a slot whose CRC matches.

A writer also records the current boot of the machine: until the machine restarts, none of its stores can be lost.

    at 1024   magic "WALB" | boot 16 B | crc32c u32

The page also records that the map of the pchannel's vchannels was written once, so that its absence is damage.

    at 1536   "WALV"

A writer publishes its intent to truncate here before it does so, and withdraws it if it does not: see `PChannelLog.intend`.

    at 2048   magic "WALT" | position u64 | index u32 | crc32c u32; zeros without an intent

The writer of a log that archives itself publishes the positions of the file `archived` here, before it moves the local start.

    at 2560   magic "WALA" | earliest position u64, index u32 | dropped position u64, index u32 | crc32c u32; zeros without the file
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from wal.errors import ChannelFencedError, CorruptionError, FormatError, LogWentBackError, WALError
from wal.message import LogPosition
from wal.runtime.descriptors import map_file, open_file
from wal.storage.files import FileLock
from wal.storage.files.links import check_only_name
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import SECTOR_BYTES

CONTROL_BYTES: Final = 4096
CONTROL_NAME: Final = "control"
FENCE_NAME: Final = "fence"
"""The lock file of a process that stores. Only its owner can open it, even where a group may read the page."""
REPLACED_TERM: Final = (1 << 64) - 1
"""The term of a page whose log was recreated: no handle on the old log writes or reads any more."""
_VERSION: Final = 1
_MAGIC: Final = b"WALC"
_LOAD_TRIES: Final = 100
"""A store in progress can break one slot for a reader. Both slots can break only one after the other, so another read settles it."""


class ControlRecord(msgspec.Struct, frozen=True, gc=False):
    """The content of a slot.

        magic "WALC" | version u32 | sequence u64 | incarnation u64 | term u64 | durable u64 | earliest position u64 | index u32 |
        closed u32 (0 or 1) | promise u64 | limit u64 | crc32c u32

    `durable`: the position after the last frame that is known to be durable. `promised_tick`: no later event has a tick at or below it.
    `limit`: the oracle's saved limit when the log last received it. `closed`: no writer has the log open.
    """

    incarnation: int
    term: int
    durable: int
    earliest: tuple[int, int]
    promised_tick: int
    limit: int
    closed: bool

    def pack(self, sequence: int) -> bytes:
        """Returns the bytes of a slot."""
        position, index = self.earliest
        packed = _SLOT.pack(
            _MAGIC,
            _VERSION,
            sequence,
            self.incarnation,
            self.term,
            self.durable,
            position,
            index,
            self.closed,
            self.promised_tick,
            self.limit,
        )
        return packed + _CRC.pack(google_crc32c.value(packed))

    @classmethod
    def unpack(cls, page: bytes, at: int) -> tuple[int, ControlRecord] | None:
        """Returns `(sequence, record)` of the slot at `at`, or None when its CRC or magic does not match.

        Raises FormatError for a newer version, and CorruptionError (without path) for a slot with a matching CRC and values that no writer
        stores.
        """
        if len(page) - at < _SLOT.size + _CRC.size:
            return None
        packed = page[at : at + _SLOT.size]
        (crc,) = _CRC.unpack_from(page, at + _SLOT.size)
        if google_crc32c.value(packed) != crc:
            return None
        fields = _SLOT.unpack(packed)
        magic, version, sequence, incarnation, term, durable, position, index, closed, promised_tick, limit = fields
        if magic != _MAGIC:
            return None
        if version != _VERSION:
            raise FormatError(f"control page version {version} is not known here (known: {_VERSION}): upgrade to read it")
        numbers = (sequence, durable, position, promised_tick, limit, 0 if term == REPLACED_TERM else term)
        if closed > 1 or max(numbers) >= _NUMBERS_END:
            raise CorruptionError(
                f"a slot has sequence, durable, earliest, promise, limit, term = {numbers} and closed = {closed}",
                expected=f"numbers below {_NUMBERS_END:#x}, and 0 or 1",
            )
        return sequence, cls(incarnation, term, durable, (position, index), promised_tick, limit, closed != 0)


class ControlPage:
    """The mapped page: `load`, and `store` inside `locked`. Any thread may use it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Maps an existing file. A file that is too short for a control page is extended; its slots are then invalid.

        Raises StorageError for a file that has another name too.
        """
        self._disk = disk
        self._path = path
        self._fd = open_file(path, os.O_RDWR)
        try:
            status = os.fstat(self._fd)
            check_only_name(path, status)
            if status.st_size < CONTROL_BYTES:
                os.ftruncate(self._fd, CONTROL_BYTES)
            self._map = map_file(self._fd, CONTROL_BYTES)
            self._fence_file = FileLock.open(path.with_name(FENCE_NAME), disk.access)
        except BaseException:
            os.close(self._fd)
            raise
        self.fence: Final = Fence(self._fence_file)
        """The lock of `locked`, for a caller that cannot wait for it."""
        self._pchannel, self._term = "", -1  # until it is owned
        # The slots as they were last read, and their record: neither the check nor the store of a frame has to parse them again.
        self._seen = b""
        self._said: tuple[int, ControlRecord | None] = (0, None)

    @staticmethod
    def create(disk: Disk, path: Path, record: ControlRecord) -> None:
        """Durably creates a page with this record."""
        page = record.pack(2).ljust(CONTROL_BYTES, b"\0")  # even sequences are in the first slot
        disk.replace(path, page, temporary=path.with_suffix(".tmp"))

    def status(self) -> os.stat_result:
        """Returns the status of the mapped file, even if its name now leads to another file."""
        return os.fstat(self._fd)

    def fence_status(self) -> os.stat_result:
        """Returns the status of the file `fence`, which is locked while a process stores."""
        return os.fstat(self._fence_file.fd)

    def locked(self) -> Fence:
        """Returns the lock: inside `with`, no other thread or process stores. Entering it blocks; never use it on the loop."""
        return self.fence

    def load(self) -> ControlRecord | None:
        """Returns the newest valid record, or None when neither slot is valid."""
        return self._newest()[1]

    def load_owned(self) -> ControlRecord:
        """Returns the record if the log is still in the term of `own`; raises ChannelFencedError if not. The answer stays true only inside
        `locked`."""
        said = self._said
        page = self._map[: 2 * SECTOR_BYTES]
        if page != self._seen:
            said = self._said = self._newest()
            self._seen = page
        return self._check(said[1])

    def check_owned(self) -> None:
        """Raises ChannelFencedError if the log is in another term. Needs no lock, since a term never returns."""
        self._check(self.load())

    def own(self, pchannel: str, term: int) -> None:
        """Makes this the page of the writer that took over the log in this term."""
        self._pchannel, self._term = pchannel, term

    def store_durable(self, durable: int | None, promised_tick: int, limit: int) -> None:
        """Stores a new durable position (None: the same), a promised tick and a limit, unless a larger one is stored already.

        Call it after `load_owned` in the same `locked`: it does not read the page again.
        """
        sequence, record = self._said
        assert record is not None
        following = ControlRecord(
            record.incarnation,
            record.term,
            record.durable if durable is None else durable,
            record.earliest,
            max(record.promised_tick, promised_tick),
            max(record.limit, limit),
            closed=False,
        )
        self._put(sequence + 1, following)

    def store(self, record: ControlRecord) -> None:
        """Replaces the older slot. Only inside `locked`."""
        self._put(self._newest()[0] + 1, record)

    def is_of_boot(self, boot: bytes) -> bool:
        """Returns whether the last writer ran in this boot of the machine, so that `load` finds its last store."""
        return bool(boot) and self._map[_BOOT_AT : _BOOT_AT + _BOOT_BYTES] == _boot_mark(boot)

    def note_boot(self, boot: bytes) -> None:
        """Records that stores from now on happen in this boot. Only inside `locked`."""
        self._map[_BOOT_AT : _BOOT_AT + _BOOT_BYTES] = _boot_mark(boot) if boot else bytes(_BOOT_BYTES)

    @property
    def map_noted(self) -> bool:
        """Returns whether the map of the vchannels was written once."""
        return _notes_map(self._map)

    def note_map(self) -> None:
        """Records that the map of the vchannels was written, which stays true for every owner of the log: no lock is needed."""
        self._map[_MAP_AT : _MAP_AT + len(_MAP_NOTE)] = _MAP_NOTE

    def intend(self, up_to: LogPosition | None) -> None:
        """Publishes how far the log is to be truncated, None: not at all. Only inside `locked`."""
        packed = bytes(_INTENT.size) if up_to is None else _INTENT.pack(b"WALT", *up_to)
        self._map[_INTENT_AT : _INTENT_AT + _INTENT.size + _CRC.size] = packed + _CRC.pack(google_crc32c.value(packed) if up_to else 0)

    def publish_archived(self, earliest: LogPosition, dropped: LogPosition) -> None:
        """Publishes where the log begins in its archive, see `ArchivedStart`. Only inside `locked`."""
        packed = _ARCHIVED.pack(b"WALA", *earliest, *dropped)
        self._map[_ARCHIVED_AT : _ARCHIVED_AT + _ARCHIVED.size + _CRC.size] = packed + _CRC.pack(google_crc32c.value(packed))

    def sync(self) -> None:
        """Makes all stores so far survive a power cut."""
        self._disk.sync_map(self._map, self._fd, self._path)

    def close(self) -> None:
        if self._fd >= 0:
            self._map.close()
            self._fence_file.close()
            os.close(self._fd)
            self._fd = -1

    def _check(self, record: ControlRecord | None) -> ControlRecord:
        if record is None or record.term != self._term:
            owner = "an unknown term" if record is None else f"term {record.term}"
            raise ChannelFencedError(f"pchannel {self._pchannel!r} is owned by {owner} now; this handle is of term {self._term}")
        return record

    def _put(self, sequence: int, record: ControlRecord) -> None:
        slot = record.pack(sequence)
        at = sequence % 2 * SECTOR_BYTES
        self._map[at : at + len(slot)] = slot
        # The order matters: another thread that reads between the two lines parses the page itself.
        self._said = (sequence, record)
        self._seen = self._map[: 2 * SECTOR_BYTES]

    def _newest(self) -> tuple[int, ControlRecord | None]:
        said = self._said
        if self._map[: 2 * SECTOR_BYTES] == self._seen and said is self._said:
            return said
        for _ in range(_LOAD_TRIES):
            if (newest := _newest_slot(self._map[: 2 * SECTOR_BYTES], self._path)) is not None:
                return newest
        return 0, None


class ControlView:
    """The page of a log that this process only reads. `load` takes a few microseconds and never blocks; any thread may call it."""

    def __init__(self, path: Path) -> None:
        """Maps the file. Raises FileNotFoundError for a missing file, and CorruptionError when it is too short for a control page."""
        self._path = path
        fd = open_file(path, os.O_RDONLY)
        try:
            self.status: Final = os.fstat(fd)
            """The status of the mapped file when it was opened; the mapping keeps the file alive."""
            size = self.status.st_size
            if size < CONTROL_BYTES:
                raise self._damaged(f"it has {size} bytes", f"{CONTROL_BYTES} bytes")
            self._map = map_file(fd, CONTROL_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self._said: tuple[bytes, int, ControlRecord] | None = None

    def load(self) -> ControlRecord:
        """Returns the newest record, never an older one than before.

        Raises CorruptionError when no slot is valid, and LogWentBackError when both are older than before: the file was overwritten.
        """
        said, older = self._said, 0
        for _ in range(_LOAD_TRIES):
            page = self._map[: 2 * SECTOR_BYTES]
            if said is not None and page == said[0]:
                return said[2]
            newest = _newest_slot(page, self._path)
            said = self._said  # another thread may have read meanwhile
            # This read may have seen one slot just before it was overwritten, and the other one just after: then it shows an older store.
            if newest is not None and (said is None or newest[0] >= said[1]):
                self._said = page, *newest
                return newest[1]
            older += newest is not None
        if older == _LOAD_TRIES:  # a store in progress has ended by then
            raise LogWentBackError(f"{self._path} has older contents than before, so an older copy of the log was restored")
        if said is not None:
            return said[2]
        raise self._damaged("neither slot holds", "a control page; opening the log for writing makes it again")

    @property
    def map_noted(self) -> bool:
        """Returns whether a writer has once written the map of the vchannels."""
        return _notes_map(self._map)

    def intended(self) -> LogPosition:
        """Returns how far the writer means to truncate the log, (0, 0): not at all."""
        for _ in range(_LOAD_TRIES):
            data = self._map[_INTENT_AT : _INTENT_AT + _INTENT.size + _CRC.size]
            if not any(data):
                return 0, 0
            if _CRC.unpack_from(data, _INTENT.size)[0] == google_crc32c.value(data[: _INTENT.size]):
                _, position, index = _INTENT.unpack_from(data)
                return position, index
        return _NUMBERS_END, 0  # the writer was killed while it stored it

    def archived(self) -> tuple[LogPosition, LogPosition] | None:
        """Returns the earliest event of a log in its archive, and the highest local start, None without an archive.

        Call it after `load`: the writer publishes both before it moves the local start.
        """
        for _ in range(_LOAD_TRIES):
            data = self._map[_ARCHIVED_AT : _ARCHIVED_AT + _ARCHIVED.size + _CRC.size]
            if not any(data):
                return None
            if _CRC.unpack_from(data, _ARCHIVED.size)[0] == google_crc32c.value(data[: _ARCHIVED.size]):
                _, position, index, dropped, dropped_index = _ARCHIVED.unpack_from(data)
                return (position, index), (dropped, dropped_index)
        return None  # the writer was killed while it stored it, and publishes it again at its next opening

    def close(self) -> None:
        """Closes the mapping. Idempotent."""
        self._map.close()

    def _damaged(self, actual: str, expected: str) -> CorruptionError:
        text = f"{self._path} is damaged: {actual}; expected {expected}"
        return CorruptionError(text, path=str(self._path), offset=0, expected=expected)


def _notes_map(page: mmap.mmap) -> bool:
    return page[_MAP_AT : _MAP_AT + len(_MAP_NOTE)] == _MAP_NOTE


def _newest_slot(page: bytes, path: Path) -> tuple[int, ControlRecord] | None:
    """Returns `(sequence, record)` of the newer valid slot, or None when neither is valid. Raises CorruptionError as
    `ControlRecord.unpack`."""
    try:
        slots = [slot for at in (0, SECTOR_BYTES) if (slot := ControlRecord.unpack(page, at)) is not None]
    except CorruptionError as error:
        text = f"{path} is damaged: {error}; expected {error.expected}"
        raise CorruptionError(text, path=str(path), offset=0, expected=error.expected) from error
    return max(slots, key=_sequence) if slots else None


def _sequence(slot: tuple[int, ControlRecord]) -> int:
    return slot[0]


def _boot_mark(boot: bytes) -> bytes:
    packed = b"WALB" + boot
    return packed + _CRC.pack(google_crc32c.value(packed))


_BOOT_AT: Final = 2 * SECTOR_BYTES
_MAP_AT: Final = 3 * SECTOR_BYTES
_MAP_NOTE: Final = b"WALV"
_BOOT_BYTES: Final = 24
_SLOT: Final = struct.Struct("<4sIQQQQQIIQQ")
_CRC: Final = struct.Struct("<I")
_INTENT_AT: Final = 4 * SECTOR_BYTES
_INTENT: Final = struct.Struct("<4sQI")
_ARCHIVED_AT: Final = 5 * SECTOR_BYTES
_ARCHIVED: Final = struct.Struct("<4sQIQI")
_NUMBERS_END: Final = 1 << 63
"""A bound above every number that is counted, so that a next number always fits its field."""


class Fence:
    """The lock under which the control page is stored: a thread lock around an exclusive flock.

    It excludes all other threads and processes while it is taken. The flock alone would not separate the threads of this process, which
    share one descriptor. One thread may take it and another one release it. A caller that does not wait (`try_take`) never overtakes a
    waiting thread.
    """

    __slots__ = ("_file", "_threads", "_waiting")

    def __init__(self, file: FileLock) -> None:
        self._file = file
        self._threads = threading.Lock()
        self._waiting: list[None] = []  # one for each waiting thread: append and pop are atomic

    def __enter__(self) -> None:
        self.take(-1)

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, timeout_s: float) -> bool:
        """Takes the fence. Returns False if another thread has it for this long (-1: waits for ever); waits for other processes.

        Raises ClosedError or StorageError as `FileLock.lock`.
        """
        self._waiting.append(None)
        try:
            if not self._threads.acquire(timeout=timeout_s):
                return False
        finally:
            self._waiting.pop()
        try:
            self._file.lock()
        except BaseException:
            self._threads.release()
            raise
        return True

    def try_take(self) -> bool:
        """Takes the fence without waiting. Returns False when another holder has it, a thread waits for it, or it cannot be taken."""
        if self._waiting:
            return False
        acquired = False
        try:
            acquired = self._threads.acquire(blocking=False)
            if acquired and self._file.try_lock():
                return True
        except WALError:
            pass  # the waiting thread gets the error
        except BaseException:  # an interrupt: it may have come after the file was locked
            if acquired:
                self.release()
            raise
        if acquired:
            self._threads.release()
        return False

    def release(self) -> None:
        try:
            self._file.unlock()
        finally:
            self._threads.release()
