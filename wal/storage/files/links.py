"""Files with several names (hard links): a write in place through one name changes the file of the others.

`cp -al` makes such copies of a log, and both logs would write the same control page, the same last segment and the same metadata. So a log
with such a file is not opened for writing, and no file with a second name is ever reused: a truncated segment only loses its name, and a
spare file or a reserve that a copy shares is left to the copy.
"""

from __future__ import annotations

import os
from pathlib import Path

from wal.errors import StorageError


def check_only_name(path: Path, status: os.stat_result) -> None:
    """Raises StorageError if the file at this path, which is written in place, has other names too."""
    if is_shared(status):
        raise StorageError(
            f"{path} has {status.st_nlink} names (hard links, as `cp -al` makes them), and writing it would change the other log as well: "
            "remove the other names, or copy the log by `wal copy`, or while it is closed by `cp -a`, and open that copy"
        )


def is_shared(status: os.stat_result) -> bool:
    """Returns whether the file has more than one name."""
    return status.st_nlink > 1
