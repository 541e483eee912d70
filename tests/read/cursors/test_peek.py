"""`peek`: the next messages of a saved cursor, which does not move."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.probes import grouped
from tests.read.readers import numbered, rest, take
from wal import Message, WALAccesser, bridge
from wal.errors import InvalidArgumentError


async def test_peek_moves_no_cursor(log: WALAccesser) -> None:
    await numbered(log, 6)
    assert await take(log, 2, cursor="billing") == [0, 1]
    before = await log.cursors()
    assert grouped(await log.peek("billing")) == [[b"2"]]
    assert grouped(await log.peek("billing", 3)) == [[b"2"], [b"3"], [b"4"]]
    assert grouped(await log.peek("billing", 100)) == [[b"2"], [b"3"], [b"4"], [b"5"]]
    after = await log.cursors()
    assert [(info.position, info.saved_at, info.lag_messages) for info in after] == [
        (info.position, info.saved_at, info.lag_messages) for info in before
    ]
    assert await rest(log, cursor="billing") == [2, 3, 4, 5]


async def test_peek_counts_transactions_as_one(log: WALAccesser) -> None:
    await numbered(log, 1)
    assert await take(log, 1, cursor="billing") == [0]
    assert await log.peek("billing", 3) == []
    await log.append_txn("orders", [Message("orders", b"a"), Message("orders", b"b")])
    await numbered(log, 1, first=1)
    assert grouped(await log.peek("billing", 1)) == [[b"a", b"b"]]
    assert grouped(await log.peek("billing", 2)) == [[b"a", b"b"], [b"1"]]


async def test_vchannels_tell_cursors_apart(log: WALAccesser) -> None:
    await numbered(log, 3)
    await log.raw_append(Message("stock", b"x"))
    assert await take(log, 1, cursor="billing") == [0]
    async with log.read(["stock", "orders"], cursor="billing", follow=False) as scanner:
        await scanner.save()
    with pytest.raises(InvalidArgumentError, match=r"2 cursors are named 'billing'.*vchannels="):
        await log.peek("billing")
    assert grouped(await log.peek("billing", vchannels="orders")) == [[b"1"]]
    assert grouped(await log.peek("billing", 4, vchannels=["stock", "orders"])) == [[b"0"], [b"1"], [b"2"], [b"x"]]
    with pytest.raises(InvalidArgumentError, match="no cursor 'billing' of 'stock' is saved"):
        await log.peek("billing", vchannels=["stock"])


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_bad_peeks_are_refused(log: WALAccesser) -> None:
    await numbered(log, 1)
    with pytest.raises(InvalidArgumentError, match="no cursor 'absent' is saved"):
        await log.peek("absent")
    for number in (0, -1):
        with pytest.raises(InvalidArgumentError, match="1 or more"):
            await log.peek("absent", number)
    for wrong in (True, 1.0, None):
        with pytest.raises(TypeError, match="number of messages"):
            await log.peek("absent", cast("Any", wrong))
    with pytest.raises(InvalidArgumentError, match="names no vchannel"):
        await log.peek("absent", vchannels=[])


def test_blocking_peek(tmp_path: Path) -> None:
    with bridge.blocking(tmp_path / "data") as log:
        for number in range(3):
            log.append("orders", b"%d" % number)
        with log.read("orders", cursor="billing") as scanner:
            next(iter(scanner))
            scanner.save()
        assert grouped(log.peek("billing", 5)) == [[b"1"], [b"2"]]
