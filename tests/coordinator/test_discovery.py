"""ClusterDiscovery: the pushes of a leader to a client, and their interval."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from tests.coordinator.test_assigner import leading
from wal.coordinator.assignments import Assignment, AssignmentState, NodeStart, TermHolder
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.draining import Draining
from wal.serve import discovery
from wal.serve.discovery import ClusterDiscovery
from wal.storage.kv import MemoryKV


class Stream:
    """The context of a call whose client reads everything and sends nothing. `pushed` are the received messages."""

    def __init__(self) -> None:
        self.pushed: list[proto.FullStreamingNodeAssignmentWithVersion] = []
        self.sizes: list[int] = []
        self._closed = asyncio.Event()

    async def write(self, response: bytes) -> None:
        if isinstance(response, bytes):
            self.sizes.append(len(response))
            self.pushed.append(proto.AssignmentDiscoverResponse.FromString(response).full_assignment)

    async def read(self) -> Any:
        await self._closed.wait()
        return grpc.aio.EOF

    async def end(self, reader: asyncio.Task[None]) -> None:
        reader.cancel()

    def close(self) -> None:
        self._closed.set()


async def test_many_changes_are_few_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv)
        records = {
            f"p{number}": Assignment(f"p{number}", 2, AssignmentState.ASSIGNED, (TermHolder(2, NodeStart(7, "here:1")),))
            for number in range(99)
        }
        assigner.assignments.records = records
        served, stream = ClusterDiscovery(assigner, Draining()), Stream()
        monkeypatch.setattr(discovery, "PUSH_BYTES_S", 1)  # the second push is due in many minutes
        serving = asyncio.ensure_future(served._discover(stream))
        while not stream.pushed:
            await asyncio.sleep(0)
        for name in records:
            change = assigner.assignments.lost(name, 2)
            assert change is not None
            assigner.assignments.commit(change)
            served.wake()
            await asyncio.sleep(0)
        stream.close()
        await serving
        assert [len(push.assignments[0].channels) for push in stream.pushed] == [99]


async def test_change_that_nobody_sees_is_not_pushed() -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv)
        served, stream = ClusterDiscovery(assigner, Draining()), Stream()
        serving = asyncio.ensure_future(served._discover(stream))
        while not stream.pushed:
            await asyncio.sleep(0)
        for floor in range(1, 9):
            change = assigner.assignments.raise_floor({"p0": floor})
            assert change is not None
            assigner.assignments.commit(change)
            served.wake()
            await asyncio.sleep(0)
        assert len(stream.pushed) == 1
        change = assigner.assignments.lost("p0", 2)
        assert change is not None
        assigner.assignments.commit(change)
        served.wake()
        async with asyncio.timeout(30):
            while len(stream.pushed) == 1:
                await asyncio.sleep(0.001)
        stream.close()
        await serving
        assert [len(push.assignments) for push in stream.pushed] == [1, 0]
