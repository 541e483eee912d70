"""Storage: where a local log keeps its frames (a backend) and its metadata (a KV), opened in order and undone in reverse.

A journal's lock is taken before its metadata is opened, so that two writers never open the same file; on Pulsar the metadata comes first,
since it names the topics. With `create=False` nothing is created.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from wal.channels.metadata import PULSAR_ROOT, check_requirements, open_metadata, pulsar_address
from wal.channels.pchannels import load_pchannels
from wal.errors import FormatError, InvalidArgumentError
from wal.location import Location, parse_kv
from wal.node.local.waiting import LockWait
from wal.runtime.async_only import import_late
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.archive.archived_journal import archived_logs
from wal.storage.base import FRAME_BYTES_MAX, LogBackend
from wal.storage.files import META_NAME, HeldDirectory
from wal.storage.journal.backend import JournalBackend
from wal.storage.kv import KVBase, MemoryKV, SqliteKV
from wal.storage.memory import MemoryBackend
from wal.timestamp import COUNT_MAX
from wal.write.txn_table import TxnLimits

_TXN_TABLES_BYTES: Final = 1 << 19
"""The bytes that the header and tables of a frame take besides the largest transaction."""


class Undo:
    """The calls that undo an opening, in reverse order: those of `close` on the loop, others once the loop has ended."""

    def __init__(self) -> None:
        self._closes: list[Callable[[], Awaitable[None] | None]] = []
        self._abandons = contextlib.ExitStack()

    def add(self, close: Callable[[], Awaitable[None] | None] | None = None, *, abandon: Callable[[], object] | None = None) -> None:
        """Adds the calls that undo the step just done."""
        if close is not None:
            self._closes.append(close)
        if abandon is not None:
            self._abandons.callback(abandon)

    async def run(self) -> Exception | None:
        """Undoes everything; returns the first failure, if there was one."""
        errors: list[Exception] = []
        while self._closes:
            try:
                if (closing := self._closes.pop()()) is not None:
                    await closing
            except Exception as error:
                errors.append(error)
        return errors[0] if errors else None

    def abandon(self) -> None:
        """Releases files, threads and locks without the loop. Blocks."""
        self._abandons.close()


class Storage(msgspec.Struct, frozen=True, eq=False):
    """The open backend and KV; `held` is a journal's directory, with the names in it that the whole log depends on."""

    backend: LogBackend
    kv: KVBase
    limits: TxnLimits
    held: HeldDirectory | None


async def open_storage(location: Location, settings: Settings, undo: Undo, *, create: bool, wait: LockWait | None = None) -> Storage:
    """Opens the backend and the KV, and adds to `undo` what closes them; with `wait` it waits for the lock of a journal.

    Raises InvalidArgumentError for settings that the backend cannot serve, and for a log on the network; FormatError with `create=False` if
    the log does not exist.
    """
    if location.servers is not None:
        raise InvalidArgumentError(
            f"the log at {location} is opened by its server: name the directory, memory: or the namespace on Pulsar where it lies"
        )
    await check_requirements(location, settings)
    kv: KVBase | None = None
    if location.pulsar is not None:
        kv = await _open_kv(location, settings, undo, None, create=create)
    backend = await _make_backend(location, settings, kv, create=create)
    undo.add(abandon=backend.abandon)
    try:
        await (backend.start() if wait is None or location.path is None else wait.start(backend.start, location.path))
    except BaseException:
        await backend.close()
        raise
    undo.add(backend.close)
    held = backend.held if isinstance(backend, JournalBackend) else None
    limits = _limits(settings, backend)
    return Storage(backend, kv or await _open_kv(location, settings, undo, held, create=create), limits=limits, held=held)


