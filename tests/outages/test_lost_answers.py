"""Calls that may be repeated, whose answer never comes: the error says that they may have been carried out."""

from __future__ import annotations

import pytest

from tests.node.servers import Serving
from tests.outages.proxy import Proxy
from tests.remote.conftest import served as served
from wal import Message, open_wal
from wal.engine.remote import log as remote
from wal.errors import UnknownOutcomeError


async def test_a_truncation_without_an_answer(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 1.0)
    async with Proxy(int(served.address.rpartition(":")[2])) as proxy, open_wal(f"wal://{proxy.address}") as log:
        ids = [(await log.raw_append(Message("orders", b"%d" % n))).message_id for n in range(5)]
        proxy.stall_one_way(up=False)
        with pytest.raises(UnknownOutcomeError, match="may have been carried out"):
            await log.truncate(up_to=ids[2])
        proxy.flow()
        async with log.read("orders", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"3", b"4"]
