"""Store: the RocksDB under a RocksMQ, with every trap of its binding in one file. All methods block: they run on one thread.

Owns the open database. It guarantees that `write` either returns with the write synced or raises with no part of it permanently visible. A
scan returns every record of its range or raises: damage raises CorruptionError.

* The binding holds the interpreter while it writes, its sync included, but not in `flush_wal`: so a write is unsynced, then flushed. A
  write may be visible before it is durable; the broker returns nothing above the last flush.
* A write that would stall waits inside the binding and stops every thread: `no_slowdown` makes it fail, and the store retries it. A failed
  write batch is used up, so the store builds it again.
* The binding does not keep the bounds of an iterator alive, and `items()` ends quietly at damage. So iterators have no bounds here, their
  status is checked, and every record holds the id of the record before it, so that a missing record is detected.
* The default recovery drops acknowledged writes after a damaged one: `tolerate_corrupted_tail_records` accepts a torn tail only.
* Iterators keep the database open: no iterator outlives its call.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Final

from wal.errors import CorruptionError, FormatError, LockedError, StorageError, WALError
from wal.runtime.installation import Needed
from wal.runtime.system import is_foreign
from wal.storage.files import PRIVATE
from wal.streams.rocksmq.channel import ConsumerMessage
from wal.streams.rocksmq.keys import FORMAT, FORMAT_KEY, ID_BYTES, META, NOTHING, TurnWrites, number, numbers, record_key
from wal.streams.rocksmq.settings import RocksMQSettings

STALL_RETRY_S: Final = 0.002
"""The pause before a write that RocksDB would have stalled is retried; the thread sleeps, the interpreter continues."""
STALLED: Final = "Result incomplete"
"""The beginning of the error text of a write that would have stalled (RocksDB's Status::Incomplete)."""
WAL_BYTES_MAX: Final = 4
"""The most write buffers of write-ahead log that RocksDB keeps. An opening after a crash replays them."""
_log: Final = logging.getLogger("wal.rocksmq")


class Store:
    """An open database; `open` creates it."""

    def __init__(self, path: Path, db: Any, rocksdict: Any) -> None:
        self.path = path
        self._db = db
        self._write_batch = rocksdict.WriteBatch
        self._options = rocksdict.WriteOptions()
        self._options.no_slowdown = True

    @classmethod
    def open(cls, path: Path, settings: RocksMQSettings) -> Store:
        """Opens the database in this directory, or creates it.

        Raises LockedError when the database is open already, FormatError for other content, CorruptionError for damage, ImportError without
        rocksdict, else StorageError.
        """
        rocksdict = _load()
        if path.is_dir() and any(not is_foreign(entry.name) for entry in path.iterdir()) and not (path / "CURRENT").exists():
            raise FormatError(f"{path} is not empty and holds no RocksDB: give a RocksMQ a directory of its own")
        path.parent.mkdir(parents=True, exist_ok=True)
        PRIVATE.make_directory(path)  # the modes of RocksDB's own files depend on the umask
        try:
            db = rocksdict.Rdict(str(path), _options(rocksdict, settings))
        except Exception as error:
            raise _opening_error(path, error) from error
        store = cls(path, db, rocksdict)
        try:
            stored_format = db.get(FORMAT_KEY)
            if stored_format is None and not store._is_empty():
                raise FormatError(f"{path} holds a RocksDB that is not a RocksMQ: give the RocksMQ a directory of its own")
            if stored_format is None:
                changes = TurnWrites()
                changes.put(FORMAT_KEY, FORMAT)
                store.write(changes)
            elif stored_format != FORMAT:
                raise FormatError(f"{path} has the format {stored_format!r}, and this version reads {FORMAT!r}: use a newer one")
        except BaseException as error:
            store.close()
            if isinstance(error, WALError):
                raise
            raise _error(path, error) from error
        return store

    def write(self, changes: TurnWrites, *, sync: bool = True) -> None:
        """Writes all changes or none; they are durable when it returns. With `sync` False they are durable after the next synced write."""
        try:
            while True:
                batch = self._write_batch(raw_mode=True)
                for begin, end in changes.ranges:
                    batch.delete_range(begin, end)
                for key in changes.deletions:
                    batch.delete(key)
                put = batch.put
                for key, value in changes.puts.items():
                    put(key, value)
                try:
                    self._db.write(batch, self._options)
                    break
                except Exception as error:
                    if STALLED not in str(error):
                        raise
                time.sleep(STALL_RETRY_S)
            if sync:
                self._db.flush_wal(True)
        except Exception as error:
            if _is_damage(error):  # a compaction detected it; RocksDB accepts no more writes after that
                raise _error(self.path, error) from error
            raise StorageError(
                f"{self.path}: RocksDB could not write: {error}; open it again, what was under way may be there or not",
                outcome_unknown=True,
            ) from error

    def scan_meta(self) -> list[tuple[bytes, bytes]]:
        """Returns all keys and values except the records of channels."""
        entries = []
        it = self._db.iter()
        try:
            it.seek(META)
            while it.valid() and (key := it.key()).startswith(META):
                entries.append((key, it.value()))
                it.next()
            self._check(it)
        finally:
            del it  # see `close`
        return entries

    def scan(self, prefix: bytes, after: int, begin_id: int, last_id: int, *, count_max: int, bytes_max: int) -> list[ConsumerMessage]:
        """Returns the records of a channel after the id `after`, up to `count_max` of them or about `bytes_max`, at least one.

        `begin_id` is the first existing id, `last_id` the last; `after` is the id of a record, or anything below the first one.
        """
        messages: list[ConsumerMessage] = []
        size, width = 0, len(prefix) + ID_BYTES
        first = after < begin_id
        previous = after
        it = self._db.iter()
        try:
            it.seek(record_key(prefix, begin_id if first else after + 1))
            while it.valid() and len(messages) < count_max and size < bytes_max:
                key = it.key()
                if len(key) != width or not key.startswith(prefix):
                    break
                message_id = int.from_bytes(key[-ID_BYTES:], "big")
                if message_id > last_id:
                    break
                value = it.value()
                if message_id != begin_id if first else value[:ID_BYTES] != number(previous):
                    expected = f"the record {begin_id}" if first else f"the record after {previous}"
                    raise CorruptionError(
                        f"{self.path}: records of {prefix.decode()!r} are missing before {message_id}",
                        path=str(self.path),
                        expected=expected,
                    )
                messages.append(ConsumerMessage(message_id, value[ID_BYTES:]))
                size += len(value)
                previous, first = message_id, False
                it.next()
            self._check(it)
        finally:
            del it  # see `close`
        if previous < last_id and len(messages) < count_max and size < bytes_max:
            raise CorruptionError(
                f"{self.path}: records of {prefix.decode()!r} are missing after {previous}",
                path=str(self.path),
                expected=f"records up to {last_id}",
            )
        return messages

    def before(self, prefix: bytes, message_id: int) -> int | None:
        """Returns the id before this one, NOTHING if it is the first; None for an id without a record."""
        try:
            value = self._db.get(record_key(prefix, message_id))
        except Exception as error:
            raise _error(self.path, error) from error
        return None if value is None else numbers(value[:ID_BYTES])[0]

    def check_ends(self, prefix: bytes, begin_id: int, last_id: int) -> None:
        """Raises CorruptionError unless the first and the last record of a channel exist; an empty channel has `last_id` NOTHING."""
        for message_id in {begin_id, last_id} if last_id != NOTHING else ():
            if self.before(prefix, message_id) is None:
                raise CorruptionError(
                    f"{self.path}: the record {message_id} of {prefix.decode()!r} is missing",
                    path=str(self.path),
                    expected=f"the records {begin_id} to {last_id}",
                )

    def compact(self, begin: bytes, end: bytes) -> None:
        """Reclaims the space of the deleted keys in the range. It may take seconds and blocks no other call."""
        self._db.compact_range(begin, end)

    def close(self) -> None:
        """Closes the database. Idempotent. Answered changes are already durable: a database that can no longer write is closed anyway.

        An iterator keeps RocksDB open, and with it the lock on the directory. So functions delete their iterators before an error's
        traceback can hold them.
        """
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception as error:
                _log.warning("%s: closing RocksDB: %s", self.path, error)

    def _is_empty(self) -> bool:
        it = self._db.iter()
        try:
            it.seek_to_first()
            empty = not it.valid()
            self._check(it)
        finally:
            del it  # see `close`
        return empty

    def _check(self, it: Any) -> None:
        try:
            it.status()
        except Exception as error:
            del it  # see `close`
            raise _error(self.path, error) from error


def _load() -> Any:
    with Needed("a RocksMQ needs", "rocksmq"):
        import rocksdict
    return rocksdict


def _options(rocksdict: Any, settings: RocksMQSettings) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_max_write_buffer_number(4)
    options.set_max_total_wal_size(WAL_BYTES_MAX * settings.write_buffer_bytes)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    return options


def _opening_error(path: Path, error: Exception) -> WALError:
    text = str(error)
    if "lock" in text.lower():
        return LockedError(f"{path} is open already, in this process or another one: close it there first ({text})")
    if "comparator" in text.lower() or "raw" in text.lower():
        return FormatError(f"{path} was opened with other options than a RocksMQ's: {text}")
    return _error(path, error)


def _error(path: Path, error: BaseException) -> WALError:
    text = str(error)
    if _is_damage(error):
        return CorruptionError(f"{path}: RocksDB found damage: {text}", path=str(path), expected="sound blocks")
    return StorageError(f"{path}: RocksDB failed: {text}")


def _is_damage(error: BaseException) -> bool:
    text = str(error)
    return "Corruption" in text or "checksum" in text
