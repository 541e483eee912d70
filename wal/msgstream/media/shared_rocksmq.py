"""SharedRocksMQ: the RocksMQ of a directory, open once in this process for all media that use it.

RocksDB lets nobody open a directory twice, not even in one process. The first medium opens it, the last one closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import MutableMapping
from pathlib import Path
from weakref import WeakKeyDictionary

from wal.errors import InvalidArgumentError, WALError
from wal.location import absolute_path
from wal.rocksmq import RocksMQ, RocksMQSettings

__all__ = ["SharedRocksMQ", "shared_rocksmq"]


class SharedRocksMQ:
    """The RocksMQ of one directory on one event loop; open while it is taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._settings: RocksMQSettings | None = None
        self._mq: RocksMQ | None = None
        self._closing: asyncio.Future[None] | None = None
        self._users = 0

    async def take(self, settings: RocksMQSettings | None) -> RocksMQ:
        """Returns the open RocksMQ; each call needs one of `give`. Raises what `RocksMQ.open` raises, and InvalidArgumentError for
        settings (None: any) other than those it is open with."""
        async with self._lock:
            if self._closing is not None:
                await asyncio.wait([self._closing])  # `give` has raised its failure
                self._closing = None
            if self._mq is None:
                self._settings = settings or RocksMQSettings()
                opening = asyncio.ensure_future(RocksMQ.open(self._path, settings=self._settings))
                try:
                    self._mq = await asyncio.shield(opening)
                except asyncio.CancelledError:
                    self._closing = asyncio.ensure_future(_abandon(opening))
                    raise
            elif settings not in (None, self._settings):
                raise InvalidArgumentError(
                    f"the RocksMQ in {self._path} is open in this process with other settings: give the same, or none"
                )
            self._users += 1
            return self._mq

    async def give(self) -> None:
        """Ends one use; the last one closes the RocksMQ."""
        self._users -= 1
        if self._users == 0 and self._mq is not None:
            self._closing = asyncio.ensure_future(self._mq.close())
            self._mq = None
            await asyncio.shield(self._closing)


def shared_rocksmq(name: str | os.PathLike[str]) -> SharedRocksMQ:
    """Returns the one for this directory and the running loop; a leading `~` is expanded."""
    path = absolute_path(str(Path(name)), "the directory of a RocksMQ")
    of_loop = _shared.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(path, SharedRocksMQ(path))


async def _abandon(opening: asyncio.Future[RocksMQ]) -> None:
    """Closes what a cancelled caller has left half open: until then its lock is in the way of the next opening."""
    with contextlib.suppress(WALError):
        await (await opening).close()


_shared: MutableMapping[asyncio.AbstractEventLoop, dict[Path, SharedRocksMQ]] = WeakKeyDictionary()
