"""The commands that change a log: beside a writer, after a kill, and with arguments that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import eventually
from wal import All, BroadcastMessage, Delivery, Message, WALAccesser, bridge, open_wal
from wal.errors import NotLocalError
from wal.operate.cli.main import main
from wal.operate.status import StatusServer
from wal.runtime.loop_thread import LoopThread


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def give(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text))))


def payloads(directory: Path, vchannel: str) -> list[bytes]:
    with bridge.blocking(directory, read_only=True) as log, log.read(vchannel, follow=False) as messages:
        return [message.payload for message in messages]


async def until_shown(directory: Path, *vchannels: str) -> None:
    """Returns when other processes see these vchannels: the map that they read may lag behind an append."""
    async with open_wal(directory, read_only=True) as beside:

        async def are_shown() -> bool:
            return {*vchannels} <= {info.name for info in await beside.vchannels()}

        await eventually(are_shown)


def written(directory: Path, count: int = 5) -> list[str]:
    """Creates a log with messages o0, o1, … on the vchannel orders; returns their ids."""
    with bridge.blocking(directory) as log:
        return [str(log.raw_append(Message("orders", b"o%d" % number)).message_id) for number in range(count)]


def peeked(directory: Path, cursor: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["peek", str(directory), cursor, "--format", "%p"]) == 0
    return capsys.readouterr().out.split()


def test_append_takes_the_input_or_lines(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written(data_dir, 1)
    give(monkeypatch, b"one\ntwo\n")
    assert main(["append", str(data_dir), "orders", "-p", "a=b=c", "--json"]) == 0
    (row,) = rows(capsys)
    assert (row["row"], row["messages"], row["bytes"], row["duplicates"]) == ("appended", 1, 8, 0)
    assert row["first_id"] == row["last_id"]
    give(monkeypatch, b"x\r\n\n" + b"y" * 100_000)
    assert main(["append", str(data_dir), "orders", "--lines"]) == 0
    assert payloads(data_dir, "orders") == [b"o0", b"one\ntwo\n", b"x", b"", b"y" * 100_000]
    with bridge.blocking(data_dir, read_only=True) as log, log.read("orders", follow=False) as messages:
        assert dict(list(messages)[1].properties)["a"] == "b=c"


def test_append_with_key_repeats_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written(data_dir, 1)
    for text, duplicates in ((b"a\nb\n", 0), (b"a\nb\nc\n", 2)):
        give(monkeypatch, text)
        assert main(["append", str(data_dir), "orders", "--lines", "--key", "import", "--json"]) == 0
        (row,) = rows(capsys)
        assert row["duplicates"] == duplicates
    assert payloads(data_dir, "orders") == [b"o0", b"a", b"b", b"c"]


def test_cursor_moves_beside_the_writer(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with bridge.blocking(data_dir) as log:
        results = [log.raw_append(Message("orders", b"o%d" % number)) for number in range(5)]
        asyncio.run(until_shown(data_dir, "orders"))
        assert main(["cursor", "set", place, "billing", "--to", "earliest", "--yes"]) == 2, "it has no vchannels yet"
        assert main(["cursor", "set", place, "billing", "--to", "earliest", "--vchannel", "orders"]) == 2, "without a terminal"
        assert main(["cursor", "set", place, "billing", "--to", "earliest", "--vchannel", "orders", "--dry-run"]) == 1
        assert log.cursors() == []
        assert main(["cursor", "set", place, "billing", "--to", "earliest", "--vchannel", "orders", "--yes"]) == 0
        assert peeked(data_dir, "billing", capsys) == ["o0", "o1", "o2", "o3", "o4"]
        for to, left in (
            (str(results[2].message_id), ["o2", "o3", "o4"]),
            (str(results[3].time_tick), ["o3", "o4"]),
            ("latest", []),
            ("1h", ["o0", "o1", "o2", "o3", "o4"]),
            ("2100-01-01", []),
        ):
            assert main(["cursor", "set", place, "billing", "--to", to, "--yes"]) == 0, to
            assert peeked(data_dir, "billing", capsys) == left, to
        assert main(["cursor", "reset", place, "billing", "--yes"]) == 0
        assert peeked(data_dir, "billing", capsys)[0] == "o0"
        with log.read("orders", cursor="billing", follow=False) as messages:
            assert next(iter(messages)).payload == b"o0"
        assert main(["cursor", "rm", place, "billing", "--dry-run"]) == 1
        assert main(["cursor", "rm", place, "billing", "--yes"]) == 0
        assert log.cursors() == []
        assert main(["cursor", "rm", place, "billing", "--yes"]) == 2


@pytest.mark.parametrize("by", ["id", "tick"])
def test_truncate_drops_the_oldest(by: str, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = written(data_dir)
    assert main(["cat", str(data_dir), "orders", "--json"]) == 0
    ticks = [row["time_tick"] for row in rows(capsys)]  # commands accept what they print
    points = ids if by == "id" else ticks
    assert main(["truncate", str(data_dir), "--up-to", points[1], "--dry-run", "--json"]) == 1
    (row,) = rows(capsys)
    assert (row["row"], row["pchannel"], row["up_to"]) == ("truncation", "p0", ids[1])
    assert len(payloads(data_dir, "orders")) == 5
    assert main(["truncate", str(data_dir), "--up-to", points[1], "--yes"]) == 0
    assert payloads(data_dir, "orders") == [b"o2", b"o3", b"o4"]
    assert main(["truncate", str(data_dir), "--up-to", points[1], "--dry-run"]) == 0
    assert main(["cursor", "set", str(data_dir), "billing", "--to", points[3], "--vchannel", "orders", "--yes"]) == 0
    capsys.readouterr()
    assert main(["truncate", str(data_dir), "--up-to", points[4], "--yes"]) == 1
    assert "billing" in capsys.readouterr().err
    assert payloads(data_dir, "orders") == [b"o2", b"o3", b"o4"]


def test_abort_ends_a_broadcast(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("orders", b"x"))
        log.broadcast().append(BroadcastMessage(vchannels=["orders", "stock"], payload=b"all"))
    assert main(["broadcasts", str(data_dir), "--json"]) == 0
    (broadcast,) = rows(capsys)
    abort = ["broadcast", "abort", str(data_dir), broadcast["broadcast_id"], "--reason", "stuck"]
    assert main([*abort, "--dry-run", "--json"]) == 1
    assert rows(capsys)[0]["broadcast_id"] == broadcast["broadcast_id"]
    assert main([*abort, "--yes"]) == 0
    capsys.readouterr()
    assert main(["broadcasts", str(data_dir), "--json"]) == 0
    assert rows(capsys) == []
    assert b"stuck" in payloads(data_dir, "orders")
    assert main([*abort, "--yes"]) == 2


def test_open_log_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (first, *_) = written(data_dir)
    with bridge.blocking(data_dir):
        give(monkeypatch, b"x")
        for arguments in (
            ["append", str(data_dir), "orders"],
            ["truncate", str(data_dir), "--up-to", first, "--yes"],
            ["broadcast", "abort", str(data_dir), "1", "--reason", "stuck"],
        ):
            assert main(arguments) == 3
            assert "is open for writing in process" in capsys.readouterr().err
    assert len(payloads(data_dir, "orders")) == 5


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("append", "{empty}", "orders"), 4, "FormatError"),
        (("append", "{empty}", "orders", "-p", "name"), 2, "gives no value"),
        (("cursor", "rm", "{empty}", "billing", "--yes"), 4, "FormatError"),
        (("cursor", "set", "{empty}", "billing", "--to", "soon"), 2, "names no point of a log"),
        (("truncate", "{empty}", "--up-to", "earliest"), 2, "names no point of a log"),
        (("truncate", "{empty}", "--up-to", "1", "--yes"), 4, "FormatError"),
        (("broadcast", "abort", "{empty}", "1", "--reason", "stuck"), 4, "FormatError"),
        (("truncate", "wal://127.0.0.1:1", "--up-to", "1", "--yes"), 3, "UnavailableError"),
    ],
)
def test_wrong_argument_changes_nothing(
    arguments: tuple[str, ...], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    give(monkeypatch, b"x")
    assert main([argument.format(empty=empty) for argument in arguments]) == status
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert words in output.err
    assert list(empty.iterdir()) == []


def test_append_needs_a_standard_input(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written(data_dir, 1)
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["append", str(data_dir), "orders"]) == 2
    assert "the standard input is closed" in capsys.readouterr().err
    assert payloads(data_dir, "orders") == [b"o0"]


TOKEN = "a-token-of-sixteen"


def test_changes_go_through_the_status_service(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    with open_in_thread(data_dir) as log:
        first = log.call(lambda wal: wal.raw_append(Message("orders", b"o0"))).message_id
        broadcast = log.call(lambda wal: wal.broadcast().append(BroadcastMessage(vchannels=["orders", "stock"], payload=b"all")))
        asyncio.run(until_shown(data_dir, "orders", "stock"))
        give(monkeypatch, b"refused\n")
        assert main(["append", place, "orders"]) == 3
        assert f"process {os.getpid()}" in capsys.readouterr().err
        log.serve(TOKEN)
        assert main(["info", place, "--json"]) == 0
        assert rows(capsys)[0]["status_address"] == log.address
        assert main(["append", place, "orders"]) == 2
        assert "WAL_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("WAL_TOKEN", TOKEN)
        assert main(["top", place, "-n", "1", "--json"]) == 0
        latency = rows(capsys)[-1]
        assert latency["row"] == "latency"
        assert latency["frames"]
        assert latency["append_p50_s"] <= latency["append_p99_s"]
        assert main(["settings", place, "--json"]) == 0
        assert {row["setting"]: row["source"] for row in rows(capsys)}["txn_bodies_max"] == "default"
        for duplicates in (0, 2):
            give(monkeypatch, b"x\n\xff\n")
            assert main(["append", place, "orders", "--lines", "--key", "import", "-p", "a=b", "--json"]) == 0
            (row,) = rows(capsys)
            assert (row["messages"], row["duplicates"]) == (2, duplicates)
        assert main(["truncate", place, "--up-to", str(first), "--yes", "--json"]) == 0
        assert rows(capsys)[0]["up_to"] == str(first)
        assert main(["truncate", place, "--up-to", "0s", "--yes", "--json"]) == 1, "the broadcast needs its copy"
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "broadcast" in captured.err
        assert main(["broadcast", "abort", place, str(broadcast.broadcast_id), "--reason", "stuck", "--yes"]) == 0
        assert log.call(lambda wal: wal.broadcast().tasks()) == []
    assert payloads(data_dir, "orders")[-3:-1] == [b"x", b"\xff"]


class OpenInThread:
    """A log that a thread of this process has open, with its status service after a call of `serve`."""

    def __init__(self, directory: Path) -> None:
        self.thread = LoopThread()
        self.address = ""
        self._log = self.thread.call(self._open, directory)
        self._page: StatusServer | None = None

    async def _open(self, directory: Path) -> WALAccesser:
        return await open_wal(directory)

    def call(self, call: Callable[[WALAccesser], Awaitable[Any]]) -> Any:
        return self.thread.call(call, self._log)

    def serve(self, token: str) -> None:
        async def serve(log: WALAccesser) -> StatusServer:
            return await log.serve_status(token=token)

        page: StatusServer = self.call(serve)
        self._page, self.address = page, page.address

    def close(self) -> None:
        if self._page is not None:
            self.thread.call(self._page.close)
        self.call(lambda log: log.close())
        self.thread.stop()


@contextlib.contextmanager
def open_in_thread(directory: Path) -> Iterator[OpenInThread]:
    log = OpenInThread(directory)
    try:
        yield log
    finally:
        log.close()


def test_cursor_of_transactions_moves_by_its_writer(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cursor of a consumer is changed through the status service of the writer, or by the command itself without a writer."""
    place, handled = str(data_dir), list[bytes]()
    monkeypatch.setenv("WAL_TOKEN", TOKEN)

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.value)

    with open_in_thread(data_dir) as log:
        results = log.call(lambda wal: wal.append_bulk([Message("jobs", b"%d" % number) for number in range(3)]))

        async def consume(wal: WALAccesser) -> None:
            async with wal.consume("jobs", handle, cursor="worker") as consumer:
                await consumer.caught_up()

        log.call(consume)
        second = str(results[1].message_id)
        with bridge.blocking(data_dir, read_only=True) as beside:
            while not beside.cursors():  # its copy in the files follows
                time.sleep(0.01)
        for arguments in (["set", place, "worker", "--to", second], ["reset", place, "worker"], ["rm", place, "worker"]):
            assert main(["cursor", *arguments, "--dry-run"]) == 1
            assert main(["cursor", *arguments, "--yes"]) == 3
            assert f"process {os.getpid()}" in capsys.readouterr().err
        log.serve(TOKEN)
        assert main(["cursor", "set", place, "worker", "--to", second, "--yes", "--json"]) == 0
        assert [row["to"] for row in rows(capsys)] == [second]
        log.call(consume)
        assert handled == [b"0", b"1", b"2", b"1", b"2"]

        async def consume_on(wal: WALAccesser) -> None:
            async with wal.consume("jobs", handle, cursor="worker") as consumer:
                await consumer.caught_up()
                assert await asyncio.to_thread(main, ["cursor", "rm", place, "worker", "--yes"]) == 2
                assert "has a consumer" in capsys.readouterr().err
                assert await asyncio.to_thread(main, ["cursor", "set", place, "worker", "--to", second, "--yes"]) == 0
                while handled[5:] != [b"1", b"2"]:
                    await asyncio.sleep(0.01)
                await consumer.caught_up()

        log.call(consume_on)
        assert main(["cursor", "rm", place, "worker", "--yes"]) == 0
        assert log.call(lambda wal: wal.cursors()) == []
        log.call(consume)
        assert handled[7:] == [b"0", b"1", b"2"]
    assert main(["cursor", "reset", place, "worker", "--to", "latest", "--yes"]) == 0
    assert peeked(data_dir, "worker", capsys) == []
    assert main(["cursor", "set", place, "worker", "--to", second, "--yes"]) == 0
    assert peeked(data_dir, "worker", capsys) == ["1", "2"]
    assert main(["cursor", "rm", place, "worker", "--yes"]) == 0
    capsys.readouterr()
    assert main(["cursors", place, "--json"]) == 0
    assert rows(capsys) == []


