"""`wal create`, `drop`, `redrive` and `scheduled`, and delayed appends: on a directory, beside a writer, and on a server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.operate.cli.test_change import TOKEN, give, payloads, rows, written
from tests.serve.servers import child
from wal import Delivery, Message, Reject, WALAccesser, bridge, open_wal
from wal.operate.cli.main import main
from wal.operate.inspect.builders import scheduled_rows

Run = Callable[..., Awaitable[list[dict[str, Any]]]]


async def reject(delivery: Delivery) -> None:
    raise Reject("no such order")


async def with_dead_letters(log: WALAccesser) -> None:
    """Appends two messages, which become dead letters of the cursor worker."""
    await log.append_bulk([Message("jobs", b"1"), Message("jobs", b"2")])
    async with log.consume("jobs", reject, cursor="worker", dead_letter="dead") as consumer:
        await consumer.caught_up()


async def redriven(log: WALAccesser) -> list[bytes]:
    async with log.read("jobs", follow=False) as scanner:
        return [body.payload async for _, body in scanner.bodies() if "redrive_cursor" in body.properties]


async def changes(log: WALAccesser, location: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Runs each command on a log that is open as `log`, so that its writer or its server carries out the changes."""
    (created,) = await run("create", location, "bills")
    assert (created["vchannel"], created["pchannel"], created["change"]) == ("bills", "p0", "created")
    assert "bills" in {info.name for info in await log.vchannels()}
    await run("create", location, "bills", status=4)
    await run("drop", location, "bills", "missing", "--yes", status=2)
    assert [row["vchannel"] for row in await run("drop", location, "bills", "--dry-run", status=1)] == ["bills"]
    assert "bills" in {info.name for info in await log.vchannels()}
    assert [row["change"] for row in await run("drop", location, "bills", "--yes")] == ["dropped"]
    assert "bills" not in {info.name for info in await log.vchannels()}

    give(monkeypatch, b"a\nb\n")
    flags = ("--create", "--lines", "--key", "remind", "--deliver-at", "2100-01-01T00:00:00")
    appended, *waiting = await run("append", location, "mails", *flags)
    assert (appended["messages"], appended["duplicates"], appended["first_id"]) == (2, 0, None)
    assert [(row["row"], row["key"]) for row in waiting] == [("scheduled", "remind:1"), ("scheduled", "remind:2")]
    give(monkeypatch, b"a\nb\n")
    assert (await run("append", location, "mails", *flags))[0]["duplicates"] == 2
    give(monkeypatch, b"now")
    (at_once,) = await run("append", location, "mails", "--deliver-at", "2020-01-01")
    assert at_once["first_id"] == at_once["last_id"] == str(await log.last("mails"))
    give(monkeypatch, b"soon")
    before = datetime.now(UTC)
    _, soon = await run("append", location, "others", "--deliver-at", "+1h")
    assert timedelta(minutes=59) < datetime.fromisoformat(soon["deliver_at"]) - before < timedelta(minutes=61)

    assert [row["key"] for row in await run("scheduled", location)] == [soon["key"], "remind:1", "remind:2"]
    assert [row["bytes"] for row in await run("scheduled", location, "mails")] == [1, 1]
    assert [row["key"] for row in await run("scheduled", location, "--cancel", "remind:1", "--dry-run", status=1)] == ["remind:1"]
    await run("scheduled", location, "others", "--cancel", "remind:1", "--yes", status=2)
    assert [row["key"] for row in await run("scheduled", location, "--cancel", "remind:1", "--yes")] == ["remind:1"]
    await run("scheduled", location, "--cancel", "remind:1", "--yes", status=2)
    assert [message.key for message in await log.scheduled("mails")] == ["remind:2"]

    await run("redrive", location, "missing", "--yes", status=2)
    await with_dead_letters(log)
    assert [row["messages"] for row in await run("redrive", location, "dead", "--dry-run", status=1)] == [2]
    assert await redriven(log) == []
    assert [row["messages"] for row in await run("redrive", location, "dead", "--yes")] == [2]
    assert await redriven(log) == [b"1", b"2"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    async def run(*arguments: str, status: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        actual = await asyncio.to_thread(main, [*arguments, "--json"])
        output = capsys.readouterr()
        assert actual == status, (arguments, output)
        return [json.loads(line) for line in output.out.splitlines()]

    return run


async def test_writer_carries_out_the_changes(data_dir: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("WAL_TOKEN", TOKEN)
    async with open_wal(data_dir) as log:
        give(monkeypatch, b"x")
        for arguments in (("create", "bills"), ("scheduled",), ("append", "mails", "--deliver-at", "+1h")):
            name, *rest = arguments
            await run(name, str(data_dir), *rest, status=3)
        async with log.serve_status(token=TOKEN):
            await changes(log, str(data_dir), monkeypatch, run)


async def test_redrive_and_schedule_come_in_steps(data_dir: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """No call of the status service takes longer than its deadline, however many letters there are, and each page costs its rows alone."""
    monkeypatch.setenv("WAL_TOKEN", TOKEN)
    monkeypatch.setattr("wal.operate.cli.queues._STEP_S", 0.001)
    monkeypatch.setattr("wal.operate.cli.queues._PAGE", 2)
    builds: list[int] = []

    async def counted(log: Any) -> list[Any]:
        builds.append(1)
        return await scheduled_rows(log)

    monkeypatch.setattr("wal.operate.status.app.scheduled_rows", counted)
    async with open_wal(data_dir) as log:
        await log.append_bulk([Message("jobs", b"%d" % number) for number in range(2_000)])
        async with log.consume("jobs", reject, cursor="worker", dead_letter="dead", trip_after=0) as consumer:
            await consumer.caught_up()
        for number in range(5):
            await log.append("mails", b"", deliver_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key=f"{number}")
        async with log.serve_status(token=TOKEN):
            assert [row["messages"] for row in await run("redrive", str(data_dir), "dead", "--yes")] == [2_000]
            assert sorted(map(int, await redriven(log))) == list(range(2_000))
            assert [row["key"] for row in await run("scheduled", str(data_dir))] == ["0", "1", "2", "3", "4"]
            assert len(builds) == 1


async def test_server_carries_out_the_changes(data_dir: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    async with child(data_dir) as server:
        location = f"wal://{server.address}"
        async with open_wal(location) as log:
            await changes(log, location, monkeypatch, run)


def test_directory_without_a_writer(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    location = str(data_dir)
    give(monkeypatch, b"x")
    assert main(["append", location, "mails", "--create", "--key", "later", "--deliver-at", "2100-01-01"]) == 0
    assert payloads(data_dir, "mails") == []
    with bridge.blocking(data_dir) as log:
        log.scheduled("mails").cancel("later")
        log.append("mails", b"y", deliver_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key="again")
        log._thread.call(with_dead_letters, log._async)
    capsys.readouterr()
    assert main(["scheduled", location, "--json"]) == 0
    assert [row["key"] for row in rows(capsys)] == ["again"]
    assert main(["scheduled", location, "--cancel", "again"]) == 2, "it has no terminal for the answer"
    assert "confirm with --yes" in capsys.readouterr().err
    assert main(["scheduled", location, "--cancel", "again", "--yes"]) == 0
    assert main(["create", location, "bills", "--set", "create_vchannels=false"]) == 0
    assert main(["redrive", location, "dead", "--yes"]) == 0
    assert main(["redrive", location, "dead", "--yes"]) == 0, "each letter is appended once"
    with bridge.blocking(data_dir, read_only=True) as log, log.read("jobs", follow=False) as messages:
        assert [body.payload for message in messages for body in message.bodies()] == [b"1", b"2", b"1", b"2"]
    assert main(["drop", location, "bills", "jobs", "--yes"]) == 0
    with bridge.blocking(data_dir) as log:
        assert {info.name for info in log.vchannels()} == {"mails", "dead"}
        assert list(log.scheduled("mails")) == []


def test_append_creates_a_forbidden_vchannel_by_order(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(data_dir, 1)
    arguments = ["append", str(data_dir), "bills", "--set", "create_vchannels=false"]
    give(monkeypatch, b"x")
    assert main(arguments) == 4
    for _ in range(2):
        give(monkeypatch, b"x")
        assert main([*arguments, "--create"]) == 0
    assert payloads(data_dir, "bills") == [b"x", b"x"]


@pytest.mark.parametrize("text", ["10m", "+", "+soon", "tomorrow", "+1e30s", "5000-01-01"])
def test_wrong_time_of_delivery_is_refused(
    text: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(data_dir, 1)
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["append", str(data_dir), "orders", f"--deliver-at={text}"]) == 2
    assert "deliver" in capsys.readouterr().err
