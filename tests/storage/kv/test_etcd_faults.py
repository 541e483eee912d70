"""EtcdKV when etcd is killed, frozen, compacted or restored: each acknowledged change is seen once and in order, or the watch ends with
an error."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer
from tests.storage.kv import etcd_admin
from tests.storage.kv.test_etcd import new_root
from wal import Message, WALAccesser, open_wal
from wal.errors import ChannelFencedError, ClosedError, TruncatedError, UnavailableError, UnknownOutcomeError
from wal.storage.kv import Watch, WatchEvent
from wal.storage.kv.etcd import EtcdElection, EtcdKV
from wal.storage.kv.etcd.election import LedKV

pytestmark = pytest.mark.one_loop  # each test kills or freezes a server

WAIT_S = 60.0


@pytest.fixture(params=["3.6", "3.4"])
def server(request: pytest.FixtureRequest) -> Iterator[EtcdServer]:
    with EtcdServer(request.getfixturevalue("etcd_binary" if request.param == "3.6" else "old_etcd_binary")) as server:
        yield server


@pytest.fixture
def new_server(etcd_binary: Path) -> Iterator[EtcdServer]:
    """Starts a server of the newest version, for behaviour that does not differ between versions."""
    with EtcdServer(etcd_binary) as server:
        yield server


@pytest.fixture
async def kv(server: EtcdServer) -> AsyncIterator[EtcdKV]:
    async with await EtcdKV.open([server.address], root_path=new_root(), timeout_s=30) as kv:
        yield kv


@pytest.fixture
async def new_kv(new_server: EtcdServer) -> AsyncIterator[EtcdKV]:
    async with await EtcdKV.open([new_server.address], root_path=new_root(), timeout_s=30) as kv:
        yield kv


class Writer:
    """Saves numbered keys one after the other, and remembers which saves were acknowledged and which have an unknown outcome."""

    def __init__(self, kv: EtcdKV) -> None:
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self._kv = kv
        self._number = 0
        self._task = asyncio.ensure_future(self._run())
        self._moved = asyncio.Event()

    async def more(self, count: int) -> None:
        """Waits until `count` more were acknowledged."""
        target = len(self.acknowledged) + count
        async with asyncio.timeout(WAIT_S):
            while len(self.acknowledged) < target:
                self._moved.clear()
                await self._moved.wait()

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            number = self._number
            self._number += 1
            self.unknown.append(number)
            try:
                await self._kv.save(f"k/{number % 7}", str(number))
            except UnknownOutcomeError:
                continue
            except UnavailableError:
                self.unknown.remove(number)
                continue
            self.unknown.remove(number)
            self.acknowledged.append(number)
            self._moved.set()


async def collect(watch: Watch, last: str = "last") -> list[WatchEvent]:
    events: list[WatchEvent] = []
    async with asyncio.timeout(WAIT_S):
        async for event in watch:
            if event.key == last:
                return events
            events.append(event)
    raise AssertionError("the watch ended")


def check(events: list[WatchEvent], writer: Writer) -> None:
    numbers = [int(event.value or -1) for event in events]
    assert len(set(numbers)) == len(numbers), "an event came twice"
    revisions = [event.revision for event in events]
    assert revisions == sorted(revisions)
    assert set(writer.acknowledged) - set(numbers) == set(), "an acknowledged save was not seen"
    assert set(numbers) - set(writer.acknowledged) <= set(writer.unknown), "something was seen that nobody saved"
    ordered = [number for number in numbers if number in set(writer.acknowledged)]
    assert ordered == writer.acknowledged


async def test_busy_watch_is_exact_over_kills(server: EtcdServer, kv: EtcdKV, soak: int) -> None:
    async with await kv.watch_with_prefix("", buffer_max=1 << 20) as watch:
        writer = Writer(kv)
        for _ in range(3 * soak):
            await writer.more(50)
            await asyncio.to_thread(server.restart)
        await writer.more(50)
        await writer.stop()
        await kv.save("last", "")
        check(await collect(watch), writer)
    # Each kill leaves the save whose answer was lost, and a save on a connection not known to be dead; `stop` leaves the save that it
    # cancelled.
    assert len(writer.unknown) <= 2 * 3 * soak + 1
    assert set((await kv.load_with_prefix("k/"))[1]) <= {str(number) for number in writer.acknowledged + writer.unknown}


async def test_idle_watch_gets_events_of_its_outage(server: EtcdServer, kv: EtcdKV) -> None:
    """The watch has seen no event yet: it continues at its own start, not at the revision that the store names when it comes back."""
    async with await kv.watch_with_prefix("k/") as watch:
        await asyncio.to_thread(server.kill)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.to_thread(server.start)
        async with await EtcdKV.open([server.address], root_path=kv.root_path) as other:
            for number in range(20):
                await other.save(f"k/{number}", str(number))
            await other.save("k/last", "")
        async with asyncio.timeout(WAIT_S):
            assert (await waiting).value == "0"
        assert [event.value for event in await collect(watch, "k/last")] == [str(number) for number in range(1, 20)]


async def test_frozen_etcd_ends_calls_at_their_deadline(server: EtcdServer, kv: EtcdKV) -> None:
    async with (
        await EtcdKV.open([server.address], root_path=kv.root_path, timeout_s=30) as hasty,
        await hasty.watch_with_prefix("") as watch,
    ):
        await hasty.save("a", "1")
        hasty.calls.connection.timeout_s = 0.5
        server.stop()
        with pytest.raises(UnknownOutcomeError, match="may have been carried out") as caught:
            await hasty.save("a", "2")
        assert caught.value.outcome_unknown
        with pytest.raises(UnavailableError, match="nothing was changed"):
            await hasty.load("a")
        server.cont()
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(UnavailableError, UnknownOutcomeError):
                    await kv.save("last", "")
                    break
        values = [event.value for event in await collect(watch)]
        assert values in (["1"], ["1", "2"])


async def test_unsent_write_has_a_known_outcome(new_server: EtcdServer, new_kv: EtcdKV) -> None:
    server, kv = new_server, new_kv
    async with await EtcdKV.open([server.address], root_path=kv.root_path, timeout_s=30) as hasty:
        hasty.calls.connection.timeout_s = 0.5
        await asyncio.to_thread(server.kill)
        seen: list[type[Exception]] = []
        while UnavailableError not in seen:
            try:
                await hasty.save("a", "1")
            except (UnavailableError, UnknownOutcomeError) as error:
                seen.append(type(error))
        assert len(seen) <= 2  # the first call may meet a connection that is not known to be dead yet
        waiting = asyncio.ensure_future(kv.save("a", "2"))
        loading = asyncio.ensure_future(kv.load_with_prefix(""))
        await asyncio.to_thread(server.start)
        with contextlib.suppress(UnknownOutcomeError):
            await waiting  # it waits for etcd instead of failing
        assert await loading in (([], []), (["a"], ["2"]))


async def test_compaction_while_away_is_told(server: EtcdServer, kv: EtcdKV) -> None:
    def compact_before_the_watch_returns(server: EtcdServer, root: str) -> None:
        """Changes the keys on another port, where the watcher cannot be first, compacts above the changes, and goes back to the old
        port."""
        server.kill()
        with EtcdServer(Path(server.command[0]), folder=server.folder / "elsewhere", data_dir=server.data_dir) as hidden:
            asyncio.run(write_and_compact(hidden.address, root))
        server.start()

    async def write_and_compact(address: str, root: str) -> None:
        async with await EtcdKV.open([address], root_path=root) as other:
            for number in range(100):
                await other.save("k/1", str(number))
            await etcd_admin.compact(address, await other.store_revision())

    async with await kv.watch_with_prefix("k/") as watch, await kv.watch_with_prefix("m/") as lucky:
        await kv.save("k/0", "seen")
        await kv.save("m/0", "seen")
        assert (await anext(watch)).value == "seen"
        assert (await anext(lucky)).value == "seen"
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(compact_before_the_watch_returns, server, kv.root_path)
        with pytest.raises(TruncatedError, match=r"compacted.*load the keys again"):
            async with asyncio.timeout(WAIT_S):
                while True:
                    await anext(watch)
        with pytest.raises(TruncatedError, match="compacted"):
            async with asyncio.timeout(WAIT_S):
                await anext(lucky)
        assert await kv.load("k/1") == "99"


async def test_compaction_below_the_seen_revision_disturbs_no_watch(new_server: EtcdServer, new_kv: EtcdKV) -> None:
    server, kv = new_server, new_kv
    async with await kv.watch_with_prefix("") as watch:
        for number in range(20):
            await kv.save("a", str(number))
        async with asyncio.timeout(WAIT_S):
            revision = [(await anext(watch)).revision for _ in range(20)][-1]
        await etcd_admin.compact(server.address, revision)
        await asyncio.to_thread(server.restart)
        await kv.save("last", "")
        assert await collect(watch) == []


async def test_progress_keeps_a_quiet_watch_above_compactions(etcd_binary: Path) -> None:
    """Other clients write and compact; the watch has no event for long, and etcd sends it the current revision."""
    server = EtcdServer(etcd_binary, options=["--experimental-watch-progress-notify-interval=100ms"])
    await asyncio.to_thread(server.start)
    try:
        async with (
            await EtcdKV.open([server.address], root_path="ours", timeout_s=30) as kv,
            await EtcdKV.open([server.address], root_path="theirs", timeout_s=30) as other,
        ):
            watch = await kv.watch("a")
            position = kv._watchers[watch][0]._position
            for number in range(50):
                await other.save("b", str(number))
            revision = await other.store_revision()
            async with asyncio.timeout(WAIT_S):
                while position.next_revision <= revision:
                    await asyncio.sleep(0.01)
            await etcd_admin.compact(server.address, revision)
            await asyncio.to_thread(server.restart)
            await kv.save("a", "still watched")
            async with asyncio.timeout(WAIT_S):
                assert (await anext(watch)).value == "still watched"
            await watch.close()
    finally:
        server.close()


@pytest.mark.parametrize("grown", [False, True])
async def test_restored_backup_is_told(new_server: EtcdServer, new_kv: EtcdKV, *, grown: bool) -> None:
    """Restores a backup; with `grown`, others write until its revision is above the watch's."""
    server, kv = new_server, new_kv
    for number in range(10):
        await kv.save("a", str(number))
    backup = server.folder / "backup"
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(shutil.copytree, server.data_dir, backup)
    await asyncio.to_thread(server.start)
    async with await kv.watch("a") as watch:
        for number in range(10, 20):
            await kv.save("a", str(number))
        async with asyncio.timeout(WAIT_S):
            assert [(await anext(watch)).value for _ in range(10)] == [str(number) for number in range(10, 20)]
        await asyncio.to_thread(_restore, server, backup, 40 if grown else 0)
        with pytest.raises(TruncatedError, match=r"restored or replaced.*load the keys again"):
            async with asyncio.timeout(WAIT_S):
                await anext(watch)
        async with await kv.watch("a") as again:
            await kv.save("a", "new")
            async with asyncio.timeout(WAIT_S):
                assert (await anext(again)).value == "new"


