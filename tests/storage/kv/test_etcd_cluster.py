"""EtcdKV and three members: when one is killed or frozen, the others are asked, and a watch that moves sees each change once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer, cluster
from tests.storage.kv.test_etcd_faults import WAIT_S, Writer, check, collect
from wal.storage.kv.etcd import EtcdKV

pytestmark = pytest.mark.one_loop  # each test kills or freezes a server


async def test_failing_members_lose_and_repeat_nothing(etcd_binary: Path, soak: int) -> None:
    def fail_for(member: EtcdServer, writer: Writer, loop: asyncio.AbstractEventLoop) -> None:
        """Kills a member until the others have taken twenty writes; then the member comes back, and catches up while it is asked."""
        member.kill()
        asyncio.run_coroutine_threadsafe(writer.more(20), loop).result(WAIT_S)
        member.start()

    failures = 2 * soak
    made = cluster(etcd_binary, 3)
    members = await asyncio.to_thread(made.__enter__)
    try:
        addresses = [member.address for member in members]
        async with (
            await EtcdKV.open(addresses, root_path="r", timeout_s=WAIT_S) as kv,
            await EtcdKV.open(addresses[::-1], root_path="r", timeout_s=WAIT_S) as other,
            await kv.watch_with_prefix("", buffer_max=1 << 20) as watch,
            await other.watch_with_prefix("", buffer_max=1 << 20) as elsewhere,
            await kv.session(ttl_s=30) as session,
        ):
            writer = Writer(kv)
            for turn in range(failures):
                await writer.more(20)
                await asyncio.to_thread(fail_for, members[turn % 3], writer, asyncio.get_running_loop())
            await writer.more(20)
            await writer.stop()
            await other.save("last", "")
            seen = await collect(watch)
            check(seen, writer)
            assert await collect(elsewhere) == seen
            assert session.alive
            assert len(writer.unknown) <= 2 * failures + 1
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


async def test_reads_leave_a_frozen_member(etcd_binary: Path) -> None:
    made = cluster(etcd_binary, 3)
    members = await asyncio.to_thread(made.__enter__)
    try:
        async with await EtcdKV.open([member.address for member in members], root_path="r", timeout_s=WAIT_S / 4) as kv:
            await kv.save("a", "1")
            members[0].stop()
            async with asyncio.timeout(WAIT_S):
                assert await kv.load("a") == "1"
                async with await kv.watch("a") as watch:
                    await kv.save("a", "2")
                    assert (await anext(watch)).value == "2"
            members[0].cont()
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)
