"""Archives that tests extract, on every patch release of Python 3.11."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(path: Path, into: Path) -> None:
    """Extracts an archive of this project. Python before 3.11.4 has no `filter`, and a later one warns where none is set."""
    with tarfile.open(path) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
