"""The commands on a served log: commands that read work, and commands that need files print so in one sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

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
