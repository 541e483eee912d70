"""AppendsSubmission: consecutive appends of a turn as one entry of a frame. Plain appends are the bulk of all writes.

Appends of one kind that follow each other are drafted together and get their results in one pass, to any vchannels and in the order of
their calls. Only these submissions may be cut in two, and only keyed appends may be withdrawn one by one.
"""

from __future__ import annotations

import abc
import asyncio
from typing import Generic, Self, TypeVar

from wal.frame import FrameDraft, RunName
from wal.message import AppendResult, MessageID, Origin
from wal.pchannel.idempotency import Claim
from wal.pchannel.keyed_writes import KeyedWrites
from wal.pchannel.operations import Append, KeyedAppend, fail_future
from wal.pchannel.submissions import RUN_OVERHEAD, Submission

__all__ = ["AppendsSubmission", "KeyedSubmission", "PlainSubmission"]

_AppendT = TypeVar("_AppendT", bound=Append)


class AppendsSubmission(Submission, Generic[_AppendT]):
    """Consecutive appends, to any vchannels, each with its own future.

    `batches[i]` is for the vchannel `names[i]`. All of them are drafted together, so their indices are consecutive.
    """

    __slots__ = ("batches", "names")

    def __init__(self) -> None:
        self.names: list[RunName] = []
        self.batches: list[list[_AppendT]] = []
        self.count = self.in_flight = self.size = 0

    @abc.abstractmethod
    def empty(self) -> Self:
        """Returns another submission of this kind, without appends."""

    def add(self, name: RunName, appends: list[_AppendT]) -> None:
        """Adds the appends of one vchannel at the end."""
        size = appends[0].size if len(appends) == 1 else sum([append.size for append in appends])
        self.names.append(name)
        self.batches.append(appends)
        self.count += len(appends)
        self.in_flight += size
        self.size += size + RUN_OVERHEAD + 4 * len(name[0])

    def cut(self, *, size: int, count: int) -> Self | None:
        """Takes out the appends at the front that fit these bounds, at least one; returns None when all of them fit."""
        if self.size <= size and self.count <= count:
            return None
        front, rest = self.empty(), self.empty()
        for name, appends in zip(self.names, self.batches, strict=True):
            taken = 0
            if not rest.count:
                room = size - front.size - RUN_OVERHEAD - 4 * len(name[0])
                for append in appends[: max(count - front.count, 0)]:
                    room -= append.size
                    if room < 0:
                        break
                    taken += 1
                if not taken and not front.count:
                    taken = 1
            if taken:
                front.add(name, appends[:taken] if taken < len(appends) else appends)
            if taken < len(appends):
                rest.add(name, appends[taken:] if taken else appends)
        if not rest.count:
            return None
        front.serial = self.serial
        self.names, self.batches = rest.names, rest.batches
        self.count: int = rest.count
        self.in_flight: int = rest.in_flight
        self.size: int = rest.size
        return front


class PlainSubmission(AppendsSubmission[Append]):
    """Consecutive plain appends. They are the bulk of all writes."""

    __slots__ = ()

    def empty(self) -> PlainSubmission:
        return PlainSubmission()

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.indices
        for name, appends in zip(self.names, self.batches, strict=True):
            draft.append(name, appends)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        pchannel, incarnation, position, form = origin.pchannel, origin.incarnation, origin.position, origin.form
        index = self.first
        for appends in self.batches:
            for append in appends:
                message_id = MessageID(pchannel, incarnation, position, index, form)
                try:
                    append.future.set_result(AppendResult(message_id, first_tick + index, message_id))
                except asyncio.InvalidStateError:
                    pass  # its caller was cancelled
                index += 1

    def fail(self, error: BaseException) -> None:
        for appends in self.batches:
            for append in appends:
                fail_future(append.future, error)


class KeyedSubmission(AppendsSubmission[KeyedAppend]):
    """Consecutive appends with idempotency keys that were claimed in their turn."""

    __slots__ = ("keyed",)

    def __init__(self, keyed: KeyedWrites) -> None:
        super().__init__()
        self.keyed: KeyedWrites = keyed

    def empty(self) -> KeyedSubmission:
        return KeyedSubmission(self.keyed)

    def draft(self, draft: FrameDraft) -> None:
        self.first: int = draft.indices
        for name, appends in zip(self.names, self.batches, strict=True):
            draft.append(name, appends, keyed=True)

    def resolve(self, origin: Origin, first_tick: int) -> None:
        index = self.first
        for appends in self.batches:
            self.keyed.appended(appends, origin, index, first_tick)
            index += len(appends)

    def fail(self, error: BaseException) -> None:
        for appends in self.batches:
            for append in appends:
                assert append.claim is not None
                self.keyed.failed(append.claim, append.future, error)

    def split(self, claims: frozenset[Claim]) -> tuple[KeyedSubmission | None, KeyedSubmission | None]:
        taken, rest = self.empty(), self.empty()
        for name, appends in zip(self.names, self.batches, strict=True):
            for part, wanted in ((taken, True), (rest, False)):
                chosen = [append for append in appends if (append.claim in claims) is wanted]
                if chosen:
                    part.add(name, chosen)
        if not taken.count:
            return None, self
        taken.serial = rest.serial = self.serial
        return taken, rest if rest.count else None
