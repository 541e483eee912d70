"""The directory saves the changes of a turn in as few operations as the KV allows; each vchannel succeeds or fails separately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from actors import ActorSystem
from wal.channels.directory import PChannelCounts, RecordChange, VChannelDirectory
from wal.channels.vchannels import VChannelInfo
from wal.errors import UnavailableError, WALError
from wal.storage.kv import KVBatch, MemoryKV

OPERATIONS_MAX = 4


class SmallKV(MemoryKV):
    """A KV whose operations are small. `before` is called with each change, and may raise the error with which the change fails."""

    operations_max = OPERATIONS_MAX

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[KVBatch], None] = lambda batch: None
        self.sizes: list[int] = []

    async def _commit(self, batch: KVBatch) -> str | None:
        self.before(batch)
        self.sizes.append(batch.operations)
        await asyncio.sleep(0)
        return await super()._commit(batch)


Outcome = WALError | None


async def loaded(kv: SmallKV) -> VChannelDirectory:
    directory = VChannelDirectory(kv)
    await directory.load()
    return directory


async def turn(kv: SmallKV, directory: VChannelDirectory, make: list[str], drop: list[str]) -> dict[str, Outcome]:
    """Runs one turn of the directory, and returns the answer for each vchannel."""
    outcomes: dict[str, Outcome] = {}

    def answer(name: str) -> Callable[[Outcome], None]:
        return lambda error: outcomes.update({name: error})

    changes = [RecordChange((directory.admit(name, "p0"),), False, answer(name)) for name in make]
    for name in drop:
        info = directory.records[name]
        directory.forget(info)
        changes.append(RecordChange((info,), True, answer(name)))
    await directory.receive(changes)
    return outcomes


async def test_turn_needs_the_fewest_operations() -> None:
    kv = SmallKV()
    directory = await loaded(kv)
    names = [f"v{number}" for number in range(10)]
    shown: list[tuple[int, set[str]]] = []
    directory.on_saved = lambda pchannels, ended: shown.append((directory.saved_next, set(directory.saved)))
    assert await turn(kv, directory, names, []) == dict.fromkeys(names)
    assert kv.sizes == [4, 4, 3], "the counter goes with the first operation"
    assert await turn(kv, directory, ["w"], names) == dict.fromkeys([*names, "w"])
    assert kv.sizes[3:] == [4, 4, 4]
    assert shown == [(11, set(names)), (12, {"w"})], "what is shown to other processes is never half a turn"
    again = await loaded(kv)
    assert again.records == {"w": VChannelInfo("w", "p0", 11)}
    assert again.next_incarnation == 12


async def test_last_change_of_a_name_counts() -> None:
    kv = SmallKV()
    directory = await loaded(kv)
    await turn(kv, directory, ["a", "b"], [])
    first = directory.records["a"]
    outcomes: list[Outcome] = []
    directory.forget(first)
    dropped = RecordChange((first,), True, outcomes.append)
    made = RecordChange((directory.admit("a", "p1"),), False, outcomes.append)
    await directory.receive([dropped, made])
    assert outcomes == [None, None]
    assert (await loaded(kv)).records == directory.records == directory.saved


async def test_failure_between_two_operations_leaves_no_half_vchannel() -> None:
    kv = SmallKV()
    directory = await loaded(kv)
    names = [f"v{number}" for number in range(10)]

    def fail_the_second(batch: KVBatch) -> None:
        if kv.sizes:
            raise UnavailableError("no member of etcd answers: try again")

    kv.before = fail_the_second
    outcomes = await turn(kv, directory, names, [])
    assert [name for name in names if outcomes[name] is None] == names[:3]
    assert {type(outcomes[name]) for name in names[3:]} == {UnavailableError}
    assert len(kv.sizes) == 1, "after a failure nothing more is sent"
    assert set(directory.saved) == set(names[:3])
    crashed = await loaded(kv)
    assert set(crashed.records) == set(names[:3])
    assert crashed.next_incarnation == 11, "no incarnation that was ever given is given again"
    kv.before = lambda batch: None
    for name in names[3:]:  # as the log does with changes that could not be saved
        directory.forget(directory.records[name])
    assert await turn(kv, directory, names[3:], []) == dict.fromkeys(names[3:])
    assert len({info.incarnation for info in directory.saved.values()}) == 10
    assert (await loaded(kv)).records == directory.saved


async def test_requests_during_a_save_join_the_next() -> None:
    """A reader in another process would consider a vchannel that is below the shown counter, but not shown, as dropped."""

    def note(info: VChannelInfo) -> None:
        """The vchannel was admitted; its change is reported later."""

    kv = SmallKV()
    directory = await loaded(kv)
    kv.before = lambda batch: None if "late" in directory.records else note(directory.admit("late", "p0"))
    await turn(kv, directory, [f"v{number}" for number in range(10)], [])
    assert directory.records["late"].incarnation >= directory.saved_next


async def test_turn_through_the_actor_is_answered_whole() -> None:
    kv = SmallKV()
    directory = await loaded(kv)
    system = ActorSystem("test")
    await system.start()
    ref = system.spawn(directory, name="directory")
    answered: list[Outcome] = []
    for number in range(50):
        ref.tell(RecordChange((directory.admit(f"v{number}", "p0"),), False, answered.append))
    await system.stop()
    assert answered == [None] * 50
    assert len((await loaded(kv)).records) == 50


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 6)), max_size=200), st.lists(st.integers(0, 6), max_size=9))
def test_pchannel_with_the_fewest_is_found(steps: list[tuple[int, bool, int]], first: list[int]) -> None:
    pchannels = {f"p{number}": None for number in range(7)}
    naive = {name: first.count(number) for number, name in enumerate(pchannels)}
    counts = PChannelCounts(f"p{number}" for number in first)
    for number, is_added, preferred in steps:
        name, change = f"p{number}", 1 if is_added else -1
        naive[name] += change
        counts.add(name, change)
        fewest = min(pchannels, key=lambda each: (naive[each], each != f"p{preferred}"))
        assert counts.fewest(pchannels, f"p{preferred}") == fewest
