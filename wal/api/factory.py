"""The choice of the engine for a location. Only this file names the engines; it imports one when a log is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wal.errors import InvalidArgumentError
from wal.location import Location, absolute_path, check_archive, parse_kv
from wal.runtime.async_only import import_late
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.engine import ReadableEngine
    from wal.read.read_only_core import ReadOnlySource


def with_absolute_paths(settings: Settings) -> Settings:
    """Returns these settings with absolute paths, so that a later change of the working directory does not matter."""
    if settings.kv is not None and isinstance(file := parse_kv(settings.kv), Path):
        settings = settings.replace(kv=str(file))
    if settings.pulsar_tls_authority is not None:
        authority = absolute_path(settings.pulsar_tls_authority, "setting pulsar_tls_authority")
        settings = settings.replace(pulsar_tls_authority=str(authority))
    if settings.archive is not None and "://" not in settings.archive:
        settings = settings.replace(archive=str(absolute_path(settings.archive, "setting archive")))
    return settings


def check_readable(location: Location) -> None:
    """Raises InvalidArgumentError for a location that only its own writer process can read."""
    if location.servers is not None:
        return
    from wal.read.sources import check_source  # imported late: most programs write

    check_source(location)


async def make_engine(location: Location, settings: Settings, *, read_only: bool, create: bool, wait_s: float) -> ReadableEngine:
    """Returns the engine for this location, not opened yet. Raises InvalidArgumentError if no engine can serve the location this way."""
    _check_settings(location, settings)
    if location.servers is not None:
        await import_late("wal.client.log")
        from wal.client.log import RemoteLog

        return RemoteLog(location.servers, settings, read_only=read_only, wait_s=wait_s)
    if read_only or location.archive is not None:
        await import_late("wal.node.local.read_only_log")
        from wal.node.local.read_only_log import ReadOnlyLog

        return ReadOnlyLog(location, settings, wait_s=wait_s)
    await import_late("wal.node.local.log")
    from wal.node.local.log import LocalLog

    return LocalLog(location, settings, create=create, wait_s=wait_s)


def make_source(location: Location, settings: Settings, *, wait_s: float, follow: bool = True) -> ReadOnlySource:
    """Returns the source that reads the log at this location in the caller's thread, not opened yet.

    With `follow=False` servers push nothing to it: a log on the network is what its last `reach` found.

    Opening a log on the network waits at least `wait_s` for a server. Raises InvalidArgumentError for a location that only its own writer
    process can read.
    """
    _check_settings(location, settings)
    if location.servers is not None:
        from wal.client.blocking import BlockingSource

        return BlockingSource(location.servers, settings, wait_s=wait_s, follow=follow)
    from wal.read.sources import source_of

    return source_of(location, settings)


def _check_settings(location: Location, settings: Settings) -> None:
    """Raises InvalidArgumentError for a setting that this location would ignore, although the caller relies on it."""
    if settings.as_of is not None and location.archive is None:
        raise InvalidArgumentError(
            f"setting as_of={settings.as_of!r}: only an archive is read as of a tick, and {location} is none: open "
            "archive:URL, or begin at the tick by a deliver policy"
        )
    if location.servers is None:
        check_archive(location, settings.archive)
    elif settings.archive is not None:
        raise InvalidArgumentError(
            f"setting archive={settings.archive!r}: a log archives itself in the process that writes it: set it at the server of {location}"
        )
