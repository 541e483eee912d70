"""JournalCounts: the messages and bytes of the vchannels of a journal, for its status page.

The log does not keep these counts, so a thread reads the heads of all frames, as `wal ls` does. It runs on request, and works at most
`SHARE` of the time; in between it returns the previous counts. A caller waits at most `WAIT_S` for the first ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from wal.channels.vchannels import VChannelInfo
from wal.errors import WALError
from wal.operate.inspect.builders import VChannelCounts
from wal.operate.inspect.outside import OutsideDetails
from wal.read.sources import ReadOnlyJournalSource
from wal.runtime.threads import in_thread

SHARE: Final = 0.05
WAIT_S: Final = 1.0


class JournalCounts:
    """The counts of one journal. Used on one loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._counts: Mapping[str, VChannelCounts] = {}
        self._counting: asyncio.Task[None] | None = None
        self._next_s = 0.0

    async def counts(self, vchannels: Sequence[VChannelInfo]) -> Mapping[str, VChannelCounts]:
        """Returns the newest counts; a vchannel that is not counted yet is left out."""
        if self._counting is None and time.monotonic() >= self._next_s:
            self._counting = asyncio.create_task(self._count(vchannels), name="counts of the status page")
        if self._counting is not None:
            await asyncio.wait((self._counting,), timeout=WAIT_S)
        return self._counts

    def close(self) -> None:
        """Stops waiting for a running count."""
        if self._counting is not None:
            self._counting.cancel()

    async def _count(self, vchannels: Sequence[VChannelInfo]) -> None:
        began_s = time.monotonic()
        try:
            with contextlib.suppress(WALError):  # damaged parts are not counted: other parts of the page report them
                self._counts = await in_thread(self._in_thread, vchannels)
        finally:
            self._next_s = time.monotonic() + (time.monotonic() - began_s) / SHARE
            self._counting = None

    def _in_thread(self, vchannels: Sequence[VChannelInfo]) -> Mapping[str, VChannelCounts]:
        details = OutsideDetails(ReadOnlyJournalSource(self._directory), self._directory)
        try:
            details.open()
            return details.count(vchannels)
        finally:
            details.close()
