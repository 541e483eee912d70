"""Requests that the leader of a cluster sends to the node of a pchannel: for vchannels that end, and for the copies of broadcasts.

Each may be repeated, here or at a later owner of the pchannel: a copy is in a log at most once, which the pchannel's table decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, groupby
from typing import ClassVar, cast

import msgspec

from broadcaster.message import Content
from wal.channels.vchannels import VChannelInfo
from wal.errors import UnknownError, WALError
from wal.message import AppendResult, CopyOutcomes, MixedCopies
from wal.requests.broadcasts import AppendedCopies, runs_of
from wal.requests.request import LeaderRequest


class EndVChannels(LeaderRequest[None], frozen=True):
    """Has vchannels finish what they were told before, and ends them; their records are removed afterwards."""

    vchannels: tuple[VChannelInfo, ...]

    @property
    def doing(self) -> str:
        return f"ending {len(self.vchannels)} vchannels"


class CopyOutcome(msgspec.Struct, frozen=True):
    """The outcome of copies that follow each other in a frame, or the error with which one vchannel can never take its copy."""

    copies: AppendedCopies | None = None
    error: WALError | None = None

    def each(self) -> Iterable[AppendResult | WALError]:
        """Returns the outcome of each copy."""
        if self.copies is not None:
            return self.copies.results()
        return (self.error or UnknownError("a node answered for a copy with neither a result nor an error"),)


class OutcomesOfCopies(msgspec.Struct, frozen=True):
    """The outcomes of copies as they are sent, in the order of the vchannels."""

    outcomes: tuple[CopyOutcome, ...]


class CopyBroadcast(LeaderRequest[CopyOutcomes], frozen=True):
    """Appends a copy of a broadcast for each vchannel, or with `aborts` the messages about its abort, whose payload is the reason.

    `header` is BroadcastHeader.to_bytes. See `AppendOperator.append_copies` for the answer.
    """

    sent: ClassVar[type] = OutcomesOfCopies

    vchannels: tuple[str, ...]
    header: bytes
    content: Content
    aborts: bool = False

    @property
    def doing(self) -> str:
        return f"appending {len(self.vchannels)} copies of a broadcast"

    def packed(self, answer: Iterable[AppendResult | WALError]) -> OutcomesOfCopies:
        outcomes: list[CopyOutcome] = []
        for failed, some in groupby(answer, lambda outcome: isinstance(outcome, WALError)):
            if failed:
                outcomes += [CopyOutcome(error=cast("WALError", error)) for error in some]
            else:
                outcomes += [CopyOutcome(copies) for copies in runs_of(cast("Iterable[AppendResult]", some))]
        return OutcomesOfCopies(tuple(outcomes))

    def unpacked(self, answer: OutcomesOfCopies) -> CopyOutcomes:
        count = sum(1 if outcome.copies is None else outcome.copies.count for outcome in answer.outcomes)
        if count != len(self.vchannels):
            raise UnknownError(f"a node answered for {count} of {len(self.vchannels)} copies")
        return MixedCopies(chain.from_iterable(outcome.each() for outcome in answer.outcomes))


class BroadcastInLog(msgspec.Struct, frozen=True):
    """The copies of a broadcast in the log of a pchannel. `dropped` are those of `vchannels` whose incarnation has ended since."""

    header: bytes
    vchannels: tuple[str, ...]
    aborted: tuple[str, ...]
    dropped: tuple[str, ...]


class ListCopies(LeaderRequest[tuple[BroadcastInLog, ...]], frozen=True):
    """Asks what the recovered log of the pchannel holds of broadcasts."""

    saying: ClassVar[str] = "listing the copies"


class ReadCopy(LeaderRequest[Content], frozen=True):
    """Asks for the content of a broadcast that is in the log."""

    saying: ClassVar[str] = "reading broadcast {0.broadcast_id}"

    broadcast_id: int


class ForgetBroadcasts(LeaderRequest[tuple[int, ...]], frozen=True):
    """Has the node drop finished broadcasts; the answer lists the broadcasts that no recovery of the pchannel finds any more.

    With `checkpoint` many wait for a checkpoint of the pchannel.
    """

    saying: ClassVar[str] = "forgetting broadcasts"

    broadcast_ids: tuple[int, ...]
    checkpoint: bool = False
