"""The descriptors and the memory of a server's process.

A log that cannot open a file cannot change its segment, save a cursor or recover, so connections may not use the last descriptors. The soft
limit is raised to the hard one when a server starts: it is often 1,024, for programs that use `select`.

The C library keeps memory that gRPC has freed. So after large requests or answers the server makes it return the memory to the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import resource
from collections.abc import Callable
from typing import Final

from wal.runtime.backoff import Backoff
from wal.runtime.system import open_descriptors
from wal.runtime.tasks import end_tasks
from wal.runtime.threads import in_thread

KEPT: Final = 256
"""The descriptors that no connection may use: for segments, indexes, cursors, maps, the metadata, and probes of this server's own."""
LIMIT_MAX: Final = 1 << 20
"""A hard limit above this is not used up."""
LOOK_S: Final = 1.0
TRIM_BYTES: Final = 64 << 20
"""How much more memory than it once had the process has when it is trimmed."""
TRIM_S: Final = 60.0
"""The longest pause between two attempts while they free nothing."""
WARN_S: Final = 60.0
"""How often the watch warns at most."""
_log: Final = logging.getLogger("wal.node")


def raise_limit() -> int:
    """Raises the soft limit of descriptors to the hard one, if that can be done; returns the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # not allowed here: the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def connections_within(connections_max: int) -> int:
    """Returns how many connections a server may have, at most `connections_max`, so that `KEPT` descriptors stay free for the log.

    Where the limit is lower than that, connections get half of it.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections_max
    room = soft - open_descriptors() - KEPT
    return max(1, min(connections_max, room if room > soft // 2 else soft // 2))


class ProcessWatch:
    """Warns when a server has nearly all the connections that it accepts, since gRPC closes further ones silently; trims the memory."""

    def __init__(self, most: int, *, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts watching; descriptors open at this point are not connections."""
        before = await in_thread(open_descriptors)
        self._task = asyncio.get_running_loop().create_task(self._run(before), name="watching the process")

    async def close(self) -> None:
        """Ends the watch. Idempotent."""
        await end_tasks(self._task)

    async def _run(self, before: int) -> None:
        warned: float | None = None
        trimmer = _Trimmer()
        while True:
            await asyncio.sleep(LOOK_S)
            await in_thread(trimmer.look, self._monotonic())
            used = await in_thread(open_descriptors) - before
            now = self._monotonic()
            if used >= 0.95 * self._most and (warned is None or now - warned >= WARN_S):
                warned = now
                _log.warning(
                    "about %d connections are open, and %d are accepted: new ones are closed; see who connects without calls, or raise "
                    "connections_max and the limit of descriptors (ulimit -n)",
                    used,
                    self._most,
                )


class _Trimmer:
    """Gives freed memory back to the system while the process has much more than it once had; less often while that frees nothing."""

    def __init__(self) -> None:
        self._least: int | None = None
        """The least memory that the process was seen to have."""
        self._backoff = Backoff(LOOK_S, TRIM_S)
        self._next_s: float | None = None

    def look(self, now: float) -> None:
        used = _memory()
        if used is None:
            return
        self._least = used if self._least is None else min(self._least, used)
        if used < self._least + TRIM_BYTES or (self._next_s is not None and now < self._next_s):
            return
        with contextlib.suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        if (_memory() or used) < used - TRIM_BYTES // 4:  # it helped
            self._backoff.reset()
        self._next_s = now + self._backoff.next()


def _memory() -> int | None:
    """Returns the bytes of memory that are the process's own; None where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except FileNotFoundError:
        return None
    return (resident - shared) * resource.getpagesize()
