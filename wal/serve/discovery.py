"""AssignmentDiscover: the assignment of pchannels to nodes.

A log in one process has one node, with all of them, as long as it runs (`Discovery`). The leader of a cluster (`ClusterDiscovery`) pushes
all assignments in full after each change; pchannels that are not ASSIGNED are left out. Changes during a client's read are one push, and so
are changes soon after a large push. The loss of a node with many pchannels is many changes, and a client gets at most `PUSH_BYTES_S` of
them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from wal.coordinator.assigner import Assigner
from wal.coordinator.assignments import Version
from wal.errors import InvalidArgumentError
from wal.network import Method
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.draining import Draining
from wal.rpc.methods import ASSIGNMENT_DISCOVER
from wal.rpc.serving import Handler
from wal.serve.hosted import Hosted

PUSH_BYTES_S: Final = 256 * 1024
"""The most bytes of assignments that a client is pushed in a second: with 10,000 pchannels two pushes, with 100 of them all changes."""
_CLOSED: Final = proto.AssignmentDiscoverResponse(close=proto.CloseAssignmentDiscoverResponse())


async def _reports(context: Any) -> AsyncIterator[proto.ReportAssignmentErrorRequest]:
    """Yields what a client reports, until it closes the stream."""
    while (request := await context.read()) is not grpc.aio.EOF:
        match request.WhichOneof("command"):
            case "report_error":
                yield request.report_error
            case "close":
                return
            case _:
                raise InvalidArgumentError("an AssignmentDiscoverRequest has no command of this version: set report_error or close")


class Discovery:
    """Serves the one assignment: all pchannels that are `hosted` here, at this node."""

    def __init__(self, hosted: Hosted, draining: Draining, *, server_id: int, address: str) -> None:
        self._hosted = hosted
        self._draining = draining
        self._node = proto.StreamingNodeInfo(server_id=server_id, address=address)

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of AssignmentDiscover."""
        return {ASSIGNMENT_DISCOVER: self._discover}

    async def _discover(self, context: Any) -> None:
        await context.write(self._assignment())
        with self._draining.ending():
            async for reported in _reports(context):
                # The client's assignment of this pchannel is current, so the error does not concern it.
                if not self._is_assigned(reported.pchannel):
                    await context.write(self._assignment())
            await context.write(_CLOSED)

    def _assignment(self) -> proto.AssignmentDiscoverResponse:
        channels = self._hosted.infos()
        full = proto.FullStreamingNodeAssignmentWithVersion(
            # Terms rise at each start of the process, so the version of a later one is larger.
            version=proto.VersionPair(**{"global": max((info.term for info in channels), default=0)}, local=1),
            assignments=[proto.StreamingNodeAssignment(node=self._node, channels=channels)],
            answered_by=self._node,
        )
        return proto.AssignmentDiscoverResponse(full_assignment=full)

    def _is_assigned(self, reported: PChannelInfo) -> bool:
        return any(info.name == reported.name and info.term == reported.term for info in self._hosted.infos())


class ClusterDiscovery:
    """Serves the assignments of a leader, whose `reported` takes what clients report."""

    def __init__(self, assigner: Assigner, draining: Draining) -> None:
        self._assigner = assigner
        self._draining = draining
        self._streams: dict[asyncio.Event, None] = {}
        self._pushed: tuple[Version, bytes] | None = None
        """The newest push, encoded once for all clients."""
        self._ended = False
        assigner.on_version = self.wake

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of AssignmentDiscover."""
        return {ASSIGNMENT_DISCOVER: self._discover}

    def wake(self) -> None:
        """Has the streams push what has changed."""
        for woken in self._streams:
            woken.set()

    def end(self) -> None:
        """Ends all streams: this process leads no more."""
        self._ended = True
        self.wake()

    async def _discover(self, context: Any) -> None:
        woken = asyncio.Event()
        self._streams[woken] = None
        stop_waiting = self._draining.on_begin(woken.set)
        reader = asyncio.get_running_loop().create_task(self._read(context, woken), name="assignment discovery")
        told: Version | None = None
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        try:
            while not reader.done():
                woken.clear()
                if self._ended or self._draining.begun:
                    raise self._draining.error()
                pause_s = None
                if told != self._assigner.assignments.version:
                    pause_s = next_s - loop.time()
                    if pause_s <= 0.0:
                        told, push = self._push()
                        await context.write(push)
                        next_s = loop.time() + len(push) / PUSH_BYTES_S
                        continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await woken.wait()
            reader.result()
            await context.write(_CLOSED)
        finally:
            stop_waiting()
            self._streams.pop(woken, None)
            await context.end(reader)

    async def _read(self, context: Any, woken: asyncio.Event) -> None:
        """Takes the client's reports until it closes the stream."""
        try:
            async for reported in _reports(context):
                await self._assigner.reported(reported.pchannel.name, reported.pchannel.term, f"a client says: {reported.err.cause}")
        finally:
            woken.set()

    def _push(self) -> tuple[Version, bytes]:
        """Returns the newest assignments, and their version."""
        assignments = self._assigner.assignments
        if self._pushed is None or self._pushed[0] != assignments.version:
            full = proto.FullStreamingNodeAssignmentWithVersion(
                version=proto.VersionPair(**{"global": assignments.version.leader, "local": assignments.version.count}),
                assignments=[
                    proto.StreamingNodeAssignment(
                        node=proto.StreamingNodeInfo(server_id=node.server_id, address=node.address),
                        channels=[PChannelInfo(name=record.name, term=record.term) for record in records],
                    )
                    for node, records in assignments.shown().items()
                ],
            )
            self._pushed = assignments.version, proto.AssignmentDiscoverResponse(full_assignment=full).SerializeToString()
        return self._pushed
