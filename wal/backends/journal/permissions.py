"""Permissions: which users may read a journal, chosen at its opening and carried out on what lies there.

Owns the choice: what the setting says, else what the journal is already, else nobody but its owner. `FORMAT` is the mark of it: it is
changed last, so that an opening which was cut off is repeated, and one that finds it right looks at nothing else. So an opening costs
the same however many files there are.

What lies open to every user, as it did before files were private, is closed: new segments would lock those readers out all the same,
at some moment that nobody chose. It is said in a warning.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from wal.backends.journal.control import FENCE_NAME
from wal.files import CURSORS_LOCK_NAME, FORMAT_NAME, FileAccess

__all__ = ["carry_out", "choose_access"]

_READ_BY_READERS: Final = ("pchannels", "cursors")
_FOR_WRITERS: Final = (CURSORS_LOCK_NAME, "spark")
"""Of Spark's sink the directory alone, which nobody else can enter then."""
_OTHERS_READ: Final = 0o044
_log: Final = logging.getLogger("wal.journal")


def choose_access(directory: Path, group_readable: bool | None) -> FileAccess:
    """The access of the journal in this directory, which need not be there yet; None leaves it as it is."""
    found = FileAccess.like(directory / FORMAT_NAME)
    return found if group_readable is None else msgspec.structs.replace(found, group_readable=group_readable)


def carry_out(directory: Path, access: FileAccess, *, asked: bool) -> None:
    """Gives the files of an existing journal this access. Without being `asked` it warns when readers lose theirs."""
    mark = directory / FORMAT_NAME
    before = mark.stat().st_mode
    if access.is_given(mark) and access.is_given(directory):
        return
    access.give(directory)
    for name in _FOR_WRITERS:
        if (path := directory / name).exists():
            access.private.give(path)
    for name in _READ_BY_READERS:
        for root, _, files in os.walk(directory / name):
            access.give(Path(root))
            for file in files:
                (access.private if file == FENCE_NAME else access).give(Path(root, file))
    access.give(mark)
    if not access.is_given(mark):
        _log.warning(
            "the files of %s can be read by other users of this machine, and their file system does not let that be changed: "
            "keep the log on another one",
            directory.absolute(),
        )
    elif before & _OTHERS_READ & ~access.file_mode and not asked:
        _log.warning(
            "the files of %s could be read by other users of this machine (mode %04o), and can be read by their owner alone from now on: "
            "open the log with group_readable=True to let their group read them",
            directory.absolute(),
            before & 0o777,
        )