async def test_leader_notices_a_backup_without_its_changes(new_server: EtcdServer, new_kv: EtcdKV) -> None:
    """The leader's key and its lease are in the backup: it leads there too. A new LedKV continues with the restored data."""
    server, kv = new_server, new_kv
    backup = server.folder / "backup"
    async with await kv.session(ttl_s=60.0) as session, await EtcdElection(kv, "leader").campaign("one", session) as leadership:
        led = LedKV(kv, leadership)
        await led.confirm()
        await led.save("a", "1")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(shutil.copytree, server.data_dir, backup)
        await asyncio.to_thread(server.start)
        await led.confirm()
        await led.save("b", "1")
        await asyncio.to_thread(_restore, server, backup, 40)
        for call in (led.confirm(), led.save("a", "2"), led.compare_and_swap("a", "1", "2"), led.change_if({"a": "?"}, saves={"b": "2"})):
            with pytest.raises(ChannelFencedError, match="restored from an older copy"):
                await call
        again = LedKV(kv, leadership)
        await again.confirm()
        assert await again.load_with_prefix("a") == (["a"], ["1"])
        await again.save("b", "2")
        await again.confirm()


def _restore(server: EtcdServer, backup: Path, changes: int) -> None:
    server.kill()
    shutil.rmtree(server.data_dir)
    shutil.copytree(backup, server.data_dir)
    if changes:
        with EtcdServer(Path(server.command[0]), folder=server.folder / "elsewhere", data_dir=server.data_dir) as hidden:
            asyncio.run(_write(hidden.address, changes))
    server.start()


