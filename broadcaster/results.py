"""BroadcastAppendResult: what the caller of a broadcast gets when all copies are in.

Owns the way from the outcomes of frames to a result for each vchannel. The dict is made when it is looked at for the first time: of a
thousand vchannels most callers look at none, and what a frame says of its copies is a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wal.errors import WALError
    from wal.message import AppendResult

__all__ = ["BroadcastAppendResult", "Outcomes"]

Outcomes = tuple[Sequence[str], "Sequence[AppendResult | WALError]"]
"""Vchannels, and what became of each one's copy, in the same order."""


class BroadcastAppendResult:
    """All copies are durable: the broadcast's id, and id and tick of each vchannel's copy.

    `append_results` is a plain dict in the order of the message's vchannels. Equal when both are; it never changes (the dict is the
    caller's own).
    """

    __slots__ = ("_append_results", "_broadcast_id", "_outcomes", "_vchannels")
    __match_args__ = ("broadcast_id", "append_results")
    __hash__: Final = None  # type: ignore[assignment]

    def __init__(self, broadcast_id: int, append_results: dict[str, AppendResult]) -> None:
        self._broadcast_id = broadcast_id
        self._append_results: dict[str, AppendResult] | None = append_results
        self._outcomes: Iterable[Outcomes] = ()
        self._vchannels: Sequence[str] = ()

    @classmethod
    def of(cls, broadcast_id: int, vchannels: Sequence[str], outcomes: Iterable[Outcomes]) -> BroadcastAppendResult:
        """The result of a broadcast to `vchannels`, each of which has a result in one of these outcomes; errors are left out."""
        made = cls(broadcast_id, {})
        made._append_results, made._vchannels, made._outcomes = None, vchannels, outcomes
        return made

    @property
    def broadcast_id(self) -> int:
        """Its id: a time tick below those of all its copies."""
        return self._broadcast_id

    @property
    def append_results(self) -> dict[str, AppendResult]:
        """The result of each vchannel's copy."""
        results = self._append_results
        if results is None:
            found = {
                name: outcome
                for names, outcomes in self._outcomes
                for name, outcome in zip(names, outcomes, strict=True)
                if not isinstance(outcome, Exception)
            }
            results = self._append_results = {name: found[name] for name in self._vchannels}
            self._outcomes = ()
        return results

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BroadcastAppendResult):
            return NotImplemented
        return self.broadcast_id == other.broadcast_id and self.append_results == other.append_results

    def __repr__(self) -> str:
        return f"BroadcastAppendResult(broadcast_id={self.broadcast_id}, append_results={self.append_results})"

    def __reduce__(self) -> tuple[Any, ...]:
        return BroadcastAppendResult, (self.broadcast_id, self.append_results)
