"""Truncations and the pins of other processes: whatever comes between the steps of one, no truncation passes a saved pin."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from tests.probes import local
from tests.processes import Line, Other
from tests.read.readers import numbered
from tests.write.idempotency.test_write_path import Gate
from wal import Log, Matching, Message, open_wal
from wal.errors import InvalidArgumentError, TruncatedError
from wal.message import AppendResult, LogPosition
from wal.node.cursors import NodeCursors
from wal.read.cursors import pinned
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.pinned import PinnedCursors
from wal.read.cursors.pins import Pin, PinFiles
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import ReadOnlyJournalSource

KINDS = pytest.mark.parametrize("kind", ["names", "pattern"])
STEPS = 4
"""A pin is stored, or the intent looked at, before the writer says what it means to do, after that, after it has looked, or at the end."""


class SteppedPins(PinFiles):
    """Pins whose storing is a step, and what comes after it another one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.checked = threading.Event()
        self.may_store = threading.Event()
        self.stored = threading.Event()
        self.may_look = threading.Event()

    def write(self, name: str, pin: Pin) -> None:
        self.checked.set()
        assert self.may_store.wait(60)
        super().write(name, pin)
        self.stored.set()
        assert self.may_look.wait(60)


@asynccontextmanager
async def beside(data: str) -> AsyncIterator[tuple[ReadOnlyCore, SteppedPins, PinnedCursors]]:
    """Opens the log as another process does."""
    source = ReadOnlyJournalSource(Path(data))
    core, pins = ReadOnlyCore(source), SteppedPins(Path(data))
    await asyncio.to_thread(core.open)
    try:
        yield core, pins, PinnedCursors(pins, lambda: dict(source.logs))
    finally:
        await asyncio.to_thread(core.close)


def at(core: ReadOnlyCore, position: LogPosition, tick: int, kind: str, name: str = "elsewhere") -> Cursor:
    """Returns a cursor of names, or of a pattern, whose next event is at this position, and has this tick."""
    log = core.logs["p0"]
    if kind == "names":
        return Cursor(CursorKey.of(name, ["orders"]), (1,), "p0", log.incarnation, position, None, 0, 1e9, core.source.form)
    return Cursor(CursorKey.of(name, Matching("order*")), (), "p0", 0, (0, 0), None, tick - 1, 1e9)


class Steps:
    """The steps of the truncation that is under way: before each, what the test has put there is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: Log, before: Any) -> None:
        self.number = 0
        real_look = NodeCursors.look
        own = local(log).node.pchannels["p0"].log
        real_intend, real_truncate = own.intend, own.truncate
        is_announced = False

        async def step(number: int) -> None:
            if number == self.number:
                self.number += 1
                await before(number)

        async def intend(up_to: LogPosition | None) -> None:
            nonlocal is_announced
            await step(0)
            await real_intend(up_to)
            is_announced = up_to is not None
            await step(1)

        async def look(cursors: NodeCursors) -> None:
            await real_look(cursors)
            if is_announced:
                await step(2)

        async def truncate(position: int, index: int) -> None:
            await real_truncate(position, index)
            await step(3)

        monkeypatch.setattr(own, "intend", intend)
        monkeypatch.setattr(own, "truncate", truncate)
        monkeypatch.setattr(NodeCursors, "look", look)


@KINDS
@pytest.mark.parametrize(("stored", "looked"), list(combinations_with_replacement(range(STEPS), 2)))
async def test_no_interleaving_passes_pin(data: str, monkeypatch: pytest.MonkeyPatch, stored: int, looked: int, kind: str) -> None:
    async with open_wal(data) as log, beside(data) as (core, pins, cursors):
        results = await numbered(log, 10)
        start = (results[3].message_id.position, results[3].message_id.index)
        saving = asyncio.ensure_future(asyncio.to_thread(cursors.save, at(core, start, results[3].time_tick, kind)))
        assert await asyncio.to_thread(pins.checked.wait, 60), "the log was looked at before the pin is stored"

        async def before(number: int) -> None:
            if number == stored:
                pins.may_store.set()
                assert await asyncio.to_thread(pins.stored.wait, 60)
            if number == looked:
                pins.may_look.set()

        steps = Steps(monkeypatch, log, before)
        outcome: BaseException | None = None
        try:
            await log.truncate(up_to=results[6].message_id)
        except InvalidArgumentError as error:
            assert "cursor 'elsewhere'" in str(error)
            outcome = error
        for number in range(steps.number, STEPS):
            await before(number)
        monkeypatch.undo()
        earliest = local(log).node.pchannels["p0"].log.earliest
        if outcome is None:
            with pytest.raises(TruncatedError):
                await saving
            assert earliest > start
            assert await log.cursors() == []
            assert os.listdir(Path(data, "cursors")) == []
        else:
            assert await saving
            assert earliest <= start
            assert [info.name for info in await log.cursors()] == ["elsewhere"]
        assert (stored >= 2) == (outcome is None), "the pin counts if it was stored before the writer looked"


async def test_save_of_the_writer_counts_as_after_truncation(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first save comes in the midst of a truncation that has looked at all cursors already."""
    async with open_wal(data) as log:
        results = await numbered(log, 10)
        refused: list[BaseException] = []

        async def before(number: int) -> None:
            if number == 2:
                async with log.read("orders", cursor="late", follow=False) as scanner:
                    await anext(scanner)
                    with pytest.raises(TruncatedError) as caught:
                        await scanner.save()
                    refused.append(caught.value)

        Steps(monkeypatch, log, before)
        await log.truncate(up_to=results[6].message_id)
        monkeypatch.undo()
        assert len(refused) == 1
        assert await log.cursors() == []
        async with log.read("orders", cursor="late", follow=False) as scanner:
            assert (await anext(scanner)).payload == b"7"
            await scanner.save()


