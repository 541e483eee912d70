"""Backups of a journal: made beside its writer, complete at a tick, incremental, and restored as a log of a new incarnation.

`manifest.py` describes the content of one backup, and is pure. `store.py` is the store of the backups: a directory or an object store.
`rounds.py` makes backups, one after the other; `backup.py` has the calls for that, verifies backups and forgets them; `restore.py` restores
one and marks the log as restored. Objects are named by their content, so an interrupted backup continues where it stopped. The manifest is
written last, and without it there is no backup.
"""

from wal.operate.backup.backup import backup, backups, follow, forget, verify
from wal.storage.archive.manifest import Manifest
from wal.operate.backup.restore import restore, verify_whole
from wal.storage.archive.store import open_store

__all__ = ["Manifest", "backup", "backups", "follow", "forget", "open_store", "restore", "verify", "verify_whole"]
