"""Opening a log: `open_wal` for one that the caller owns, `init` / `WAL` / `release` for one that the process shares."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from wal.accesser.accesser import WALAccesser
from wal.async_only import AsyncOnly
from wal.engine.factory import check_readable, make_engine
from wal.errors import ClosedError, InvalidArgumentError
from wal.location import absolute_path, parse_kv, parse_location
from wal.settings import Settings, SettingsOverrides
from wal.ticks import check_wait

__all__ = ["WAL", "init", "open_wal", "release"]


def open_wal(
    location: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    read_only: bool = False,
    create: bool = True,
    wait_s: float = 0.0,
    **overrides: Unpack[SettingsOverrides],
) -> LogOpening:
    """Opens the log at a location (`data/`, `journal:data/`, `memory:`): `async with open_wal(…) as log`, or `await` it.

    `settings`, with any of them overridden by keyword. A location of no known form or a wrong setting raises here; a journal
    that another process has open for writing is a LockedError, a directory that is no journal a FormatError, when it is awaited.

    `read_only=True` opens a journal beside the process that writes it, or without one, and writes nothing: it gives the reading half
    of the API, the other half is an InvalidArgumentError. A directory without a journal is a FormatError then, it is never made one.
    `wait_s`: for so many seconds at most it waits for the first writer to make the journal; only with `read_only=True`.

    `create=False`: where there is no log nothing is made, and the opening is a FormatError.
    """
    return LogOpening(_maker(location, settings, overrides, read_only=read_only, create=create, wait_s=wait_s))


class LogOpening(AsyncOnly):
    """What `open_wal` returns: await it for the accesser (then `close()` it yourself), or use it as `async with`."""

    __slots__ = ("_log", "_make")
    _with_form = "'async with open_wal(…) as log', or use wal.bridge.blocking(…) in code that has no event loop"

    def __init__(self, make: Callable[[], WALAccesser]) -> None:
        self._make = make
        self._log = make()

    def again(self) -> LogOpening:
        """Returns another opening of the log, as the same call of `open_wal` made it: one that was closed is not opened again."""
        return LogOpening(self._make)

    def __await__(self) -> Generator[Any, None, WALAccesser]:
        return self._opened().__await__()

    async def __aenter__(self) -> WALAccesser:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._log.close()

    async def _opened(self) -> WALAccesser:
        try:
            await self._log.wait_open()
        except BaseException:
            await self._log.close()
            raise
        return self._log


_shared: WALAccesser | None = None


def init(
    location: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    read_only: bool = False,
    create: bool = True,
    wait_s: float = 0.0,
    **overrides: Unpack[SettingsOverrides],
) -> None:
    """Starts opening the log that the process shares; `WAL()` is it from now on. Before any other call. Arguments as of `open_wal`.

    Within a running loop the opening begins at once, without one at the first call that needs the log; that call awaits it and
    raises its error. A second `init` without `release` is an InvalidArgumentError.
    """
    global _shared
    if _shared is not None:
        raise InvalidArgumentError(
            "init() was called already: release() the log first, or use the one that WAL() gives"
        )
    log = _maker(location, settings, overrides, read_only=read_only, create=create, wait_s=wait_s)()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        log.begin()
    _shared = log


def WAL() -> WALAccesser:
    """The log that `init` opened; ClosedError before `init` and after `release`."""
    if _shared is None:
        raise ClosedError("there is no shared log: call wal.init(location) first (and not after wal.release())")
    return _shared


async def release() -> None:
    """Closes the shared log, after what is in flight. Idempotent, and quiet after a failed opening."""
    global _shared
    log, _shared = _shared, None
    if log is not None:
        try:
            await log.close()
        except InvalidArgumentError:  # refused, in another loop or a forked child: it is as open as before
            _shared = _shared or log
            raise


def _maker(
    location: str | os.PathLike[str],
    settings: Settings | None,
    overrides: SettingsOverrides,
    *,
    read_only: bool,
    create: bool,
    wait_s: float,
) -> Callable[[], WALAccesser]:
    """Checks the arguments, and returns what makes an accesser of them."""
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(
            f"settings must be a Settings, not {type(settings).__name__}: Settings(…) or Settings.load(path)"
        )
    for flag, value in (("read_only", read_only), ("create", create)):
        if not isinstance(value, bool):
            raise TypeError(f"{flag} must be a bool, not {value!r}")
    check_wait(wait_s)
    if wait_s and not read_only:
        raise InvalidArgumentError(
            f"wait_s={wait_s} waits for the first writer of a log that is only read: give read_only=True with it, or leave it out"
        )
    parsed = parse_location(location)
    chosen = (settings or Settings()).replace(**overrides)
    if read_only:
        check_readable(parsed)
    elif not create and parsed.scheme == "memory":
        raise InvalidArgumentError(
            "a log in memory: begins empty at each opening, so create=False finds none: leave it out, or name a journal's directory"
        )
    if chosen.kv is not None and isinstance(file := parse_kv(chosen.kv), Path):
        chosen = chosen.replace(kv=str(file))
    if chosen.pulsar_tls_authority is not None:
        authority = absolute_path(chosen.pulsar_tls_authority, "setting pulsar_tls_authority")
        chosen = chosen.replace(pulsar_tls_authority=str(authority))
    make = partial(make_engine, parsed, chosen, read_only=read_only, create=create, wait_s=wait_s)
    return lambda: WALAccesser(str(parsed), make, read_only=read_only)
