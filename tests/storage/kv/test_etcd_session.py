"""Sessions and elections on a real etcd: which session has a key, when its owner is notified of a loss, and which leader can still
write.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer
from tests.storage.kv import etcd_admin
from tests.storage.kv.test_etcd import new_root
from wal import errors
from wal.storage.kv.etcd import EtcdElection, EtcdKV, EtcdSession, Leader, Leadership

WAIT_S = 60.0


@pytest.fixture
async def kv(etcd_address: str) -> AsyncIterator[EtcdKV]:
    async with await EtcdKV.open([etcd_address], root_path=new_root()) as kv:
        yield kv


@pytest.fixture
def server(etcd_binary: Path) -> Iterator[EtcdServer]:
    with EtcdServer(etcd_binary) as server:
        yield server


# -- sessions


async def test_session_end_deletes_its_keys(kv: EtcdKV, etcd_address: str) -> None:
    async with await kv.session(ttl_s=3) as session:
        await session.save("nodes/a", "here")
        async with asyncio.timeout(WAIT_S):
            while session.renewals < 4:  # each comes at a third of the TTL
                await asyncio.sleep(0.01)
        assert session.alive
        assert await kv.load("nodes/a") == "here"
        assert session.lease in await etcd_admin.leases(etcd_address)
    assert session.lease not in await etcd_admin.leases(etcd_address)
    with pytest.raises(errors.KeyNotExistError):
        await kv.load("nodes/a")
    assert not session.alive
    for call in (session.save("nodes/a", "again"), session.guard(asyncio.sleep(0))):
        with pytest.raises(errors.ClosedError):
            await call
    await session.close()


async def test_owner_of_a_revoked_lease_is_told(kv: EtcdKV, etcd_address: str) -> None:
    async with await kv.session(ttl_s=6) as session:
        guarded = asyncio.ensure_future(session.guard(asyncio.Event().wait()))
        await etcd_admin.revoke(etcd_address, session.lease)
        async with asyncio.timeout(WAIT_S):
            assert isinstance(await session.wait_lost(), errors.SessionLostError)
            with pytest.raises(errors.SessionLostError, match="expired or was revoked"):
                await guarded
        assert not session.alive


async def test_lifetime_of_a_lease_ends_with_it(kv: EtcdKV) -> None:
    async with await kv.session(ttl_s=6) as session:
        assert await kv.lifetime(session.lease) == 6.0
        await kv.revoke(session.lease)
        assert await kv.lifetime(session.lease) == 0.0


async def test_defect_in_the_renewal_is_told_at_once(kv: EtcdKV) -> None:
    """The owner does not have to wait until the lease has expired."""
    broken = False

    def clock() -> float:
        if broken:
            raise RuntimeError("no time")
        return 0.0

    session = await EtcdSession.open(kv.calls, ttl_s=6, on_end=lambda _: None, clock=clock)
    broken = True
    async with asyncio.timeout(WAIT_S):
        error = await session.wait_lost()
    assert isinstance(error, errors.SessionLostError)
    assert "no time" in str(error)
    await session.close()


async def test_write_with_a_revoked_lease_fails_at_once(kv: EtcdKV, etcd_address: str) -> None:
    async with await kv.session(ttl_s=60) as session:
        await etcd_admin.revoke(etcd_address, session.lease)
        with pytest.raises(errors.SessionLostError):
            await session.save("a", "1")
        assert isinstance(session.error, errors.SessionLostError)


async def test_owner_learns_of_expiry_before_others(server: EtcdServer) -> None:
    """Freezes etcd, so that no renewal comes through, until the owner sees the expiry: the lease must still be there."""
    async with await EtcdKV.open([server.address], root_path="r", timeout_s=30) as kv:
        session = await kv.session(ttl_s=3)
        await session.save("a", "mine")
        server.stop()
        async with asyncio.timeout(WAIT_S):
            error = await session.wait_lost()
        server.cont()
        assert isinstance(error, errors.SessionLostError)
        assert "not renewed in time" in str(error)
        left = await etcd_admin.call(server.address, "lease/timetolive", ID=session.lease)
        assert int(left.get("TTL", 0)) >= 0  # -1: it has expired
        assert not session.alive
        with pytest.raises(errors.SessionLostError):
            await session.save("a", "still mine")


async def test_session_survives_a_restart_within_its_ttl(server: EtcdServer) -> None:
    async with await EtcdKV.open([server.address], root_path="r", timeout_s=30) as kv, await kv.session(ttl_s=12) as session:
        await session.save("a", "mine")
        await asyncio.to_thread(server.restart)
        renewals = session.renewals
        async with asyncio.timeout(WAIT_S):
            while session.renewals == renewals:
                await asyncio.sleep(0.01)
        assert session.alive
        assert await kv.load("a") == "mine"


async def test_suspended_machine_loses_its_session(kv: EtcdKV) -> None:
    """A machine slept: no timer of the loop has run, and `alive` must not return True."""
    now = 1000.0
    session = await EtcdSession.open(kv.calls, ttl_s=60, on_end=lambda _: None, clock=lambda: now)
    assert session.alive
    now += 49.9
    assert session.alive
    now += 0.2  # five sixths of the TTL have passed
    assert not session.alive
    now -= 50
    assert not session.alive, "what was lost was found again"
    await session.close()


async def test_guard_returns_raises_and_cancels(kv: EtcdKV) -> None:
    async def fail() -> None:
        raise ValueError("its own")

    async with await kv.session(ttl_s=60) as session:
        assert await session.guard(asyncio.sleep(0, "result")) == "result"
        with pytest.raises(ValueError, match="its own"):
            await session.guard(fail())
        ended = asyncio.Event()

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        caller = asyncio.ensure_future(session.guard(wait()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
        assert ended.is_set()
        assert session.alive


async def test_ttl_that_leaves_no_time_is_refused(kv: EtcdKV) -> None:
    for ttl_s in (0, -1, 1.9, float("nan")):
        with pytest.raises(errors.InvalidArgumentError, match="ttl_s"):
            await kv.session(ttl_s=ttl_s)


# -- elections


async def test_candidates_lead_one_by_one(kv: EtcdKV, etcd_address: str) -> None:
    leading: list[str] = []
    tokens: list[int] = []

    async def stand(name: str, stood: asyncio.Event) -> None:
        async with (
            await EtcdKV.open([etcd_address], root_path=kv.root_path) as own,
            await own.session(ttl_s=30) as session,
            await EtcdElection(own, "coordinator").campaign(name, session) as leadership,
        ):
            leading.append(name)
            tokens.append(leadership.token)
            assert (await EtcdElection(kv, "coordinator").leader()) == Leader(name, leadership.token, leadership.key, leadership.token)
            if name == "0":
                stood.set()
                async with asyncio.timeout(WAIT_S):
                    while len((await kv.load_with_prefix("coordinator/"))[0]) < 5:
                        await asyncio.sleep(0.01)

    async with asyncio.timeout(WAIT_S):
        first = asyncio.Event()
        tasks = [asyncio.ensure_future(stand("0", first))]
        await first.wait()
        tasks += [asyncio.ensure_future(stand(str(number), first)) for number in range(1, 5)]
        await asyncio.gather(*tasks)
    assert leading[0] == "0"
    assert sorted(leading) == ["0", "1", "2", "3", "4"]
    assert tokens == sorted(tokens)
    assert await EtcdElection(kv, "coordinator").leader() is None


async def test_leader_that_lost_its_lease_can_change_nothing(kv: EtcdKV, etcd_address: str) -> None:
    election = EtcdElection(kv, "coordinator")
    async with await kv.session(ttl_s=60) as one, await kv.session(ttl_s=60) as two:
        old = await election.campaign("old", one)
        await old.multi_save_and_remove({"assignments/a": "by the old one", "b": "x"})
        await old.proclaim("old, ready")
        waiting = asyncio.ensure_future(election.campaign("new", two))
        await etcd_admin.revoke(etcd_address, one.lease)
        async with asyncio.timeout(WAIT_S):
            new = await waiting
        assert new.token > old.token
        with pytest.raises(errors.ChannelFencedError, match="changed nothing"):
            await old.multi_save_and_remove({"assignments/a": "by the old one, late"})
        with pytest.raises((errors.ChannelFencedError, errors.SessionLostError)):
            await old.proclaim("old, still here")
        await old.resign()
        await new.multi_save_and_remove({"assignments/a": "by the new one"}, ["b"])
        assert await kv.load("assignments/a") == "by the new one"
        leader = await election.leader()
        assert leader is not None
        assert leader.value == "new"
        with pytest.raises(errors.InvalidArgumentError, match="candidate"):
            await election.campaign("twice", two)
        assert (await election.leader()) == leader


async def test_candidate_that_resigns_leaves_the_queue(kv: EtcdKV, etcd_address: str) -> None:
    election = EtcdElection(kv, "coordinator")
    async with await kv.session(ttl_s=60) as one, await kv.session(ttl_s=60) as two, await kv.session(ttl_s=6) as three:
        leadership = await election.campaign("leader", one)
        queue: list[asyncio.Task[Leadership]] = []
        for value, session in (("two", two), ("three", three)):
            queue.append(asyncio.ensure_future(election.campaign(value, session)))
            async with asyncio.timeout(WAIT_S):
                while value not in (await kv.load_with_prefix("coordinator/"))[1]:
                    await asyncio.sleep(0.01)
        queue[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await queue[0]
        assert sorted((await kv.load_with_prefix("coordinator/"))[1]) == ["leader", "three"]
        await etcd_admin.revoke(etcd_address, three.lease)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(errors.SessionLostError):
                await queue[1]
        assert (await kv.load_with_prefix("coordinator/"))[1] == ["leader"]
        async with await kv.session(ttl_s=60) as four:
            waiting = asyncio.ensure_future(election.campaign("four", four))
            async with asyncio.timeout(WAIT_S):
                while "four" not in (await kv.load_with_prefix("coordinator/"))[1]:
                    await asyncio.sleep(0.01)
            # Removed by hand, not by the end of the lease.
            await kv.remove((await kv.load_with_prefix("coordinator/"))[0][1])
            await leadership.resign()
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(errors.ChannelFencedError, match="removed by somebody else"):
                    await waiting
        await leadership.resign()
        assert await election.leader() is None


async def test_observers_get_each_leader(kv: EtcdKV) -> None:
    election = EtcdElection(kv, "coordinator")
    seen: list[str | None] = []
    changed = asyncio.Event()

    async def observe() -> None:
        async for leader in election.observe():
            seen.append(None if leader is None else leader.value)
            changed.set()

    async def until(value: str | None) -> None:
        async with asyncio.timeout(WAIT_S):
            while not seen or seen[-1] != value:
                changed.clear()
                await changed.wait()

    observer = asyncio.ensure_future(observe())
    await until(None)
    async with await kv.session(ttl_s=30) as session:
        leadership = await election.campaign("a", session)
        await until("a")
        await leadership.proclaim("a, ready")
        await until("a, ready")
    await until(None)
    assert seen == [None, "a", "a, ready", None]
    observer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await observer


async def test_leadership_is_exclusive_over_kills_and_freezes(server: EtcdServer, soak: int) -> None:
    """Three candidates write as the leader while they believe that they lead; the writes that etcd took have ascending tokens."""
    wins: list[int] = []
    writers: set[int] = set()

    async def stand(kv: EtcdKV) -> None:
        while True:
            with contextlib.suppress(errors.WALError):
                async with await kv.session(ttl_s=2) as session:
                    leadership = await EtcdElection(kv, "leader").campaign("x", session)
                    wins.append(leadership.token)
                    for _ in range(1 if len(wins) % 2 else 100):  # a restart need not end anybody's leadership
                        if session.alive:
                            await leadership.multi_save_and_remove({"written": str(leadership.token)})
                            writers.add(leadership.token)
                    await leadership.resign()

    kvs = [await EtcdKV.open([server.address], root_path="r", timeout_s=5) for _ in range(3)]
    async with (
        await EtcdKV.open([server.address], root_path="r", timeout_s=30) as reader,
        await reader.watch("written", buffer_max=1 << 20) as watch,
    ):
        candidates = [asyncio.ensure_future(stand(kv)) for kv in kvs]
        for _ in range(soak):
            for disturb in (server.restart, server.stop):
                count = len(writers)
                async with asyncio.timeout(WAIT_S):
                    while len(writers) < count + 2:
                        await asyncio.sleep(0.01)
                await asyncio.to_thread(disturb)
            server.cont()
        for candidate in candidates:
            candidate.cancel()
        await asyncio.gather(*candidates, return_exceptions=True)
        await reader.save("written", "0")
        written = []
        async with asyncio.timeout(WAIT_S):
            async for event in watch:
                if event.value == "0":
                    break
                written.append(int(event.value or -1))
    await asyncio.gather(*(kv.close() for kv in kvs))
    assert written == sorted(written)
    assert len(set(written)) >= 3
    assert set(written) <= set(wins)


async def test_candidate_of_unknown_outcome_never_leads(server: EtcdServer) -> None:
    """Freezes etcd, so that it is unknown whether the candidate's key was put, and no call can remove it: the session ends, and so does the
    key."""
    root = new_root()
    async with (
        await EtcdKV.open([server.address], root_path=root, timeout_s=WAIT_S) as hasty,
        await EtcdKV.open([server.address], root_path=root) as patient,
    ):
        for _ in range(3):
            session = await hasty.session(ttl_s=6)
            server.stop()
            hasty.calls.connection.timeout_s = 0.5
            try:
                with pytest.raises(errors.UnknownOutcomeError):
                    await EtcdElection(hasty, "e").campaign("nobody", session)
            finally:
                hasty.calls.connection.timeout_s = WAIT_S
                server.cont()
            assert not session.alive
            with pytest.raises(errors.SessionLostError, match="withdrawn"):
                session.check_alive()
            async with (
                asyncio.timeout(WAIT_S),
                await patient.session(ttl_s=10) as other,
                await EtcdElection(patient, "e").campaign("somebody", other) as leadership,
            ):
                assert await EtcdElection(hasty, "e").leader() == await EtcdElection(patient, "e").leader()
                await leadership.multi_save_and_remove({"mine": "1"})
            await session.close()


async def test_candidate_that_resigns_in_an_outage_leaves_nothing(server: EtcdServer) -> None:
    root = new_root()
    async with (
        await EtcdKV.open([server.address], root_path=root, timeout_s=5) as kv,
        await EtcdKV.open([server.address], root_path=root) as patient,
        await patient.session(ttl_s=20) as first,
        await EtcdElection(patient, "e").campaign("first", first) as leadership,
    ):
        session = await kv.session(ttl_s=8)
        campaign = asyncio.ensure_future(EtcdElection(kv, "e").campaign("second", session))
        async with asyncio.timeout(WAIT_S):
            while len((await patient.load_with_prefix("e/"))[0]) < 2:
                await asyncio.sleep(0.01)
            server.stop()
            try:
                campaign.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await campaign
            finally:
                server.cont()
            assert isinstance(await session.wait_lost(), errors.SessionLostError)
            while len((await patient.load_with_prefix("e/"))[0]) > 1:
                await asyncio.sleep(0.05)
        await session.close()
        await leadership.multi_save_and_remove({"mine": "1"})
