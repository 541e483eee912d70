"""RecordsBeside: the records of a KV in a sqlite file that another process may have open for writing. Blocks, and takes no lock.

The writer keeps sqlite's lock. So the file is copied together with its write-ahead file, until the two copies belong together. Sqlite
changes the file only when it moves the content of its write-ahead file there, and only after that starts that file again, with other salts.
Bytes that a writer adds meanwhile do no harm.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from wal.errors import FormatError, StorageError, UnavailableError
from wal.runtime.descriptors import write_file
from wal.storage.kv.sqlite_records import read_records

_TRIES: Final = 50
_PAUSE_S: Final = 0.02
_SALTS_END: Final = 24


class RecordsBeside:
    """The records in the sqlite file `file`. Files that have not changed since the last call are not parsed again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ahead_file = file.with_name(f"{file.name}-wal")
        self._files = (b"", b"")
        self._records: dict[str, str] = {}

    def load(self) -> dict[str, str]:
        """Returns the records by key, as they are at one moment.

        Raises FormatError if the file is missing or has a newer version, CorruptionError if it is damaged, StorageError if it cannot be
        read, UnavailableError if the two files did not belong together in any attempt.
        """
        file = self._file
        try:
            for _ in range(_TRIES):
                database, ahead = file.read_bytes(), self._ahead()
                if file.read_bytes() == database and self._ahead()[:_SALTS_END] == ahead[:_SALTS_END]:
                    break
                time.sleep(_PAUSE_S)
            else:
                raise UnavailableError(f"{file} changed during each of {_TRIES} attempts to read it: try again")
        except FileNotFoundError as error:
            raise FormatError(
                f"{file} is missing: the metadata of this journal is elsewhere (setting kv), or the directory is not a journal"
            ) from error
        except OSError as error:
            raise StorageError(f"{error.filename or file} cannot be read: {error.strerror or error}") from error
        if self._files != (database, ahead):
            with tempfile.TemporaryDirectory(prefix="wal-metadata-") as folder:
                copy = Path(folder, file.name)
                write_file(copy, database)
                write_file(Path(folder, self._ahead_file.name), ahead)
                self._records = read_records(copy, file)
            self._files = database, ahead
        return self._records

    def _ahead(self) -> bytes:
        try:
            return self._ahead_file.read_bytes()
        except FileNotFoundError:
            return b""
