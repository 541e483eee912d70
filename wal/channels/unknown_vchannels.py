"""Unknown vchannels: the warning for a reader of a name that does not exist, and the list of existing names in it.

A vchannel that does not exist is read as an empty log, since it may be created later; a misspelt name would look the same. So a read of a
name that no append creates within seconds logs a warning that lists existing vchannels. This module never blocks, and compares only a
bounded number of names for that list.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

NOTED_MAX: Final = 1024
"""The most names of which one log warns: a caller that reads more unknown names has been warned enough."""
UNKNOWN_S: Final = 5.0
"""The seconds that a reader may come before the first append to its vchannel without a warning."""
SHOWN_MAX: Final = 10
"""The most vchannels that an error or a warning lists."""
COMPARED_MAX: Final = 128
"""The most names that are compared with the unknown one, …"""
COMPARED_CHARACTERS: Final = 48
"""… and the most characters of each: both together take a few milliseconds at most."""
_PREFIX: Final = 4
_log: Final = logging.getLogger("wal.channels")


class UnknownVChannels:
    """The unknown names that were read in one log, called `location` in the warnings.

    A misspelt name stays unknown; a name that is read before its first append does not. So a name is recorded when it is read. The warning
    follows if the name is still unknown UNKNOWN_S later, or when the log closes before that.
    """

    def __init__(self, location: str, *, monotonic: Callable[[], float]) -> None:
        self._location = location
        self._monotonic = monotonic
        self._noted: dict[str, float] = {}
        """The time at which each name was recorded; infinity after its warning, or once it is known."""

    def note(self, names: Iterable[str], known: Collection[str]) -> bool:
        """Records each new unknown name among these; returns whether there was one."""
        before = len(self._noted)
        for name in names:
            if name not in known and len(self._noted) < NOTED_MAX:
                self._noted.setdefault(name, self._monotonic())
        return len(self._noted) > before

    def warn(self, known: Collection[str], *, at_close: bool = False) -> None:
        """Logs a warning for each recorded name that is still unknown after UNKNOWN_S, or now at the close."""
        due = math.inf if at_close else self._monotonic() - UNKNOWN_S
        for name, noted in self._noted.items():
            if noted == math.inf or (noted > due and name not in known):
                continue
            self._noted[name] = math.inf
            if name not in known:
                _log.warning(
                    "vchannel %r does not exist in %s: it is read as an empty log until it is created; %s%s",
                    name,
                    self._location,
                    existing_vchannels(name, known),
                    f"; a name is no pattern, which is Matching({name!r})" if "*" in name else "",
                )


def existing_vchannels(name: str, known: Collection[str]) -> str:
    """Returns a phrase that lists up to ten of the known names, those most similar to `name` first."""
    if not known:
        return "there are no vchannels yet"
    names = ", ".join(map(repr, _nearest(name, known)))
    return f"there are {names}" if len(known) <= SHOWN_MAX else f"there are {len(known)}, among them {names}"


def _nearest(name: str, known: Collection[str]) -> list[str]:
    candidates = sorted(known if len(known) <= COMPARED_MAX else _alike(name, known))
    clipped: dict[str, list[str]] = {}
    for one in candidates:
        clipped.setdefault(one[:COMPARED_CHARACTERS].casefold(), []).append(one)
    close = difflib.get_close_matches(name[:COMPARED_CHARACTERS].casefold(), clipped, n=SHOWN_MAX)
    nearest = dict.fromkeys(one for start in close for one in clipped[start])
    return list(nearest | dict.fromkeys(candidates))[:SHOWN_MAX]


def _alike(name: str, known: Collection[str]) -> list[str]:
    """Returns names that begin as `name` does, or any names without such a one."""
    candidates = list(islice((one for one in known if one.startswith(name[:_PREFIX])), COMPARED_MAX))
    return candidates or list(islice(known, COMPARED_MAX))
