"""Presence: whether a directory holds a journal that can be opened, and the wait for one.

Owns the look at the files that tell (`FORMAT`, and the control page of a pchannel) and the words for what is missing. It makes nothing
and takes no lock. The wait looks again and again, since it is another process that makes the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from wal.backends.journal.control import CONTROL_NAME
from wal.backends.journal.lock import check_format
from wal.errors import FormatError, StorageError
from wal.files import FORMAT_NAME

__all__ = ["ABSENT_REMEDY", "check_present", "is_present", "pauses", "wait_until_present"]

PCHANNELS: Final = "pchannels"
ABSENT_REMEDY: Final = "a journal is made by opening it for writing"
"""What the error says to a reader."""
PAUSE_MIN_S: Final = 0.005
PAUSE_MAX_S: Final = 0.1


def is_present(directory: Path) -> bool:
    """Returns whether the directory holds a journal that can be opened; False for one that is still being made.

    FormatError when no writer would make one there: a file, or a journal of a newer version. Blocks.
    """
    try:
        if directory.exists() and not directory.is_dir():
            raise FormatError(f"{directory} is a file: name a directory for the journal")
        if not (directory / FORMAT_NAME).exists():
            return False
        check_format(directory)
        return any(directory.glob(f"{PCHANNELS}/*/{CONTROL_NAME}"))
    except OSError as error:
        raise StorageError(f"{error.filename or directory} cannot be read: {error.strerror or error}") from error


def check_present(directory: Path, *, remedy: str, waited_s: float = 0.0) -> None:
    """Returns if the directory holds a journal that can be opened; else a FormatError with what is missing and this remedy. Blocks.

    `waited_s`: how long it was waited for.
    """
    if is_present(directory):
        return
    after = f"after waiting {waited_s:g} s for a process to open it for writing, " if waited_s else ""
    if (directory / FORMAT_NAME).exists():
        raise FormatError(
            f"{directory} holds a journal that was never opened for writing to the end: {after}there is no log in it; {remedy}"
        )
    raise FormatError(f"{directory} holds no journal: {after}there is no {FORMAT_NAME} in it; {remedy}")


def wait_until_present(directory: Path, wait_s: float, *, remedy: str) -> None:
    """Returns when the directory holds a journal that can be opened; after `wait_s` the error of `check_present`. Blocks."""
    for pause_s in pauses(wait_s, time.monotonic):
        if is_present(directory):
            return
        time.sleep(pause_s)
    check_present(directory, remedy=remedy, waited_s=wait_s)


def pauses(wait_s: float, now: Callable[[], float]) -> Iterator[float]:
    """Yields how long to pause before the next look, until `wait_s` have passed. `now` is a clock in seconds."""
    deadline, pause_s = now() + wait_s, PAUSE_MIN_S
    while (left_s := deadline - now()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
