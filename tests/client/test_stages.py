"""Stages over the network whose server is killed and started again: each message comes out once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import SOAK
from tests.read.cursors.test_moving import check_failed_save
from tests.serve.servers import Child, Serving
from wal import All, Log, Message, open_wal
from wal.client.nodes import Nodes
from wal.errors import SessionLostError, UnknownOutcomeError
from wal.read.cursors.cursor import CursorKey
from wal.requests.cursors import ClaimCursor


async def test_stages_outlive_their_server(server: Child, data_dir: object) -> None:
    """One stage saves with transactions, the other one commits as consumers do, several concurrently."""
    count = 300 if not SOAK else 900
    rounds = 1 if not SOAK else 3

    async def save(log: Log) -> None:
        """Moves all messages to "saved"; after an error it continues at its cursor."""
        last = 0
        while last < count - 1:
            try:
                async with log.read("in", cursor="saving", deliver_policy=All(), follow=False) as scanner:
                    async for page in scanner.batches(size_max=3):
                        async with log.txn("saved") as txn:
                            await txn.append_many([message.payload for message in page])
                            txn.save(scanner)
                        last = int(page[-1].payload)
            except UnknownOutcomeError:
                last = 0

    async def commit(log: Log) -> None:
        """Moves all messages to "committed", with up to eight commits in flight; the same consumer continues over every restart."""
        key = CursorKey.of("committing", ("in",))
        home = await (await log._lifecycle.ready()).cursor_home(key)
        claim = await home.claim()
        commits: list[asyncio.Future[object]] = []
        async with log.read("in", cursor="committing", deliver_policy=All(), follow=False) as scanner:
            async for message in scanner:
                bodies = [Message("committed", message.payload)]
                commits.append(
                    asyncio.ensure_future(home.commit(bodies, position=scanner._cursor()[0], state=message.payload, fence=claim.fence))
                )
                if len(commits) == 8:
                    await asyncio.gather(*commits)
                    commits.clear()
        await asyncio.gather(*commits)
        await home.release(claim.fence)
        claim = await home.claim(exclusive="error")
        assert int(claim.state) == count - 1
        await home.release(claim.fence)

    async def output(log: Log, name: str) -> list[int]:
        async with log.read(name, deliver_policy=All(), follow=False) as scanner:
            return [int(body.payload) async for _, body in scanner.bodies()]

    async def moved(log: Log, name: str) -> int:
        await asyncio.sleep(0.01)
        return len(await output(log, name))

    current = server
    async with open_wal(f"wal://{server.address}") as log:
        for name in ("in", "saved", "committed"):
            await log.create_vchannel(name)
        await log.append_bulk([Message("in", b"%d" % number) for number in range(count)])
        stages = [asyncio.ensure_future(save(log)), asyncio.ensure_future(commit(log))]
        for round_number in range(1, rounds + 1):
            while min([await moved(log, name) for name in ("saved", "committed")]) < round_number * count // (rounds + 1):
                for stage in stages:
                    if stage.done():
                        stage.result()
            await current.kill()
            current = await Child.start(str(data_dir), listen=server.address)
        await asyncio.gather(*stages)
        for name in ("saved", "committed"):
            assert await output(log, name) == list(range(count))
    assert await current.stop() == 0


async def test_save_never_covers_failed_one(log: Log) -> None:
    await check_failed_save(log)


async def test_commit_of_known_key_saves_although_its_transaction_is_over(log: Log, served: Serving) -> None:
    """The server does not know the transaction any more, as after a restart: the key has the first result, and the cursor is saved."""
    await log.append_bulk([Message("in", b"%d" % number) for number in range(3)])
    async with log.read("in", cursor="stage", deliver_policy=All(), follow=False) as scanner:
        for is_over in (False, True):
            await anext(scanner)
            async with log.txn("out", idempotency_key="once") as txn:
                await txn.append(b"once")
                txn.save(scanner)
                if is_over:
                    for pchannel in served.log.node.pchannels.values():
                        pchannel.table.rollback(txn.context.txn_id)
            assert txn.result.duplicate is is_over
    async with log.read("in", cursor="stage", follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"2"]
    async with log.read("out", follow=False) as scanner:
        assert [body.payload async for _, body in scanner.bodies()] == [b"once"]


async def test_claim_that_is_cancelled_leaves_no_lease(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller ends while the answer is on its way: the next consumer waits for nothing."""
    real = Nodes.submit
    await log.append("in", b"0")
    home = await (await log._lifecycle.ready()).cursor_home(CursorKey.of("committing", ("in",)))

    async def submit(self: Nodes, request: Any, pchannel: str) -> Any:
        answer = await real(self, request, pchannel)
        if isinstance(request, ClaimCursor):
            claiming.cancel()
            await asyncio.sleep(0)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Nodes, "submit", submit)
        claiming = asyncio.ensure_future(home.claim())
        with pytest.raises(asyncio.CancelledError):
            await claiming
    await home.release((await home.claim(exclusive="error")).fence)


async def test_lease_passes_to_a_standby(server: Child) -> None:
    key = CursorKey.of("committing", ("in",))
    async with open_wal(f"wal://{server.address}") as log, open_wal(f"wal://{server.address}") as standby:
        await log.append("in", b"0")
        home = await (await log._lifecycle.ready()).cursor_home(key)
        claim = await home.claim()
        waiting = asyncio.ensure_future((await (await standby._lifecycle.ready()).cursor_home(key)).claim())
        await home.commit([], position=None, state=b"1", fence=claim.fence)
        assert not waiting.done()
        await home.release(claim.fence)
        taken = await waiting
        assert taken.fence > claim.fence
        assert taken.state == b"1"
        try:
            await home.commit([], position=None, state=b"2", fence=claim.fence)
        except SessionLostError:
            return
        raise AssertionError("a consumer that released the cursor saved it")
