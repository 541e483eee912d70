"""ReadOnlyPulsarSource: a log on Pulsar as a log that is read and not written, from its topics and its metadata in etcd.

The end of a log, its frames and its ledgers come from Pulsar; pchannels, vchannels, control records and cursors come from the metadata.
The source writes nothing but cursors. It fences no writer and holds no message in Pulsar: its readers leave no subscription.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

from wal.backends.pulsar import PulsarBackend
from wal.backends.pulsar.read_only import ReadOnlyTopic
from wal.channels import VChannelInfo, VChannelMap, VChannelView
from wal.cursors import CursorStore
from wal.engine.metadata import pulsar_address
from wal.engine.read_only.pulsar_metadata import KnownVChannels, PulsarMetadata
from wal.engine.read_only.source import ReadOnlySource
from wal.errors import FormatError, InvalidArgumentError
from wal.location import PulsarLocation, parse_kv
from wal.loop_thread import LoopThread
from wal.pulsar import PulsarAddress
from wal.pulsar.admin import Admin
from wal.pulsar.connection import Connection
from wal.secret import Secret
from wal.settings import Settings

__all__ = ["ReadOnlyPulsarSource"]


class ReadOnlyPulsarSource(ReadOnlySource):
    """The log in this namespace. See `ReadOnlySource`. InvalidArgumentError unless the setting `kv` is an `etcd://…` location."""

    name: str = PulsarBackend.name
    form: int = PulsarBackend.form
    cursors: CursorStore

    def __init__(self, location: PulsarLocation, settings: Settings) -> None:
        self.location: str = str(location)
        self._address: PulsarAddress = pulsar_address(location, settings)
        self._kv = _shared_kv(self.location, settings)
        self._metadata: PulsarMetadata | None = None
        self._connection = Connection(self._address)
        self._admin = Admin(self._address)
        self._logs: dict[str, ReadOnlyTopic] = {}
        self._view = VChannelView({}, {})
        self._viewed: tuple[KnownVChannels | None, int] = (None, 0)
        """What `_view` was built from, and for how many logs."""

    def absence(self, waited_s: float) -> FormatError | None:
        if self._opened().pchannels():
            return None
        waited = f" and none was created within {waited_s:g} s" if waited_s else ""
        return FormatError(
            f"the metadata of the setting kv knows of no log at {self.location}{waited}: a log is created by opening it for writing; give "
            "the kv that it is opened with"
        )

    def open(self) -> None:
        self.cursors = self._opened().cursors
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

    def vchannels(self) -> VChannelView:
        known = self._opened().vchannels()
        viewed, logs = self._viewed
        # A reader looks every 50 ms, and building a view of tens of thousands of vchannels takes almost as long.
        if viewed is not known or logs != len(self._logs):
            maps = {
                pchannel: VChannelMap(log.incarnation, known.next_incarnation, known.on(pchannel))
                for pchannel, log in self._logs.items()
            }
            owners = known.owners
            records = {name: VChannelInfo(name, *at, owners.get(name)) for name, at in known.records.items()}
            self._view = VChannelView(records, maps)
            self._viewed = known, len(self._logs)
        return self._view

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
