"""UnknownVChannels: what a reader is told of a vchannel that does not exist.

Such a vchannel is read as an empty log, since it may be created later; a misspelt name would look the same. So the first read of it is
a warning, which names the vchannels that exist. Owns the names that were warned of, and the choice of those that are shown. It waits
for nothing, and looks at a bounded number of names.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

__all__ = ["UnknownVChannels", "existing_vchannels"]

NOTED_MAX: Final = 1024
"""Names that one log warns of; a caller that reads more unknown names than that has been told."""
SHOWN_MAX: Final = 10
COMPARED_MAX: Final = 128
"""Names that are compared with the unknown one, …"""
COMPARED_CHARACTERS: Final = 48
"""… by their first characters: together some milliseconds at most."""
_PREFIX: Final = 4


class UnknownVChannels:
    """The unknown names that were read in one log; `location` is what the warning calls it."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._noted: set[str] = set()

    def note(self, names: Iterable[str], known: Collection[str]) -> None:
        """Logs a warning for each of these names that is not among the known ones, once for each name."""
        for name in names:
            if name in known or name in self._noted or len(self._noted) >= NOTED_MAX:
                continue
            self._noted.add(name)
            _log.warning(
                "vchannel %r does not exist in %s: it is read as an empty log until it is created; %s",
                name,
                self._location,
                existing_vchannels(name, known),
            )


def existing_vchannels(name: str, known: Collection[str]) -> str:
    """Returns a phrase that lists up to ten of the known names, those nearest to `name` first."""
    if not known:
        return "there are no vchannels yet"
    shown = ", ".join(map(repr, _nearest(name, known)))
    return f"there are {shown}" if len(known) <= SHOWN_MAX else f"there are {len(known)}, among them {shown}"


def _nearest(name: str, known: Collection[str]) -> list[str]:
    candidates = sorted(known if len(known) <= COMPARED_MAX else _alike(name, known))
    clipped: dict[str, list[str]] = {}
    for one in candidates:
        clipped.setdefault(one[:COMPARED_CHARACTERS].casefold(), []).append(one)
    close = difflib.get_close_matches(name[:COMPARED_CHARACTERS].casefold(), clipped, n=SHOWN_MAX)
    nearest = dict.fromkeys(one for start in close for one in clipped[start])
    return list(nearest | dict.fromkeys(candidates))[:SHOWN_MAX]


def _alike(name: str, known: Collection[str]) -> list[str]:
    """Names that begin as `name` does, else any."""
    found = list(islice((one for one in known if one.startswith(name[:_PREFIX])), COMPARED_MAX))
    return found or list(islice(known, COMPARED_MAX))


_log: Final = logging.getLogger("wal.channels")
