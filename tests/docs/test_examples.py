"""Every example runs, and prints its documented output."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from examples import (
    accounts,
    append_and_scan,
    arrow,
    blocking,
    cursors,
    job_queue,
    join_of_two_streams,
    mailer,
    migration,
    outbox,
    pipeline,
    read_from_another_process,
    retention,
    schema_change,
    transactions,
)
from examples.web_service import make_app
from tests.processes import run_python


async def test_append_and_scan(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await append_and_scan.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "appended p0:…:0 durably",
        "999 more in bulk, ticks ascending: True",
        "3 deletions without a task each",
        "1003 messages, the first b'21.5' from the kitchen",
        "502 after message 500, the next is b'71.6'",
        "500 insertions from message 500 on",
        "the follower has seen [b'30.0', b'31.0', b'32.0']",
    ]


async def test_transactions(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await transactions.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "committed 2 bodies as one event, index 2",
        "rolled back: the card was refused",
        "one transaction over orders and stock",
        "a whole transaction in one call, index 2",
        "append_messages: 3 messages, 2 events (two for one vchannel are one transaction)",
        "expired: transaction N expired",
        "refused, and the transaction is still open: a CREATE_COLLECTION message cannot be in a transaction, only INSERT and "
        "DELETE can: append it by itself",
        "orders: 4 messages, 4 of them transactions, bodies [2, 1, 2, 2]",
        "stock: 2 messages, 1 of them transactions, bodies [1, 1]",
        "['orders', 'stock']: 5 messages, 4 of them transactions, bodies [2, 2, 2, 2, 1]",
    ]


def test_job_queue(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_queue.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "killed at least 3 times: True",
        "60 results, each once: True",
        "resize cat: cat is not a picture",
        "crash: the process ended while this message alone was handled",
        "2 jobs again",
        "[b'resized cat', b'resized crash']",
    ]


def test_pipeline(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "killed more than once: True",
        "parsed: 200, each once: True, sensors in order: True",
        "checked: 180, each once: True, sensors in order: True",
        "shown: 180, each once: True, sensors in order: True",
    ]


def test_mailer(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mailer.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == ["1 kill, and the provider was asked again: True", "20 mails for 20 orders"]


def test_accounts(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accounts.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "2 kills; the table that followed is the one that is made again: True",
        "20 accounts, no balance below 0: True",
    ]


def test_outbox(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outbox.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == ["killed: True; 30 orders, 30 messages, 30 taken from stock"]


def test_resume_after_crash(tmp_path: Path) -> None:
    ran = run_python("-m", "examples.resume_after_crash", tmp_path / "new")
    assert ran.err == ""
    first, second, end = ran.out.splitlines()
    killed = re.fullmatch(r"worker 1 ended with status -9, the sum of (\d+) numbers was stored", first)
    assert killed is not None
    assert 600 <= int(killed[1]) < 2000
    assert second == "worker 2 ended with status 0"
    assert end == "2000 numbers, their sum is 1999000, expected 1999000"


async def test_cursors(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await cursors.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "billing: 500 orders in two goes, in order: True",
        "the first auditor was killed, with 150 orders reported",
        "truncating unread events raises an error: True",
        "the second one missed none: True",
        "it saw again at most the page that was not saved: True",
        "cursor audit of orders: 0 bytes behind",
        "cursor billing of orders: 0 bytes behind",
        "now nobody needs them, and they are truncated",
    ]


async def test_join_of_two_streams(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await join_of_two_streams.main(str(data_dir))
    first, some, *chart, second, every, found = capsys.readouterr().out.splitlines()
    failed = re.fullmatch(
        r"the first graph: failed: node 'join' failed at tick 6553600000: RuntimeError: a bug, or a service that did not answer; "
        r"wrote (\d+) seconds, 0 were there",
        first,
    )
    assert failed is not None
    wrote = int(failed[1])
    assert wrote == 24
    assert some == f"pairs in the log: {8 * wrote}"
    assert chart[0] == "flowchart LR"
    assert [line for line in chart if re.search(r"pairs<br/>tick 13107200000, 0 active, \d+ completed<br/>", line)]
    assert re.fullmatch(r"the second graph: ended; wrote 26 seconds, \d+ were there", second)
    assert every == "pairs in the log: 400, each once: True"
    assert found == ("second 1, room 0: 21 degrees, 51 percent … second 50, room 7: 22 degrees, 52 percent")


async def test_migration(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await migration.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "billed from RocksMQ: True, at least 5000: True",
        "the first migration was killed, with a part in the log: True",
        "the second one completed it: 20000 orders in the log",
        "each once, in order: True",
        "billing continues after what it had: True",
    ]


async def test_read_from_another_process(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await read_from_another_process.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "reading beside the writer, from the beginning: True",
        "the first writer was killed; the reader has all that it reported: True",
        "without a writer the read ends after the last durable event: True",
        "a second writer took over, and the scanner continued: True",
        "writing is refused here: True",
        "only the writer has its newest tick: pass the tick to the reader",
    ]


async def test_retention(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await retention.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "32 MiB written, at most 5 MiB held: True",
        "held back by: cursor dashboard",
        "cursor dashboard is stale: True",
        "its reader gets a TruncatedError with the earliest event: True",
        "deleted, the cursor starts again",
    ]


async def test_schema_change(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await schema_change.main(str(data_dir))
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"the consumer of orders-07 crashed before it could acknowledge '(billing|shipping)_0'", first)
    assert rest == [
        "a service found the collection held by the other one: True",
        "6 columns, the same on all 16 vchannels: True",
        "each service's own in its order: True",
        "seen again after the crash: 1",
        "broadcasts that are not over: 0",
    ]


def test_idempotent_retries(tmp_path: Path) -> None:
    ran = run_python("-m", "examples.idempotent_retries", tmp_path / "new")
    assert ran.err == ""
    reported, written = ran.out.splitlines()
    killed = re.fullmatch(r"300 orders reported, by workers of which (\d) were killed", reported)
    assert killed is not None
    assert int(killed[1]) >= 3
    assert written == "300 orders and 300 invoices, each of them once: True"


def test_blocking(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocking.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == ["101 messages in the journal", "201 new entries", "0 new entries"]


def test_arrow(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrow.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == [
        "900 rows: vchannel, message_id, time_tick, message_type, txn_id, payload, properties, append_time",
        "AA: 300 flights, 30000 bytes",
        "UA: 600 flights, 60000 bytes",
        "300 rows after row 600",
    ]


def test_arrow_duckdb(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="it comes with the extra `examples`")
    from examples import arrow_duckdb

    arrow_duckdb.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == ["AA: 300 flights, 30000 bytes", "UA: 600 flights, 60000 bytes"]


def test_arrow_polars(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("polars", reason="it comes with the extra `examples`")
    from examples import arrow_polars

    arrow_polars.main(str(data_dir))
    assert capsys.readouterr().out.splitlines() == ["600 rows, 29.5 minutes late on average", "600 rows, 39.5 minutes late on average"]


async def test_web_service(data_dir: Path) -> None:
    app = make_app(str(data_dir))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://log") as client:
        assert (await client.get("/events")).json() == {"events": [], "position": ""}

        ordered = await client.post("/orders", json={"customer": "ada", "items": ["apples", "pears"]})
        assert ordered.status_code == 201
        answer = (await client.get("/events")).json()
        assert [event["id"] for event in answer["events"]] == [ordered.json()["id"]]
        assert answer["events"][0]["bodies"] == ["created", "apples", "pears"]

        nothing = (await client.get("/events", params={"after": answer["position"], "wait_s": 0.05})).json()
        assert nothing["events"] == []

        refused = await client.post("/orders", json={"customer": "ada"})
        assert refused.status_code == 400
        unknown = await client.get("/events", params={"after": "yesterday"})
        assert unknown.status_code == 400
        assert "not the text of a ReadPosition" in unknown.json()["error"]


async def test_web_service_wakes_a_client_that_waits(data_dir: Path) -> None:
    app = make_app(str(data_dir))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://log") as client:
        waiting = asyncio.create_task(client.get("/events", params={"wait_s": 30}))
        log = app.state.log
        while log.statistics().pchannels[0].readers == 0:
            await asyncio.sleep(0)
        await client.post("/orders", json={"customer": "grace", "items": []})
        assert [event["bodies"] for event in (await waiting).json()["events"]] == [["created"]]
