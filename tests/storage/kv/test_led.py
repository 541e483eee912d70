"""LedKV: a leader's saves are made while it leads, and refused by etcd from then on."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from wal.errors import ChannelFencedError
from wal.storage.kv.etcd import EtcdElection, EtcdKV
from wal.storage.kv.etcd.election import MARK, LedKV


@pytest.fixture
async def kv(etcd_address: str) -> AsyncIterator[EtcdKV]:
    async with await EtcdKV.open([etcd_address], root_path=f"wal-test-{secrets.token_hex(6)}") as kv:
        yield kv


async def test_changes_hold_while_it_leads(kv: EtcdKV) -> None:
    async with await kv.session() as session, await EtcdElection(kv, "leader").campaign("one", session) as leadership:
        led = LedKV(kv, leadership)
        await led.save("a", "1")
        assert await led.compare_and_swap("a", "1", "2", saves={"b": "x" * 100_000})
        assert not await led.compare_and_swap("a", "1", "3")
        assert await led.change_if({"b": "x" * 100_000, "c": "?"}, saves={"d": "4"}) == "c"
        await led.under("part").save("a", "5")
        await led.multi_save({f"many/{number}": "" for number in range(led.operations_max or 0)})
        await led.remove_with_prefix("many/")
        keys, values = await kv.load_with_prefix("")
    assert dict(zip(keys, values, strict=True)) == {"a": "2", "b": "x" * 100_000, "part/a": "5", leadership.key: "one", MARK: ""}


async def test_every_change_is_refused_once_another_one_leads(kv: EtcdKV) -> None:
    election = EtcdElection(kv, "leader")
    async with await kv.session() as session, await kv.session() as other:
        former = await election.campaign("one", session)
        led = LedKV(kv, former)
        await led.save("a", "1")
        await former.resign()
        async with await election.campaign("two", other) as leadership:
            for change in (
                led.save("a", "2"), led.remove("a"), led.multi_save({"b": "2"}), led.remove_with_prefix("a"),
                led.compare_and_swap("a", "1", "2"), led.change_if({"a": "1"}, removals=["a"]), led.under("part").save("a", "2"),
            ):  # fmt: skip
                with pytest.raises(ChannelFencedError, match="has ended"):
                    await change
            assert await led.load("a") == "1"
            await LedKV(kv, leadership).save("a", "2")
            assert await kv.load("a") == "2"
