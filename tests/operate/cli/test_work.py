"""`wal work`: handlers from the current directory, one and several processes, signals, exit statuses, and probes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.processes import ROOT, WAIT_TIMEOUT_S, Child, eventually
from tests.serve.servers import serving
from wal import Log, Message, bridge, open_wal
from wal.operate.cli.main import main

TASKS = """
import asyncio, os

import msgspec


class Job(msgspec.Struct):
    number: int


async def handle(delivery):
    delivery.append("done", b"%d:" % os.getpid() + delivery.value)


async def slow(delivery):
    delivery.append("done", b"begun")
    print("begun", flush=True)
    while not os.path.exists("may-end"):
        await asyncio.sleep(0.01)


async def typed(delivery):
    delivery.append("done", str(delivery.value.number + 1).encode())


async def fails(delivery):
    raise ValueError("no such job")


async def dies(delivery):
    if delivery.value == b"poison":
        os._exit(9)
    delivery.append("done", delivery.value)
"""


def work(folder: Path, *arguments: str) -> Child:
    """Starts `wal work` in a folder with the module tasks."""
    (folder / "tasks.py").write_text(TASKS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Child("-m", "wal", "work", *arguments, environment=environment, cwd=folder, with_errors=True)


async def ended(process: Child, number: signal.Signals) -> tuple[int, str]:
    """Returns the status and the further lines of a process, after this signal."""
    process.send_signal(number)
    lines = [line async for line in process.lines()]
    return await process.wait(), "\n".join(lines)


def written(directory: Path, *payloads: bytes) -> None:
    with bridge.blocking(directory) as log:
        log.append_bulk([Message("jobs", payload) for payload in payloads])


def done(location: str | Path) -> list[bytes]:
    with bridge.blocking(location, read_only=True) as log, log.read("done", follow=False) as scanner:
        return [body.payload for message in scanner for body in message.bodies()]


async def written_by_worker(data: Path, count: int) -> None:
    """Returns when the outputs of a worker, which creates the log, are at least this many."""
    async with open_wal(data, read_only=True, wait_s=60) as log:
        await read(log, count)


async def read(log: Log, count: int) -> None:
    """Returns when the log has at least this many outputs."""
    async with log.read("done") as scanner:
        async for _ in scanner.bodies():
            count -= 1
            if not count:
                return


async def test_worker_handles_until_a_signal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await asyncio.to_thread(written, data, b"1", b"2", b"3")
    async with work(tmp_path, "data", "tasks:handle", "--cursor", "worker", "--vchannels", "jobs") as process:
        await written_by_worker(data, 3)
        status, lines = await ended(process, signal.SIGTERM)
    assert status == 0, lines
    assert "handling jobs with cursor 'worker': tasks:handle" in lines
    assert "ended: 3 messages handled, 0 failed attempts, 0 dead letters" in lines
    assert {payload.split(b":")[1] for payload in await asyncio.to_thread(done, data)} == {b"1", b"2", b"3"}


async def test_running_handlers_finish_after_a_signal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await asyncio.to_thread(written, data, b"1", b"2")
    async with work(tmp_path, "data", "tasks:slow", "--cursor", "worker", "--vchannels", "jobs", "--concurrency", "2") as process:
        for _ in range(2):
            await process.find("begun")
        process.send_signal(signal.SIGINT)
        await process.find("draining for at most 30 s: 2 messages are with handlers")
        (tmp_path / "may-end").touch()
        lines = [line async for line in process.lines()]
        assert await process.wait() == 0, lines
    assert await asyncio.to_thread(done, data) == [b"begun", b"begun"]


async def test_second_signal_releases_messages(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await asyncio.to_thread(written, data, b"1")
    async with work(tmp_path, "data", "tasks:slow", "--cursor", "worker", "--vchannels", "jobs") as process:
        await process.find("begun")
        process.send_signal(signal.SIGTERM)
        await process.find("draining")
        status, lines = await ended(process, signal.SIGTERM)
    assert status == 0, lines
    assert "what handlers have is released" in lines
    assert await asyncio.to_thread(done, data) == []


def test_statuses_of_wrong_uses_and_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    written(data, b"1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "their_tasks.py").write_text(TASKS)
    (tmp_path / "broken.py").write_text("1 / 0")
    common = ("--cursor", "worker", "--vchannels", "jobs")
    for arguments, expected, text in (
        (("data", "their_tasks", *common), 2, "names no function: write package.module:function"),
        (("data", "missing.module:handle", *common), 2, "module 'missing.module' is missing in "),
        (("data", "their_tasks:missing", *common), 2, "module 'their_tasks' has no 'missing'"),
        (("data", "broken:handle", *common), 2, "broken cannot be imported: ZeroDivisionError: division by zero"),
        (("data", "their_tasks:handle", *common, "--processes", "2"), 2, "add --shared"),
        (("data", "their_tasks:handle", *common, "--processes", "2", "--shared"), 2, "wal standalone"),
        (("data", "their_tasks:handle", *common, "--health", "here"), 2, "write HOST:PORT"),
        (("data", "their_tasks:handle", *common, "--lease", "5s"), 2, "shared=True"),
        (("nothing", "their_tasks:handle", *common), 4, "holds no journal"),
        (("data", "their_tasks:fails", *common, "--attempts", "1"), 1, "ValueError: no such job"),
    ):
        assert main(["work", *arguments]) == expected, arguments
        assert text in capsys.readouterr().err + caplog.text, arguments
    with bridge.blocking(data):
        assert main(["work", "data", "their_tasks:handle", *common]) == 3
        assert f"open for writing in this process ({os.getpid()})" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["work", "data", "their_tasks:handle"])
    assert caught.value.code == 2
    sys.modules.pop("their_tasks")


async def test_values_and_dead_letters(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await asyncio.to_thread(written, data, b'{"number": 1}', b"wrong", b'{"number": 3}')
    flags = ("--cursor", "worker", "--vchannels", "jobs,others", "--type", "tasks:Job", "--dead-letter", "failed")
    care = ("--shared", "--on-failure", "park", "--trip-after", "2", "--lease", "5s")
    async with work(tmp_path, "data", "tasks:typed", *flags, *care) as process:
        await written_by_worker(data, 2)
        status, lines = await ended(process, signal.SIGTERM)
    assert status == 0, lines
    assert await asyncio.to_thread(done, data) == [b"2", b"4"]
    assert "1 dead letters" in lines


def asked(address: str) -> tuple[int, dict[str, object]]:
    """Returns the status and the answer of a probe."""
    try:
        with urllib.request.urlopen(address, timeout=WAIT_TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


async def test_processes_share_the_cursor_and_are_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.node.shared_members.GRACE_S", 0.1)
    async with serving(tmp_path / "data") as server:
        place = f"wal://{server.address}"
        async with open_wal(place) as log:
            await log.append_bulk([Message("jobs", b"%d" % number) for number in range(50)])
            flags = ("--cursor", "worker", "--vchannels", "jobs", "--shared", "--processes", "2", "--health", "127.0.0.1:0")
            async with work(tmp_path, place, "tasks:dies", *flags, "--dead-letter", "failed", "--attempts", "1") as process:
                address = (await process.find(r"answered at (http://\S+)"))[1]

                async def is_ready() -> bool:
                    return await asyncio.to_thread(asked, f"{address}/readyz") == (200, {"workers": 2, "ready": 2})

                await eventually(is_ready)
                await read(log, 50)
                assert (await asyncio.to_thread(asked, f"{address}/healthz"))[0] == 200
                assert (await asyncio.to_thread(asked, f"{address}/other"))[0] == 404
                await log.append_bulk([Message("jobs", b"poison"), *(Message("jobs", b"%d" % number) for number in range(50, 60))])
                await read(log, 60)
                async with log.read("failed") as scanner:
                    assert (await anext(scanner)).bodies()[0].payload == b"poison"
                status, lines = await ended(process, signal.SIGTERM)
            assert status == 0, lines
            assert "has ended with status 9, and is started again" in lines
            async with log.read("done", follow=False) as scanner:
                assert sorted([int(body.payload) async for _, body in scanner.bodies()]) == list(range(60))


async def test_worker_of_several_ends_with_its_parent(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server:
        place = f"wal://{server.address}"
        flags = ("--cursor", "worker", "--vchannels", "jobs", "--shared", "--processes", "2")
        async with work(tmp_path, place, "tasks:handle", *flags) as process:
            pids = [int((await process.find(r"\[(\d+)\]: handling jobs"))[1]) for _ in range(2)]
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_wait_for_a_lock(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    flags = ("--cursor", "worker", "--vchannels", "jobs", "--wait", "600s")
    async with open_wal(data), work(tmp_path, "data", "tasks:handle", *flags) as process:
        await process.find("waiting for the lock")
        status, _ = await ended(process, number)
    assert status == 0
