"""The command line on the log of a real cluster: through its servers, and on its Pulsar, from which it is copied."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.operate.cluster.processes import Cluster
from tests.processes import WAIT_TIMEOUT_S, eventually
from wal import Message, open_wal
from wal.operate.cli.main import main
from wal.operate.copying import copy


async def test_cluster_log_is_inspected_and_copied(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
        """Runs a command, which ends with 0; returns its rows."""
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*arguments, "--json"]) == 0, (arguments, capsys.readouterr().err)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    await cluster.start(coordinators=1, nodes=2)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    copied = str(tmp_path / "copied")
    async with open_wal(cluster.root) as log:
        names = [(await log.create_vchannel(f"v{number}")).name for number in range(4)]
        for number in range(12):
            await log.raw_append(Message(names[number % 4], b"%d" % number), idempotency_key=f"key-{number}")
        async with log.read("v0", cursor="slow", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()

        async def all_seen() -> bool:  # another process reads an event a moment after its writer
            rows = await ran(capsys, "ls", cluster.log, "--set", f"kv={cluster.root}")
            return {row["vchannel"]: row["messages"] for row in rows} == dict.fromkeys(names, 3)

        await eventually(all_seen)
        *_, result = await ran(capsys, "copy", cluster.log, copied, "--from-kv", cluster.root)
        assert (result["events"], result["cursors"]) == (12, 1)
    for place in ((cluster.root,), (cluster.log, "--set", f"kv={cluster.root}"), (copied,)):
        assert {row["vchannel"]: row["messages"] for row in await ran(capsys, "ls", *place)} == dict.fromkeys(names, 3), place
        assert [row["payload"] for row in await ran(capsys, "tail", place[0], *names, *place[1:], "-n", "3")] == ["9", "10", "11"]
        assert [row["payload"] for row in await ran(capsys, "peek", place[0], "slow", *place[1:])] == ["4", "8"]
        assert sum(frame["events"] for frame in await ran(capsys, "dump", *place, "--frames")) == 12
        assert {row["row"] for row in await ran(capsys, "top", *place, "-n", "1")} == {"log", "pchannel", "cursor", "latency"}
        settings = {row["setting"]: row["source"] for row in await ran(capsys, "settings", *place)}
        assert settings["pchannels"] == "log"
        assert all(row["ok"] for row in await ran(capsys, "health", *place))
    async with open_wal(copied) as log:
        assert (await log.raw_append(Message("v1", b"again"), idempotency_key="key-5")).duplicate


async def test_following_copy_of_a_cluster_outlives_a_kill(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start(coordinators=1, nodes=2)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    seen: list[int] = []
    following = asyncio.ensure_future(
        copy(cluster.root, str(tmp_path / "copied"), follow=True, progress=lambda row: seen.append(row.events))
    )
    async with open_wal(cluster.root) as log:
        await log.append_bulk(Message("v0", b"%d" % number) for number in range(50))
        await eventually(lambda: seen and seen[-1] == 50)  # though the other pchannels are idle
        await asyncio.to_thread(cluster.nodes[0].kill)
        for number in range(50, 60):  # with keys: an append that the kill meets may be in the log, and is repeated
            await log.append("v0", b"%d" % number, idempotency_key=str(number))
        assert not following.done()
    for member in reversed(cluster.members):
        await asyncio.to_thread(member.terminate)
    result = await asyncio.wait_for(following, WAIT_TIMEOUT_S)
    assert result is not None
    async with open_wal(tmp_path / "copied", read_only=True) as log, log.read("v0", follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"%d" % number for number in range(60)]