async def _make_backend(location: Location, settings: Settings, kv: KVBase | None, *, create: bool) -> LogBackend:
    if location.pulsar is not None and kv is not None:
        await import_late("wal.storage.pulsar.backend")
        from wal.storage.pulsar.backend import PulsarBackend
        from wal.storage.pulsar.broker_settings import Allowances

        allowed = Allowances(message_ttl=settings.allow_message_ttl, backlog_quota=settings.allow_backlog_quota)
        return PulsarBackend(pulsar_address(location.pulsar, settings), kv.under(PULSAR_ROOT), allowed=allowed)
    if location.path is None:
        return MemoryBackend()
    return JournalBackend(
        location.path,
        segment_bytes=settings.segment_bytes,
        create=create,
        group_readable=settings.group_readable,
        write_path=settings.write_path,
        log_types=None if settings.archive is None else archived_logs(settings.archive),
    )


async def _open_kv(location: Location, settings: Settings, undo: Undo, held: HeldDirectory | None, *, create: bool) -> KVBase:
    if not create:
        await _check_metadata_file(location, settings)
    kv: KVBase
    if settings.kv is not None:
        kv = await open_metadata(settings.kv)
    elif location.pulsar is not None:
        raise InvalidArgumentError(
            f"a log at {location} needs a place for its metadata: give the setting kv, the path of a sqlite file or etcd://…"
        )
    else:
        kv = MemoryKV() if location.path is None else await SqliteKV.open(location.path / META_NAME)
    undo.add(kv.close, abandon=kv.abandon)
    if held is not None and isinstance(kv, SqliteKV):
        held.watch(Path(kv.path), kv.status)
    if not create and not await load_pchannels(kv):
        raise FormatError(f"the metadata of the log at {location} know of no log: {_remedy(settings)}")
    return kv


async def _check_metadata_file(location: Location, settings: Settings) -> None:
    """Raises FormatError if opening the metadata would create its file."""
    file = None if location.path is None else location.path / META_NAME
    if settings.kv is not None:
        file = kv_location if isinstance(kv_location := parse_kv(settings.kv), Path) else None
    if file is not None and not await in_thread(file.exists):
        raise FormatError(f"{file}, the metadata of the log at {location}, is not there: {_remedy(settings)}")


def _remedy(settings: Settings) -> str:
    """Returns what to do about missing metadata."""
    if settings.kv is None:  # the journal is there
        return "they are lost, or elsewhere (setting kv). Restore them or a backup; the log can be read as it is (read_only=True)"
    return "name those that the log was made with (setting kv), or open it without create=False to make one"


def _limits(settings: Settings, backend: LogBackend) -> TxnLimits:
    """Returns the bounds of transactions and frames; InvalidArgumentError for settings that this backend cannot serve."""
    if settings.txn_bodies_max >= COUNT_MAX:
        raise InvalidArgumentError(
            f"setting txn_bodies_max={settings.txn_bodies_max} is too large: at most {COUNT_MAX - 1}, since a transaction and "
            "its commit take one range of ticks"
        )
    if settings.broadcast_vchannels_max > COUNT_MAX:
        raise InvalidArgumentError(
            f"setting broadcast_vchannels_max={settings.broadcast_vchannels_max} is too large: at most {COUNT_MAX}, since the "
            "copies in a frame take one range of ticks"
        )
    limit = backend.frame_bytes_limit
    frame_bytes = max(min(FRAME_BYTES_MAX, limit), settings.txn_bytes_max + _TXN_TABLES_BYTES, 3 * settings.message_bytes_max)
    if frame_bytes > limit:
        source = backend.frame_bytes_source
        raise InvalidArgumentError(
            f"the settings ask for frames of {frame_bytes} bytes (from txn_bytes_max and message_bytes_max), "
            f"but the {backend.name} backend takes at most {limit}: {source and source + ', or '}lower them, txn_bytes_max to "
            f"at most {max(0, limit - _TXN_TABLES_BYTES)} and message_bytes_max to at most {limit // 3}"
        )
    return TxnLimits(settings.txn_bytes_max, settings.txn_bodies_max, settings.open_txn_bytes_max, frame_bytes)
