"""The state of channels after a crash: after each single commit of the metadata, every call has happened completely or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from wal.channels.channels import CHANNELS_MAX, admit_channels, channels_named, describe_channels
from wal.channels.directory import RecordChange, VChannelDirectory
from wal.channels.owners import ADDRESS_BYTES_MAX, DESCRIPTION_BYTES_MAX, ROLE_BYTES_MAX, OwnerDescription
from wal.channels.vchannels import VChannelInfo, place
from wal.errors import InvalidArgumentError, UnavailableError, WALError
from wal.storage.kv import OPERATION_BYTES_MAX, OPERATIONS_MAX, KVBatch, MemoryKV

OWNER = OwnerDescription("ingest", "10.0.0.7:9000")
PCHANNELS = ["p0", "p1"]


def on(pchannels: list[str]) -> Callable[[str], str]:
    """Returns a function that chooses one of these pchannels for a channel."""
    return lambda name: place(name, pchannels)


class CrashingKV(MemoryKV):
    """A KV with small operations that remembers its content after each commit, and can fail the commit of a number."""

    def __init__(self, operations_max: int | None = 8) -> None:
        super().__init__()
        self.operations_max = operations_max
        self.contents: list[dict[str, str]] = [{}]
        self.batches: list[KVBatch] = []
        self.failing: int | None = None

    async def _commit(self, batch: KVBatch) -> str | None:
        await asyncio.sleep(0)
        if len(self.batches) == self.failing:
            self.failing = None
            raise UnavailableError("the metadata do not answer: try again")
        self.batches.append(batch)
        done = await super()._commit(batch)
        self.contents.append(dict(self._values))
        return done


async def after_crash(content: dict[str, str]) -> dict[str, VChannelInfo]:
    kv = MemoryKV()
    await kv.multi_save(content)
    directory = VChannelDirectory(kv)
    await directory.load()
    assert directory.next_incarnation > max((info.incarnation for info in directory.records.values()), default=0)
    return directory.records


class Call(msgspec.Struct, eq=False):
    """One call in a turn: the records that it creates or removes."""

    infos: tuple[VChannelInfo, ...]
    remove: bool
    error: list[WALError | None] = []

    def change(self) -> RecordChange:
        return RecordChange(self.infos, self.remove, self.error.append)


CALLS = st.one_of(
    st.tuples(st.just("create"), st.integers(1, 6)),
    st.tuples(st.just("destroy"), st.sets(st.integers(0, 20), min_size=1, max_size=6)),
    st.tuples(st.just("make"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 20)),
    st.tuples(st.just("destroy and remake"), st.sets(st.integers(0, 20), min_size=1, max_size=4)),
    st.tuples(st.just("drop and remake"), st.integers(0, 20)),
)
TURNS = st.lists(st.lists(CALLS, min_size=1, max_size=6), min_size=1, max_size=6)


@given(TURNS, st.none() | st.integers(0, 12))
def test_calls_are_whole_after_every_commit(turns: list[list[tuple[str, Any]]], failing: int | None) -> None:
    def tell(directory: VChannelDirectory, what: str, which: Any, taken: set[str]) -> list[Call]:
        """Changes the directory in memory as a log does for this call, and returns the changes to save. `taken` has the names of this
        turn."""
        if what == "create":
            return [Call(tuple(admit_channels(directory, OWNER, which, on(PCHANNELS))), remove=False)]
        if what == "make":
            return [] if str(which) in directory.records else [Call((directory.admit(str(which), "p0"),), remove=False)]
        saved = [info for info in directory.saved.values() if directory.records.get(info.name) == info]
        if what.startswith("drop"):
            infos = saved[which : which + 1]
        else:
            infos = [info for at, info in enumerate(saved) if at in which and info.owner]
        infos = [info for info in infos if info.name not in taken]
        taken.update(info.name for info in infos)
        for info in infos:
            directory.forget(info)
        calls = [Call(tuple(infos), remove=True)] if infos else []
        if what == "drop and remake" and calls:  # the removal is reported when the old actor has ended
            return [Call((directory.admit(infos[0].name, "p0"),), remove=False), *calls]
        if what == "destroy and remake":
            calls += [Call((directory.admit(info.name, "p0"),), remove=False) for info in infos[:2]]
        return calls

    async def run(turns: list[list[tuple[str, Any]]], failing: int | None) -> None:
        kv = CrashingKV()
        kv.failing = failing
        directory = VChannelDirectory(kv)
        await directory.load()
        for turn in turns:
            taken: set[str] = set()
            calls = [call for what, which in turn for call in tell(directory, what, which, taken)]
            before = len(kv.contents)
            await directory.receive([call.change() for call in calls])
            for content in kv.contents[before - 1 :]:
                records = await after_crash(content)
                for call in calls:
                    there = {records.get(info.name) == info for info in call.infos}
                    assert len(there) == 1, f"{call} happened in part: {sorted(records)}"
            for call in calls:
                assert len(call.error) == 1, "each call is answered once"
                if call.error == [None]:
                    assert all((directory.saved.get(info.name) == info) != call.remove for info in call.infos)
                elif not call.remove:
                    for info in call.infos:  # as the log does for records that could not be saved
                        directory.forget(info)
            assert await after_crash(kv.contents[-1]) == directory.saved

    asyncio.run(run(turns, failing))


async def test_channels_and_other_changes_share_operations() -> None:
    kv = CrashingKV()
    directory = VChannelDirectory(kv)
    await directory.load()
    calls = [
        Call(infos, remove=False)
        for infos in (
            (directory.admit("a", "p0"),),
            tuple(admit_channels(directory, OWNER, 6, on(PCHANNELS))),
            tuple(admit_channels(directory, OWNER, 6, on(PCHANNELS))),
            (directory.admit("b", "p0"),),
        )
    ]
    await directory.receive([call.change() for call in calls])
    assert [call.error for call in calls] == [[None]] * 4
    assert [batch.operations for batch in kv.batches] == [8, 7], "the counter goes with the first operation"


async def test_too_many_channels_are_refused_whole() -> None:
    kv = CrashingKV()
    directory = VChannelDirectory(kv)
    await directory.load()
    calls = [
        Call(tuple(admit_channels(directory, OWNER, 8, on(PCHANNELS))), remove=False),
        Call((directory.admit("a", "p0"),), remove=False),
    ]
    await directory.receive([call.change() for call in calls])
    for call in calls:
        assert isinstance(call.error[0], InvalidArgumentError)
        assert "9 operations are more than the 8" in str(call.error[0])
    assert directory.saved == await after_crash(kv.contents[-1]) == {}


async def test_largest_call_is_one_operation_of_every_kv() -> None:
    kv = CrashingKV(OPERATIONS_MAX)
    directory = VChannelDirectory(kv)
    await directory.load()
    owner = OwnerDescription("\1" * ROLE_BYTES_MAX, "\1" * ADDRESS_BYTES_MAX, "\1" * DESCRIPTION_BYTES_MAX)
    others = [Call((directory.admit("\U0001f600" * 60 + f"{number}", "p0"),), remove=False) for number in range(67)]
    call = Call(tuple(admit_channels(directory, owner, CHANNELS_MAX, on(["p" * 200]))), remove=False)
    await directory.receive([one.change() for one in (call, *others)])
    assert call.error == [None]
    (batch,) = kv.batches
    assert batch.operations == OPERATIONS_MAX
    assert sum(len(text.encode()) for pair in batch.saves.items() for text in pair) < OPERATION_BYTES_MAX
    saved = await after_crash(kv.contents[-1])
    assert {one.owner for one in describe_channels(saved)} == {owner}
    assert channels_named(saved, [info.name for info in call.infos]) == list(call.infos)


async def test_calls_of_a_turn_fit_into_operations() -> None:
    kv = CrashingKV(OPERATIONS_MAX)
    directory = VChannelDirectory(kv)
    await directory.load()
    owner = OwnerDescription("\1" * ROLE_BYTES_MAX, "\1" * ADDRESS_BYTES_MAX, "\1" * DESCRIPTION_BYTES_MAX)
    calls = [Call(tuple(admit_channels(directory, owner, count, on(["p0"]))), remove=False) for count in (CHANNELS_MAX, 1, 59, 1)]
    await directory.receive([call.change() for call in calls])
    assert [call.error for call in calls] == [[None]] * 4
    assert [len(batch.saves) for batch in kv.batches] == [CHANNELS_MAX + 1, CHANNELS_MAX, 1], "the first has the counter"
    for batch in kv.batches:
        assert sum(len(text.encode()) for pair in batch.saves.items() for text in pair) < OPERATION_BYTES_MAX
    removals = [Call(call.infos, remove=True) for call in calls]
    for call in calls:
        for info in call.infos:
            directory.forget(info)
    await directory.receive([call.change() for call in removals])
    assert [len(batch.removals) for batch in kv.batches[3:]] == [121], "owners count only when they are saved"
    assert directory.saved == await after_crash(kv.contents[-1]) == {}
