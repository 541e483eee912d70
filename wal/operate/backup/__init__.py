"""Backups of a journal: made beside its writer, complete at a tick, incremental, and restored as a log of a new incarnation.

`backup.py` has the calls that make, verify and forget backups; `restore.py` restores one and marks the log as restored; `upgrade.py` brings
backups of earlier versions up to date. Objects are named by their content, so an interrupted backup continues where it stopped. The
manifest is written last, and completes the backup. `wal/node/archiving/` makes them, and `wal/storage/archive/` has the form of the
objects, since the log itself and its readers use both.
"""

from wal.operate.backup.backup import backup, backups, follow, forget, verify
from wal.operate.backup.restore import restore, verify_whole
from wal.operate.backup.upgrade import upgrade
from wal.storage.archive.manifest import Manifest
from wal.storage.archive.store import open_store

__all__ = ["Manifest", "backup", "backups", "follow", "forget", "open_store", "restore", "upgrade", "verify", "verify_whole"]