def test_reader_removes_no_cursor_of_transactions(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("jobs", b"0"))
        with log.consume("jobs", str, cursor="worker") as consumer:
            consumer.caught_up()
        with bridge.blocking(data_dir, read_only=True) as beside:
            while not beside.cursors():
                time.sleep(0.01)
            with pytest.raises(NotLocalError, match="moves with transactions"):
                beside.delete_cursor("worker")
            with pytest.raises(NotLocalError, match="moves with transactions"):
                beside.seek("worker", to=All(), reset=True)
        assert [cursor.name for cursor in log.cursors()] == ["worker"]


def test_consumers_are_asked_of_their_process(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(data_dir)
    assert main(["consumers", place]) == 4, "there is no log"
    with bridge.blocking(data_dir) as log:
        assert main(["consumers", place]) == 3
        assert str(os.getpid()) in capsys.readouterr().err
        log.append_bulk([Message("jobs", b"%d" % number) for number in range(3)])
        page = log._thread.call(log._async.serve_status)
        with log.consume("jobs", str, cursor="worker") as consumer:
            consumer.caught_up()
            assert main(["consumers", place, "--json"]) == 0
            assert [(row["cursor"], row["handled"], row["state"]) for row in rows(capsys)] == [("worker", 3, "running")]
        log._thread.call(page.close)
    assert main(["consumers", place, "--json"]) == 0
    assert rows(capsys) == [], "nobody has the log open, so none runs"
    assert main(["consumers", "pulsar://127.0.0.1:1/tenant/namespace"]) == 2
    assert "wal cursors" in capsys.readouterr().err


def test_truncation_past_a_cursor_truncates_the_others(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cursor holds one pchannel: the other one is truncated and printed, and the command ends with 1."""
    with bridge.blocking(data_dir, pchannels=2) as log:
        names = {info.pchannel: info.name for info in (log.create_vchannel(f"v{number}") for number in range(8))}
        for name in names.values():
            log.raw_append(Message(name, b"1"))
        with log.read(names["p0"], cursor="slow", follow=False) as messages:
            messages.save()
    assert main(["truncate", str(data_dir), "--up-to", "0s", "--yes", "--json"]) == 1
    captured = capsys.readouterr()
    assert [json.loads(line)["pchannel"] for line in captured.out.splitlines()] == ["p1"]
    assert "slow" in captured.err


def test_missing_log_is_named_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, b"text")
    assert main(["append", str(tmp_path / "none"), "orders"]) == 4
    text = capsys.readouterr().err
    assert "create=False" not in text
    assert "by opening it for writing" in text
    assert not (tmp_path / "none").exists()


async def test_pulsar_log_with_a_writer_is_refused(
    pulsar_host: str,
    pulsar_admin_host: str,
    pulsar_token: str,
    pulsar_namespace: str,
    etcd_address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    location = f"pulsar://{pulsar_host}/{pulsar_namespace}"
    settings: dict[str, Any] = {"pulsar_admin_url": f"http://{pulsar_admin_host}", "kv": f"etcd://{etcd_address}/{pulsar_namespace}"}
    if pulsar_token:
        monkeypatch.setenv("WAL_PULSAR_TOKEN", pulsar_token)
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    give(monkeypatch, b"beside it")
    async with open_wal(location, **settings, pulsar_token=pulsar_token or None) as log:
        await log.append("orders", b"1")
        assert await asyncio.to_thread(main, ["append", location, "orders", *flags]) == 3
        assert "another process writes the log" in capsys.readouterr().err
        await log.append("orders", b"2")
    give(monkeypatch, b"after it")
    assert await asyncio.to_thread(main, ["append", location, "orders", *flags]) == 0


async def test_unfinished_broadcast_on_pulsar_is_listed_from_etcd(
    pulsar_host: str,
    pulsar_admin_host: str,
    pulsar_token: str,
    pulsar_namespace: str,
    etcd_address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    location = f"pulsar://{pulsar_host}/{pulsar_namespace}"
    settings: dict[str, Any] = {"pulsar_admin_url": f"http://{pulsar_admin_host}", "kv": f"etcd://{etcd_address}/{pulsar_namespace}"}
    if pulsar_token:
        monkeypatch.setenv("WAL_PULSAR_TOKEN", pulsar_token)
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    async with open_wal(location, **settings, pulsar_token=pulsar_token or None) as log:
        await log.append("a", b"1")
        await log.append("b", b"1")
        sent = await log.broadcast().append(BroadcastMessage(vchannels=["a", "b"], payload=b"both"))
        await log.broadcast().ack(sent.broadcast_id, "a")
        for _ in range(2):  # beside its writer, and after it
            assert await asyncio.to_thread(main, ["broadcasts", location, "--json", *flags]) == 0
            (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert (row["broadcast_id"], row["missing_acks"]) == (str(sent.broadcast_id), ["b"])
            await log.close()
