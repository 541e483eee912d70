"""ReadOnlySource: where a log that another process writes is read from. Each backend has one.

The read-only core (`ReadOnlyCore`, below) asks only these questions, from an event loop's threads and from a blocking caller's alike. So a
source needs no event loop from its caller: a source with an asyncio client runs a loop in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, cast

from wal.channels.unknown_vchannels import UnknownVChannels
from wal.channels.vchannel_map import VChannelView
from wal.channels.vchannels import VChannelInfo, common_place, first_position
from wal.errors import ChannelNotExistError, FormatError, closed_log
from wal.message import MessageID, Origin
from wal.read.cursors.status import LogRange, LogView
from wal.read.cursors.store import SavedCursors
from wal.read.last_events import LastEvents
from wal.read.options import Selection
from wal.storage.base import LogSnapshot
from wal.storage.read_only import ReadOnlyPChannelLog, ReadOnlyStoredLog


class ReadOnlyCore:
    """The pchannels and vchannels of a log that another process writes, and where a read of them begins and continues.

    It owns the open log of each pchannel and the vchannels as they were last seen. It uses a log through its `ReadOnlySource` only, so it
    serves every backend. Every call blocks, and no call waits for the log to grow. Two shells do the waiting: `ReadOnlyLog` on an event
    loop with threads, and the reads of `wal.bridge` in the caller's thread. The core starts no thread and uses no event loop.

    Use it after `open` and until `close`; any number of threads may call at once.
    """

    def __init__(self, source: ReadOnlySource, *, create_vchannels: bool = True) -> None:
        """With `create_vchannels=False` an unknown vchannel raises ChannelNotExistError; otherwise it counts as empty."""
        self.source = source
        self.logs: Mapping[str, ReadOnlyPChannelLog] = {}
        """The open logs by pchannel. A look that finds more replaces the mapping, so that it can be iterated in any thread."""
        self.view: VChannelView = VChannelView({}, {})
        """The vchannels as the last look found them."""
        self._create_vchannels = create_vchannels
        self._lasts: dict[str, tuple[tuple[int, int | None], LastEvents]] = {}
        """By pchannel: the last events as of the checkpoint that was newest when somebody asked."""
        self._unknown = UnknownVChannels(source.location, monotonic=time.monotonic)
        self._looking = threading.RLock()  # a signal handler may close what its own thread is looking at
        self._closed = False

    def open(self) -> None:
        """Opens the source and looks for the first time. Raises FormatError if the log does not exist; a failure closes everything."""
        try:
            if (absent := self.source.absence(0.0)) is not None:
                raise absent
            self.source.open()
            self.look()
        except BaseException:
            self.close()
            raise

    def look(self, *, newest: bool = False) -> VChannelView:
        """Opens the logs of new pchannels, and returns the vchannels as they are known now, or (`newest`) as the metadata have them now.

        Raises StorageError if the log's location was removed or replaced since it was opened.
        """
        with self._looking:
            if self._closed:
                raise closed_log(f"at {self.source.location}")
            for name in self.source.pchannels():
                if name not in self.logs:
                    self.logs = {**self.logs, name: self.source.open_log(name)}
            self.view = self.source.vchannels(newest=newest)
            self._unknown.warn(self.view.records)
            return self.view

    def forget(self, pchannel: str) -> None:
        """Closes a log that could not be used, for example because the pchannel was recreated meanwhile; the next look opens it again."""
        with self._looking:
            logs = dict(self.logs)
            log = logs.pop(pchannel)
            self.logs = logs
            log.close()

    def attach(self, names: tuple[str, ...]) -> tuple[ReadOnlyPChannelLog, LogSnapshot, Selection]:
        """Returns the log to read these vchannels in, as it is now, with its newest event, and the vchannels as they are now.

        Raises InvalidArgumentError if they are on several pchannels.
        """
        self.look()
        while True:
            pchannel = self.pchannel_of(names)
            log = self.logs[pchannel]
            snapshot = log.reach()
            self.look()
            if self.pchannel_of(names) == pchannel:
                return log, snapshot, self.selection(pchannel, names, snapshot.durable_end)

    def pchannel_of(self, names: tuple[str, ...]) -> str:
        """Returns the pchannel of these vchannels, according to the last look."""
        return common_place(names, self.view.records, list(self.logs), create_vchannels=self._create_vchannels)

    def selection(self, pchannel: str, names: tuple[str, ...], end: int) -> Selection:
        """Returns these vchannels of a pchannel with their incarnations of the last look. Notes a name that does not exist.

        `end` is the durable end of the pchannel's log.
        """
        view = self.view
        self._unknown.note(names, view.records)
        begin = first_position(map(view.begins.get, names), self.logs[pchannel].lineage, end)
        return Selection({name: view.current(name) for name in names}, floor=view.floor(pchannel), begin=begin)

    def changes(
        self, pchannel: str, names: tuple[str, ...], incarnation: Callable[[str], int | None]
    ) -> Iterator[tuple[str, VChannelInfo | ChannelNotExistError]]:
        """Yields what the last look means to a read of these vchannels on this pchannel, by vchannel.

        `incarnation` returns the incarnation of a vchannel that is read, None before the first one. A dropped vchannel ends the read with
        the error. A vchannel that is first created on another pchannel is read there: its record names the pchannel.
        """
        view = self.view
        for name in names:
            bound, info = incarnation(name), view.records.get(name)
            if bound is not None:
                if view.is_over(pchannel, name, bound):
                    yield name, ChannelNotExistError(f"vchannel {name!r} was dropped: nothing comes from it any more")
            elif info is not None and info.pchannel != pchannel:
                yield name, info

    def cursor_view(self, snapshots: Mapping[str, LogSnapshot] | None = None) -> LogView:
        """Returns what cursors are compared with, as of these snapshots of the logs; None asks the logs."""
        view, logs = self.view, self.logs
        if snapshots is None:
            snapshots = {name: log.refresh() for name, log in logs.items()}
        places = {
            name: LogRange(
                logs[name].incarnation,
                snapshot.earliest,
                snapshot.durable_end,
                bytes_between=logs[name].bytes_between,
                lineage=logs[name].lineage,
                unread_for=logs[name].unread_for,
            )
            for name, snapshot in snapshots.items()
        }
        return LogView(places, view.current, min(map(view.floor, logs), default=0))

    def origin(self, log: ReadOnlyPChannelLog, position: int = 0) -> Origin:
        """Returns the origin of the frame at this position of a log."""
        return Origin(log.pchannel, log.incarnation, position, self.source.form)

    def last_event(self, name: str) -> MessageID | None:
        """Returns the id of a vchannel's last durable event, truncated or not; None if it never had one, or is not known.

        Not for a log over the network, whose server is asked.

        Raises ChannelNotExistError for a vchannel that does not exist and must not be created.
        """
        info = self.look().records.get(name)
        if info is None:
            if not self._create_vchannels:
                raise ChannelNotExistError(f"vchannel {name!r} does not exist: log.vchannels() lists the vchannels")
            return None
        log, run_name = cast("ReadOnlyStoredLog", self.logs[info.pchannel]), (info.name, info.incarnation)
        while True:
            position = log.checkpoint_position()
            lasts = self._last_events_at(log, position)
            start = position if position is not None and lasts.complete else 0
            first, events = log.last_events(start, frozenset((name,)))
            event = events.get(run_name) or lasts.get(run_name)
            # If the log holds less than what was written after the checkpoint, a newer one has replaced it, or nothing was written.
            if run_name in events or first <= start or log.checkpoint_position() == position:
                return None if event is None else self.origin(log, event[0]).message_id(event[1])

    def _last_events_at(self, log: ReadOnlyStoredLog, position: int | None) -> LastEvents:
        """Returns the last events as of this checkpoint of a log; an empty table if it is gone."""
        known = self._lasts.get(log.pchannel)
        if known is not None and known[0] == (log.incarnation, position):
            return known[1]
        lasts = LastEvents()
        if position is not None:
            if (state := log.checkpoint_state(position)) is None:
                return lasts
            lasts.restore(state)
        self._lasts[log.pchannel] = (log.incarnation, position), lasts
        return lasts

    def warn_unknown(self) -> None:
        """Warns of the names that were read and do not exist, for a read that has ended and may never be closed."""
        self._unknown.warn(self.view.records, at_close=True)

    def end_waits(self) -> None:
        """Closes the logs that ask a server, so that calls waiting for it raise ClosedError. From any thread, before `close`."""
        for log in self.logs.values():
            if log.refresh_waits:
                log.close()

    def close(self) -> None:
        """Closes the logs and the source. Idempotent; no other call may be under way."""
        with self._looking:
            self._closed = True
            self.warn_unknown()
            for log in self.logs.values():
                log.close()
            self.source.close()


class ReadOnlySource(Protocol):
    """The log at one location, for a process that reads it. It writes nothing there but cursors.

    Its calls block. The core calls `pchannels`, `open_log` and `vchannels` in this order, from any thread, without overlap. Several threads
    use `cursors` and the logs at once. An answer may be older than the writer's state, but never goes back: a pchannel that was once named
    stays, and the records of vchannels only advance.
    """

    name: str
    """The name of the backend, as `wal_name` reports it."""
    form: int
    """The form of the log's message ids (`wal.message.FORM_…`)."""
    location: str
    """The log's name in warnings and errors. It shows no secret."""
    cursors: SavedCursors
    """The cursors of the log, saved so that the writer's retention sees them. Set from `open` on."""
    may_lag: bool = False
    """Whether this is a copy, which may end below positions that were read from the log itself."""

    def absence(self, waited_s: float) -> FormatError | None:
        """Returns None for a log that can be opened, else the error that names what is missing after a wait of `waited_s`.

        It is called before `open`, repeatedly while the first writer is waited for. It raises errors that waiting would not fix. `close`
        releases what it holds.
        """

    def open(self) -> None:
        """Acquires what the questions below need. Called once; `close` undoes a failure."""

    def pchannels(self) -> list[str]:
        """Returns the names of the pchannels that have a log now.

        Raises StorageError if the log's location was removed or replaced since `open`. From then on the open logs raise it too, where they
        could otherwise continue with the rest of the old log.
        """

    def open_log(self, pchannel: str) -> ReadOnlyPChannelLog:
        """Opens the log of a pchannel that `pchannels` named. The core closes it."""

    def catch_up(self) -> None:
        """Makes later calls see what is in the log now. Only an archive is otherwise seen as of an earlier look into its store."""
        return

    def vchannels(self, *, newest: bool = False) -> VChannelView:
        """Returns the vchannels as they are known now. Their records may lag: a vchannel that is not among them counts as empty. With
        `newest`, all channels are there that were created before the call, and none that was destroyed before it.

        The view has a map for each pchannel whose log was opened, unless nothing is known of it.
        """

    def has_writer(self) -> bool | None:
        """Returns whether a process has the log open for writing, so that promised ticks advance; None when that is unknown."""

    def is_current(self) -> bool:
        """Returns whether the open logs are still those at the location; False when others have replaced them. This is cheap."""

    def close(self) -> None:
        """Releases everything, after the logs were closed. Idempotent, also before `open`."""
