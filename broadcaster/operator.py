"""AppendOperator: what a log has to do so that a broadcaster can run over it.

Owns: the seam, and the words that cross it. The broadcaster knows pchannels by name and nothing of frames, terms or segments. What
it rests on: **a copy is in the log at most once**. An operator knows, from its recovery state and not from a window, which unfinished
broadcasts have copies in each log; asked for a copy that is there, it answers with that copy and appends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from broadcaster.content import Content, CopiesInLog
from wal.message import BroadcastHeader

if TYPE_CHECKING:
    from wal.errors import WALError
    from wal.message import AppendResult

__all__ = ["AppendOperator"]


class AppendOperator(Protocol):
    """An accesser, as a broadcaster sees it. All methods are called on one event loop."""

    def allocate_id(self) -> int:
        """A fresh time tick: unique for good, above every one before. Without waiting: WouldBlockError when none is at hand."""

    async def wait_for_ids(self) -> None:
        """Returns when a fresh id can be had, as far as it is for this log to say; its error if none can."""

    def check(self, vchannels: Sequence[str]) -> None:
        """Raises what an append to one of these vchannels would get: ChannelNotExistError, InvalidArgumentError … Makes none of them."""

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """The pchannels of these vchannels and the names on each, in the order given; None when `places` has to be asked."""

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The same, making vchannels as an append does; with the errors of `check`, nothing is made then."""

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader
    ) -> asyncio.Future[Sequence[AppendResult | WALError]] | None:
        """What `append_copies` does, in this turn. None, and nothing is done, when it would have to wait first, or would raise."""

    async def append_copies(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader
    ) -> Sequence[AppendResult | WALError]:
        """One copy for each vchannel, all in one frame with one payload; their outcomes, in the order of `vchannels`.

        A vchannel that can never take it (ChannelNotExistError …) has its error for an outcome, and the others are durable. An
        error that is raised means all of them: not one is in, unless it says `outcome_unknown`. It is `retryable` or it is not.
        A vchannel that has its copy already answers with that one. A call that is cancelled may or may not append. Outcomes that
        have a true `all_in` are results, all of them: nobody has to look through thousands for an error.
        """

    async def append_aborts(
        self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str
    ) -> Sequence[AppendResult | WALError]:
        """The same with messages of type ABORT_BROADCAST: the header of the broadcast, the reason (UTF-8) for a payload."""

    async def copies(self) -> Sequence[CopiesInLog]:
        """What the recovered logs hold of broadcasts. Asked once, before any append."""

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """What a copy in this log holds, read from there. Asked only for broadcasts that are in it and were not forgotten."""

    def forget(self, broadcast_id: int, pchannels: Collection[str]) -> None:
        """The broadcast is over: these pchannels drop it from their recovery state, and retention no longer keeps it."""

    def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        """Of each broadcast those vchannels that had their copy and were dropped since, durably; broadcasts without any are left out."""

    def on_dropped(self, callback: Callable[[str], None]) -> None:
        """`callback(vchannel)`, on the loop, each time that one was dropped, durably."""

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        """`callback(pchannel, broadcast_ids)`, on the loop: a durable checkpoint lies behind their copies and does not list them.

        From then on no recovery of this pchannel can find them, and the broadcaster drops what it saved against that.
        """

    def request_checkpoint(self) -> None:
        """Many broadcasts wait to be forgotten: a checkpoint would make room soon."""
