"""Faults: the events of a cluster during a run, drawn from the seed.

Processes are killed and started again, freeze for longer than their sessions live, or only their event loop does; links are cut, in
one direction or both; connections are reset; etcd and the broker are late, freeze or restart; watches miss compacted revisions; calls to
nodes come late or twice; a leader has to restart its work in the middle of moves; clocks are set wrong. At the end everything is mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from tests.simulation.grpc_channel import Call
from tests.simulation.world import TTL_S, World
from wal.rpc.methods import ASSIGN

PAUSE_S: Final = 3.0
"""The most time between two faults."""
LONG_S: Final = 9.0
"""The longest that a process stands still or a link is cut: longer than a session lives."""
_MANAGER: Final = ASSIGN.path.rpartition("/")[0] + "/"
"""The path of the service with which a leader gives pchannels to nodes and takes them away."""


class Faults:
    """The faults of a world. `run` makes them until it is cancelled, `mend` ends them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(world.loop.random.random())
        self.counts: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        """Makes one fault after the other for so long; several may be there at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._run()

    async def _run(self) -> None:
        faults = (
            (self._kill, 4), (self._stand_still, 4), (self._hang, 2), (self._cut, 4), (self._reset, 3), (self._be_late, 2),
            (self._etcd_stands_still, 1), (self._etcd_is_killed, 1), (self._leader, 3), (self._clock, 1),
            (self._part, 2), (self._watches, 2), (self._delay_calls, 2), (self._reload, 2), (self._ahead_and_gone, 1),
        )  # fmt: skip
        while True:
            await asyncio.sleep(PAUSE_S * self._random.random())
            fault = self._random.choices([each for each, _ in faults], [weight for _, weight in faults])[0]
            self.counts[fault.__name__.strip("_")] = self.counts.get(fault.__name__.strip("_"), 0) + 1
            fault()

    def mend(self) -> None:
        """Ends every fault."""
        world = self._world
        world.network.mend_all()
        world.etcd.stall_watches(stalled=False)
        Call.on_its_way = staticmethod(in_time)
        world.broker.late_s = lambda: 0.001
        world.loop.disk_delay_s = lambda: 0.0005
        for name in ("etcd", "broker", *world.coordinators, *world.nodes):
            world.processes[name].go_on()
            world.processes[name].wall_ahead_s = 0.0
            world.start(name)

    # -- each fault

    def _kill(self) -> None:
        self._kill_one(self._random.choice((*self._world.nodes, *self._world.nodes, *self._world.coordinators)))

    def _kill_one(self, name: str) -> None:
        world = self._world
        world.kill(name)
        world.loop.call_later(0.5 + 5 * self._random.random() ** 2, world.start, name)

    def _leader(self) -> None:
        """Something happens to the coordinator that leads."""
        for name in self._world.coordinators:
            running = self._world.running.get(name)
            if running is not None and getattr(running, "leads", False):
                if self._random.random() < 0.5:
                    self._kill_one(name)
                else:
                    self._still(name, LONG_S * self._random.random())

    def _stand_still(self) -> None:
        name = self._random.choice((*self._world.nodes, *self._world.coordinators))
        self._still(name, LONG_S * self._random.random() ** 2)

    def _hang(self) -> None:
        """Only the event loop of a node freezes; the thread of its lease continues."""
        process = self._world.processes[self._random.choice(self._world.nodes)]
        seconds = LONG_S * self._random.random() ** 2
        self._world.say(f"the loop of {process.name} hangs for {seconds:.2f} s")
        process.main.stop()
        self._world.loop.call_later(seconds, process.main.go_on)

    def _still(self, name: str, seconds: float) -> None:
        process = self._world.processes[name]
        self._world.say(f"{name} stands still for {seconds:.2f} s")
        process.stop()
        self._world.loop.call_later(seconds, process.go_on)

    def _cut(self) -> None:
        world, draw = self._world, self._random
        one = draw.choice((*world.nodes, *world.coordinators))
        other = draw.choice(("etcd", "broker", *world.nodes, *world.coordinators, "client0", "client1"))
        pairs = [(one, other), (other, one)]
        if draw.random() < 0.3:
            pairs = [draw.choice(pairs)]
        seconds = LONG_S * draw.random()
        for source, target in pairs:
            world.say(f"the link from {source} to {target} is cut for {seconds:.2f} s")
            world.network.cut(source, target)
            world.loop.call_later(seconds, world.network.mend, source, target)

    def _part(self) -> None:
        """A node and a client reach each other, and nobody else."""
        world, draw = self._world, self._random
        inside = (draw.choice(world.nodes), draw.choice(("client0", "client1")))
        outside = [name for name in ("etcd", "broker", *world.nodes, *world.coordinators) if name not in inside]
        seconds = TTL_S + LONG_S * draw.random()
        world.say(f"{' and '.join(inside)} are parted from all others for {seconds:.2f} s")
        for source, target in [(one, other) for one in inside for other in outside]:
            for pair in ((source, target), (target, source)):
                world.network.cut(*pair)
                world.loop.call_later(seconds, world.network.mend, *pair)

    def _reset(self) -> None:
        world = self._world
        one = self._random.choice((*world.nodes, *world.coordinators))
        other = self._random.choice(("etcd", "client0", "client1", *world.nodes, *world.coordinators))
        world.say(f"the connections of {one} and {other} are reset")
        world.network.reset(one, other)

    def _be_late(self) -> None:
        world, draw = self._world, self._random
        most_s = 2 * draw.random()
        world.say(f"the broker and the disks take up to {most_s:.2f} s")
        world.broker.late_s = lambda: most_s * draw.random() ** 3
        world.loop.disk_delay_s = lambda: 0.2 * most_s * draw.random() ** 3

        def in_time() -> None:
            world.broker.late_s = lambda: 0.001
            world.loop.disk_delay_s = lambda: 0.0005

        world.loop.call_later(5 * draw.random(), in_time)

    def _etcd_stands_still(self) -> None:
        self._still("etcd", 6 * self._random.random() ** 2)

    def _etcd_is_killed(self) -> None:
        self._kill_one("etcd")

    def _watches(self) -> None:
        """Watches bring nothing for a while, and then etcd is compacted: what changed meanwhile is lost for them."""
        world, seconds = self._world, 5 * self._random.random()
        world.say(f"watches bring nothing for {seconds:.2f} s, and etcd is compacted")
        world.etcd.stall_watches(stalled=True)

        def compact() -> None:
            world.etcd.compact()
            world.etcd.stall_watches(stalled=False)

        world.loop.call_later(seconds, compact)

    def _delay_calls(self) -> None:
        """Calls of leaders to nodes come late, and some of them twice."""
        world, draw, most_s = self._world, self._random, 6 * self._random.random()
        world.say(f"calls to nodes take up to {most_s:.2f} s more, and some come twice")

        def on_its_way(call: Call) -> tuple[float, float | None]:
            if not call.path.startswith(_MANAGER):
                return 0.0, None
            return most_s * draw.random() ** 2, most_s * draw.random() if draw.random() < 0.3 else None

        Call.on_its_way = staticmethod(on_its_way)
        world.loop.call_later(8 * draw.random(), setattr, Call, "on_its_way", staticmethod(in_time))

    def _reload(self) -> None:
        """A node dies, and the leader loses its connections to etcd while it moves the node's pchannels: it must read everything again."""
        world = self._world
        self._kill_one(self._random.choice(world.nodes))

        def reset(left: int) -> None:
            leader = world.leader()
            if leader and world.moves():
                world.say(f"the connections of {leader}, which moves pchannels, to etcd are reset")
                world.network.reset(leader, "etcd")
            elif left:
                world.loop.call_later(0.01, reset, left - 1)

        reset(1000)

    def _ahead_and_gone(self) -> None:
        """A node whose clock is ahead dies before anybody has seen that: its promises are ahead of what others would give."""
        world = self._world
        name = self._random.choice(world.nodes)
        process = world.processes[name]
        process.wall_ahead_s = ahead_s = 10 * self._random.random()
        world.say(f"the wall clock of {name} is ahead by {ahead_s:.2f} s, and soon it is killed")

        def gone() -> None:
            process.wall_ahead_s = 0.0
            self._kill_one(name)

        world.loop.call_later(self._random.random(), gone)

    def _clock(self) -> None:
        process = self._world.processes[self._random.choice(self._world.nodes)]
        process.wall_ahead_s = 20 * self._random.random() - 10
        self._world.say(f"the wall clock of {process.name} is off by {process.wall_ahead_s:.2f} s")


def in_time(_call: Call) -> tuple[float, float | None]:
    """Lets a call travel as any other message."""
    return 0.0, None
