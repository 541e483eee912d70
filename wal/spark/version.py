"""Which Spark it needs: 4.2.1 is the first whose Python sources have row limits, AvailableNow and a reported end that work."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from wal.installation import install_hint

__all__ = ["PYSPARK_MIN", "require_pyspark"]

PYSPARK_MIN: Final = (4, 2, 1)


@cache
def require_pyspark() -> None:
    """Returns if pyspark is there and new enough; an ImportError that says what to install if not."""
    floor = ".".join(map(str, PYSPARK_MIN))
    try:
        from pyspark import __version__ as found
    except ImportError as error:
        raise ImportError(
            f"this needs pyspark {floor} or newer, which is not installed: {install_hint('spark')}",
            name="pyspark",
        ) from error
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if numbers < PYSPARK_MIN:
        raise ImportError(
            f"pyspark {found} is too old: the format 'wal' needs {floor} or newer: {install_hint('spark')}",
            name="pyspark",
        )
