"""The rows of an open log, in every kind of log, and their JSON form."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.locations import open_wal
from wal import BroadcastMessage, Message, ResourceKey, Settings, WALAccesser
from wal.operate.inspect import builders
from wal.operate.inspect.rows import CursorRow, HolderRow, LogRow, PChannelRow, VChannelRow, as_json, json_of, printable


async def written(log: WALAccesser) -> None:
    for number in range(3):
        await log.raw_append(Message("orders", b"%d" % number))
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        async for _ in scanner:
            await scanner.save()
            break


async def test_rows_of_an_open_log(location: str) -> None:
    async with open_wal(location) as log:
        await written(log)
        (first, *pchannels) = await builders.log_rows(log, str(location))
        assert isinstance(first, LogRow)
        assert (first.backend, first.pchannels, first.vchannels) == (log.wal_name, len(pchannels), 1)
        assert first.bytes > 0
        assert first.oldest is not None
        (pchannel,) = pchannels
        assert isinstance(pchannel, PChannelRow)
        assert pchannel.term >= 1
        assert pchannel.end
        (vchannel,) = await builders.vchannel_rows(log)
        assert (vchannel.vchannel, vchannel.last_id, vchannel.messages) == ("orders", str(await log.last("orders")), None)


async def test_cursor_row_says_when_it_was_saved(location: str) -> None:
    async with open_wal(location) as log:
        await written(log)
        before = datetime.now(UTC).timestamp()
        (cursor,) = await builders.cursor_rows(log, now_s=before + 60)
        assert (cursor.cursor, cursor.vchannels, cursor.stale, cursor.lag_messages) == ("billing", ("orders",), False, None)
        assert cursor.lag_bytes > 0
        assert cursor.idle_s is not None
        assert 50 < cursor.idle_s < 600
        rows = await builders.retention_rows(log)
        assert [(row.kind, row.name) for row in rows if isinstance(row, HolderRow)] == [("cursor", "billing")]


async def test_broadcast_row_names_missing_vchannels(location: str) -> None:
    async with open_wal(location) as log:
        await log.raw_append(Message("a", b""))
        await log.raw_append(Message("b", b""))
        message = BroadcastMessage(vchannels=["a", "b"], payload=b"x", resource_keys=[ResourceKey("collection", "orders", shared=True)])
        result = await log.broadcast().append(message)
        await log.broadcast().ack(result.broadcast_id, "a")
        (row,) = builders.broadcast_rows(await log.broadcast().tasks())
        assert (row.broadcast_id, row.missing_appends, row.missing_acks) == (result.broadcast_id, (), ("b",))
        assert row.resource_keys == ("collection/orders (shared)",)
        assert row.state == row.state.lower()


def test_json_of_a_row_has_version_and_kind() -> None:
    row = VChannelRow(
        vchannel="orders",
        pchannel="p0",
        incarnation=1,
        messages=3,
        bytes=700,
        last_append=datetime(2026, 11, 25, 11, 4, 43, 250_000, tzinfo=UTC),
        last_id=None,
    )
    assert json.loads(as_json(row)) == {
        "version": 1,
        "row": "vchannel",
        "vchannel": "orders",
        "pchannel": "p0",
        "incarnation": "1",
        "messages": 3,
        "bytes": 700,
        "last_append": "2026-11-25T11:04:43.250000Z",
        "last_id": None,
    }
    cursor = CursorRow(
        cursor="c", vchannels=("a", "b"), position=None, lag_messages=None, lag_bytes=0, lag_s=0.0, held_bytes=0, idle_s=None, stale=False
    )
    assert json.loads(as_json(cursor))["vchannels"] == ["a", "b"]


def test_json_has_ticks_ids_and_positions_as_text() -> None:
    answer = {
        "time_tick": 470625838023835653,
        "rows": [{"broadcast_id": 1 << 63, "position": (1 << 100) + 1, "end": 0, "term": 7, "bytes": 9, "failed": True}],
        "writer_pid": 4321,
    }
    assert json.loads(json_of(answer)) == {
        "time_tick": "470625838023835653",
        "rows": [{"broadcast_id": str(1 << 63), "position": str((1 << 100) + 1), "end": "0", "term": 7, "bytes": 9, "failed": True}],
        "writer_pid": 4321,
    }


def test_secret_settings_are_not_shown() -> None:
    rows = {row.setting: row for row in builders.setting_rows(Settings(token="hunter2", pchannels=4), {"pchannels": "environment"})}
    assert rows["pchannels"].value == "4"
    assert rows["pchannels"].source == "environment"
    assert rows["create_vchannels"].value == "true"
    assert rows["kv"].value is None
    assert "hunter2" not in repr(rows)


def test_text_for_a_terminal_has_no_control_characters() -> None:
    assert printable("orders\x1b[2J\u202e\n é 日本") == "orders\\x1b[2J\\u202e\\n é 日本"
    assert printable("\ud800") == "\\ud800"
