"""AppendOperator: the interface that a log implements so that a broadcaster can run over it.

Owns the interface and its vocabulary. To the broadcaster a pchannel is a name; frames, terms and segments stay in the log. It relies on one
guarantee: **a copy is in the log at most once**. An operator has, from its recovery state and not from a window, the unfinished broadcasts
with copies in each log. When a requested copy is already there, it answers with that copy and appends nothing.

The open log implements it in this process (`wal/node/copies_operator.py`). A coordinator can implement it with calls to nodes: its
`places_nowait` returns None, its `append_copies_nowait` False.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from broadcaster.message import Content, CopiesInLog
from wal.message import BroadcastHeader, CopyOutcomes


class CopiesAnswer(Protocol):
    """Receives the outcome of an append of copies. Futures satisfy this protocol."""

    def done(self) -> bool: ...

    def set_result(self, result: CopyOutcomes, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class AppendOperator(Protocol):
    """A log, as its broadcaster sees it. All methods are called on one event loop.

    A method that is not async reads a local table, or sends without an answer: the pchannels may be on other machines.
    """

    def allocate_id(self) -> int:
        """Returns a fresh time tick: unique, and above all earlier ones. Raises WouldBlockError if the next tick is not available without
        waiting.
        """

    async def wait_for_ids(self) -> None:
        """Returns when fresh ids are available; raises the log's error if it has failed."""

    def check(self, vchannels: Sequence[str]) -> None:
        """Raises the error of an append to one of these vchannels (ChannelNotExistError, InvalidArgumentError …). Creates no vchannel."""

    def places_nowait(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]] | None:
        """Returns the pchannels of these vchannels and the names on each, in the given order; None if `places` has to be awaited."""

    async def places(self, vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Answers `places_nowait`, after creating vchannels as an append does. If it raises an error of `check`, it has created no
        vchannel.
        """

    def located(self, vchannels: Sequence[str]) -> Mapping[str, str]:
        """Returns the pchannels of the existing vchannels among these."""

    def append_copies_nowait(
        self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader, answer: CopiesAnswer
    ) -> bool:
        """Appends as `append_copies` does, in this turn; `answer` gets its outcome, never during the call.

        Returns False, without an effect, if that would have to wait first, or would raise.
        """

    async def append_copies(self, pchannel: str, vchannels: Sequence[str], content: Content, header: BroadcastHeader) -> CopyOutcomes:
        """Appends one copy for each vchannel, all in one frame with one payload.

        The outcome of a vchannel that can never take its copy is an error (ChannelNotExistError …), while the other copies are durable. An
        error that is raised concerns all of them: no copy is in the log, unless the error has `outcome_unknown`; its `retryable` is True if
        a retry makes sense. The outcome of a vchannel that already has its copy is that copy. A cancelled call may or may not append.
        """

    async def append_aborts(self, pchannel: str, vchannels: Sequence[str], header: BroadcastHeader, reason: str) -> CopyOutcomes:
        """Appends messages of type ABORT_BROADCAST in the same way: they have the broadcast's header, and the reason in UTF-8 as the
        payload.
        """

    async def copies(self) -> Sequence[CopiesInLog]:
        """Returns the broadcasts with copies in the recovered logs. Called once, before any append."""

    async def content(self, pchannel: str, broadcast_id: int) -> Content:
        """Reads the content of a copy from this log. Called only for broadcasts that are in the log and were not forgotten."""

    def forget(self, broadcast_id: int, pchannels: Collection[str]) -> None:
        """Requests that these pchannels drop a finished broadcast from their recovery state, so that retention no longer keeps its copies.

        It neither waits nor raises. A pchannel that misses the request keeps the copies until the next recovery finds the broadcast's end.
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
        """Reports to the pchannels that many finished broadcasts await a checkpoint. It neither waits nor raises."""
