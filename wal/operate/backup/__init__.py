"""Backups of a journal: made beside its writer, complete at a tick, incremental, and restored as a log of a new incarnation.

`manifest.py` says what one backup holds, and is pure. `store.py` is where the backups of a log lie: a directory or an object store.
`rounds.py` makes them, one after the other; `backup.py` has the calls for that, verifies them and forgets them; `restore.py` puts one in
place and marks the log as restored. Objects are named by what they hold, so a backup that was interrupted goes on where it stopped; the
manifest comes last, and without it there is no backup.
"""

from wal.operate.backup.backup import backup, backups, follow, forget, verify
from wal.operate.backup.manifest import Manifest
from wal.operate.backup.restore import restore, verify_whole
from wal.operate.backup.store import open_store

__all__ = ["Manifest", "backup", "backups", "follow", "forget", "open_store", "restore", "verify", "verify_whole"]
