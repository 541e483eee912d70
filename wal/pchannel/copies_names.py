"""NamePool: one object for equal names, and for equal tuples of them, while a table of broadcasts is being recovered. Pure.

Owns what it was given first of each. Every frame and every checkpoint is decoded by itself, so the same thousand vchannels come anew with
each broadcast: held apart they are a hundred KB a broadcast, through the pool eight bytes a name for each set that differs. Promises: what
it answers is equal to what it was asked for. It forgets nothing: it lives as long as a recovery, in which all that it holds is in use.
"""

from __future__ import annotations

from wal.frame import RunName

__all__ = ["NamePool"]


class NamePool:
    """Tuples of names of vchannels, and of (name, incarnation)."""

    __slots__ = ("_copies", "_runs", "_texts", "_vchannels")

    def __init__(self) -> None:
        self._vchannels: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._copies: dict[tuple[RunName, ...], tuple[RunName, ...]] = {}
        self._runs: dict[RunName, RunName] = {}
        self._texts: dict[str, str] = {}

    def vchannels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The tuple that is held for these names."""
        held = self._vchannels.get(names)
        if held is None:
            held = tuple(map(self._texts.setdefault, names, names))
            self._vchannels[held] = held
        return held

    def copies(self, names: tuple[RunName, ...]) -> tuple[RunName, ...]:
        """The tuple that is held for these names with their incarnations."""
        held = self._copies.get(names)
        if held is None:
            held = tuple(map(self._run, names))
            self._copies[held] = held
        return held

    def _run(self, name: RunName) -> RunName:
        held = self._runs.get(name)
        if held is None:
            text, incarnation = name
            held = (self._texts.setdefault(text, text), incarnation)
            self._runs[held] = held
        return held
