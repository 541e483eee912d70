"""ReadOnlySource: where a log that another process writes is read from. Each backend has one.

The read-only core (`core.py`) asks only these questions, from an event loop's threads and from a blocking caller's alike. So a source
needs no event loop from its caller: a source with an asyncio client runs a loop in a thread of its own.
"""

from __future__ import annotations

from typing import Protocol

from wal.backends import ReadOnlyPChannelLog
from wal.channels import VChannelView
from wal.cursors import SavedCursors
from wal.errors import FormatError

__all__ = ["ReadOnlySource"]


class ReadOnlySource(Protocol):
    """The log at one location, for a process that reads it. It writes nothing there but cursors.

    Its calls block. The core calls `pchannels`, `open_log` and `vchannels` one at a time, in this order, from any thread; `cursors` and the
    logs are used by several threads at once. The answer of a call may be older than what the writer knows, but never goes back: a
    pchannel that was once named stays, and the records of vchannels only advance.
    """

    name: str
    """The name of the backend, as `wal_name` reports it."""
    form: int
    """The form of the log's message ids (`wal.message.FORM_…`)."""
    location: str
    """The log's name in warnings and errors. It shows no secret."""
    cursors: SavedCursors
    """The cursors of the log, saved so that the writer's retention sees them. Set from `open` on."""

    def absence(self, waited_s: float) -> FormatError | None:
        """Returns None if there is a log that can be opened, else the error that says what is missing after waiting for `waited_s`.

        It is called before `open`, repeatedly while the first writer is waited for. It raises errors that waiting would not fix. `close`
        releases what it holds.
        """

    def open(self) -> None:
        """Acquires what the questions below need. Called once; `close` undoes a failure."""

    def pchannels(self) -> list[str]:
        """Returns the names of the pchannels that have a log now.

        Raises StorageError if the log's location was removed or replaced since `open`. From then on the open logs raise it too, where they
        could otherwise continue with what is left of the old log.
        """

    def open_log(self, pchannel: str) -> ReadOnlyPChannelLog:
        """Opens the log of a pchannel that `pchannels` named. The core closes it."""

    def vchannels(self) -> VChannelView:
        """Returns the vchannels as they are known now. Their records may lag: a vchannel that is not among them counts as empty.

        The view has a map for each pchannel whose log was opened, unless nothing is known of it.
        """

    def close(self) -> None:
        """Releases everything, after the logs were closed. Idempotent, also before `open`."""
