"""The checksums of records in etcd: damage is an error, and a root of an earlier version is served, then upgraded by its writer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from tests.storage.kv.etcd_admin import call, text
from wal.channels.cluster import CHECKED_RECORDS, LOG_KEY, MOVING_CURSORS, ClusterRecord, create_cluster, encode, load_cluster
from wal.errors import ChannelFencedError, CorruptionError
from wal.storage.kv.etcd import EtcdElection, EtcdKV
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.election import MARK, LedKV
from wal.storage.kv.records import sealed

OLD = {"a/1": '{"term":1}', "a/2": "", "b": "17", "long": "x" * 70_000, LOG_KEY: "{}", MARK: ""}


@pytest.fixture
async def kv(etcd_address: str) -> AsyncIterator[EtcdKV]:
    """A KV of a root in which an earlier version saved OLD."""
    root = f"wal-test-{secrets.token_hex(6)}"
    for key, value in OLD.items():
        await call(etcd_address, "kv/put", key=text(f"{root}/{key}"), value=text(value))
    async with await EtcdKV.open([etcd_address], root_path=root) as kv:
        yield kv


async def kept(kv: EtcdKV) -> dict[str, str]:
    """Returns what etcd has below the root."""
    root = kv.calls.full_key("")
    request = rpc.RangeRequest(key=root, range_end=root[:-1] + bytes([root[-1] + 1]))
    from wal.storage.kv.etcd.requests import RANGE

    answer = await kv.calls.connection.read(RANGE, request, "reading")
    return {kv_.key[len(root) :].decode(): kv_.value.decode() for kv_ in answer.kvs}


def with_checksums(kv: EtcdKV, records: Mapping[str, str]) -> dict[str, str]:
    return {key: value if key in (LOG_KEY, MARK) else sealed(f"{kv.root_path}/{key}", value) for key, value in records.items()}


async def contents(kv: EtcdKV) -> dict[str, str]:
    return dict(zip(*await kv.load_with_prefix(""), strict=True))


async def test_earlier_root_stays_until_its_writer_upgrades(kv: EtcdKV) -> None:
    assert await contents(kv) == OLD
    await kv.save("new", "1")
    assert await kv.compare_and_swap("b", "17", "18")
    assert await kept(kv) == {**OLD, "new": "1", "b": "18"}, "earlier versions beside it read all of it"
    async with await kv.session() as session:
        await session.save("leased", "mine")
        await kv.upgrade()
        upgraded = {**OLD, "new": "1", "b": "18"}
        assert await kept(kv) == {**with_checksums(kv, upgraded), "leased": "mine"}
        await session.save("leased", "again")
        assert (await kept(kv))["leased"] == with_checksums(kv, {"leased": "again"})["leased"]
    await kv.upgrade()
    assert await contents(kv) == upgraded, "the lease of the session took its key away"


async def test_comparison_holds_whatever_form_the_record_has(kv: EtcdKV, etcd_address: str) -> None:
    async with await EtcdKV.open([etcd_address], root_path=kv.root_path) as writer, await kv.watch_with_prefix("") as watch:
        await writer.upgrade()  # `kv` does not know it yet
        assert await kv.compare_and_swap("b", "17", "18")
        assert await kv.compare_and_swap("long", OLD["long"], "short", saves={"c": "1"})
        await writer.save("c", "2")
        assert await kv.change_if({"a/1": OLD["a/1"], "b": "17"}) == "b"
        assert await kv.change_if({"a/1": OLD["a/1"], "a/2": "", "none": None}, saves={"d": "1"}) is None
        assert {"b": "18", "c": "2", "d": "1"}.items() <= (await contents(writer)).items()
        events = [await anext(watch) for _ in range(8)]
        assert {event.key: event.value for event in events}["c"] == "2"
        assert all("crc32c" not in (event.value or "") for event in events)


async def test_damaged_record_is_an_error_for_every_reader(kv: EtcdKV, etcd_address: str) -> None:
    await kv.upgrade()

    async def damage(key: str, value: str) -> None:
        await call(etcd_address, "kv/put", key=text(f"{kv.root_path}/{key}"), value=text(value))

    record = with_checksums(kv, OLD)["a/1"]
    reads: list[Any] = [lambda: kv.load("a/1"), lambda: kv.multi_load(["b", "a/1"]), lambda: contents(kv), kv.upgrade]
    for value in (record[:-1] + "x", record.replace("c", "b", 1), record[:12] + "~" + record[13:]):
        async with await kv.watch("a/1") as watch:
            await damage("a/1", value)
            for read in reads:
                with pytest.raises(CorruptionError, match=r"record '.*a/1'.*restore"):
                    await read()
            with pytest.raises(CorruptionError, match="a/1"):
                await anext(watch)
    await kv.save("a/1", "1")
    await damage("a/9", record)
    with pytest.raises(CorruptionError, match="a/9"):
        await contents(kv)


async def test_leader_alone_upgrades_readably_for_candidates(kv: EtcdKV) -> None:
    async def call_put_bare(kv: EtcdKV) -> None:
        put = rpc.PutRequest(key=kv.calls.full_key("bare"), value=b"1")
        await kv.calls.transact([], [rpc.RequestOp(request_put=put)], "an earlier version's save")

    async with await kv.session() as session:
        leadership = await EtcdElection(kv, "leader").campaign("here:1", session)
        led = LedKV(kv, leadership)
        await led.confirm()
        await led.upgrade()
        leader = await EtcdElection(kv, "leader").leader()
        assert leader is not None
        assert leader.value == "here:1"
        await leadership.proclaim("here:2")
        leader = await EtcdElection(kv, "leader").leader()
        assert leader is not None
        assert leader.value == "here:2"
        await leadership.resign()
        await call_put_bare(kv)
        with pytest.raises(ChannelFencedError):
            await led.upgrade()


async def test_cluster_record_has_its_own_checksum(kv: EtcdKV, etcd_address: str) -> None:
    await kv.upgrade()
    await kv.remove(LOG_KEY)
    record = ClusterRecord("pulsar://host:6650/a/b", {}, 1 << 20, CHECKED_RECORDS)
    assert await create_cluster(kv, record)
    saved = (await kept(kv))[LOG_KEY]
    assert msgspec.json.decode(saved)["format"] == CHECKED_RECORDS, "an earlier version reads this, and refuses"
    loaded = await load_cluster(kv)
    assert loaded is not None
    assert msgspec.structs.replace(loaded, crc32c="") == record
    assert encode(loaded) == saved
    earlier = msgspec.structs.replace(record, format=MOVING_CURSORS)
    assert "crc32c" not in encode(earlier)
    for at in range(len(saved)):
        value = saved[:at] + chr(ord(saved[at]) ^ 1) + saved[at + 1 :]
        await call(etcd_address, "kv/put", key=text(f"{kv.root_path}/{LOG_KEY}"), value=text(value))
        with pytest.raises(CorruptionError):
            await load_cluster(kv)