async def _write(address: str, changes: int) -> None:
    async with await EtcdKV.open([address], root_path="others") as other:
        for number in range(changes):
            await other.save("b", str(number))


async def test_empty_data_directory_is_told(new_server: EtcdServer) -> None:
    server = new_server
    async with await EtcdKV.open([server.address], root_path="r", timeout_s=30) as kv, await kv.watch("a") as watch:
        for number in range(10):
            await kv.save("a", str(number))
        async with asyncio.timeout(WAIT_S):
            assert [(await anext(watch)).value for _ in range(10)] == [str(number) for number in range(10)]
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(shutil.rmtree, server.data_dir)
        await asyncio.to_thread(server.start)
        with pytest.raises(TruncatedError, match="restored or replaced"):
            async with asyncio.timeout(WAIT_S):
                await anext(watch)


async def test_while_etcd_is_away_nothing_spins(new_server: EtcdServer) -> None:
    """Another server listens on the port and hangs up: the attempts are counted, and compared with the connections that it took."""

    class Refuser:
        """A server that takes connections, ends them at once, and counts them."""

        def __init__(self, port: int) -> None:
            import socket

            self._socket = socket.create_server(("127.0.0.1", port))
            self._taken = threading.Semaphore(0)
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

        def wait(self, count: int) -> None:
            for _ in range(count):
                assert self._taken.acquire(timeout=WAIT_S)

        def close(self) -> None:
            import socket

            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._thread.join()

        def _run(self) -> None:
            while True:
                try:
                    connection, _ = self._socket.accept()
                except OSError:
                    return
                connection.close()
                self._taken.release()

    server = new_server
    async with await EtcdKV.open([server.address], root_path="r", timeout_s=60) as kv:
        watches = [await kv.watch(str(number)) for number in range(10)]
        await asyncio.to_thread(server.kill)
        listener = Refuser(server.port)
        before = kv.calls.connection.attempts
        loading = asyncio.ensure_future(kv.load_with_prefix(""))
        await asyncio.to_thread(listener.wait, 5)
        assert kv.calls.connection.attempts - before <= 2 * (len(watches) + 1)
        await asyncio.to_thread(listener.close)
        await asyncio.to_thread(server.start)
        assert await loading == ([], [])
        for watch in watches:
            await watch.close()


