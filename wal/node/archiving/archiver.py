"""Archiver: archives the journal of this process in the background, while it is being written.

A round follows the one before after `ROUND_S`, or later if rounds take long, and only if the log has something new. It runs in threads, and
reads what other processes may read: appends never wait for it. `archived` is how far the newest manifest reaches. Retention asks for that,
and drops nothing above it, so that a store that is away, slow or full costs room on the disk, and no message.

A failed round is tried again with growing pauses, and each kind of failure is logged once. Two failures are final for this opening: another
process that writes the same archive (LockedError, by a conditional put), and an archive of another log. Old manifests are removed, all but
the newest `MANIFESTS_MAX`; the newest one has every segment since the archive began.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from wal.engine import ArchiveStatistics
from wal.errors import InvalidArgumentError, LockedError, StorageError, UnknownError, WALError, caused
from wal.node.archiving.forgetting import StoredBackups, forget_all_but
from wal.node.archiving.rounds import Rounds
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import end_tasks
from wal.runtime.threads import in_thread
from wal.storage.archive.manifest import Manifest
from wal.storage.archive.store import open_store
from wal.storage.base import PChannelLog
from wal.storage.journal.log import JournalLog
from wal.storage.journal.segments import SegmentSet

ROUND_S: Final = 1.0
MANIFESTS_MAX: Final = 64
CLOSE_S: Final = 5.0
"""How long a close waits for the requests under way to a store that does not answer."""
_REST: Final = 4.0
"""The pause after a round is at least this many times its duration, so that archiving leaves the processor to the log."""
_RETRY_MIN_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0
_log: Final = logging.getLogger("wal.archive")


class Archiver:
    """Archives the journal in `directory` to `target`. `ends` returns the durable end of each open pchannel, by name, and `log_of` the
    log of one.
    """

    def __init__(
        self, directory: Path, target: str, ends: Callable[[], Mapping[str, int]], log_of: Callable[[str], PChannelLog | None]
    ) -> None:
        self.place: str = target
        self._directory = directory
        self._ends = ends
        self._log_of = log_of
        self._archived: dict[str, int] = {}
        self._behind_since: float | None = None
        self._failure: WALError | None = None
        self._rounds: Rounds | None = None
        self._stored: StoredBackups | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to archive. Raises InvalidArgumentError for an unknown target, ImportError without its extra; a store that does not answer
        fails nothing.
        """
        await in_thread(open_store, self.place)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="archive")

    async def close(self) -> None:
        """Ends the round under way; what it has stored is used by the next one. Idempotent."""
        await end_tasks(self._task)
        if self._rounds is not None:
            rounds, self._rounds = self._rounds, None
            await asyncio.wait([in_thread(rounds.close)], timeout=CLOSE_S)

    def archived(self, pchannel: str) -> int:
        """Returns the position up to which the archive has this pchannel's log, 0 while that is not known."""
        return self._archived.get(pchannel, 0)

    def statistics(self) -> ArchiveStatistics:
        """Returns the lag of the archive, and its failure."""
        ends = self._ends()
        lag_bytes = sum(max(0, end - self.archived(name)) for name, end in ends.items())
        lag_s = 0.0 if not lag_bytes or self._behind_since is None else time.monotonic() - self._behind_since
        return ArchiveStatistics(self.place, lag_bytes, lag_s, self._failure is not None, str(self._failure or ""))

    def hint(self) -> str:
        """Returns why retention drops nothing, for the error of a full disk; empty after a success. Called in any thread."""
        failure = self._failure
        return "" if failure is None else f"; nothing is dropped, because the log cannot be archived at {self.place}: {failure}"

    async def _run(self) -> None:
        backoff = Backoff(_RETRY_MIN_S, _RETRY_MAX_S)
        while True:
            began = time.monotonic()
            if any(end > self.archived(name) for name, end in self._ends().items()):
                if self._behind_since is None:
                    self._behind_since = began
                try:
                    manifest = await in_thread(self._round)
                except WALError as error:
                    self._failed(error)
                    if isinstance(error, LockedError | InvalidArgumentError):
                        return
                    await asyncio.sleep(backoff.next())
                    continue
                except Exception as defect:
                    self._failed(caused(UnknownError(f"archiving failed: {defect!r}; please report it"), defect))
                    return
                self._succeeded(manifest, began)
                backoff = Backoff(_RETRY_MIN_S, _RETRY_MAX_S)
            await asyncio.sleep(max(ROUND_S, _REST * (time.monotonic() - began)))

    def _round(self) -> Manifest:
        """Makes a manifest, and removes old ones. Runs in a thread."""
        rounds = self._rounds
        if rounds is None:
            rounds = self._rounds = Rounds(self._directory, open_store(self.place), None, keeps_history=True, written=self._segments_of)
        manifest = rounds.make()
        try:
            if self._stored is None:
                _, self._stored = forget_all_but(rounds.store, MANIFESTS_MAX)
            else:
                self._stored.add(manifest)
                self._stored.shrink(MANIFESTS_MAX)
        except StorageError as error:  # its user may lack the right to delete
            self._stored = None
            _log.debug("old manifests of the archive at %s stay: %s", self.place, error)
        return manifest

    def _segments_of(self, pchannel: str) -> SegmentSet | None:
        log = self._log_of(pchannel)
        return log.segments if isinstance(log, JournalLog) else None

    def _succeeded(self, manifest: Manifest, began: float) -> None:
        if self._failure is not None:
            self._failure = None
            _log.info("the log is archived at %s again", self.place, extra={"wal_event": "archive", "wal_location": self.place})
        self._archived = {name: copy.end for name, copy in manifest.pchannels.items()}
        self._behind_since = began if any(end > self.archived(name) for name, end in self._ends().items()) else None

    def _failed(self, error: WALError) -> None:
        if type(error) is not type(self._failure):
            _log.warning(
                "the log cannot be archived at %s, and retention drops nothing that is not archived: %s",
                self.place,
                error,
                extra={"wal_event": "archive", "wal_location": self.place},
            )
        self._failure = error
