"""ReadOnlySource: where a log that another process writes is read from. Each backend has one.

The read-only core (`core.py`) asks these questions and no others, in an event loop's threads and in a blocking caller's alike. So a source
needs no event loop from its caller: one whose client is asyncio runs a loop in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from wal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from wal.backends import ReadOnlyPChannelLog
    from wal.channels import VChannelView
    from wal.cursors import CursorStore
    from wal.errors import FormatError
    from wal.location import Location
    from wal.settings import Settings

__all__ = ["ReadOnlySource", "check_source", "pauses", "source_of"]

PAUSE_MIN_S: Final = 0.005
PAUSE_MAX_S: Final = 0.1


class ReadOnlySource(Protocol):
    """The log at one location, for a process that reads it. It writes nothing there but cursors.

    Its calls block. The core calls `pchannels`, `open_log` and `vchannels` one at a time, in this order, from any thread; `cursors` and the
    logs are used by several threads at once. What a call finds may be older than what the writer knows, but never gets older: a
    pchannel that was once named stays, and the records of vchannels only move on.
    """

    name: str
    """The name of the backend, as `wal_name` reports it."""
    form: int
    """The form of the log's message ids (`wal.message.FORM_…`)."""
    location: str
    """What warnings and errors call the log. It shows no secret."""
    cursors: CursorStore
    """The cursors of the log, saved so that the writer's retention sees them. Set from `open` on."""

    def absence(self, waited_s: float) -> FormatError | None:
        """Returns None if there is a log that can be opened, else the error that says what is missing after waiting for `waited_s`.

        It is called before `open`, and again and again while the first writer is waited for. It raises what waiting would not mend. `close`
        releases what it holds.
        """

    def open(self) -> None:
        """Takes what the questions below need. Called once; a failure is undone by `close`."""

    def pchannels(self) -> list[str]:
        """Returns the names of the pchannels that have a log now.

        StorageError if the log's place was removed or replaced since `open`. The open logs raise that too from then on, where they could
        otherwise go on with what is left of the old one.
        """

    def open_log(self, pchannel: str) -> ReadOnlyPChannelLog:
        """Opens the log of a pchannel that `pchannels` named. The core closes it."""

    def vchannels(self) -> VChannelView:
        """Returns the vchannels as they are known now. Their records may lag: a vchannel that is not among them counts as empty.

        For a pchannel whose log was opened the view has a map, unless nothing is known of it.
        """

    def close(self) -> None:
        """Releases everything, after the logs were closed. Idempotent, also before `open`."""


def check_source(location: Location) -> None:
    """Checks that the log at this location can be read by another process than the one that writes it; else InvalidArgumentError."""
    if location.path is None and location.pulsar is None:
        raise InvalidArgumentError(
            f"the log at {location} lies in the memory of the process that opened it, and no other opening can read it: read it "
            "there, with log.read() or blocking(), or name a journal's directory or a log on Pulsar"
        )


def source_of(location: Location, settings: Settings) -> ReadOnlySource:
    """Returns the source that reads the log at this location; InvalidArgumentError as of `check_source`. Imports its backend."""
    check_source(location)
    if location.pulsar is not None:
        from wal.engine.read_only.pulsar import ReadOnlyPulsarSource

        return ReadOnlyPulsarSource(location.pulsar, settings)
    assert location.path is not None
    from wal.engine.read_only.journal import ReadOnlyJournalSource

    return ReadOnlyJournalSource(location.path)


def pauses(wait_s: float, now: Callable[[], float]) -> Iterator[float]:
    """Yields how long to pause before the log is looked for again, until `wait_s` have passed. `now` is a clock in seconds."""
    deadline, pause_s = now() + wait_s, PAUSE_MIN_S
    while (left_s := deadline - now()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