async def test_closing_leaves_no_task_and_no_watcher(server: EtcdServer) -> None:
    before = asyncio.all_tasks()
    kv = await EtcdKV.open([server.address], root_path=new_root())
    for _ in range(20):
        async with await kv.watch("a"):
            pass
    watches = [await kv.watch_with_prefix(str(number)) for number in range(20)]
    session = await kv.session(ttl_s=10)
    waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
    assert await etcd_admin.watchers(server.address) >= 20
    await kv.close()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in done} == {ClosedError}
    assert isinstance(session.error, ClosedError)
    assert await etcd_admin.leases(server.address) == set()
    async with asyncio.timeout(WAIT_S):
        while asyncio.all_tasks() != before:  # gRPC ends the tasks of cancelled calls a few turns later
            await asyncio.sleep(0.01)
        while await etcd_admin.watchers(server.address):
            await asyncio.sleep(0.01)
    gc.collect()


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_closing_while_etcd_is_away_ends(new_server: EtcdServer, how: str) -> None:
    server = new_server
    kv = await EtcdKV.open([server.address], root_path=new_root(), timeout_s=30)
    watch = await kv.watch("a")
    session = await kv.session(ttl_s=10)
    kv.calls.connection.timeout_s = 1.0
    getattr(server, how)()
    saving = asyncio.ensure_future(kv.save("a", "1"))
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await kv.close()
    assert isinstance((await asyncio.gather(saving, return_exceptions=True))[0], UnknownOutcomeError | ClosedError)
    assert isinstance(session.error, ClosedError)
    with pytest.raises(ClosedError):
        await anext(watch)


async def test_open_log_outlives_kills_of_its_metadata(new_server: EtcdServer, data_dir: Path) -> None:
    async def made(log: WALAccesser, name: str) -> None:
        """Makes a first append, which waits for the metadata; the first call may meet a connection that is not known to be dead yet."""
        try:
            await log.raw_append(Message(name, b"waits"))
        except UnavailableError as error:
            assert isinstance(error.__cause__, UnknownOutcomeError)
            await log.raw_append(Message(name, b"waits"))

    server = new_server
    kv = f"etcd://{server.address}/by-dev/meta?timeout_s={WAIT_S}"
    async with open_wal(data_dir, kv=kv) as log:
        for number in range(3):
            await log.raw_append(Message(f"before-{number}", b"payload"))
            await asyncio.to_thread(server.kill)
            new_one = asyncio.ensure_future(made(log, f"during-{number}"))
            going_on = log.append_nowait(Message("before-0", b"waits for ticks at most"))
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(new_one, going_on)
    async with open_wal(data_dir, kv=kv) as log:
        names = {info.name for info in await log.vchannels()}
        assert names == {f"{when}-{number}" for when in ("before", "during") for number in range(3)}
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1: "):
        async with open_wal(data_dir / "other", kv="etcd://127.0.0.1:1/root?timeout_s=0.5"):
            pass


async def test_call_during_the_close_gets_an_answer(new_server: EtcdServer) -> None:
    """A caller that was not cancelled must not get CancelledError; a long value is compared by two requests."""
    old, new = "x" * 100_000, "y" * 100_000
    root, outcomes = new_root(), set()
    for turns in range(0, 60, 2):
        kv = await EtcdKV.open([new_server.address], root_path=root)
        await kv.save("k", old)
        calls: list[asyncio.Future[object]] = [
            asyncio.ensure_future(kv.compare_and_swap("k", old, new)),
            asyncio.ensure_future(EtcdElection(kv, "e").leader()),
            asyncio.ensure_future(kv.load_with_prefix("")),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        await kv.close()
        told = await asyncio.gather(*calls, return_exceptions=True)
        for one in told:
            assert not isinstance(one, BaseException) or isinstance(one, ClosedError), repr(one)
        async with await EtcdKV.open([new_server.address], root_path=root) as again:
            assert (await again.load("k") == new) is (told[0] is True)
        outcomes.add(type(told[0]))
    assert bool in outcomes
