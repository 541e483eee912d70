"""Extras: how to install what only some programs need. Every error about a package that is missing takes its remedy from here.

The command works as it is written: it names the place that this installation came from, since only an index knows a package by its
name. Owns nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["install_hint", "reinstall_hint"]

DISTRIBUTION: Final = "wal-runtime"


def install_hint(*extras: str) -> str:
    """The command that installs these extras: `pip install '/path/to/clone[arrow]'`."""
    return f"pip install '{_source()}[{','.join(extras)}]'"


def reinstall_hint() -> str:
    """The command that installs this distribution again, whatever has become of its files."""
    return f"pip install --force-reinstall --no-deps '{_source()}'"


def _source() -> str:
    """What such a command calls this distribution: the clone that this code lies in, else what it was installed from, else its name."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    here = Path(__file__).resolve().parents[1]
    if (here / "pyproject.toml").is_file():
        return str(here)
    try:
        origin = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return DISTRIBUTION
    url = urlsplit(json.loads(origin)["url"] if origin else "")
    source = Path(unquote(url.path))
    return str(source) if url.scheme == "file" and source.exists() else DISTRIBUTION
