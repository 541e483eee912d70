"""AssignedNodes: the coordinator's calls about a pchannel, to the node that has it at the moment.

A call goes to the node of the pchannel, and is repeated elsewhere when the pchannel has moved meanwhile. While the pchannel is not
assigned, the call waits, at most `WAIT_S`. So repeating a call must change nothing more.

VChannelsOnNodes is the `VChannelHost` of a cluster. A node creates the actor of a vchannel at its first use, so nothing has to begin; a
vchannel ends on the node of its pchannel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from wal.channels.vchannels import VChannelInfo
from wal.coordinator.assigner import Assigner
from wal.coordinator.assignments import AssignmentState, NodeStart
from wal.coordinator.node_calls import NodeCalls
from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    SessionLostError,
    UnavailableError,
    UnknownOutcomeError,
    UnmatchedChannelTermError,
    WALError,
)
from wal.requests.nodes import EndVChannels
from wal.requests.request import Answer, Request
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import end_tasks, keep_task

WAIT_S: Final = 30.0
"""The time that a call waits for an unassigned pchannel."""
MOVED: Final = (ChannelFencedError, ChannelNotExistError, ClosedError, SessionLostError, UnavailableError, UnmatchedChannelTermError)
"""The errors of a node that does not have a pchannel in this term, or that cannot be reached."""
_log: Final = logging.getLogger("wal.cluster")


class AssignedNodes:
    """The nodes of the pchannels that `assigner` assigns."""

    def __init__(self, assigner: Assigner, calls: NodeCalls) -> None:
        self.calls: NodeCalls = calls
        self._assigner = assigner

    def place(self, name: str) -> tuple[NodeStart, PChannelInfo] | None:
        """Returns the node that has a pchannel now, and the pchannel in its term; None without a node.

        A node that was lost before this leader began does not count: a call to it would wait for a connection until its deadline.
        """
        record = self._assigner.assignments.records.get(name)
        if record is None or record.state is not AssignmentState.ASSIGNED or record.owner is None:
            return None
        if not self._assigner.is_live(record.owner.node):
            return None
        return record.owner.node, PChannelInfo(name=name, term=record.term)

    async def submit(self, name: str, request: Request[Answer], *, wait_s: float = WAIT_S) -> Answer:
        """Returns the answer of the current node of a pchannel to a request.

        A call without an answer is repeated. Raises UnavailableError if the pchannel has no node for `wait_s`.
        """
        loop, backoff = asyncio.get_running_loop(), Backoff(0.02, 0.5)
        deadline = loop.time() + wait_s
        said: WALError | None = None
        while True:
            if (place := self.place(name)) is not None:
                try:
                    return await self.calls.submit(place[0], request, place[1])
                except (*MOVED, UnknownOutcomeError) as error:
                    said = error
            if loop.time() >= deadline:
                trouble = self._assigner.troubles.get(name) or said or "it is being assigned"
                raise UnavailableError(f"pchannel {name} is on no node: {trouble}; nothing more was done, try again")
            await asyncio.sleep(backoff.next())


class VChannelsOnNodes:
    """See the top of the file."""

    def __init__(self, nodes: AssignedNodes) -> None:
        self._nodes = nodes
        self._ending: set[asyncio.Task[None]] = set()

    def begin(self, infos: tuple[VChannelInfo, ...]) -> Callable[[WALError | None], None]:
        """Does nothing: a node reads the vchannels from the saved records at their first use."""
        return lambda error: None

    def end(self, infos: tuple[VChannelInfo, ...], ended: Callable[[WALError | None], None]) -> None:
        """Has the nodes end vchannels; calls `ended` when all have ended, or with the error of one whose pchannel has no node."""
        keep_task(self._ending, asyncio.get_running_loop().create_task(self._end(infos, ended), name="ending vchannels"))

    def forget(self, infos: tuple[VChannelInfo, ...]) -> None:
        """Does nothing: nodes follow the records, and forget the state of a removed one."""

    async def delete_cursors(self, info: VChannelInfo) -> None:
        """Does nothing: the node that has the pchannel deletes them when the record is removed."""

    async def close(self) -> None:
        """Ends running work; its callers get an error. Idempotent."""
        await end_tasks(*self._ending)

    async def _end(self, infos: tuple[VChannelInfo, ...], ended: Callable[[WALError | None], None]) -> None:
        by_pchannel: dict[str, list[VChannelInfo]] = {}
        for info in infos:
            by_pchannel.setdefault(info.pchannel, []).append(info)
        error: WALError | None = UnavailableError("the coordinator is stopping: ask the next one to end the vchannels")
        try:
            await asyncio.gather(*(self._end_on(name, some) for name, some in by_pchannel.items()))
            error = None
        except WALError as failure:
            error = failure
        finally:
            ended(error)

    async def _end_on(self, pchannel: str, infos: list[VChannelInfo]) -> None:
        await self._nodes.submit(pchannel, EndVChannels(tuple(infos)))
