"""The choice of the source that reads a log that another process writes, and the pauses while its first writer is waited for.

A backend is imported when its source is chosen; checking whether a location can be read at all does not need the import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from wal.errors import InvalidArgumentError
from wal.location import Location

if TYPE_CHECKING:
    from wal.engine.read_only.journal import ReadOnlyJournalSource
    from wal.engine.read_only.pulsar import ReadOnlyPulsarSource
    from wal.settings import Settings

__all__ = ["check_source", "pauses", "source_of"]

PAUSE_MIN_S: Final = 0.005
PAUSE_MAX_S: Final = 0.1


def check_source(location: Location) -> None:
    """Raises InvalidArgumentError unless a process other than the writer can read the log at this location."""
    if location.path is None and location.pulsar is None:
        raise InvalidArgumentError(
            f"the log at {location} lies in the memory of the process that opened it, and no other opening can read it: read it "
            "there, with log.read() or blocking(), or name a journal's directory or a log on Pulsar"
        )


def source_of(location: Location, settings: Settings) -> ReadOnlyJournalSource | ReadOnlyPulsarSource:
    """Returns the source that reads the log at this location; raises as `check_source` does. Imports its backend."""
    check_source(location)
    if location.pulsar is not None:
        from wal.engine.read_only.pulsar import ReadOnlyPulsarSource

        return ReadOnlyPulsarSource(location.pulsar, settings)
    assert location.path is not None
    from wal.engine.read_only.journal import ReadOnlyJournalSource

    return ReadOnlyJournalSource(location.path)


def pauses(wait_s: float, now: Callable[[], float]) -> Iterator[float]:
    """Yields the pauses between looks for the log, until `wait_s` seconds have passed. `now` is a clock in seconds."""
    deadline, pause_s = now() + wait_s, PAUSE_MIN_S
    while (left_s := deadline - now()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
