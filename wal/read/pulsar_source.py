"""PulsarMetadata: the metadata of a log on Pulsar for a process that reads it: pchannels, control records, vchannels, cursors.

Owns an open KV and the loop in a thread that the KV needs. Its calls block. It writes nothing but cursors.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from wal.channels.directory import BOTH, SavedVChannels
from wal.channels.metadata import CURSOR_ROOT, PULSAR_ROOT, open_metadata, pulsar_address
from wal.channels.pchannels import PChannelMeta, load_pchannels
from wal.channels.vchannel_map import VChannelView
from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.location import PulsarLocation, parse_kv
from wal.read.cursors.pinned import PinnedCursors
from wal.read.cursors.pins import PinKeys, PinKeysInThread
from wal.read.read_only_core import ReadOnlySource
from wal.runtime.loop_thread import LoopThread
from wal.runtime.secret import Secret
from wal.settings import Settings
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.control import Control, PulsarControlRecord
from wal.storage.pulsar.read_only_topic import ReadOnlyTopic


class ReadOnlyPulsarSource(ReadOnlySource):
    """A log on Pulsar as a log that is read and not written, from its topics and its metadata in etcd.

    The end of a log, its frames and its ledgers come from Pulsar; pchannels, vchannels, control records and cursors come from the metadata.
    The source writes nothing but cursors. It fences no writer and holds no message in Pulsar: its readers leave no subscription.

    See `ReadOnlySource`. InvalidArgumentError unless the setting `kv` is an `etcd://…` location.
    """

    name: str = PulsarBackend.name
    form: int = PulsarBackend.form
    cursors: PinnedCursors

    def __init__(self, location: PulsarLocation, settings: Settings) -> None:
        self.location: str = str(location)
        self._address: PulsarAddress = pulsar_address(location, settings)
        self._kv = _shared_kv(self.location, settings)
        self._metadata: PulsarMetadata | None = None
        self._connection = PulsarConnection(self._address)
        self._admin = Admin(self._address)
        self._logs: dict[str, ReadOnlyTopic] = {}
        self._view = VChannelView({}, {})
        self._viewed: tuple[SavedVChannels | None, int] = (None, 0)
        """What `_view` was built from, and for how many logs."""

    def absence(self, waited_s: float) -> FormatError | None:
        if self._opened().pchannels():
            return None
        self._admin.check_namespace()  # a refused token explains more
        waited = f" and none was created within {waited_s:g} s" if waited_s else ""
        return FormatError(
            f"the metadata of the setting kv knows of no log at {self.location}{waited}: a log is created by opening it for writing; give "
            "the kv that it is opened with"
        )

    def open(self) -> None:
        self.cursors = PinnedCursors(self._opened().pins, lambda: dict(self._logs))
        self._connection.start()
        self._admin.check_namespace()

    def pchannels(self) -> list[str]:
        return list(self._opened().pchannels())

    def open_log(self, pchannel: str) -> ReadOnlyTopic:
        metadata = self._opened()
        log = ReadOnlyTopic(
            self._connection,
            self._admin,
            metadata.control(pchannel),
            pchannel=pchannel,
            incarnation=metadata.pchannels()[pchannel].incarnation,
        )
        log.reach()
        self._logs[pchannel] = log
        return log

    def vchannels(self, *, newest: bool = False) -> VChannelView:
        known = self._opened().vchannels(newest=newest)
        viewed, logs = self._viewed
        # A reader looks every 50 ms, and building a view of tens of thousands of vchannels takes almost as long.
        if viewed is not known or logs != len(self._logs):
            self._view = known.view({pchannel: log.incarnation for pchannel, log in self._logs.items()})
            self._viewed = known, len(self._logs)
        return self._view

    def has_writer(self) -> bool:
        """Returns whether, according to the brokers and the metadata, a writer that has not closed the log is connected now."""
        return any(not log.reach().closed and log.has_writer() for log in self._logs.values())

    def is_current(self) -> bool:
        return True  # a look at the log detects its recreation

    def close(self) -> None:
        self._connection.abandon()
        if self._metadata is not None:
            self._metadata.close()

    def _opened(self) -> PulsarMetadata:
        if self._metadata is None:
            self._metadata = PulsarMetadata(self._kv, closing=self._connection.close)
            # A read of the bridge may be garbage-collected unclosed. At the interpreter's exit the thread stops by itself.
            weakref.finalize(self, _release_soon, self._logs, self._metadata.thread).atexit = False
        return self._metadata


def _release_soon(logs: dict[str, ReadOnlyTopic], thread: LoopThread) -> None:
    """Closes what a source left open, in a thread: the garbage collector must not wait."""

    def release() -> None:
        for log in logs.values():
            log.close()
        thread.stop()

    if not thread.stopped:
        threading.Thread(target=release, name="wal-pulsar-release", daemon=True).start()


def _shared_kv(location: str, settings: Settings) -> Secret:
    """Returns the setting `kv`; raises InvalidArgumentError unless several processes can use it at once."""
    if settings.kv is None:
        raise InvalidArgumentError(
            f"to read the log at {location}, give the setting kv that it is opened with for writing: etcd://host:port/root"
        )
    if isinstance(parse_kv(settings.kv), Path):
        raise InvalidArgumentError(
            f"kv={str(settings.kv)!r} is a file, which one process has for itself, so no other process can read the log at {location} "
            "beside its writer: keep the metadata of a log that others read in etcd (kv=etcd://host:port/root)"
        )
    return Secret.of_url(settings.kv)


_CHEAP_S: Final = 0.02
_COSTS: Final = 20
"""An answer about the vchannels that took longer than `_CHEAP_S`, because there are tens of thousands or etcd is slow, is reused for
`_COSTS` times as long as it took."""


class PulsarMetadata:
    """The metadata at `kv`, an `etcd://…` location, open until `close`. Raises UnavailableError when it does not answer.

    `closing` is awaited in the loop before the KV is closed. `pchannels` and `vchannels` are not thread-safe.
    """

    def __init__(self, kv: Secret, *, closing: Callable[[], Awaitable[None]]) -> None:
        self.thread: LoopThread = LoopThread()
        try:
            self._kv = self.thread.call(open_metadata, kv)
        except BaseException:
            self.thread.stop()
            raise
        opened = self._kv

        async def close() -> None:
            try:
                await closing()
            finally:
                await opened.close()

        self.thread.closing = close
        self._pulsar = self._kv.under(PULSAR_ROOT)
        self.pins: PinKeysInThread = PinKeysInThread(self.thread, PinKeys(self._kv.under(CURSOR_ROOT)))
        self._known = SavedVChannels()
        self._known_since = float("-inf")
        self._cost_s = 0.0

    def pchannels(self) -> dict[str, PChannelMeta]:
        """Returns the pchannels by name as they are now, in the order of their numbers."""
        return self.thread.call(load_pchannels, self._kv)

    def control(self, pchannel: str) -> Callable[[], tuple[PulsarControlRecord, dict[int, int]]]:
        """Returns a function that loads the control record and the marks of this pchannel; it raises CorruptionError if there is none."""
        control = Control(self._pulsar, pchannel)

        def look() -> tuple[PulsarControlRecord, dict[int, int]]:
            record = self.thread.call(control.look)
            if record is None:
                raise CorruptionError(f"the metadata has no control record of pchannel {pchannel!r}", expected=f"{PULSAR_ROOT}/{pchannel}")
            return record, control.terms

        return look

    def vchannels(self, *, newest: bool = False) -> SavedVChannels:
        """Returns the vchannels as they are now; unless it has to be the `newest`, the answer may be older where loading takes long."""
        now = time.monotonic()
        if newest or self._cost_s <= _CHEAP_S or now >= self._known_since + _COSTS * self._cost_s:
            self._known = SavedVChannels.of(*self.thread.call(self._kv.load_with_prefix, BOTH))
            self._known_since = time.monotonic()
            self._cost_s = self._known_since - now
        return self._known

    def close(self) -> None:
        """Closes the KV and ends the thread. Idempotent; also done at the interpreter's exit."""
        self.thread.stop()
