"""The status service over HTTP: its answers, its access checks, and its actions."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from tests.locations import open_wal
from tests.operate.cli.golden import inexact
from tests.probes import local
from tests.processes import eventually
from wal import BroadcastMessage, Consumer, Delivery, Message, ResourceKey, WALAccesser, __version__
from wal.errors import HandlerFailedError, InvalidArgumentError, StorageError
from wal.operate.inspect.rows import VERSION
from wal.operate.status import counting, status_app
from wal.read.cursors.pins import PinFiles
from wal.timestamp import to_datetime

TOKEN = "a token that nobody guesses"
HOSTILE = "<img src=x onerror=alert(1)>\"'&`\u202e"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def log(data_dir: Path) -> AsyncIterator[WALAccesser]:
    async with open_wal(f"journal:{data_dir}") as log:
        await log.raw_append(Message("orders", b"x"))
        yield log


async def nothing(delivery: Delivery) -> None: ...


async def action(client: httpx.AsyncClient, name: str, **arguments: Any) -> httpx.Response:
    return await client.post(f"/api/actions/{name}", headers=BEARER, json=arguments)


async def test_rows_are_those_of_the_command_line(log: WALAccesser) -> None:
    await log.raw_append(Message(HOSTILE, b"y"))
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        await scanner.save()
    await log.broadcast().append(BroadcastMessage(vchannels=["a"], payload=b"z", resource_keys=[ResourceKey("c", "k")]))
    async with (
        log.serve_status() as page,
        httpx.AsyncClient(base_url=page.address) as client,
        log.consume("jobs", nothing, cursor="worker") as consumer,
    ):
        await consumer.caught_up()
        for name, row in (
            ("consumers", "consumer"),
            ("info", "log"),
            ("ls", "vchannel"),
            ("cursors", "cursor"),
            ("broadcasts", "broadcast"),
            ("retention", "retention"),
            ("settings", "setting"),
            ("health", "health"),
        ):
            answer = (await client.get(f"/api/{name}")).json()
            assert answer["total"] >= 1, name
            assert answer["rows"][0]["row"] == row
            assert answer["rows"][0]["version"] == VERSION
        found = (await client.get("/api/ls", params={"filter": HOSTILE[:8]})).json()
        assert [each["vchannel"] for each in found["rows"]] == [HOSTILE]
        assert "wal_events_total" in (await client.get("/metrics")).text
        live = (await client.get("/api/live")).json()
        assert live["pchannels"][0]["events"] >= 3
        page_text = await client.get("/")
        assert "default-src 'none'" in page_text.headers["content-security-policy"]
        assert "http" not in page_text.text.replace("http-equiv", "")


async def test_vchannels_are_counted(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SHARE", 1e9)  # always counted again
    before = await log.append_txn("orders", [b"22", b"333"])
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        (row,) = (await client.get("/api/ls")).json()["rows"]
        assert (row["messages"], row["last_id"], row["bytes"] >= 6) == (3, str(before.message_id), True)
        assert row["last_append"] == to_datetime(before.time_tick).isoformat().replace("+00:00", "Z")
        await log.append("stock", b"x")
        while True:  # a reader of the files sees a new vchannel a moment later
            rows = (await client.get("/api/ls")).json()["rows"]
            if rows[-1]["messages"] is not None:
                break
        assert [(each["vchannel"], each["messages"]) for each in rows] == [("orders", 3), ("stock", 1)]
        live = (await client.get("/api/live")).json()
        assert (live["release"], live["pid"]) == (__version__, os.getpid())
        assert live["uptime_s"] > 0
        for path in ("/favicon.ico", "/favicon.svg"):
            icon = await client.get(path)
            assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")


async def test_no_number_of_an_answer_is_rounded(log: WALAccesser) -> None:
    async def nothing(delivery: Delivery) -> None: ...

    async with log.read("orders", cursor="billing", follow=False) as scanner:
        await scanner.save()
    sent = await log.broadcast().append(BroadcastMessage(vchannels=["a"], payload=b"z", resource_keys=[ResourceKey("c", "k")]))
    async with (
        log.serve_status(token=TOKEN) as page,
        httpx.AsyncClient(base_url=page.address) as client,
        log.consume("jobs", nothing, cursor="worker") as consumer,
    ):
        await consumer.caught_up()
        paths = [route.path for route in status_app(log).routes if isinstance(route, Route) and "GET" in (route.methods or ())]
        answers = {path: await client.get(path) for path in paths if path.startswith("/api/") or path.endswith("z")}
        assert len(answers) == 12
        assert answers["/api/broadcasts"].json()["rows"][0]["broadcast_id"] == str(sent.broadcast_id)
        appended = await action(client, "append", vchannel="orders", payload="p")
        async with log.read("orders", follow=False) as scanner:
            assert appended.json()["time_tick"] in [str(message.time_tick) async for message in scanner]
        answers["append"] = appended
        number = str(sent.broadcast_id)
        answers["abort"] = await action(client, "broadcast-abort", broadcast_id=number, reason="test", confirm=number)
    assert {path: inexact(answer.json()) for path, answer in answers.items() if inexact(answer.json())} == {}


async def test_readiness_names_what_is_wrong(log: WALAccesser) -> None:
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ok"]) == (200, True)
        assert set(ready.json()["checks"]) == {"open", "takes appends", "pchannels answer", "disk has room", "consumers run"}
        assert (await client.get("/healthz")).status_code == 200
        next(iter(local(log).node.pchannels.values())).fail(StorageError("the disk is gone"))
        ready, health = await client.get("/readyz"), await client.get("/healthz")
        assert (ready.status_code, ready.json()["checks"]["takes appends"]) == (503, False)
        assert health.status_code == 503


async def test_ended_consumer_stays_visible(log: WALAccesser) -> None:
    """The consumer stays until its owner closes it, or starts another one of the cursor."""

    async def fail(delivery: Delivery) -> None:
        raise ValueError("the shop has closed")

    async def ended() -> tuple[int, list[tuple[str, str]], list[str], str]:
        ready = await client.get("/readyz")
        assert ready.json()["checks"]["consumers run"] is (ready.status_code == 200)
        rows = (await client.get("/api/consumers")).json()["rows"]
        health = [row["check"] for row in (await client.get("/api/health")).json()["rows"] if not row["ok"]]
        up = re.search(r'wal_consumer_up{cursor="worker"} (.)', (await client.get("/metrics")).text)
        return ready.status_code, [(row["state"], row["error"]) for row in rows], health, "" if up is None else up[1]

    def consumer(handler: Any) -> Consumer:
        return log.consume("jobs", handler, cursor="worker", attempts=1)

    sent = await log.append("jobs", b"a")
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        running = asyncio.create_task((first := consumer(fail)).run())
        await asyncio.wait([running])
        error = f"HandlerFailedError: {running.exception()}"
        assert "ValueError: the shop has closed" in error
        assert await ended() == (503, [("ended", error)], ["consumer worker"], "0")
        (info,) = log.consumers()
        assert (info.message_id, info.stopped_at is None) == (sent.message_id, False)
        assert (await client.get("/api/consumers")).json()["rows"][0]["message_id"] == str(sent.message_id)
        async with log.serve_status(readiness_needs_consumers=False) as other:
            assert (await client.get(f"{other.address}/readyz")).status_code == 200
        await first.close()
        assert await ended() == (200, [], [], "")
        with pytest.raises(HandlerFailedError):
            await consumer(fail).run()
        assert (await ended())[0] == 503
        async with consumer(nothing) as following:
            await following.caught_up()
            assert await ended() == (200, [("running", "")], [], "1")
        assert await ended() == (200, [], [], "")


async def test_dead_letters_are_redriven_with_the_token(log: WALAccesser) -> None:
    async def fail(delivery: Delivery) -> None:
        raise ValueError("not now")

    await log.append("jobs", b"a")
    async with log.consume("jobs", fail, cursor="worker", attempts=1, dead_letter="dead") as consumer:
        await consumer.caught_up()
    async with log.serve_status(token=TOKEN) as page, httpx.AsyncClient(base_url=page.address) as client:
        assert (await client.post("/api/actions/redrive", json={"dead_letter": "dead", "confirm": "dead"})).status_code == 401
        wrong = await action(client, "redrive", dead_letter="dead", confirm="jobs")
        assert (wrong.status_code, "repeat 'dead' there" in wrong.json()["text"]) == (400, True)
        assert (await action(client, "redrive", dead_letter="dead", confirm="dead")).json() == {"dead_letter": "dead", "redriven": 1}
        assert (await action(client, "redrive", dead_letter="dead", confirm="dead")).json()["redriven"] == 0
        assert (await action(client, "redrive", dead_letter="none", confirm="none")).status_code == 500


async def test_listing_of_a_schedule_stays_while_it_is_paged(log: WALAccesser) -> None:
    for number in range(3):
        await log.append("mails", b"x", deliver_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key=f"{number}")
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        first = (await client.get("/api/scheduled?limit=2")).json()
        assert ([row["key"] for row in first["rows"]], first["total"]) == (["0", "1"], 3)
        await (await log.scheduled("mails")).cancel("0")
        second = (await client.get(f"/api/scheduled?limit=2&offset=2&listing={first['listing']}")).json()
        assert ([row["key"] for row in second["rows"]], second["total"]) == (["2"], 3)
        for _ in range(4):
            await client.get("/api/scheduled?limit=1")
        ended = await client.get(f"/api/scheduled?offset=2&listing={first['listing']}")
        assert (ended.status_code, "begin again without it" in ended.json()["text"]) == (400, True)


async def test_readiness_reads_no_cursor(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr(PinFiles, "names", looks.append)
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        assert (await client.get("/readyz")).status_code == 200
    assert looks == []


@pytest.mark.parametrize("header", ["host", "origin"])
async def test_broken_host_is_refused(log: WALAccesser, header: str) -> None:
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        for text in ("[", "http://[", "[::1", "localhost:]["):
            assert (await client.get("/api/info", headers={header: text})).status_code == 401


async def test_token_guards_actions_on_loopback(log: WALAccesser) -> None:
    async with log.serve_status(token=TOKEN) as page, httpx.AsyncClient(base_url=page.address) as client:
        assert (await client.get("/api/info")).status_code == 200
        body = {"vchannel": "orders", "payload": "p"}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {**BEARER, "Origin": "http://evil.example"},
            {**BEARER, "Host": "evil.example"},
        ):
            assert (await client.post("/api/actions/append", json=body, headers=headers)).status_code == 401
        plain = await client.post("/api/actions/append", content=json.dumps(body), headers={**BEARER, "Content-Type": "text/plain"})
        assert plain.status_code == 400
        assert (await client.get("/api/info", headers={"Host": "evil.example"})).status_code == 401
        before = await log.last("orders")
        assert (await client.post("/api/actions/append", json=body, headers=BEARER)).status_code == 200
        assert await log.last("orders") != before
    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address) as client:
        assert (await client.post("/api/actions/append", json=body, headers=BEARER)).status_code == 401


async def test_actions_are_confirmed_by_name(log: WALAccesser) -> None:
    first = await log.last("orders")
    sent = await log.broadcast().append(BroadcastMessage(vchannels=["a"], payload=b"z", resource_keys=[ResourceKey("c", "k")]))
    async with log.serve_status(token=TOKEN) as page, httpx.AsyncClient(base_url=page.address) as client:
        wrong = await action(client, "cursor-set", cursor="billing", vchannels=["orders"], to="earliest", confirm="biling")
        assert wrong.status_code == 400
        assert "confirm" in wrong.json()["text"]
        assert await log.cursors() == []
        assert (await action(client, "cursor-set", cursor="billing", vchannels=["orders"], to="earliest", confirm="billing")).is_success
        (cursor,) = await log.cursors()
        assert cursor.lag_bytes > 0
        assert (await action(client, "cursor-set", cursor="billing", vchannels=["orders"], to="latest", confirm="billing")).is_success
        (cursor,) = await log.cursors()
        assert cursor.lag_bytes == 0
        assert (await action(client, "cursor-rm", cursor="billing", confirm="billing")).is_success
        assert await log.cursors() == []
        number = str(sent.broadcast_id)
        assert (await action(client, "broadcast-abort", broadcast_id=number, reason="test", confirm=number)).is_success
        assert await log.broadcast().tasks() == []
        assert (await action(client, "truncate", up_to=str(first), confirm=str(first))).is_success
        assert (await action(client, "drop-everything")).status_code == 400
        assert (await action(client, "append", vchannel="orders")).status_code == 400


async def test_elsewhere_a_token_is_required(log: WALAccesser) -> None:
    with pytest.raises(InvalidArgumentError, match="token"):
        log.serve_status("0.0.0.0")
    with pytest.raises(InvalidArgumentError, match="at least 16"):
        log.serve_status(token="short")
    with pytest.raises(InvalidArgumentError, match="port"):
        log.serve_status(port=70_000)
    async with log.serve_status("0.0.0.0", token=TOKEN) as page:
        address = page.address.replace("0.0.0.0", "127.0.0.1")
        async with httpx.AsyncClient(base_url=address) as client:
            assert (await client.get("/api/info")).status_code == 401
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/api/info", headers=BEARER)).status_code == 200
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/")).status_code == 200


async def test_taken_port_is_a_typed_error(log: WALAccesser) -> None:
    async with log.serve_status() as page:
        with pytest.raises(StorageError, match="cannot listen"):
            async with log.serve_status(port=int(page.address.rpartition(":")[2])):
                pass


async def test_address_is_published_beside_the_log(log: WALAccesser, data_dir: Path) -> None:
    async with log.serve_status(token=TOKEN) as page:
        text = (data_dir / "STATUS").read_text()
        assert TOKEN not in text
        published = json.loads(text)
        assert f"http://{published['host']}:{published['port']}" == page.address
        assert (data_dir / "STATUS").stat().st_mode & 0o077 == 0
    assert not (data_dir / "STATUS").exists()


async def test_application_mounts_in_another_one(log: WALAccesser) -> None:
    outer = Starlette(routes=[Mount("/wal", status_app(log, token=TOKEN))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://service.example") as client:
        assert (await client.get("/wal/api/info")).status_code == 401
        assert (await client.get("/wal/api/info", headers=BEARER)).json()["rows"][0]["row"] == "log"
        assert (await client.get("/wal/")).status_code == 200


async def test_reader_serves_what_it_sees(log: WALAccesser, data_dir: Path) -> None:
    async with open_wal(f"journal:{data_dir}", read_only=True) as beside, beside.serve_status() as page:
        assert not (data_dir / "STATUS").exists()
        await eventually(beside.vchannels)  # the map of the vchannels, which other processes read, may lag behind an append
        async with httpx.AsyncClient(base_url=page.address) as client:
            assert [row["vchannel"] for row in (await client.get("/api/ls")).json()["rows"]] == ["orders"]
            assert (await client.get("/api/broadcasts")).json()["rows"] == []


async def test_thousands_of_vchannels_do_not_hold_the_loop(log: WALAccesser) -> None:
    count = 3_000
    await log.append_bulk(Message(f"v{number:05}", b"x") for number in range(count))
    holds_s: list[float] = []

    async def watch() -> None:
        while True:
            began = time.thread_time()  # of this thread alone, so that a busy machine does not count
            await asyncio.sleep(0.001)
            holds_s[-1] = max(holds_s[-1], time.thread_time() - began)

    async with log.serve_status() as page, httpx.AsyncClient(base_url=page.address, timeout=30) as client:
        await client.get("/metrics")
        gc.collect()
        gc.freeze()  # what earlier tests left in this process takes long to traverse
        for _ in range(3):
            holds_s.append(0.0)
            watching = asyncio.ensure_future(watch())
            page_rows = (await client.get("/api/ls", params={"offset": 2_900, "limit": 500})).json()
            assert page_rows["total"] == count + 1
            assert len(page_rows["rows"]) == 101
            assert (await client.get("/api/ls", params={"limit": 100_000})).status_code == 400
            await client.get("/api/live")
            watching.cancel()
    assert min(holds_s) < 0.05, f"the loop was held by the page, each time: {holds_s}"


def test_loop_imports_no_server(tmp_path: Path) -> None:
    """Importing the modules that serve the page takes a while, so a thread does it."""
    program = """
import asyncio, builtins, sys, threading
from wal import open_wal
loop_thread, imported, real = threading.get_ident(), [], builtins.__import__
def importing(name, *rest):
    if name.partition(".")[0] in ("starlette", "uvicorn") and threading.get_ident() == loop_thread and name not in sys.modules:
        imported.append(name)
    return real(name, *rest)
async def main():
    async with open_wal("data") as log:
        builtins.__import__ = importing
        async with log.serve_status() as page:
            print(imported, page.address.startswith("http://127.0.0.1:"), "starlette" in sys.modules)
asyncio.run(main())
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert child.stdout == "[] True True\n", child.stderr
