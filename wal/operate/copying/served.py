"""The sources for a log on the network: `ServedSource` uses the calls of every client, `ClusterSource` the Pulsar of a cluster.

Frames come as they are stored: order, ticks, transactions, keys, producers and delayed messages are those of the frames. State that only
the files of the log have is missing: idempotency keys and producers whose messages are truncated, and the ids that clients have allocated.
Content that depends on it is rejected: unfinished broadcasts, cursors that move with transactions, and scheduled messages whose frames are
truncated. The copy ends at a tick of a moment without a broadcast, so that it has all copies of each broadcast or none.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import msgspec

from wal.channels.directory import NEXT_KEY, record_text
from wal.channels.directory import PREFIX as VCHANNELS
from wal.channels.pchannels import COMPRESSION_KEY
from wal.client.blocking import BlockingRemote, BlockingSource
from wal.errors import InvalidArgumentError, TruncatedError, UnavailableError
from wal.frame import RunKind, RunName
from wal.location import Location
from wal.operate.copying.source import PROMISE_S, CopySource, Ends, Remembered, StoredMetadata
from wal.read.cursors.cursor import Cursor
from wal.read.cursors.pins import Pin
from wal.read.cursors.records import CursorRecord
from wal.read.read_only_core import ReadOnlyCore
from wal.requests.broadcasts import ListBroadcasts
from wal.requests.schedule import ListScheduled
from wal.settings import Settings
from wal.timestamp.oracle import LIMIT_KEY, SAVE_WINDOW_S
from wal.timestamp.timestamp import LOGICAL_BITS

_OWNER: Final = "0" * 16


class ServedSource(CopySource):
    """The log that servers serve at `location`. See `CopySource`."""

    def __init__(self, location: Location, settings: Settings) -> None:
        assert location.servers is not None
        self.location = location
        self._source = BlockingSource(location.servers, settings, wait_s=0.0, follow=False)
        self._core = ReadOnlyCore(self._source)
        self._salvaged = None
        self._waiting: dict[str, set[str]] | None = None

    def ends(self, *, follow: bool = False) -> Ends:
        """Returns a tick that covers all that is durable now, at a moment without a broadcast. Raises UnavailableError if no such moment
        comes.
        """
        until = time.monotonic() + PROMISE_S
        while True:
            self._check_broadcasts()
            ends = self._ends_beside_a_writer(self._core, follow=follow)
            if not self._has_copies(ends.promised):
                return ends
            if time.monotonic() >= until:
                raise UnavailableError(f"{self.location} always has running broadcasts: copy it in a moment without one")

    def _has_copies(self, tick: int) -> bool:
        """Returns whether a broadcast that has ended by now has copies above this tick; other copies of it may be below."""
        self._check_broadcasts()
        for name in self._core.logs:
            log = self.log(name)
            snapshot = log.reach()
            at = log.position_after(tick, snapshot.earliest[0], snapshot.durable_end)[0]
            if any(frame.view.runs.of_kind(RunKind.COPY) for frame in log.frames(at, snapshot.durable_end)):
                return True
        return False

    def _check_broadcasts(self) -> None:
        log = self._remote().log
        if tasks := self._remote().call(lambda: log.submit(ListBroadcasts()), "listing the broadcasts"):
            raise UnavailableError(
                f"broadcast {tasks[0].broadcast_id} of {self.location} is not finished, and a client cannot see what it holds: wait until "
                "`wal broadcasts` lists none, or copy the log where its server has it"
            )

    def metadata(self) -> dict[str, str]:
        """Returns records in the form of the log's metadata, as far as its servers return their content."""
        view = self._core.look()
        promised_ms = max(log.reach().promised_tick for log in self._core.logs.values()) >> LOGICAL_BITS
        # The server may have allocated ticks up to a limit that it has saved ahead.
        limit_ms = max(promised_ms, int(time.time() * 1000)) + int(SAVE_WINDOW_S * 1000)
        records = {VCHANNELS + name: record_text(info) for name, info in view.records.items()}
        following = max((info.incarnation + 1 for info in view.records.values()), default=1)
        records[NEXT_KEY] = str(max(following, *(view.floor(name) for name in self._core.logs)))
        records[LIMIT_KEY] = f"{limit_ms} {_OWNER}"
        if self._remote().log.settings.compression == "zstd":
            records[COMPRESSION_KEY] = "zstd"
        return records

    def stored(self) -> StoredMetadata:
        """Returns the result of `metadata`, without a checkpoint. Raises UnavailableError while a broadcast is not finished."""
        self._check_broadcasts()
        stored = StoredMetadata(self.metadata(), {})
        if self._waiting is None:
            self._waiting = {name: self._scheduled(name) for name in self._core.logs}
        return stored

    def pins(self) -> list[Pin]:
        """Returns an empty list: the server turns pins into records."""
        return []

    def _cursors(self) -> list[Cursor]:
        """Returns the saved cursors without stale ones, which no read can use."""
        cursors: list[Cursor] = []
        saved = self._source.cursors
        for key in saved.saved_keys():
            try:
                cursor = saved.load(key)
            except TruncatedError:
                continue
            if cursor is not None:
                cursors.append(cursor)
        return cursors

    def remembered(self, pchannel: str, stored: StoredMetadata, ends: Ends, live: Collection[RunName]) -> Remembered:
        """Returns the state of a pchannel from its frames. Raises InvalidArgumentError if the frames do not have all of it."""
        remembered = super().remembered(pchannel, stored, ends, live)
        moving = sorted({record.key.name for record in remembered.cursors if record.cursor is not None and record.is_moving})
        if moving:
            raise InvalidArgumentError(
                f"cursor {moving[0]!r} of {self.location} moves with transactions, which a client cannot copy: copy the log where its "
                "server has it"
            )
        framed_keys = {message.key for message in remembered.scheduled}
        assert self._waiting is not None, "stored() comes first"
        waiting = self._waiting[pchannel] - framed_keys
        if waiting and (waiting := waiting & self._scheduled(pchannel)):
            raise InvalidArgumentError(
                f"the scheduled message {min(waiting)!r} of {self.location} is in no frame any more, so a client cannot copy it: copy the "
                "log where its server has it"
            )
        records = tuple(CursorRecord(cursor.key, 2, cursor) for cursor in self._cursors() if cursor.pchannel == pchannel)
        return msgspec.structs.replace(remembered, broadcasts=frozenset(), cursors=records)  # no broadcast is unfinished

    def _scheduled(self, pchannel: str) -> set[str]:
        """Returns the keys of the delayed messages of a pchannel; empty if its frames have all of them."""
        if self.log(pchannel).reach().earliest == (0, 0):
            return set()
        remote = self._remote()
        keys: set[str] = set()
        for name, info in self._core.view.records.items():
            if info.pchannel == pchannel:
                keys |= {message.key for message in remote.submit(ListScheduled(name))}
        return keys

    def _remote(self) -> BlockingRemote:
        return self._source.remote


class ClusterSource(CopySource):
    """The log of the cluster at `root`, stored at `location`. Frames are read from its storage; its nodes return the promised ticks.

    Idle nodes write no promises. By the stored frames alone, a copy would be complete only up to the last frame of the idlest pchannel.
    """

    def __init__(self, root: Location, location: Location, settings: Settings) -> None:
        super().__init__(location, settings)
        assert root.servers is not None
        self._promises = ReadOnlyCore(BlockingSource(root.servers, settings, wait_s=0.0, follow=False))
        self._is_promising = False

    def close(self) -> None:
        self._promises.close()
        super().close()

    def ends(self, *, follow: bool = False) -> Ends:
        """Returns the end of a pass that begins now. Raises UnavailableError if no node answers; with `follow` it waits for none."""
        if not self.has_writer():
            return super().ends(follow=follow)
        try:
            if not self._is_promising:
                self._promises.open()
                self._is_promising = True
            return self._ends_beside_a_writer(self._promises, follow=follow)
        except UnavailableError:
            if not follow:
                raise
            return self._ends_beside_a_writer(self._core, follow=True)  # the stored promises are late, but valid
