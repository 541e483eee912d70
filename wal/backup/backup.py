"""Backup: copies what is durable in a journal to a store, beside its writer, and looks after the copies.

What makes a backup complete at one tick: the metadata are read once before the ends of the pchannels, and once after. Checkpoints are
those of the first reading, so what they cover is below the ends. Vchannels and the limit of ticks are those of the second, so everything
in the log is known. Broadcasts are those of both, since one that ended in between may have copies above the tick. The tick is the
smallest promised one of all pchannels, and each pchannel is cut before its first frame above it. If the writer frees a file meanwhile,
all of this begins again. It takes no lock, and writes nothing in the directory of the log.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from wal.backup.manifest import OBJECTS, PREFIX, Chunk, Manifest, PChannelCopy, SegmentCopy, decode_manifest, manifest_name
from wal.backup.store import ObjectExistsError, Store, age_s, open_store
from wal.channels.pchannels import FORMAT_KEY
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LockedError, StorageError, TruncatedError
from wal.frame.codec import load_zstd
from wal.location import Location, parse_location
from wal.storage.journal.checkpoint import checkpoint_name
from wal.storage.journal.control import CONTROL_NAME, ControlView
from wal.storage.journal.directory import LINEAGE_NAME
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import segment_name
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog
from wal.storage.journal.segments import Segment, segment_bases

META_FILE: Final = "meta.sqlite3"
CHUNK_BYTES: Final = 16 << 20
_AHEAD: Final = f"{META_FILE}-wal"
_SALTS_END: Final = 24
_TRIES: Final = 20
_GRACE_S: Final = 3600.0
"""Objects without a manifest that are younger may belong to a backup that is being made."""
_CHECKPOINTS: Final = ("pchannels/", "checkpoints/")
_BROADCASTS: Final = "broadcasts/"
_CURSOR_SUFFIX: Final = ".cursor"

_log: Final = logging.getLogger("wal.backup")

Progress = Callable[[dict[str, Any]], None]


async def backup(location: str, target: str, *, progress: Progress | None = None) -> Manifest:
    """Makes a backup of the journal at `location` in the store at `target`, and returns its manifest.

    `progress` is called in another thread, with the objects that were put so far. Raises InvalidArgumentError for a log that is no
    journal, or if the target has backups of another log; LockedError if another process has made a backup there meanwhile; NoSpaceError and
    StorageError of the target. Without the last step, the manifest, no earlier backup is changed; another attempt goes on where it ended.
    """
    directory = journal_path(location)
    return await asyncio.to_thread(lambda: _backup(directory, open_store(target), progress))


async def follow(
    location: str, target: str, *, interval_s: float = 1.0, keep: int | None = None, progress: Progress | None = None
) -> AsyncIterator[Manifest]:
    """Makes a backup every `interval_s` (seconds) and yields each, until the caller ends the iteration. Raises as `backup` does.

    With `keep` it forgets all but the newest ones after each, as `forget` does.
    """
    while True:
        begun = time.monotonic()
        yield await backup(location, target, progress=progress)
        if keep is not None:
            await forget(target, keep=keep)
        await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - begun)))


async def backups(target: str) -> list[Manifest]:
    """Returns the manifests of all backups at `target`, oldest first, without those that are damaged: `verify` names them.

    Raises FormatError if there is none, or one of a newer version, CorruptionError if all are damaged.
    """
    return await asyncio.to_thread(lambda: _backups(open_store(target)))


async def verify(target: str) -> list[str]:
    """Reads every object of all backups at `target`; returns a sentence for each that is missing or damaged."""
    return await asyncio.to_thread(lambda: _verify(open_store(target)))


async def forget(target: str, *, keep: int) -> list[int]:
    """Removes all backups but the newest `keep`, and what only they need; returns the numbers of those that were removed."""
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise TypeError(f"keep is an int, not {type(keep).__name__}")
    if keep < 1:
        raise InvalidArgumentError(f"keep={keep} would remove every backup: give at least 1")
    return await asyncio.to_thread(lambda: _forget(open_store(target), keep))


def journal_path(location: str) -> Path:
    """Returns the directory of the journal at this location; raises InvalidArgumentError for any other log."""
    parsed: Location = parse_location(location)
    if parsed.path is None:
        raise InvalidArgumentError(f"{location} is no journal: only the directory of a journal is backed up and restored")
    return parsed.path


def manifests(store: Store) -> tuple[list[Manifest], dict[int, CorruptionError]]:
    """Returns the backups in the store, oldest first, and by number why others cannot be read. Raises FormatError for a newer version."""
    readable: list[Manifest] = []
    damaged: dict[int, CorruptionError] = {}
    for number, name in _manifest_names(store):
        try:
            readable.append(decode_manifest(name, store.get(name)))
        except CorruptionError as error:
            damaged[number] = error
    return readable, damaged


def _manifest_names(store: Store) -> list[tuple[int, str]]:
    """Returns the manifests in the store by number, ascending."""
    stems = {name: name.removeprefix(PREFIX).removesuffix(".json") for name in store.names(PREFIX)}
    return sorted((int(stem), name) for name, stem in stems.items() if stem.isascii() and stem.isdigit())


def fetch(store: Store, chunk: Chunk) -> bytes:
    """Returns the bytes of a chunk. Raises CorruptionError if they are missing or damaged."""
    try:
        data = store.get(chunk.name)
    except FileNotFoundError:
        raise _damaged(store, chunk, "it is missing") from None
    if chunk.name.endswith(".zst"):
        zstd = load_zstd()
        try:
            data = zstd.decompress(data)
        except zstd.ZstdError as error:
            raise _damaged(store, chunk, str(error)) from error
    if len(data) != chunk.end - chunk.start or google_crc32c.value(data) != chunk.crc:
        raise _damaged(store, chunk, f"it has {len(data)} bytes and CRC32C {google_crc32c.value(data):#010x}")
    return data


def _damaged(store: Store, chunk: Chunk, what: str) -> CorruptionError:
    expected = f"{chunk.end - chunk.start} bytes with CRC32C {chunk.crc:#010x}"
    path = f"{store.place}/{chunk.name}"
    return CorruptionError(f"{path} is damaged: {what}; expected {expected}", path=path, offset=0, expected=expected)


def _backup(directory: Path, store: Store, progress: Progress | None) -> Manifest:
    names = _manifest_names(store)
    newest = _newest(store, names)
    number = names[-1][0] + 1 if names else 1
    there = set(store.names(OBJECTS))
    for tried in range(_TRIES):
        journal = ReadOnlyJournal(directory)
        try:
            manifest = _Copy(directory, journal, store, number, newest, there, progress).run()
            break
        except (FileNotFoundError, TruncatedError, CorruptionError):
            if tried == _TRIES - 1:
                raise
            time.sleep(0.01 * tried)
        finally:
            journal.close()
    try:
        store.create(manifest_name(manifest.number), manifest.encode())
    except ObjectExistsError:
        raise LockedError(
            f"another process has made backup {manifest.number} at {store.place} meanwhile: let one process write there", pid=None
        ) from None
    return manifest


def _newest(store: Store, names: list[tuple[int, str]]) -> Manifest | None:
    """Returns the newest manifest that can be read. A backup goes on from there, so that one damaged manifest does not end all backups."""
    for _, name in reversed(names):
        try:
            return decode_manifest(name, store.get(name))
        except CorruptionError as error:
            _log.warning("a backup is left out, see `wal backup verify`: %s", error)
    return None


class _Behind(FileNotFoundError):
    """A checkpoint is above the tick: it is tried again."""


class _Copy:
    """One attempt at a backup."""

    def __init__(
        self,
        directory: Path,
        journal: ReadOnlyJournal,
        store: Store,
        number: int,
        newest: Manifest | None,
        there: set[str],
        progress: Progress | None,
    ) -> None:
        self._directory, self._journal, self._store, self._number = directory, journal, store, number
        self._newest, self._there, self._progress = newest, there, progress
        self._objects = self._bytes = 0
        try:
            self._compress: Callable[[bytes], bytes] | None = load_zstd().compress
        except ImportError:
            self._compress = None

    def run(self) -> Manifest:
        names = self._journal.pchannels()
        logs = {name: self._journal.open(name) for name in names}
        try:
            return self._copied(logs)
        finally:
            for log in logs.values():
                log.close()

    def _copied(self, logs: dict[str, ReadOnlyJournalLog]) -> Manifest:
        if not logs:
            raise FormatError(f"{self._directory} holds no log yet: it is made by opening it for writing")
        self._check_log(next(iter(logs.values())))
        before = _metadata(self._directory)
        states = {name: log.reach() for name, log in logs.items()}
        after = _metadata(self._directory)
        metadata = {key: value for key, value in after.items() if not key.startswith(_CHECKPOINTS)}
        metadata |= {key: value for key, value in before.items() if key.startswith(_CHECKPOINTS)}
        metadata |= {key: value for key, value in before.items() if key.startswith(_BROADCASTS) and key not in after}
        if {key for key in metadata if key.startswith("pchannels/") and key != FORMAT_KEY} != {f"pchannels/{name}" for name in logs}:
            raise _Behind("a pchannel is being created")
        tick = min(state.promised_tick for state in states.values())
        pchannels = {
            name: self._pchannel(name, log, states[name].durable_end, tick, msgspec.json.decode(metadata[f"checkpoints/{name}"]))
            for name, log in logs.items()
        }
        cursors = self._directory / "cursors"
        files = {}
        for path in sorted(cursors.glob(f"*{_CURSOR_SUFFIX}")) if cursors.is_dir() else ():
            files[f"cursors/{path.name}"] = self._put(path.read_bytes(), f"cursor-{path.name.removesuffix(_CURSOR_SUFFIX)[-41:]}")
        return Manifest(
            number=self._number,
            tick=tick,
            at_s=time.time(),
            pchannels=pchannels,
            files=files,
            metadata=self._put(msgspec.json.encode(metadata), "metadata"),
        )

    def _check_log(self, log: ReadOnlyJournalLog) -> None:
        """Raises InvalidArgumentError if the store has backups of another log."""
        lives = {log.incarnation, *(restore.parent for restore in log.lineage.restores)}
        if self._newest is not None and self._newest.log_id not in lives:
            raise InvalidArgumentError(f"{self._store.place} has backups of another log than {self._directory}: name another target")

    def _pchannel(self, name: str, log: ReadOnlyJournalLog, durable: int, tick: int, checkpoint: dict[str, Any]) -> PChannelCopy:
        directory = self._directory / "pchannels" / name
        with closing(ControlView(directory / CONTROL_NAME)) as control:
            record = control.load()
        if record.incarnation != log.incarnation:
            raise _Behind("the log was marked as restored meanwhile")
        end = _end(log, record.earliest[0], durable, tick)
        begin = min(record.earliest[0], checkpoint["position"])
        if checkpoint["position"] > end or record.earliest[0] > end:
            raise _Behind(f"the recovery of pchannel {name} begins above tick {tick}")
        bases = [base for base in segment_bases(directory) if base < end]
        first = max((at for at, base in enumerate(bases) if base <= begin), default=-1)
        if first < 0:
            raise FileNotFoundError(2, "the segment was truncated", str(directory))
        bases = bases[first:]
        segments = tuple(self._segment(name, directory, base, stop) for base, stop in zip(bases, (*bases[1:], end), strict=True))
        files = {}
        if (state := checkpoint.get("state")) is not None:
            file = checkpoint_name(state)
            files[file] = self._put((directory / file).read_bytes(), f"{name}-{file}")
        if (directory / LINEAGE_NAME).exists():
            files[LINEAGE_NAME] = self._put((directory / LINEAGE_NAME).read_bytes(), f"{name}-{LINEAGE_NAME}")
        return PChannelCopy(record.incarnation, record.term, end, record.earliest, record.limit, segments, files)

    def _segment(self, pchannel: str, directory: Path, base: int, stop: int) -> SegmentCopy:
        """Copies a segment up to the position `stop`; what an earlier backup has of it is not read again."""
        path = directory / segment_name(base)
        header = Segment.load(Disk(), path).header
        chunks: list[Chunk] = []
        known = () if self._newest is None or pchannel not in self._newest.pchannels else self._newest.pchannels[pchannel].segments
        for segment in known:
            if (segment.base, segment.generation) == (base, header.generation):
                chunks += [chunk for chunk in segment.chunks if chunk.end <= stop - base and chunk.name in self._there]
        chunks = [chunk for at, chunk in enumerate(chunks) if chunk.start == (chunks[at - 1].end if at else 0)]
        at = chunks[-1].end if chunks else 0
        # Small chunks are put once more, as part of a larger one, so that a segment has few, however many backups it grew through.
        while chunks and chunks[-1].end - chunks[-1].start <= min(stop - base - at, CHUNK_BYTES // 2):
            at = chunks.pop().start
        with path.open("rb") as file:
            file.seek(at)
            while at < stop - base:
                data = file.read(min(CHUNK_BYTES, stop - base - at))
                if not data:
                    raise FileNotFoundError(2, "the segment is shorter than the log", str(path))
                prefix = f"{pchannel}-{base:016x}-{header.generation:016x}-{at:x}"
                chunks.append(self._put(data, prefix, start=at))
                at += len(data)
        if Segment.load(Disk(), path).header != header:
            raise FileNotFoundError(2, "the segment was recycled while it was being copied", str(path))
        return SegmentCopy(base, header.generation, header.size, tuple(chunks))

    def _put(self, data: bytes, prefix: str, *, start: int = 0) -> Chunk:
        """Puts these bytes, unless an object that holds them is there."""
        crc = google_crc32c.value(data)
        packed, suffix = (data, "") if self._compress is None else (None, ".zst")
        name = f"{OBJECTS}{prefix}-{len(data):x}-{crc:08x}{suffix}"
        if name not in self._there:
            if packed is None:
                assert self._compress is not None
                packed = self._compress(data)
            try:
                self._store.create(name, packed)
                self._objects, self._bytes = self._objects + 1, self._bytes + len(packed)
            except ObjectExistsError:
                pass  # its name says what it holds
            self._there.add(name)
            if self._progress is not None:
                self._progress({"objects": self._objects, "stored_bytes": self._bytes, "name": name})
        return Chunk(name, start, start + len(data), crc)


def _end(log: ReadOnlyJournalLog, start: int, durable: int, tick: int) -> int:
    """Returns the position of the first frame above this tick."""
    for index, first, stop in log.indices(start, durable, above=tick):
        for ordinal in range(first, stop):
            if index.first_ticks[ordinal] > tick:
                return int(index.positions[ordinal])
    return durable


def _metadata(directory: Path) -> dict[str, str]:
    """Returns the metadata of a journal that may be open for writing.

    Its writer keeps sqlite's lock, so the two files are copied, until one pair belongs together: sqlite changes the database only when it
    moves what its write-ahead file has, and begins that file anew, with other salts, only after that.
    """
    path = directory / META_FILE
    if not path.exists():
        raise FormatError(f"{path} is missing: a journal whose metadata lie elsewhere (setting kv) is not backed up")
    for tried in range(_TRIES):
        database, ahead = path.read_bytes(), _ahead(directory)
        if path.read_bytes() == database and _ahead(directory)[:_SALTS_END] == ahead[:_SALTS_END]:
            break
        time.sleep(0.01 * tried)
    else:
        raise StorageError(f"{path} changes faster than it can be read: try again")
    with tempfile.TemporaryDirectory(prefix="wal-backup-") as folder:
        copy = Path(folder, META_FILE)
        copy.write_bytes(database)
        Path(folder, _AHEAD).write_bytes(ahead)
        try:
            with closing(sqlite3.connect(copy)) as connection:
                return dict(connection.execute("SELECT key, value FROM kv"))
        except sqlite3.Error as error:
            raise StorageError(f"{path} cannot be read: {error}") from error


def _ahead(directory: Path) -> bytes:
    try:
        return (directory / _AHEAD).read_bytes()
    except FileNotFoundError:
        return b""


def _backups(store: Store) -> list[Manifest]:
    readable, damaged = manifests(store)
    if damaged and not readable:
        raise max(damaged.items())[1]
    if not readable:
        raise FormatError(f"{store.place} holds no backup")
    return readable


def _verify(store: Store) -> list[str]:
    readable, damaged = manifests(store)
    if not readable and not damaged:
        raise FormatError(f"{store.place} holds no backup")
    findings = [f"backup {number}: {error}" for number, error in damaged.items()]
    checked: set[str] = set()
    for manifest in readable:
        for chunk in manifest.chunks():
            if chunk.name not in checked:
                checked.add(chunk.name)
                try:
                    fetch(store, chunk)
                except CorruptionError as error:
                    findings.append(f"backup {manifest.number}: {error}")
    return findings


def _forget(store: Store, keep: int) -> list[int]:
    found, damaged = manifests(store)
    gone, kept = found[:-keep], found[-keep:]
    needed = {chunk.name for manifest in kept for chunk in manifest.chunks()}
    for manifest in gone:
        store.delete(manifest_name(manifest.number))
    # What a damaged manifest needs is not known. Those older than all that is kept go, and while there is another one, no object does.
    for number in [number for number in damaged if kept and number < kept[0].number]:
        store.delete(manifest_name(number))
        del damaged[number]
    if gone and not damaged:
        for name, put_at_s in store.names(OBJECTS).items():
            known = any(name == chunk.name for manifest in gone for chunk in manifest.chunks())
            if name not in needed and (known or age_s(put_at_s) > _GRACE_S):
                store.delete(name)
    return [manifest.number for manifest in gone]
