"""EtcdKV on real servers: the guarantees of every KV, on etcd 3.6 and 3.4, and those of a server only: bounds, sizes, other clients."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.storage.kv.conformance import KVConformance
from wal.errors import CorruptionError, InvalidArgumentError, UnavailableError, WouldBlockError
from wal.storage.kv import OPERATIONS_MAX, KVBase
from wal.storage.kv.etcd import EtcdKV
from wal.storage.kv.etcd.api import rpc_pb2 as rpc

SERVERS = {"3.6": "etcd_address", "3.4": "old_etcd_address"}


def new_root() -> str:
    return f"wal-test-{secrets.token_hex(6)}"


class TestEtcd(KVConformance):
    @pytest.fixture(params=[*SERVERS, pytest.param("part", marks=pytest.mark.soak("a part of a KV in memory, and a root of etcd"))])
    async def kv(self, request: pytest.FixtureRequest) -> AsyncIterator[KVBase]:
        address = request.getfixturevalue(SERVERS.get(request.param, "etcd_address"))
        kv = await EtcdKV.open([address], root_path=new_root())
        if request.param == "part":
            await kv.multi_save({"by-dev": "x", "by-de": "x", "by-dev/": "x", "by-dev2/a": "x", "by-dev0": "x"})
            part = kv.under("by-dev/part")
            yield part
            await part.close()
        else:
            yield kv
        await kv.close()


@pytest.fixture
async def kv(etcd_address: str) -> AsyncIterator[EtcdKV]:
    async with await EtcdKV.open([etcd_address], root_path=new_root()) as kv:
        yield kv


async def test_large_prefix_is_loaded_at_one_revision(kv: EtcdKV) -> None:
    values = {f"k{number:03}": f"{number}" * (300_000 // len(str(number))) for number in range(40)}
    for key, value in values.items():
        await kv.save(key, value)
    before = kv.calls.connection.attempts
    keys, loaded = await kv.load_with_prefix("")
    assert dict(zip(keys, loaded, strict=True)) == values
    assert kv.calls.connection.attempts - before > 1, "12 MB came in one message"
    assert await kv.multi_load(keys[:20]) == loaded[:20]  # 6 MB in one transaction


async def test_pages_of_a_prefix_are_of_one_moment(kv: EtcdKV) -> None:
    """Writers change every key at once while a scan of several pages is under way."""
    names = [f"k{number:03}" for number in range(100)]
    await kv.multi_save(dict.fromkeys(names[:30], f"0{'x' * 40000}"))
    await kv.multi_save(dict.fromkeys(names[30:60], f"0{'x' * 40000}"))
    count = 0

    async def write() -> None:
        nonlocal count
        while True:
            count += 1
            await kv.multi_save(dict.fromkeys(names, f"{count}{'y' * 10000}"))

    writer = asyncio.ensure_future(write())
    try:
        for _ in range(20):
            _, values = await kv.load_with_prefix("k")
            assert len({value.rstrip("xy") for value in values}) == 1
    finally:
        writer.cancel()
    assert count > 1


async def test_too_large_request_changes_nothing(kv: EtcdKV) -> None:
    await kv.save("a", "before")
    for size in (1_600_000, 3_000_000):
        with pytest.raises(InvalidArgumentError, match=r"1\.5 MiB.*nothing was changed"):
            await kv.multi_save({"a": "after", "b": "x" * size})
    assert await kv.load_with_prefix("") == (["a"], ["before"])


async def test_long_value_is_swapped_in_two_requests(kv: EtcdKV) -> None:
    one, two = "1" * 1_200_000, "2" * 1_200_000
    await kv.save("a", one)
    assert not await kv.compare_and_swap("a", two, one)
    assert await kv.compare_and_swap("a", one, two)
    assert await kv.load("a") == two
    assert not await kv.compare_and_swap("b", two, one)


async def test_long_values_are_swapped_by_one_of_many(kv: EtcdKV) -> None:
    await kv.save("a", "x" * 100_000)
    won = await asyncio.gather(*(kv.compare_and_swap("a", "x" * 100_000, f"{n}{'x' * 100_000}") for n in range(10)))
    assert sum(won) == 1
    assert (await kv.load("a")).startswith(str(won.index(True)))


async def test_smaller_limit_of_the_server_is_typed(etcd_binary: object) -> None:
    from tests.servers.etcd import EtcdServer

    server = EtcdServer(options=["--max-txn-ops", "10"])
    await asyncio.to_thread(server.start)
    try:
        async with await EtcdKV.open([server.address]) as kv:
            with pytest.raises(InvalidArgumentError, match="too many operations"):
                await kv.multi_save({str(number): "v" for number in range(11)})
            await kv.multi_save({str(number): "v" for number in range(10)})
    finally:
        server.close()


async def test_foreign_bytes_without_text_are_an_error(kv: EtcdKV) -> None:
    put = rpc.PutRequest(key=kv.calls.full_key("a") + b"\xff", value=b"\xfe")
    await kv.calls.transact([], [rpc.RequestOp(request_put=put)], "a foreign write")
    with pytest.raises(CorruptionError, match="not UTF-8"):
        await kv.load_with_prefix("")
    await kv.remove_with_prefix("")
    assert await kv.load_with_prefix("") == ([], [])


async def test_missing_etcd_is_reported_with_its_addresses() -> None:
    from tests.servers.process import free_ports

    one, two = free_ports(2)
    with pytest.raises(UnavailableError, match=rf"(?s)127\.0\.0\.1:{one}.*refused.*127\.0\.0\.1:{two}.*refused") as caught:
        await EtcdKV.open([f"127.0.0.1:{one}", f"127.0.0.1:{two}"], timeout_s=0.5)
    assert caught.value.retryable
    assert not caught.value.outcome_unknown


async def test_first_of_several_members_that_answers_is_used(etcd_address: str) -> None:
    from tests.servers.process import free_ports

    away = [f"127.0.0.1:{port}" for port in free_ports(2)]
    async with await EtcdKV.open([away[0], etcd_address, away[1]], root_path=new_root()) as kv:
        await kv.save("a", "1")
        assert await kv.load("a") == "1"


async def test_calls_under_way_are_bounded(etcd_address: str) -> None:
    async with await EtcdKV.open([etcd_address], root_path=new_root(), waiting_max=2) as kv:
        saves = [asyncio.ensure_future(kv.save(str(number), "v")) for number in range(3)]
        done = await asyncio.gather(*saves, return_exceptions=True)
        assert [type(one) for one in done] == [type(None), type(None), WouldBlockError]


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"waiting_max": 0}, {"root_path": "//"}])
async def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        await EtcdKV.open(["127.0.0.1:1"], **wrong)  # type: ignore[arg-type]
    endpoints: Any
    for endpoints in ([], "127.0.0.1:1"):
        with pytest.raises(InvalidArgumentError, match="endpoints"):
            await EtcdKV.open(endpoints)


async def test_two_kvs_of_one_cluster_see_each_other(kv: EtcdKV, etcd_address: str) -> None:
    async with await EtcdKV.open([etcd_address], root_path=kv.root_path) as other, await kv.watch_with_prefix("") as watch:
        await other.multi_save({str(number): "v" for number in range(OPERATIONS_MAX)})
        async with asyncio.timeout(60):
            events = [await anext(watch) for _ in range(OPERATIONS_MAX)]
        assert {event.revision for event in events} == {other.statistics().revision}
        assert [event.key for event in events] == [str(number) for number in range(OPERATIONS_MAX)]
