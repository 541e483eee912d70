"""AppendOperator: the interface that a log implements so that a broadcaster can run over it.

Owns the seam and its vocabulary. The broadcaster knows pchannels by name, and knows nothing of frames, terms or segments. It relies on
one guarantee: **a copy is in the log at most once**. An operator knows, from its recovery state and not from a window, which unfinished
broadcasts have copies in each log; when a requested copy is already there, it answers with that copy and appends nothing.

The open log implements it in this process (`wal/node/copies_operator.py`). A coordinator can implement it with calls to nodes:
its `places_nowait` returns None, its `append_copies_nowait` False.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from broadcaster.message import Content, CopiesInLog
from wal.message import BroadcastHeader, CopyOutcomes


class CopiesAnswer(Protocol):
    """Takes the outcome of an append of copies, as a future does."""

    def done(self) -> bool: ...

    def set_result(self, result: CopyOutcomes, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class AppendOperator(Protocol):
    """A log, as its broadcaster sees it. All methods are called on one event loop.

    A method that is not async asks a local table, or only tells: the pchannels may be on other machines.
    """

    def allocate_id(self) -> int:
        """Returns a fresh time tick: unique, and above all earlier ones. Raises WouldBlockError if none is available without waiting."""

    async def wait_for_ids(self) -> None:
        """Returns when fresh ids are available; raises the log's error if there can be none."""

    def check(self, vchannels: Sequence[str]) -> None:
        """Raises what an append to one of these vchannels would raise (ChannelNotExistError, InvalidArgumentError …). Creates none."""

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """Returns the pchannels of these vchannels and the names on each, in the given order; None if `places` has to be awaited."""

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Does what `places_nowait` does, after creating vchannels as an append does. It creates none if it raises an error of `check`."""

    def located(self, vchannels: Sequence[str]) -> Mapping[str, str]:
        """Returns the pchannels of those of these vchannels that exist."""

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader, answer: CopiesAnswer
    ) -> bool:
        """Does what `append_copies` does, in this turn; `answer` gets its outcome, never during the call.

        Returns False and does nothing if that would have to wait first, or would raise.
        """

    async def append_copies(self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader) -> CopyOutcomes:
        """Appends one copy for each vchannel, all in one frame with one payload.

        The outcome of a vchannel that can never take its copy is an error (ChannelNotExistError …), while the other copies are
        durable. An error that is raised concerns all of them: none is in the log, unless the error says `outcome_unknown`; its
        `retryable` says whether a retry makes sense. The outcome of a vchannel that already has its copy is that copy. A cancelled call may
        or may not append.
        """

    async def append_aborts(self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str) -> CopyOutcomes:
        """Does the same with messages of type ABORT_BROADCAST: they have the broadcast's header, and the reason in UTF-8 as the payload."""

    async def copies(self) -> Sequence[CopiesInLog]:
        """Returns what the recovered logs hold of broadcasts. Called once, before any append."""

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """Reads the content of a copy from this log. Called only for broadcasts that are in the log and were not forgotten."""

    def forget(self, broadcast_id: int, pchannels: Collection[str]) -> None:
        """Tells these pchannels to drop a finished broadcast from their recovery state, so that retention no longer keeps its copies.

        It neither waits nor raises. A pchannel that does not hear of it keeps the copies until the next recovery finds the broadcast's end.
        """

    async def dropped(self, broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
        """Returns, for each broadcast that has any, the vchannels that got their copy and were durably dropped since."""

    def on_dropped(self, callback: Callable[[str], None]) -> None:
        """Calls `callback(vchannel)`, on the loop, each time a vchannel was durably dropped."""

    def on_forgotten(self, callback: Callable[[str, Collection[int]], None]) -> None:
        """Calls `callback(pchannel, broadcast_ids)`, on the loop, when a durable checkpoint no longer lists their copies.

        From then on no recovery of this pchannel finds them, and the broadcaster drops the records that it kept for that case.
        """

    def request_checkpoint(self) -> None:
        """Tells the pchannels that many finished broadcasts await a checkpoint. It neither waits nor raises."""
