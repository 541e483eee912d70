"""NamePool: recovered broadcasts hold equal names once, whether they come from frames, from a checkpoint or from both."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.faults import copy_of_open
from tests.probes import local, made_on
from tests.write.test_copies import TICK, keys, view_of
from wal import BroadcastMessage, open_wal
from wal.frame import FrameDraft, FrameView, Record, RunName
from wal.message import BroadcastHeader
from wal.write.copies import CopyTable, NamePool
from wal.write.recovery import RecoveryState

WIDTH = 200
COUNT = 50


def names_of_set(number: int) -> tuple[RunName, ...]:
    """Returns two sets that differ in one vchannel."""
    return tuple((f"vchannel-{at:04d}", at) for at in range(number, WIDTH + number))


def frame(broadcast_id: int, names: tuple[RunName, ...]) -> FrameView:
    """Returns the frame as a backend does: every name is a separate object."""
    draft = FrameDraft()
    texts = [name for name, _ in names]
    header = BroadcastHeader(broadcast_id, tuple(texts))
    draft.broadcast(names, Record(b"payload"), header=header.to_bytes(texts))
    return view_of(draft, tick=TICK + 1000 * broadcast_id)


def distinct(table: CopyTable) -> tuple[int, int, int, int]:
    """Returns the numbers of objects: tuples of vchannels, tuples of copies, pairs in those, names in all."""
    listed = table.listed()
    vchannels = {id(one.header.vchannels): one.header.vchannels for one in listed}
    copies = {id(part.names): part.names for one in listed for part in one.parts}
    pairs = {id(pair): pair for names in copies.values() for pair in names}
    texts = {id(name) for names in vchannels.values() for name in names} | {id(name) for name, _ in pairs.values()}
    return len(vchannels), len(copies), len(pairs), len(texts)


def replayed(start: int, end: int, state: RecoveryState) -> None:
    for number in range(start, end):
        assert state.replay(100 * number, frame(number, names_of_set(number % 2))) == 1


def check(table: CopyTable) -> None:
    assert len(table) == COUNT
    for number, listed in enumerate(table.listed()):
        names = names_of_set(number % 2)
        assert listed.header == BroadcastHeader(number, tuple(name for name, _ in names))
        assert [part.names for part in listed.parts] == [names]
    assert distinct(table) == (2, 2, WIDTH + 1, WIDTH + 1)


def test_replayed_frames_share_their_names() -> None:
    state = RecoveryState(keys(), CopyTable())
    replayed(0, COUNT, state)
    check(state.copies)
    state.recovered()
    check(state.copies)


def test_checkpoint_shares_names_with_later_frames() -> None:
    before = RecoveryState(keys(), CopyTable())
    replayed(0, COUNT // 2, before)
    state = RecoveryState(keys(), CopyTable())
    state.restore(b"".join(before.snapshot()))
    replayed(COUNT // 2, COUNT, state)
    check(state.copies)


def test_second_recovery_of_the_same_tables_is_right() -> None:
    state = RecoveryState(keys(), CopyTable())
    replayed(0, COUNT // 2, state)
    state.recovered()
    replayed(COUNT // 2, COUNT, state)
    assert distinct(state.copies)[:2] == (4, 4), "the pool was let go between them"
    assert [len(listed.header.vchannels) for listed in state.copies.listed()] == [WIDTH] * COUNT


NAME = st.sampled_from(["ab", "bc", "üü", ""])


@given(st.lists(st.lists(NAME).map(tuple)), st.lists(st.lists(st.tuples(NAME, st.integers(1, 2))).map(tuple)))
def test_pool_returns_equal_names_and_holds_each_once(vchannels: list[tuple[str, ...]], copies: list[tuple[RunName, ...]]) -> None:
    def anew(name: str) -> str:
        """Returns an equal name that is another object, if Python creates one."""
        return name.encode().decode()

    pool = NamePool()
    answers = [pool.vchannels(tuple(map(anew, names))) for names in vchannels]
    assert answers == vchannels
    assert len(set(map(id, answers))) == len(set(vchannels))
    found = [pool.copies(tuple((anew(name), life) for name, life in names)) for names in copies]
    assert found == copies
    assert len(set(map(id, found))) == len(set(copies))
    texts = [name for names in vchannels for name in pool.vchannels(names)]
    pairs = [pair for names in copies for pair in pool.copies(names)]
    assert len(set(map(id, pairs))) == len(set(pairs))
    texts += [name for name, _ in pairs]
    assert len(set(map(id, texts))) == len(set(texts))


async def test_crashed_log_holds_each_name_set_once(tmp_path: Path) -> None:
    """Opens a log that was not closed, and looks at the recovered tables of its pchannels."""
    made, place = tmp_path / "made", tmp_path / "data"
    names = [f"vchannel-{at:04d}" for at in range(64)]
    async with open_wal(str(made), pchannels=2) as log:
        await made_on(log, "p0", *names[:32])
        await made_on(log, "p1", *names[32:])
        for number in range(10):
            await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"%d" % number))
        copy_of_open(made, place)
    async with open_wal(str(place)) as log:
        for pchannel in local(log).node.pchannels.values():
            table = pchannel.copies.table
            assert len(table) == 10
            assert distinct(table) == (1, 1, 32, 64), "all vchannels, and those that lie here"
            assert table.listed()[0].header.vchannels == tuple(names)