async def test_saves_in_flight_hold_the_log(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first save was sent before the writer sets its intent to truncate, and is durable after that."""
    async with open_wal(data) as log:
        results = await numbered(log, 10)
        async with log.read("orders", cursor="other", follow=False) as scanner:
            await scanner.save()  # the format is raised
            await log.delete_cursor("other")
        gate = Gate(log, monkeypatch)
        table = local(log).node.pchannels["p0"].cursors.table
        async with log.read("orders", cursor="first", follow=False) as scanner:
            await anext(scanner)
            saving = asyncio.ensure_future(scanner.save())
            while not table.has_pending:
                await asyncio.sleep(0)

            async def before(number: int) -> None:
                if number == 1:
                    asyncio.get_running_loop().call_later(0.05, gate.open_one)

            Steps(monkeypatch, log, before)
            with pytest.raises(InvalidArgumentError, match="cursor 'first'"):
                await log.truncate(up_to=results[6].message_id)
            await saving
        monkeypatch.undo()


# -- a writer that dies


@KINDS
@pytest.mark.parametrize("step", range(STEPS))
async def test_writer_dies_while_it_truncates(data: str, monkeypatch: pytest.MonkeyPatch, step: int, kind: str) -> None:
    async def die_while_truncating(line: Line, data: str, step: int) -> None:
        log = await open_wal(data)
        results = await numbered(log, 10)
        patched = pytest.MonkeyPatch()

        async def before(number: int) -> None:
            if number == step:
                line.tell(((results[3].message_id.position, results[3].message_id.index), results[3].time_tick))
                os._exit(9)

        Steps(patched, log, before)
        await log.truncate(up_to=results[6].message_id)

    other = Other(die_while_truncating, data, step)
    start, tick = await other.hear()
    await other.kill()
    monkeypatch.setattr(pinned, "INTENT_TIMEOUT_S", 0.0)  # a save that waits for the dead writer fails
    async with beside(data) as (core, pins, cursors):
        pins.may_store.set()
        pins.may_look.set()
        saving = asyncio.to_thread(cursors.save, at(core, start, tick, kind))
        if step == 3:
            with pytest.raises(TruncatedError):
                await saving
            return
        assert await saving, "what a dead writer meant to do holds up nobody"
    async with open_wal(data) as log:
        (info,) = await log.cursors()
        assert info.name == "elsewhere"
        newest = (await numbered(log, 1))[0].message_id
        with pytest.raises(InvalidArgumentError, match="elsewhere"):
            await log.truncate(up_to=newest)
        await log.delete_cursor("elsewhere")
        await log.truncate(up_to=newest)


# -- processes


@KINDS
async def test_processes_that_save_and_one_that_truncates_agree(data: str, soak: int, kind: str) -> None:
    async def save_at_the_beginning(line: Line, data: str, seed: int, rounds: int, kind: str) -> None:
        """Saves cursors for the first time, as low as it can, and reports each save; then deletes it on a command."""
        chance = random.Random(seed)
        source = ReadOnlyJournalSource(Path(data))
        core = ReadOnlyCore(source)
        core.open()
        saved = refused = 0
        for number in range(rounds):
            log = source.logs["p0"]
            earliest, _ = log.kept()
            try:
                frame = next(log.heads(earliest[0], log.reach().durable_end))
                start = earliest[0], earliest[1] + chance.randrange(2)
                tick = frame.view.header.first_tick + (start[1] if frame.position == start[0] else 0)
                cursor = at(core, start, tick, kind, f"{seed} {number}")
                source.cursors.save(cursor)
            except TruncatedError:
                refused += 1
                continue
            saved += 1
            stored = source.cursors.load(cursor.key)
            assert stored is not None, "it was saved"
            if kind == "names":
                assert log.kept()[0] <= stored.start, "and nothing has passed it since"
            else:
                assert log.first_after(stored.time_tick, (0, 0)) is not None, "and nothing has passed it since"
            source.cursors.delete_named(cursor.key.name, None)
        core.close()
        line.tell((saved, refused))

    async with open_wal(data) as log:
        results: list[AppendResult] = list(await numbered(log, 20))
        savers = [Other(save_at_the_beginning, data, seed, 60 * soak, kind) for seed in (1, 2)]
        hearing = [asyncio.ensure_future(saver.hear()) for saver in savers]
        truncated = held = 0
        while not truncated or not all(each.done() for each in hearing):
            results += await log.append_bulk([Message("orders", b"more")] * 3)
            try:
                await log.truncate(up_to=results[min(len(results) - 2, truncated + 2)].message_id)
                truncated += 3
            except InvalidArgumentError:
                held += 1
        saved = [await each for each in hearing]
        for saver in savers:
            await saver.end()
        assert all(count for count, _ in saved)
        assert await log.cursors() == []
