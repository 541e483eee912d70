"""The reprs of what users hold: short, without payloads, and with what a person looks for first."""

from __future__ import annotations

import pytest

import wal
from tests.locations import open_wal
from wal import Log, Message, MessageID, ReadPosition, WALAccesser, bridge

pytestmark = pytest.mark.one_location("the texts of objects that every log returns")


async def test_ids_and_positions_are_expressions(log: WALAccesser) -> None:
    result = await log.append("orders", b"1")
    names = {"MessageID": MessageID, "ReadPosition": ReadPosition}
    assert eval(repr(result.message_id), names) == result.message_id
    async with log.read("orders", follow=False) as scanner:
        await anext(scanner)
        assert eval(repr(scanner.position), names) == scanner.position
    assert repr(result) == f"AppendResult(message_id={result.message_id}, time_tick={result.time_tick}, duplicate=False)"


async def test_transaction_shows_its_context(log: WALAccesser) -> None:
    assert "txn_context=TxnContext(txn_id=" in repr(await log.append_txn("orders", b"1"))


def test_message_shows_no_payload() -> None:
    text = repr(Message("orders", bytes(1 << 20), properties={"a": "b"}))
    assert text == "Message('orders', 1048576 bytes, message_type=INSERT, properties={'a': 'b'})"


async def test_log_shows_where_it_is(location: str) -> None:
    log = await open_wal(location)
    assert repr(log).startswith("WALAccesser(")
    assert repr(log).endswith(", open)")
    assert repr(log.broadcast()) == repr(log).replace("WALAccesser", "LogBroadcast")
    await log.close()
    assert repr(log).endswith(", closed)")


async def test_scanner_shows_how_it_stands(log: WALAccesser) -> None:
    await log.append("orders", b"1")
    scanner = log.read("orders", cursor="billing")
    assert repr(scanner) == "Scanner('orders', cursor='billing', not entered yet)"
    async with scanner:
        assert repr(scanner) == "Scanner('orders', cursor='billing', open)"
    assert repr(scanner) == "Scanner('orders', cursor='billing', ended)"


def test_blocking_log_shows_the_same(data: str) -> None:
    assert repr(bridge.blocking(data)).startswith("BlockingOpening(")
    with bridge.blocking(data) as log:
        assert repr(log).startswith("BlockingWAL(")
        assert repr(log).endswith(", open)")
        log.append("orders", b"1")
        with log.read("orders", follow=False) as scanner:
            assert repr(scanner) == "BlockingScanner('orders', open)"
    with bridge.iterate(data, "orders", follow=False) as messages:
        assert repr(messages) == "Iteration('orders', open)"
    assert repr(messages) == "Iteration('orders', ended)"


def test_log_has_two_names() -> None:
    assert wal.Log is Log is WALAccesser
