"""ScannerNode over the network and over Pulsar: the same ticks in every run, and a copy that is exact across failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import serving
from tests.streams.flowgraph.graphs import FailingError
from tests.streams.flowgraph.nodes.test_scanner_node import full_ticks, numbered, source
from wal import WALAccesser, open_wal
from wal.api.opening import LogOpening
from wal.streams.flowgraph import BaseNode, Msg, TimeTickedFlowGraph
from wal.streams.flowgraph.nodes import BatchMsg, ScannerNode, WalSinkNode

Opens = Callable[[], LogOpening]


@pytest.fixture(params=["wal", "pulsar"])
def on_pulsar(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]] | None:
    """The location and the settings of a log on Pulsar; None for one over the network."""
    if request.param == "wal":
        return None
    host, admin_host, token, namespace = (
        request.getfixturevalue(f"pulsar_{name}") for name in ("host", "admin_host", "token", "namespace")
    )
    settings = {"kv": str(tmp_path / "meta.sqlite3"), "pulsar_admin_url": f"http://{admin_host}", "pulsar_token": token or None}
    return f"pulsar://{host}/{namespace}", settings


@pytest.fixture
async def opens(on_pulsar: tuple[str, dict[str, Any]] | None, tmp_path: Path) -> AsyncIterator[Opens]:
    """Returns a newly opened log at each call."""
    if on_pulsar is not None:
        location, settings = on_pulsar
        yield lambda: open_wal(location, time_tick_interval_s=0.01, **settings)
        return
    async with serving(tmp_path / "data", time_tick_interval_s=0.01) as served:
        yield lambda: open_wal(f"wal://{served.address}")


@pytest.mark.parametrize("tick_interval_s", [0.0, 0.02])
async def test_reopened_log_has_the_same_ticks(opens: Opens, tick_interval_s: float) -> None:
    async with opens() as log:
        payloads = await numbered(log, 30)
        async with source(log, tick_interval_s=tick_interval_s) as node:
            ticks = await full_ticks(node, 30)
            await node.commit(ticks[len(ticks) // 2][0])
    assert [payload for _, tick in ticks for payload in tick] == payloads
    rest = ticks[len(ticks) // 2 + 1 :]
    async with opens() as log, source(log, tick_interval_s=tick_interval_s) as node:
        assert await full_ticks(node, sum(len(tick) for _, tick in rest)) == rest


async def test_copy_is_exact_across_failures_and_openings(opens: Opens) -> None:
    class Failing(BaseNode):
        """Fails once it has passed on this many messages; 0: never."""

        def __init__(self, at: int) -> None:
            super().__init__("failing")
            self.left = at

        def operate(self, msgs: list[Msg]) -> list[Msg]:
            (msg,) = msgs
            assert isinstance(msg, BatchMsg)
            if self.left and msg.messages:
                self.left -= min(len(msg.messages), self.left)
                if not self.left:
                    raise FailingError
            return [msg]

    async def copied(log: WALAccesser) -> list[bytes]:
        async with log.read("copy", follow=False) as scanner:
            return [body.payload async for message in scanner for body in message.bodies()]

    async def copy(log: WALAccesser, *, until: int, fails_at: int = 0) -> TimeTickedFlowGraph:
        """Copies orders until the copy has this many messages, or the graph has failed."""
        graph = TimeTickedFlowGraph()
        sink = WalSinkNode("sink", log, "copy")
        nodes = [ScannerNode("source", log, "orders", cursor="graph"), Failing(fails_at), sink]
        names = [node.name for node in nodes]
        for index, node in enumerate(nodes):
            graph.add_node(node)
            graph.set_edges(node.name, in_=names[max(0, index - 1) : index], out=names[index + 1 : index + 2])
        async with graph:
            while graph.error is None and len(await copied(log)) < until:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(graph.done(), 0.05)
        return graph

    async with opens() as log:
        payloads = await numbered(log, 20)
        graph = await copy(log, until=20, fails_at=12)
        assert isinstance(getattr(graph.error, "__cause__", None), FailingError)
        assert await copied(log) == payloads[: len(await copied(log))]
    async with opens() as log:
        payloads += await numbered(log, 10)
        graph = await copy(log, until=30)
        assert graph.error is None
        assert await copied(log) == payloads
        (cursor,) = [one for one in await log.cursors() if one.name == "graph"]
        assert cursor.position is not None
    async with opens() as log:  # nothing remains to be copied
        payloads += await numbered(log, 1)
        await copy(log, until=31)
        assert await copied(log) == payloads


async def test_quiet_log_gives_ticks_without_messages(opens: Opens) -> None:
    async with opens() as log:
        await numbered(log, 1)
        async with source(log) as node:
            await full_ticks(node, 1)
            last = 0
            for _ in range(3):
                (msg,) = await asyncio.wait_for(node.operate([]), 20)
                assert isinstance(msg, BatchMsg)
                assert not msg.messages
                assert msg.time_tick > last
                last = msg.time_tick
