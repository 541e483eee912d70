"""Every command of `wal` on a cluster, by its root in etcd and by a coordinator: its effect, or one sentence with the remedy."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import pytest

from tests.operate.cli.test_states import COMMANDS, quiet
from tests.operate.cluster.processes import Cluster
from wal import BroadcastMessage, Message, open_wal
from wal.operate.cli.main import main


async def test_every_command_on_a_cluster(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        "info --json": ["info", "LOG", "--json"],
        "cat to a file": ["cat", "LOG", "v0", "--to-jsonl", "PLACE.jsonl"],
        "cat a family": ["cat", "LOG", "v*", "--match"],
        "tail a family": ["tail", "LOG", "v*", "--match", "-n", "3"],
        "cursor reset": ["cursor", "reset", "LOG", "billing", "--yes"],
        "broadcast abort": ["broadcast", "abort", "LOG", "BROADCAST", "--reason", "a test", "--dry-run"],
    }
    # The commands on a backup need no log, and the last one runs until it is stopped.
    left_out = ("backup status", "backup verify", "backup forget", "restore", "broadcast", "serve")
    would_change = dict.fromkeys(("cursor rm", "truncate", "broadcast abort", "drop", "redrive"), 1)
    of_journals = dict.fromkeys(("verify", "repair", "backup", "mark-restored"), 2)
    # A copy by a coordinator is a client's: it fails while a broadcast is unfinished.
    STATUSES: dict[str, dict[str, int]] = {"root": {}, "coordinator": {"copy": 3, "create": 4}}

    def run_quietly(arguments: list[str]) -> int:
        with quiet():
            return main(arguments)

    await cluster.start(coordinators=1, nodes=2)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    async with open_wal(cluster.root) as log:
        await log.append_bulk(Message("v0", b"%d" % number) for number in range(20))
        await log.append("v1", b"1")
        async with log.read("v0", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        sent = await log.broadcast().append(BroadcastMessage(vchannels=["v0", "v1"], payload=b"both"))
    for kind, log_at in {"root": cluster.root, "coordinator": f"wal://{cluster.coordinators[0].address}"}.items():
        place, statuses = tmp_path / kind, would_change | of_journals | STATUSES[kind]
        for name, words in (COMMANDS | others).items():
            if name in left_out:
                continue
            arguments = [
                word.replace("LOG", log_at).replace("PLACE", str(place)).replace("BROADCAST", str(sent.broadcast_id)) for word in words
            ]
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
            status = await asyncio.to_thread(run_quietly, arguments)
            output = capsys.readouterr()
            assert status == statuses.get(name, 0), (arguments, output)
            assert "Traceback" not in output.err
            if status > 1:
                assert output.err.count("\n") == 1, (arguments, output.err)
                assert output.err.startswith("wal: "), arguments
            elif name not in ("cat to a file", "append"):
                assert output.out, arguments
        assert len((tmp_path / f"{kind}.jsonl").read_text().splitlines()) == 21 + (2 if kind == "root" else 4)
    async with open_wal(tmp_path / "root" / "copied", read_only=True) as log, log.read("v0", follow=False) as scanner:
        payloads = [message.payload async for message in scanner]
    assert payloads == [b"%d" % number for number in range(20)] + [b"both", b"one", b"two"]
    # The same log, by its own location.
    arguments = ["copy", cluster.log, str(tmp_path / "again"), "--from-kv", cluster.root]
    assert await asyncio.to_thread(run_quietly, arguments) == 0, capsys.readouterr()
    async with open_wal(tmp_path / "again", read_only=True) as log, log.read("v0", follow=False) as scanner:
        assert [message.payload async for message in scanner][:23] == payloads
