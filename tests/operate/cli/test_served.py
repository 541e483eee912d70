"""The commands on a served log: commands that read work, and commands that need files print so in one sentence."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.servers import child
from wal import Message, open_wal
from wal.operate.cli.main import main


async def test_served_log_is_looked_at(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def ran(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[dict[str, Any]]:
        """Runs a command; returns its rows."""
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*arguments, "--json"]) == status, arguments
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    async with child(data_dir, "--pchannels", "2") as server:
        place = f"wal://{server.address}"
        async with open_wal(place) as log:
            names = [(await log.create_vchannel(f"v{number}")).name for number in range(4)]
            for number in range(12):
                await log.raw_append(Message(names[number % 4], b"%d" % number))
            async with log.read("v0", cursor="slow", follow=False) as scanner:
                await anext(scanner)
                await scanner.save()
        assert {row["vchannel"]: row["messages"] for row in await ran(capsys, "ls", place)} == dict.fromkeys(names, 3)
        assert [row["payload"] for row in await ran(capsys, "tail", place, *names, "-n", "3")] == ["9", "10", "11"]
        assert [row["payload"] for row in await ran(capsys, "tail", place, "v*", "--match", "-n", "3")] == ["9", "10", "11"]
        assert [row["payload"] for row in await ran(capsys, "tail", place, "v*", "--match", "--grep", "^1", "-n", "2")] == ["10", "11"]
        assert [row["payload"] for row in await ran(capsys, "cat", place, "v*", "--match")] == [str(number) for number in range(12)]
        assert [row["payload"] for row in await ran(capsys, "peek", place, "slow", "-n", "1")] == ["4"]
        frames = await ran(capsys, "dump", place, "--frames")
        assert sum(frame["events"] for frame in frames) == 12
        assert {frame["pchannel"] for frame in frames} == {"p0", "p1"}
        top = await ran(capsys, "top", place, "-n", "1")
        assert [row["row"] for row in top] == ["log", "pchannel", "pchannel", "cursor", "latency", "latency"]
        settings = {row["setting"]: (row["value"], row["source"]) for row in await ran(capsys, "settings", place)}
        assert settings["pchannels"] == ("2", "log")
        health = await ran(capsys, "health", place)
        assert all(row["ok"] for row in health)
        _, *pchannels = await ran(capsys, "info", place)
        ends = {row["pchannel"]: row["end"] for row in pchannels}
        for name, end in ends.items():
            assert int(end) > max(int(frame["position"]) for frame in frames if frame["pchannel"] == name)
            assert f"readable up to {end} in term 1" in {row["detail"] for row in health if row["check"] == f"pchannel {name}"}
        assert all(row["promised"] is not None for row in pchannels)
        assert (await ran(capsys, "cursor", "rm", place, "slow", "--yes"))[0]["to"] is None
        last = (await ran(capsys, "tail", place, "v1", "-n", "1"))[0]["message_id"]
        assert (await ran(capsys, "truncate", place, "--up-to", last, "--yes"))[0]["up_to"] == last
        assert await ran(capsys, "verify", place, status=2) == []
        assert await asyncio.to_thread(main, ["verify", place]) == 2
        assert "is not a directory" in capsys.readouterr().err
        *_, copied = await ran(capsys, "copy", place, str(tmp_path / "copied"))
        assert (copied["row"], copied["pchannels"]) == ("copied", 2)


async def test_members_of_a_served_log_are_shown(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command and the status page of another client show a shared cursor, whose only member is in this process."""
    async with child(data_dir) as server, open_wal(f"wal://{server.address}") as log, open_wal(f"wal://{server.address}") as other:
        place, process = f"wal://{server.address}", f"{os.uname().nodename}:{os.getpid()}"
        await log.append("jobs", b"1")
        async with log.consume("jobs", lambda _: None, cursor="workers", shared=True) as consumer:
            await consumer.caught_up()
            capsys.readouterr()
            assert await asyncio.to_thread(main, ["consumers", place, "--json"]) == 0
            (row,) = map(json.loads, capsys.readouterr().out.splitlines())
            assert (row["row"], row["cursor"], row["state"], row["handled"]) == ("consumer", "workers", "running", 1)
            (member,) = row["members"]
            assert (member["row"], member["cursor"], member["process"], member["handled"]) == ("member", "workers", process, 1)
            assert 0 < member["lease_s"] <= 10
            assert await asyncio.to_thread(main, ["consumers", place]) == 0
            table = capsys.readouterr().out
            assert "MEMBERS" in table
            assert process in table
            assert await asyncio.to_thread(main, ["health", place]) == 0
            async with other.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
                rows = (await client.get("/api/consumers")).json()["rows"]
            assert [(each["cursor"], [one["process"] for one in each["members"]]) for each in rows] == [("workers", [process])]
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["consumers", place, "--json"]) == 0
        assert capsys.readouterr().out == ""
