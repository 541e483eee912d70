"""The table of assignments: its states, its terms, and the saves before anything is visible."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.conftest import SOAK
from wal.coordinator.assignments import (
    PREFIX,
    Assignment,
    AssignmentChange,
    Assignments,
    AssignmentState,
    NodeStart,
    TermHolder,
    Version,
    decode,
    encode,
)
from wal.errors import CorruptionError, InvalidArgumentError
from wal.storage.kv import MemoryKV

A, B = NodeStart(11, "a:1"), NodeStart(12, "b:1")
LEADER = 7


def committed(table: Assignments, change: AssignmentChange | None) -> Assignments:
    assert change is not None
    table.commit(change)
    return table


def new_table(*names: str) -> Assignments:
    table = Assignments({}, leader=LEADER)
    return committed(table, table.add(dict.fromkeys(names, 0)))


def test_new_pchannel_is_nowhere_in_term_1() -> None:
    assert new_table("p0").records["p0"] == Assignment("p0", 1, AssignmentState.UNINITIALIZED)


def test_life_of_a_pchannel() -> None:
    table = new_table("p0")
    committed(table, table.assign({"p0": A}))
    assert table.records["p0"] == Assignment("p0", 2, AssignmentState.ASSIGNING, (TermHolder(2, A),))
    committed(table, table.assigned("p0", 2))
    assert table.shown() == {A: [table.records["p0"]]}
    committed(table, table.lost("p0", 2))
    assert table.shown() == {}
    committed(table, table.assign({"p0": B}))
    assert table.records["p0"].histories == (TermHolder(2, A),)
    committed(table, table.assigned("p0", 3))
    assert table.records["p0"] == Assignment("p0", 3, AssignmentState.ASSIGNED, (TermHolder(3, B),))
    assert table.version == Version(LEADER, 3)  # a record that clients do not get changes nothing for them


def test_leader_that_begins_anew_counts_on() -> None:
    table = new_table("p0")
    committed(table, table.assign({"p0": A}))
    committed(table, table.assigned("p0", 2))
    again = Assignments(table.records, leader=LEADER, count=table.version.count + 1)
    assert again.version > table.version


def test_assignment_to_its_own_node_changes_nothing() -> None:
    table = new_table("p0")
    committed(table, table.assign({"p0": A}))
    committed(table, table.assigned("p0", 2))
    assert table.assign({"p0": A}) is None


def test_repeated_attempt_has_a_new_term() -> None:
    table = new_table("p0")
    committed(table, table.assign({"p0": A}))
    committed(table, table.assign({"p0": A}))
    assert (table.records["p0"].term, table.records["p0"].histories) == (3, (TermHolder(2, A),))


@pytest.mark.parametrize("term", [1, 3])
def test_answer_for_another_term_is_ignored(term: int) -> None:
    table = new_table("p0")
    committed(table, table.assign({"p0": A}))
    assert table.assigned("p0", term) is None
    committed(table, table.assigned("p0", 2))
    assert table.lost("p0", term) is None


def test_floor_never_falls() -> None:
    table = new_table("p0")
    committed(table, table.raise_floor({"p0": 50}))
    assert table.raise_floor({"p0": 40}) is None
    assert table.records["p0"].floor == 50


def test_unknown_pchannel_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no pchannel 'p9': this log has"):
        new_table("p0").assign({"p9": A})


async def test_change_of_an_overtaken_leader_is_not_saved() -> None:
    async with MemoryKV() as kv:
        table = Assignments({}, leader=1)
        added = table.add({"p0": 0, "p1": 0})
        assert added is not None
        assert await kv.change_if(added.compare(), saves=added.saves()) is None
        table.commit(added)
        other = Assignments(dict(table.records), leader=2)
        taken = other.assign({"p0": B})
        assert taken is not None
        assert await kv.change_if(taken.compare(), saves=taken.saves()) is None
        late = table.assign({"p0": A, "p1": A})
        assert late is not None
        assert await kv.change_if(late.compare(), saves=late.saves()) == PREFIX + "p0"
        saved = {name: decode(PREFIX + name, await kv.load(PREFIX + name)) for name in ("p0", "p1")}
    assert saved == {"p0": taken.after["p0"], "p1": added.after["p1"]}


GOOD = Assignment("p0", 3, AssignmentState.ASSIGNED, (TermHolder(3, A),), (TermHolder(2, B),), 99)


def test_record_is_the_same_after_a_round_trip() -> None:
    assert decode(PREFIX + "p0", encode(GOOD)) == GOOD


@pytest.mark.parametrize(
    "record",
    [
        msgspec.structs.replace(GOOD, name="p1"),
        msgspec.structs.replace(GOOD, state=AssignmentState.UNINITIALIZED),
        msgspec.structs.replace(GOOD, owners=()),
        msgspec.structs.replace(GOOD, term=4),
        msgspec.structs.replace(GOOD, histories=(TermHolder(3, B),)),
        msgspec.structs.replace(GOOD, term=-1, owners=(TermHolder(-1, A),), histories=()),
    ],
)
def test_record_that_contradicts_itself_is_refused(record: Assignment) -> None:
    with pytest.raises(CorruptionError, match="cannot be read"):
        decode(PREFIX + "p0", encode(record))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name":"p0","state":9}', "[" * 5000])
def test_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(CorruptionError, match="cannot be read"):
        decode(PREFIX + "p0", text)


def test_each_leader_continues_from_what_was_saved() -> None:
    """Leaders that change the table, lose some of their changes, and are followed by others that read the saved records."""

    class Leaders(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.saved: dict[str, str] = {}
            self.table = Assignments({}, leader=1)
            self.owners: dict[tuple[str, int], NodeStart] = {}
            self.floors: dict[str, int] = {}

        def save(self, change: AssignmentChange | None, is_saved: bool) -> None:
            if change is None:
                return
            assert {key: self.saved.get(key) for key in change.compare()} == change.compare()
            if is_saved:
                before, shown_to_clients = self.table.version, self.told()
                self.saved.update(change.saves())
                assert (self.table.commit(change) > before) == (self.told() != shown_to_clients)

        def told(self) -> dict[str, TermHolder]:
            """Returns the node and the term of each pchannel for clients. Clients do not get its floor."""
            return {record.name: record.owners[0] for records in self.table.shown().values() for record in records}

        @rule(names=st.sets(st.sampled_from(["p0", "p1", "p2"])), is_saved=st.booleans())
        def add(self, names: set[str], is_saved: bool) -> None:
            self.save(self.table.add(dict.fromkeys(sorted(names), 0)), is_saved)

        @precondition(lambda self: self.table.records)
        @rule(data=st.data(), node=st.sampled_from([A, B]), is_saved=st.booleans())
        def assign(self, data: st.DataObject, node: NodeStart, is_saved: bool) -> None:
            names = data.draw(st.sets(st.sampled_from(sorted(self.table.records))))
            self.save(self.table.assign(dict.fromkeys(names, node)), is_saved)

        @precondition(lambda self: self.table.records)
        @rule(data=st.data(), back=st.integers(0, 2), is_saved=st.booleans(), is_lost=st.booleans())
        def answer(self, data: st.DataObject, back: int, is_saved: bool, is_lost: bool) -> None:
            name = data.draw(st.sampled_from(sorted(self.table.records)))
            term = self.table.records[name].term - back
            self.save(self.table.lost(name, term) if is_lost else self.table.assigned(name, term), is_saved)

        @precondition(lambda self: self.table.records)
        @rule(data=st.data(), floor=st.integers(0, 100))
        def raise_floor(self, data: st.DataObject, floor: int) -> None:
            name = data.draw(st.sampled_from(sorted(self.table.records)))
            self.save(self.table.raise_floor({name: floor}), True)
            assert self.table.records[name].floor >= max(floor, self.floors.get(name, 0))
            self.floors[name] = self.table.records[name].floor

        @rule()
        def next_leader(self) -> None:
            records = {key.removeprefix(PREFIX): decode(key, text) for key, text in self.saved.items()}
            assert records == self.table.records
            self.table = Assignments(records, leader=self.table.version.leader + 1)

        @invariant()
        def one_node_has_a_pchannel_in_a_term(self) -> None:
            for record in self.table.records.values():
                for holder in (*record.owners, *record.histories):
                    assert self.owners.setdefault((record.name, holder.term), holder.node) == holder.node

        @invariant()
        def earlier_holders_are_known_until_the_next_one_has_it(self) -> None:
            for record in self.table.records.values():
                terms = [holder.term for holder in (*record.histories, *record.owners)]
                assert terms == sorted(set(terms))
                if record.state in (AssignmentState.ASSIGNED, AssignmentState.UNAVAILABLE):
                    assert record.histories == ()
                if record.state is AssignmentState.ASSIGNING:
                    # Every term since the newest assigned one is in the record: no node holds one without a record.
                    assert terms == list(range(terms[0], record.term + 1))

        @invariant()
        def only_what_is_assigned_is_shown(self) -> None:
            shown = {record.name: node for node, records in self.table.shown().items() for record in records}
            assert shown == {
                name: record.owners[0].node for name, record in self.table.records.items() if record.state is AssignmentState.ASSIGNED
            }

    run_state_machine_as_test(Leaders, settings=settings(max_examples=1000 if SOAK else 30, stateful_step_count=30, deadline=None))
