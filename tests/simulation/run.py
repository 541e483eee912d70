"""One run of one seed: a cluster under faults and a workload, its invariants at every step, and its history judged at the end.

`simulate` builds the world, lets clients and faults at it, mends everything, and waits until the cluster has settled and every reader has
seen the end. Then the checker compares the history with the log. The faults are drawn from the seed for some seconds of the run's time, or
they are the script of an incident (`test_incidents.py`). A run has to have a process of its own, which `run_apart` forks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from tests.simulation import grpc_server
from tests.simulation.checker import check
from tests.simulation.faults import Faults
from tests.simulation.history import History, LoggedEvent
from tests.simulation.invariants import Invariants
from tests.simulation.workload import VCHANNELS, Workload
from tests.simulation.world import World
from wal.message import FORM_PULSAR
from wal.message.message import Origin
from wal.read.assembly import assemble_runs
from wal.read.options import EventFilter

RUN_S: Final = 40.0
"""How long a run makes faults, in its own time."""
SETTLE_S: Final = 120.0
"""How long the cluster may take afterwards, in its own time."""
STEPS_MAX: Final = 3_000_000
_LOOK_S: Final = 0.05


class Result(msgspec.Struct):
    """What came of a run. `faults` are sentences; `lines` is the history for people."""

    seed: int
    faults: list[str]
    lines: list[str]
    trace: int
    virtual_s: float
    steps: int
    counts: dict[str, int]


class Run:
    """A run as its script sees it."""

    def __init__(self, world: World, history: History, invariants: Invariants, workload: Workload) -> None:
        self.world = world
        self.history = history
        self.invariants = invariants
        self.workload = workload

    async def until(self, condition: Callable[[], object], what: str, *, within_s: float = 30.0) -> None:
        """Returns when a condition holds. Raises AssertionError if it does not hold within `seconds` of the run."""
        for _ in range(round(within_s / _LOOK_S)):
            if condition():
                return
            await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"{what}: not within {within_s:g} s")

    async def settled(self, *, within_s: float = 30.0) -> None:
        """Returns when every pchannel is assigned, and no history is left."""
        await self.until(lambda: self.invariants.settled, "every pchannel is assigned", within_s=within_s)

    async def served(self) -> None:
        """Returns when the cluster is settled, every client has opened the log, and every vchannel has been written."""
        await self.settled()
        await self.until(lambda: self.workload.all_open, "every client has opened the log")
        known = self.history.operations
        await self.until(lambda: {name for one in known for name in one.ticks} == set(VCHANNELS), "every vchannel is written")

    def is_even(self) -> bool:
        """Whether the numbers of pchannels of two nodes differ by at most one."""
        counts = [len(self.of(node)) for node in self.world.nodes]
        return max(counts) - min(counts) <= 1

    def owner(self, pchannel: str) -> str:
        """Returns the node that has a pchannel, or is about to have it, by etcd's records; empty without one."""
        owner = self.invariants.records[pchannel].owner
        return "" if owner is None else owner.node.address.rpartition(":")[0]

    def of(self, node: str) -> list[str]:
        """Returns the pchannels of a node."""
        return [name for name in self.invariants.records if self.owner(name) == node]

    def pchannel(self, vchannel: str) -> str:
        """Returns the pchannel of a vchannel that exists."""
        text = self.world.data.text(f"wal/vchannels/{vchannel}")
        assert text is not None, f"{vchannel} exists"
        name: str = msgspec.json.decode(text)["pchannel"]
        return name


Script = Callable[[Run], Awaitable[None]]


def simulate(
    seed: int,
    *,
    seconds: float = RUN_S,
    prepare: Callable[[World], object] = lambda _: None,
    script: Script | None = None,
    pause_s: float = 0.4,
    options: Mapping[str, Any] = {},
    scheduled: bool = False,
) -> Result:
    """Runs one seed in this process, which cannot be used for anything else after that.

    `prepare` may change the product and the world before it starts. `script` is what happens, instead of `seconds` of random faults;
    `options` are those of its world. `pause_s` is the longest pause between two appends of a client to a vchannel. With `scheduled` clients
    also append at later times.
    """
    gc.disable()
    world = World(seed, steps_max=STEPS_MAX, **options)
    invariants = Invariants(world.data, world.say)
    history = History()
    world.on_commit = invariants.committed
    world.on_restored = invariants.restored
    world.broker.on_open = invariants.opened
    world.broker.on_frame = invariants.written
    world.broker.on_promise = invariants.promised
    answers: Any = grpc_server.ServerCall
    answers.on_answer = staticmethod(invariants.answered)
    prepare(world)
    faults = Faults(world)

    async def main() -> None:
        world.start_all()
        workload = Workload(world, history, pause_s=pause_s, scheduled=scheduled)
        workload.start()
        happening = asyncio.ensure_future(faults.run(seconds) if script is None else script(Run(world, history, invariants, workload)))
        while not happening.done():
            await asyncio.wait((happening,), timeout=1.0)
            if invariants.faults:
                raise _FoundError
        happening.result()
        faults.mend()
        world.say("everything is mended")
        await asyncio.sleep(1.0)
        faults.mend()  # also what was about to happen
        workload.stop()
        finishing = asyncio.ensure_future(workload.wait())
        async with asyncio.timeout(SETTLE_S):
            while not (finishing.done() and invariants.settled):
                await asyncio.sleep(0.5)
                if invariants.faults:
                    raise _FoundError
        finishing.result()

    found: list[str] = []
    try:
        world.run(main())
    except _FoundError:
        pass
    except TimeoutError:
        found.append(f"the cluster has not settled {SETTLE_S:g} s after everything was mended")
    except AssertionError as failure:
        found.append(str(failure))
    except BaseException as failure:
        found.append(f"the run failed: {''.join(traceback.format_exception(failure))}")
    found += invariants.faults
    if not found:
        log, pchannels = _log_of(world)
        found += check(history, log, pchannels)
        found += world.defects
        found += [f"asyncio complains: {each}" for each in world.loop.complaints]
    counts = {**history.counts, **{f"fault: {name}": count for name, count in faults.counts.items()}}
    return Result(seed, found, world.lines, world.loop.trace, world.loop.time() - 1000, world.loop.steps, counts)


def run_apart(seed: int, **options: Any) -> Result:
    """Runs one seed in a child of this process, as `simulate` does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = simulate(seed, **options)
        except BaseException as failure:
            result = Result(seed, [f"the simulation failed: {''.join(traceback.format_exception(failure))}"], [], 0, 0.0, 0, {})
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(msgspec.structs.astuple(result), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Result(seed, ["the process of the run ended without a result"], [], 0, 0.0, 0, {})
    return Result(*pickle.loads(data))


class _FoundError(Exception):
    """An invariant does not hold: the run ends."""


def _log_of(world: World) -> tuple[list[LoggedEvent], dict[str, str]]:
    """Returns all events of the workload's vchannels, in the order of their logs, and the pchannels of the vchannels."""
    events: list[LoggedEvent] = []
    pchannels: dict[str, str] = {}
    for name in world.broker.pchannels:
        channel = world.broker.channel(name)
        for stored in channel.page(0, None, 1 << 40).frames:
            origin = Origin(name, channel.incarnation, stored.position, FORM_PULSAR)
            for vchannel in VCHANNELS:
                for message in assemble_runs(stored.view, stored.view.runs.find(frozenset((vchannel,))), origin, EventFilter()):
                    pchannels[vchannel] = name
                    events += [LoggedEvent(vchannel, name, message.time_tick, body.payload) for body in message.bodies()]
    return events, pchannels
