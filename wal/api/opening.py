"""Opening a log: `open_wal` for a log that the caller owns, `init` / `WAL` / `release` for the log that the process shares."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Final, Unpack

from wal.api.accesser import WALAccesser
from wal.api.factory import check_readable, make_engine, with_absolute_paths
from wal.api.lifecycle import opening_failed
from wal.errors import ClosedError, InvalidArgumentError
from wal.location import parse_location
from wal.runtime.async_only import AsyncOnly
from wal.runtime.user_code import shielded
from wal.settings import Settings, SettingsOverrides
from wal.timestamp.checks import check_wait

_log: Final = logging.getLogger("wal")


def open_wal(
    location: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    read_only: bool = False,
    create: bool = True,
    wait_s: float = 0.0,
    **overrides: Unpack[SettingsOverrides],
) -> LogOpening:
    """Opens the log at a location: `async with open_wal(…) as log`, or `log = await open_wal(…)`.

    The location is `data/` or `journal:data/` (files in a directory), `memory:`, or `pulsar://host:6650/tenant/namespace` (also
    `pulsar+ssl://`) with the setting `kv` for the metadata. Keywords override single `settings`. An unknown form of location and a wrong
    setting raise here. Awaiting the opening raises a LockedError for a journal that another process has open for writing, and a
    FormatError for a directory that is not a journal. With `wait_s` a writer waits that long for the lock, such as in a rolling restart,
    and several that wait get it in the order in which they came. On Pulsar a new writer takes the log over from the previous writer. A path
    is made absolute at the call, after a leading `~` or `~user` is expanded: a later `os.chdir` changes nothing.

    `read_only=True` opens a log that another process may be writing, and creates and writes nothing but cursors. It gives the reading
    half of the API; the writing half raises InvalidArgumentError. Without a log, the opening waits up to `wait_s` seconds
    (infinity: no limit) for the first writer to create it, then raises a FormatError. With `create=False` a writer raises that
    FormatError too, and creates nothing; for `memory:`, which is empty at each opening, that is an InvalidArgumentError.
    """
    return LogOpening(_maker(location, settings, overrides, read_only=read_only, create=create, wait_s=wait_s))


class LogOpening(AsyncOnly):
    """The result of `open_wal`: use it in `async with`, or await it to get the accesser, and `close()` that yourself."""

    __slots__ = ("_log", "_make")
    _with_form = "'async with open_wal(…) as log', or use wal.bridge.blocking(…) in code that has no event loop"

    def __init__(self, make: Callable[[], WALAccesser]) -> None:
        self._make = make
        self._log = make()

    def again(self) -> LogOpening:
        """Returns a new opening with the same arguments: an accesser that was closed cannot be opened again."""
        return LogOpening(self._make)

    @property
    def location(self) -> str:
        """Where the log is."""
        return self._log._lifecycle.location

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def __await__(self) -> Generator[Any, None, WALAccesser]:
        return self._opened().__await__()

    async def __aenter__(self) -> WALAccesser:
        return await self._opened()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with shielded():
            await self._log.close()

    async def _opened(self) -> WALAccesser:
        try:
            await self._log._wait_open()
        except BaseException:
            with shielded():
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
    """Starts opening the log that the process shares, which `WAL()` returns from now on. The arguments are those of `open_wal`.

    In a running event loop the opening starts at once, otherwise with the first call that needs the log; that call awaits the opening and
    raises its error. A second `init` without `release` raises InvalidArgumentError.
    """
    global _shared
    if _shared is not None:
        raise InvalidArgumentError("init() was called already: release() the log first, or use the log that WAL() returns")
    log = _maker(location, settings, overrides, read_only=read_only, create=create, wait_s=wait_s)()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        log._begin()
    _shared = log


def WAL() -> WALAccesser:
    """Returns the log that `init` opened; ClosedError before `init` and after `release`."""
    if _shared is None:
        raise ClosedError("no shared log: call wal.init(location) first (and not after wal.release())")
    return _shared


async def release() -> None:
    """Closes the shared log, after draining what is in flight. Idempotent; after a failed opening it raises nothing."""
    global _shared
    log, _shared = _shared, None
    if log is not None:
        try:
            await log.close()
        except InvalidArgumentError:  # refused, in another loop or a forked child: the log is as open as before
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
    """Checks the arguments, and returns a function that creates an accesser from them."""
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings must be a Settings, not {type(settings).__name__}: Settings(…) or Settings.load(path)")
    for flag, value in (("read_only", read_only), ("create", create)):
        if not isinstance(value, bool):
            raise TypeError(f"{flag} must be a bool, not {value!r}")
    check_wait(wait_s)
    parsed = parse_location(location)
    if location == "memory":
        _log.warning(
            "location 'memory' is the directory %s: write 'memory:' for a log in memory, or './memory' for a directory that is called so",
            parsed.path,
        )
    chosen = (settings or Settings()).replace(**overrides)
    read_only = read_only or parsed.archive is not None
    if read_only:
        try:
            check_readable(parsed)
        except OSError as error:  # of an import
            if (failure := opening_failed(parsed, error)) is error:
                raise
            raise failure from error
    elif not create and parsed.scheme == "memory":
        raise InvalidArgumentError(
            "a log in memory: begins empty at each opening, so create=False finds none: leave it out, or name a journal's directory"
        )
    make = partial(make_engine, parsed, with_absolute_paths(chosen), read_only=read_only, create=create, wait_s=wait_s)
    return lambda: WALAccesser(str(parsed), make, read_only=read_only)
