"""IdempotencyTable against a model of a few lines: a list of the durable events, searched from the end."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.errors import CorruptionError, FormatError, InvalidArgumentError, InvalidRequestSeqError, WouldBlockError
from wal.frame import FrameDraft, FrameView, Record, RunName, encode_frame
from wal.write.idempotency.keys import Key, ProducerInfo, ProducerKey, check_key, key_ext
from wal.write.idempotency.producers import FORGOTTEN, RESULTS_KEPT
from wal.write.idempotency.scopes import RUN_KEYS, Claim, Kept
from wal.write.idempotency.table import IdempotencyTable

START_MS: Final = 1_700_000_000_000
WINDOW_COUNT: Final = 6
WINDOW_S: Final = 10.0
PRODUCERS_MAX: Final = 3
SCOPES: Final[tuple[tuple[RunName, ...], ...]] = (
    (("a", 1),),
    (("b", 1),),
    (("c", 2),),
    (("a", 1), ("b", 1)),
    (("a", 1), ("b", 1), ("c", 2)),
)


def new_table(**changes: float) -> IdempotencyTable:
    settings = {"window_count": WINDOW_COUNT, "window_s": WINDOW_S, "producers_max": PRODUCERS_MAX} | changes
    return IdempotencyTable(**settings)  # type: ignore[arg-type]


def test_table_of_keys_matches_a_model() -> None:
    """A pchannel as its table sees it: calls in their order, frames that become durable or fail, checkpoints and openings."""
    KEYS = st.one_of(st.sampled_from("xyzé"), st.builds(ProducerKey, st.sampled_from(("p", "q", "r", "s")), st.integers(0, 30)))

    def view_of(draft: FrameDraft, first_tick: int) -> FrameView:
        frame = encode_frame(
            draft, incarnation=1, term=1, sequence=1, first_tick=first_tick, promised_tick=None if draft.indices else first_tick
        )
        data = b"".join(frame.buffers)
        head = frame.header.head_bytes
        return FrameView.decode(data, lambda start, end: data[head + start : head + end])

    class Pending(msgspec.Struct, eq=False):
        """A key that was claimed and is not settled; plain keys may share a claim."""

        claim: Claim
        key: Key

        @property
        def names(self) -> tuple[RunName, ...]:
            return self.claim.scope.names

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.table = new_table()
            self.gaps: dict[tuple[tuple[RunName, ...], str], set[int]] = {}
            """The failed sequences of each producer in each scope that were not claimed again."""
            self.now_ms = START_MS
            self.position = 0
            self.pending: list[Pending] = []
            self.events: list[tuple[tuple[RunName, ...], Key, Kept] | str] = []  # the durable events; a text is a forgotten producer
            self.dropped: set[RunName] = set()
            self.left_out: set[int] = set()  # those of `events` that left the window when the log was opened
            self.frames: list[tuple[int, FrameView]] = []  # written after the checkpoint
            self.blob: bytes | None = None
            self.taking: tuple[Iterator[bytes], int, set[int]] | None = None
            self.lost_before: set[int] = set()  # those of `events` that were not in the window at the checkpoint

        # -- answers of the model

        def live(self, names: tuple[RunName, ...]) -> bool:
            return not self.dropped.intersection(names)

        def remembered(self, names: tuple[RunName, ...], key: Key) -> Kept | None:
            if isinstance(key, ProducerKey):
                sequences = self.sequences(names, key.producer)
                if key.sequence > max(sequences, default=-1):
                    return None
                return dict(list(sequences.items())[-RESULTS_KEPT:]).get(key.sequence, FORGOTTEN)
            for at in reversed(self.window()):
                event = self.events[at]
                assert isinstance(event, tuple)
                event_names, event_key, kept = event
                if (event_names, event_key) == (names, key):
                    return kept if self.now_ms - (kept.tick >> 18) <= WINDOW_S * 1000 else None
            return None

        def window(self) -> list[int]:
            plain = [
                at
                for at, event in enumerate(self.events)
                if isinstance(event, tuple) and isinstance(event[1], str) and at not in self.left_out
            ]
            return plain[-WINDOW_COUNT:]

        def sequences(self, names: tuple[RunName, ...], producer: str) -> dict[int, Kept]:
            found: dict[int, Kept] = {}
            for event in self.events:
                if isinstance(event, str):
                    if event == producer:
                        found.clear()
                    continue
                names_of, key, kept = event
                if names_of == names and isinstance(key, ProducerKey) and key.producer == producer:
                    found[key.sequence] = kept
            return found

        def producers(self) -> dict[tuple[tuple[RunName, ...], str], int]:
            keys = {
                (event[0], event[1].producer) for event in self.events if isinstance(event, tuple) and isinstance(event[1], ProducerKey)
            }
            found = {(names, name): max(self.sequences(names, name), default=-1) for names, name in keys if self.live(names)}
            return {place: last for place, last in found.items() if last >= 0}

        def pending_of(self, names: tuple[RunName, ...], producer: str) -> list[Claim]:
            return [
                one.claim
                for one in self.pending
                if one.names == names and isinstance(one.key, ProducerKey) and one.key.producer == producer and not one.claim.doomed
            ]

        # -- events

        @rule(names=st.sampled_from(SCOPES), key=KEYS, barrier=st.integers(0, 3))
        def call(self, names: tuple[RunName, ...], key: Key, barrier: int) -> None:
            if not self.live(names):
                return
            of_producer = self.pending_of(names, key.producer) if isinstance(key, ProducerKey) else []
            expected = self.remembered(names, key)
            if isinstance(key, ProducerKey) and key.sequence > min(self.gaps.get((names, key.producer), {key.sequence})):
                with pytest.raises(InvalidRequestSeqError, match="again first"):
                    self.table.find(names, key, now_ms=self.now_ms)
                return
            same = [one.claim for one in self.pending if (one.names, one.key) == (names, key) and not one.claim.doomed]
            if expected is None and not same and of_producer and key.sequence < of_producer[-1].key.sequence:  # type: ignore[union-attr]
                with pytest.raises(InvalidRequestSeqError):
                    self.table.find(names, key, now_ms=self.now_ms)
                return
            found = self.table.find(names, key, now_ms=self.now_ms)
            if same:
                assert found is same[0]
                return
            assert found == expected
            if found is not None:
                return
            if isinstance(key, ProducerKey):
                known = set(self.producers()) | {
                    (one.names, one.key.producer)
                    for one in self.pending
                    if isinstance(one.key, ProducerKey) and not one.claim.doomed and self.live(one.names)
                }
                if (names, key.producer) not in known and len(known) >= PRODUCERS_MAX:
                    with pytest.raises(WouldBlockError, match="producers_max=3"):
                        self.table.claim(names, key)
                    return
            claim = self.table.claim(names, key, barrier=barrier)
            assert claim.barrier == max([barrier, *(other.barrier for other in of_producer)])
            self.pending.append(Pending(claim, key))
            if isinstance(key, ProducerKey) and (gaps := self.gaps.get((names, key.producer))):
                gaps.discard(key.sequence)
                if not gaps:
                    del self.gaps[names, key.producer]

        @rule(names=st.sampled_from(SCOPES[:2]), first=st.integers(0, 30), count=st.integers(2, 4), barrier=st.integers(0, 3))
        def call_in_order(self, names: tuple[RunName, ...], first: int, count: int, barrier: int) -> None:
            """Claims several sequences of one producer, of which the first may wait for a barrier."""
            for step in range(count):
                self.call(names, ProducerKey("p", first + step), 0 if step else barrier)

        @precondition(lambda self: self.pending)
        @rule(count=st.integers(1, 3))
        def frame_is_durable(self, count: int) -> None:
            """Settles the oldest pending claims with one frame."""
            draft = FrameDraft()
            first_tick = self.now_ms << 18
            self.position += 512
            draft.append(("other", 9), [Record(b"plain")])
            for one in self.pending[:count]:
                names, key = one.names, one.key
                if len(names) > 1 or (isinstance(key, str) and key == "z"):
                    index = draft.commit([(names[-1], Record(b"body"))], names=names, txn_id=7, keepalive_ms=1500, key=key_ext(key))
                    kept = Kept(self.position, index, first_tick + index, 7, 1500)
                else:
                    index = draft.append(names[0], [Record(b"", ext=key_ext(key))], keyed=True)
                    kept = Kept(self.position, index, first_tick + index)
                self.table.durable(one.claim, key, kept)
                self.events.append((names, key, kept))
                if not self.live(names):
                    self.left_out.add(len(self.events) - 1)
            del self.pending[:count]
            self.frames.append((self.position, view_of(draft, first_tick)))
            self.now_ms += 1

        @rule(names=st.sampled_from(SCOPES), keys=st.lists(st.sampled_from("wxyzé"), min_size=1, max_size=4))
        def call_run(self, names: tuple[RunName, ...], keys: list[str]) -> None:
            self.take_run(names, keys)

        @rule(names=st.sampled_from(SCOPES[:2]), name=st.sampled_from("pq"), sequences=st.lists(st.integers(0, 30), min_size=1, max_size=4))
        def call_run_of_producer(self, names: tuple[RunName, ...], name: str, sequences: list[int]) -> None:
            self.take_run(names, [ProducerKey(name, sequence) for sequence in sequences])

        def take_run(self, names: tuple[RunName, ...], keys: Sequence[Key]) -> None:
            """Claims several keys at once, which must do what one call for each of them would have done, or nothing."""
            if not self.live(names):
                return
            claims = self.table.claim_run(names, keys)
            if claims is None:
                return
            new = [(names, key) for key in keys]
            assert len(set(new)) == len(new)
            assert not any((one.names, one.key) in new for one in self.pending if not one.claim.doomed)
            assert [self.remembered(names, key) for key in keys] == [None] * len(keys)
            assert [(claim.scope.names, claim.barrier) for claim in claims] == [(names, 0) for _ in new]
            if isinstance(keys[0], ProducerKey):
                pending = self.pending_of(names, keys[0].producer)
                sequences = [claim.key.sequence for claim in (*pending, *claims) if isinstance(claim.key, ProducerKey)]
                assert sequences == sorted(sequences)
                assert (names, keys[0].producer) not in self.gaps
                assert not any(claim.barrier for claim in pending[-1:])
                assert [claim.key for claim in claims] == keys
            self.pending += map(Pending, claims, keys)

        @precondition(lambda self: self.pending)
        @rule()
        def run_is_durable(self) -> None:
            """Settles the oldest pending claims of one vchannel and one kind of key at once."""
            oldest = self.pending[0]
            if len(oldest.names) > 1:
                return
            scope = oldest.claim.scope
            run = list(itertools.takewhile(lambda one: one.claim.scope is scope and type(one.key) is type(oldest.key), self.pending))
            draft, first_tick, name = FrameDraft(), self.now_ms << 18, oldest.names[0]
            self.position += 512
            draft.append(("other", 9), [Record(b"plain")])
            index = draft.append(name, [Record(b"", ext=key_ext(one.key)) for one in run], keyed=True)
            claims, keys = [one.claim for one in run], [one.key for one in run]
            self.table.durable_run(claims, keys, self.position, index, first_tick + index)
            for at, one in enumerate(run, index):
                self.events.append((oldest.names, one.key, Kept(self.position, at, first_tick + at)))
                if not self.live(oldest.names):
                    self.left_out.add(len(self.events) - 1)
            del self.pending[: len(run)]
            self.frames.append((self.position, view_of(draft, first_tick)))
            self.now_ms += 1

        @precondition(lambda self: self.pending)
        @rule()
        def oldest_fails(self) -> None:
            oldest = self.pending.pop(0)
            expected: list[Claim] = []
            if isinstance(oldest.key, ProducerKey) and self.live(oldest.names):
                expected = self.pending_of(oldest.names, oldest.key.producer)
                failed = {claim.key.sequence for claim in (oldest.claim, *expected) if isinstance(claim.key, ProducerKey)}
                self.gaps.setdefault((oldest.names, oldest.key.producer), set()).update(failed)
                if len(self.gaps) > PRODUCERS_MAX:
                    del self.gaps[next(iter(self.gaps))]
            later = self.table.failed(oldest.claim, oldest.key)
            assert later == expected
            assert all(other.doomed for other in later)
            self.pending = [one for one in self.pending if one.claim not in later]
            for other in later:
                assert self.table.failed(other, other.key) == []

        @rule(seconds=st.sampled_from((1, 4, 11)))
        def time_passes(self, seconds: int) -> None:
            self.now_ms += seconds * 1000

        @rule(name=st.sampled_from((("a", 1), ("b", 1), ("c", 2))))
        def drop(self, name: RunName) -> None:
            if len(self.dropped) == 2:
                return
            self.dropped.add(name)
            self.gaps = {place: gaps for place, gaps in self.gaps.items() if name not in place[0]}
            self.table.drop(name)

        @rule(name=st.sampled_from("pqrs"))
        def forget(self, name: str) -> None:
            known = any(producer == name for _, producer in self.producers())
            waiting = any(self.pending_of(names, name) for names in SCOPES if self.live(names))
            if not known and not waiting:
                with pytest.raises(InvalidArgumentError):
                    self.table.producers.begin_to_forget(name)
                return
            if waiting:
                with pytest.raises(WouldBlockError):
                    self.table.producers.begin_to_forget(name)
                return
            self.table.producers.begin_to_forget(name)
            with pytest.raises(WouldBlockError):
                self.table.find(SCOPES[0], ProducerKey(name, 1), now_ms=self.now_ms)
            with pytest.raises(WouldBlockError):
                self.table.producers.begin_to_forget(name)
            if self.position % 1024:
                self.table.producers.remember(name)
                return
            self.table.forgotten(name)
            self.gaps = {place: gap for place, gap in self.gaps.items() if place[1] != name}
            self.position += 512
            draft = FrameDraft()
            draft.producer_forgotten(name)
            self.frames.append((self.position, view_of(draft, self.now_ms << 18)))
            self.events.append(name)

        @rule()
        def checkpoint_begins(self) -> None:
            window = set(self.window())
            self.taking = self.table.snapshot(), len(self.frames), set(range(len(self.events))) - window
            self.table.changes = 0

        @precondition(lambda self: self.taking is not None)
        @rule()
        def checkpoint_ends(self) -> None:
            assert self.taking is not None
            pieces, covered, self.lost_before = self.taking
            self.blob = b"".join(pieces)
            self.frames = self.frames[covered:]
            self.taking = None

        @rule()
        def reopen(self) -> None:
            """Opens the log after a crash, without the claims that were pending."""
            self.pending = []
            self.gaps = {}
            self.taking = None
            self.table = new_table()

            def live(name: RunName) -> bool:
                return name not in self.dropped

            if self.blob is not None:
                self.table.restore(self.blob, live=live)
            counts = [self.table.replay(position, view, live=live) for position, view in self.frames]
            assert self.table.changes == sum(counts)
            assert all(counts)
            for at, event in enumerate(self.events):
                if isinstance(event, tuple) and not self.live(event[0]):
                    self.left_out.add(at)
            self.left_out |= self.lost_before

        @invariant()
        def everything_is_remembered(self) -> None:
            pending = {(one.names, one.key) for one in self.pending}
            for names in filter(self.live, SCOPES):
                for key in "wxyzé":
                    if (names, key) not in pending:
                        assert self.table.find(names, key, now_ms=self.now_ms) == self.remembered(names, key)

        @invariant()
        def producers_are_listed(self) -> None:
            expected = [
                ProducerInfo(name, tuple(vchannel for vchannel, _ in names), last) for (names, name), last in self.producers().items()
            ]
            assert self.table.producers.listed() == sorted(expected, key=lambda info: (info.name, info.vchannels))

    run_state_machine_as_test(Machine)


def kept_of(table: IdempotencyTable, names: tuple[RunName, ...], key: Key, position: int) -> Kept:
    """Makes the key durable at this position."""
    kept = Kept(position, 0, (START_MS << 18) + next(_LATER))
    table.durable(table.claim(names, key), key, kept)
    return kept


_LATER: Final = itertools.count()
"""Ticks ascend in a pchannel."""


def test_last_sixteen_results_are_kept() -> None:
    table = new_table()
    kept = {n: kept_of(table, SCOPES[0], ProducerKey("p", n), n) for n in range(0, 40, 2)}
    for n in range(39):
        found = table.find(SCOPES[0], ProducerKey("p", n), now_ms=START_MS)
        assert found == (kept[n] if n % 2 == 0 and n >= 8 else FORGOTTEN)
    assert table.find(SCOPES[0], ProducerKey("p", 39), now_ms=START_MS) is None
    assert table.find(SCOPES[1], ProducerKey("p", 3), now_ms=START_MS) is None


def test_failed_sequences_must_be_appended_again() -> None:
    table, names = new_table(), (("a", 1),)
    claims = [table.claim(names, ProducerKey("p", sequence)) for sequence in (1, 2, 3)]
    assert table.failed(claims[0], claims[0].key) == claims[1:]
    for sequence in (1, 2, 3):
        with pytest.raises(InvalidRequestSeqError, match=f"append sequence {sequence} again first"):
            table.find(names, ProducerKey("p", 4), now_ms=0)
        assert table.find(names, ProducerKey("p", sequence), now_ms=0) is None
        table.claim(names, ProducerKey("p", sequence))
    assert table.find(names, ProducerKey("p", 4), now_ms=0) is None


def test_producer_continues_after_giving_sequences_up() -> None:
    table, names = new_table(), (("a", 1),)
    assert table.failed(table.claim(names, ProducerKey("p", 1)), ProducerKey("p", 1)) == []
    assert table.producers.forget_gaps("p")
    assert not table.producers.forget_gaps("p")
    assert table.find(names, ProducerKey("p", 2), now_ms=0) is None


def test_producer_whose_first_append_failed_takes_no_room() -> None:
    table = new_table(producers_max=1)
    claim = table.claim(SCOPES[0], ProducerKey("p", 1))
    with pytest.raises(WouldBlockError, match="forget_producer"):
        table.claim(SCOPES[0], ProducerKey("q", 1))
    table.claim(SCOPES[0], "plain keys need no room")
    assert table.failed(claim, claim.key) == []
    table.claim(SCOPES[0], ProducerKey("q", 1))


def test_producer_may_fill_the_room_in_flight() -> None:
    """The table searches for no claim: otherwise this would take minutes."""
    table = new_table()
    count = 50_000
    claims: list[Claim] = []
    for number in range(count):
        key = ProducerKey("p", number)
        assert table.find(SCOPES[0], key, now_ms=START_MS) is None
        claims.append(table.claim(SCOPES[0], key))
    for number in range(0, count, 1000):
        assert table.find(SCOPES[0], ProducerKey("p", number), now_ms=START_MS) is claims[number]
    for number, claim in enumerate(claims[: count // 2]):
        table.durable(claim, claim.key, Kept(number, 0, START_MS << 18))
    failed = claims[count // 2 :]
    assert table.failed(failed[0], failed[0].key) == failed[1:]
    assert all(claim.doomed for claim in failed[1:])
    assert [table.failed(claim, claim.key) for claim in failed[1:]] == [[]] * (count // 2 - 1)
    assert table.find(SCOPES[0], ProducerKey("p", count // 2), now_ms=START_MS) is None
    assert table.producers.listed()[0].last_sequence == count // 2 - 1


def test_scopes_in_which_nothing_is_known_are_forgotten() -> None:
    """A scope is forgotten together with the last key in it."""
    table = new_table(window_count=2)
    for number in range(100):
        kept_of(table, ((f"v{number}", number),), "k", number)
        for key in ("k", ProducerKey("p", 1)):
            table.failed(table.claim(((f"w{number}", number),), key), key)
        kept_of(table, ((f"x{number}", number), ("y", number)), "k", number)
    assert (len(table.scopes.by_names), len(table.scopes.by_vchannel), len(table)) == (2, 3, 2)
    table.drop(("y", 99))
    table.drop(("v99", 99))
    assert (len(table.scopes.by_names), len(table.scopes.by_vchannel)) == (0, 0)


def test_new_keys_are_claimed_at_once() -> None:
    table, names = new_table(), SCOPES[0]
    claims = table.claim_run(names, ["a", "b", "c"])
    assert claims is not None
    assert [table.find(names, key, now_ms=START_MS) for key in "abc"] == claims
    for keys in (["d", "b"], ["d", "d"]):
        assert table.claim_run(names, keys) is None
        assert table.find(names, "d", now_ms=START_MS) is None
    assert table.claim_run(SCOPES[1], ["a", "b"]) is not None
    table.durable_run(claims, ["a", "b", "c"], 7, 2, START_MS << 18)
    assert table.find(names, "c", now_ms=START_MS) == Kept(7, 4, (START_MS << 18) + 2)
    assert table.claim_run(names, ["d", "c"]) is None
    assert table.claim_run(names, [ProducerKey("p", 1)]) is None, "the producer is not known, and may be one too many"
    table.claim(names, ProducerKey("p", 1))
    claims = table.claim_run(names, [ProducerKey("p", 2), ProducerKey("p", 5)])
    assert claims is not None
    for sequences in ((5, 6), (4, 6), (7, 6), (6, 6)):
        assert table.claim_run(names, [ProducerKey("p", sequence) for sequence in sequences]) is None
    assert table.claim_run(names, [ProducerKey("p", 6), ProducerKey("q", 7)]) is None
    assert table.failed(claims[0], claims[0].key) == claims[1:]
    assert table.claim_run(names, [ProducerKey("p", 6)]) is None, "the failed sequences come first"


def test_jointly_claimed_keys_are_written_in_parts() -> None:
    keys: list[Key] = [f"k{number}" for number in range(2 * RUN_KEYS + 9)]
    for cuts in ([300], [1, 2], [RUN_KEYS], [RUN_KEYS - 1, RUN_KEYS + 1, 2 * RUN_KEYS]):
        for failed in ([], [0], [7, RUN_KEYS, 2 * RUN_KEYS + 8]):
            table = new_table(window_count=1000)
            assert table.claim_run(SCOPES[0], [*keys, "k3"]) is None, "nothing of it is claimed"
            assert not table.scopes.by_names
            claims = table.claim_run(SCOPES[0], keys)
            assert claims is not None
            assert [table.find(SCOPES[0], key, now_ms=START_MS) for key in keys] == claims
            for at in failed:
                assert table.failed(claims[at], keys[at]) == table.failed(claims[at], keys[at]) == []
            for position, (start, end) in enumerate(itertools.pairwise([0, *cuts, len(keys)])):
                written = [at for at in range(start, end) if at not in failed]
                if written:
                    parts = [claims[at] for at in written], [keys[at] for at in written]
                    table.durable_run(*parts, position, 5, (START_MS + position) << 18)
                for offset, at in enumerate(written):
                    kept = Kept(position, 5 + offset, ((START_MS + position) << 18) + offset)
                    assert table.find(SCOPES[0], keys[at], now_ms=START_MS) == kept
            found = [table.find(SCOPES[0], keys[at], now_ms=START_MS) for at in failed]
            assert (found, len(table)) == ([None] * len(failed), len(keys) - len(failed))
            assert table.scopes.by_names[SCOPES[0]].uses == len(table)


def test_dropped_table_frees_its_keys() -> None:
    """The garbage collector does not know the objects of a table, so they may not form cycles."""
    table, keys = new_table(), [f"kept {number}" for number in range(4)]
    before = sys.getrefcount(keys[0]), sys.getrefcount(keys[3])
    claims = table.claim_run(SCOPES[0], keys[:3])
    assert claims is not None
    table.durable_run(claims, list[Key](keys[:3]), 7, 2, START_MS << 18)
    kept_of(table, SCOPES[0], keys[3], 8)
    again = new_table()
    again.restore(b"".join(table.snapshot()))
    assert sys.getrefcount(keys[0]) > before[0]
    del table, claims
    assert (sys.getrefcount(keys[0]), sys.getrefcount(keys[3])) == before


def test_run_that_leaves_the_window_in_parts() -> None:
    """The window and a snapshot of it hold the newest keys exactly, wherever a run began."""
    for newer in range(7):
        table = new_table(window_count=7)
        for position, keys in enumerate(("abcde", "f"[:newer], "ghijk"[: max(newer - 1, 0)])):
            if keys:
                claims = table.claim_run(SCOPES[0], list(keys))
                assert claims is not None
                table.durable_run(claims, list(keys), position, 1, (START_MS + position) << 18)
        again = new_table(window_count=7)
        again.restore(b"".join(table.snapshot()))
        known = "abcdefghijk"[: 5 + newer][-7:]
        for one in (table, again):
            found = {key for key in "abcdefghijk" if one.find(SCOPES[0], key, now_ms=START_MS)}
            assert found == set(known)
            assert len(one) == len(known)
        assert again.find(SCOPES[0], "e", now_ms=START_MS) == Kept(0, 5, (START_MS << 18) + 4)


def test_snapshot_consists_of_small_pieces() -> None:
    table = new_table(window_count=5000, producers_max=200)
    keys: list[Key] = [f"{number:040d}" for number in range(5000)]
    claims = table.claim_run(SCOPES[0], keys)
    assert claims is not None
    table.durable_run(claims, keys, 1, 0, START_MS << 18)
    pieces = list(table.snapshot())
    assert max(map(len, pieces)) < 100_000
    again = new_table(window_count=5000, producers_max=200)
    again.restore(b"".join(pieces))
    assert again.find(SCOPES[0], f"{4999:040d}", now_ms=START_MS) == Kept(1, 4999, (START_MS << 18) + 4999)
    assert list(again.snapshot()) == pieces


def test_snapshot_of_many_scopes_consists_of_small_pieces() -> None:
    table = new_table(window_count=5000, producers_max=200)
    for number in range(5000):
        kept_of(table, ((f"v{number % 100}", 1),), f"{number:040d}", number)
    for number in range(200 * 16):
        kept_of(table, SCOPES[number // 16 % 2], ProducerKey(f"producer-{number // 16:03d}", number), number)
    wide = tuple((f"wide-{number:04d}", 1) for number in range(2000))
    for number in range(3):
        kept_of(table, wide[number:], "k", number)
    pieces = list(table.snapshot())
    assert max(map(len, pieces)) < 100_000
    again = new_table(window_count=5000, producers_max=200)
    again.restore(b"".join(pieces))
    assert list(again.snapshot()) == pieces


def test_damaged_snapshot_is_a_corruption_error() -> None:
    table = new_table()
    kept_of(table, SCOPES[0], "k", 1)
    kept_of(table, SCOPES[3], ProducerKey("p", 1), 2)
    blob = b"".join(table.snapshot())
    for wrong in (blob[:-1], blob[3:], b"\xff" * 40, blob + b"x"):
        with pytest.raises(CorruptionError):
            new_table().restore(wrong)
    header = next(table.snapshot())
    for newer in (header[:-1] + b"\x02", header + header[:-2] + b"\x09\x01"):
        with pytest.raises(FormatError, match="upgrade"):
            new_table().restore(newer)
    empty = new_table()
    empty.restore(b"".join(empty.snapshot()))
    assert empty.producers.listed() == []


def test_smaller_settings_take_effect_at_the_next_opening() -> None:
    table = new_table()
    kept = [kept_of(table, SCOPES[0], key, position) for position, key in enumerate("abcd")]
    for name in "pqr":
        kept_of(table, SCOPES[0], ProducerKey(name, 1), 9)
    smaller = new_table(window_count=2, producers_max=1)
    smaller.restore(b"".join(table.snapshot()))
    assert [smaller.find(SCOPES[0], key, now_ms=START_MS) for key in "abcd"] == [None, None, *kept[2:]]
    assert len(smaller.producers.listed()) == 3
    with pytest.raises(WouldBlockError):
        smaller.claim(SCOPES[0], ProducerKey("s", 1))
    none = new_table(window_count=0)
    none.restore(b"".join(table.snapshot()))
    assert none.find(SCOPES[0], "d", now_ms=START_MS) is None


@pytest.mark.parametrize("wrong", ["", "x" * 256, "é" * 128, "\ud800"])
def test_key_of_wrong_length_or_encoding_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_key(wrong)
    with pytest.raises(InvalidArgumentError):
        ProducerKey(wrong, 1)


def test_key_of_wrong_sequence_or_type_is_refused() -> None:
    assert check_key("x" * 255) == "x" * 255
    assert check_key(ProducerKey("p", 2**63 - 1)).sequence == 2**63 - 1  # type: ignore[union-attr]
    for sequence in (-1, 2**63):
        with pytest.raises(InvalidArgumentError):
            ProducerKey("p", sequence)
    for producer, wrong in ((b"p", 1), ("p", "1"), ("p", True), ("p", 1.0)):
        with pytest.raises(TypeError):
            ProducerKey(producer, wrong)  # type: ignore[arg-type]
    for key in (None, 1, b"k", ("p", 1)):
        with pytest.raises(TypeError):
            check_key(key)


def test_reappended_aged_key_is_remembered() -> None:
    table = new_table()
    kept_of(table, SCOPES[0], "k", 1)
    later = START_MS + round(WINDOW_S * 1000) + 1
    assert table.find(SCOPES[0], "k", now_ms=later) is None
    table.durable(table.claim(SCOPES[0], "k"), "k", Kept(2, 0, later << 18))
    assert table.find(SCOPES[0], "k", now_ms=later) == Kept(2, 0, later << 18)


def test_keys_of_dropped_vchannels_leave_the_window() -> None:
    table = new_table(window_count=2)
    kept = kept_of(table, SCOPES[0], "k", 1)
    kept_of(table, SCOPES[1], "k", 2)
    kept_of(table, SCOPES[1], ProducerKey("p", 1), 3)
    again = new_table(window_count=2)
    again.restore(b"".join(table.snapshot()), live=lambda name: name[0] != "b")
    assert again.producers.listed() == []
    kept_of(again, SCOPES[0], "l", 4)
    assert again.find(SCOPES[0], "k", now_ms=START_MS) == kept


def table_of_keys(count: int, *, every_ms: int = 1000, **bounds: float | None) -> IdempotencyTable:
    """Returns a table in which this many keys were remembered, one after the other."""
    table = new_table(**bounds)  # type: ignore[arg-type]
    for number in range(count):
        table.durable(table.claim(SCOPES[0], f"k{number}"), f"k{number}", Kept(number, 0, (START_MS + number * every_ms) << 18))
    return table


@pytest.mark.parametrize("bounds", [{"window_count": None, "window_bytes": 4000}, {"window_count": 8}])
def test_reach_outlives_an_opening(bounds: dict[str, Any]) -> None:
    """Also with a larger bound than that at which keys were forgotten."""
    table, now_ms = table_of_keys(200, window_s=86_400.0, **bounds), START_MS + 199_000
    reach_s = table.reach_s(now_ms)
    assert reach_s == len(table)
    for later in (bounds, {"window_count": 1000}):
        again = new_table(window_s=86_400.0, **later)
        again.restore(b"".join(table.snapshot()))
        assert (again.reach_s(now_ms), again.cut) == (reach_s, table.cut)
        third = new_table(window_s=86_400.0, **later)
        third.restore(b"".join(again.snapshot()))
        assert third.reach_s(now_ms) == reach_s


def test_expired_keys_beyond_the_count_are_no_cut() -> None:
    table, later_ms = table_of_keys(3, window_count=3), START_MS + 3_600_000
    table.durable(table.claim(SCOPES[0], "new"), "new", Kept(9, 0, later_ms << 18))
    assert (len(table), table.cut, table.reach_s(later_ms)) == (1, 0, WINDOW_S)


def test_keys_of_dropped_vchannels_are_no_cut() -> None:
    table = table_of_keys(3, window_count=3)
    table.drop(SCOPES[0][0])
    kept_of(table, SCOPES[1], "new", 9)
    assert table.cut == 0


def test_full_window_that_forgot_nothing_is_no_cut() -> None:
    table, again = table_of_keys(3, window_count=3), new_table(window_count=3)
    again.restore(b"".join(table.snapshot()))
    assert (again.cut, again.reach_s(START_MS + 3000)) == (0, WINDOW_S)
