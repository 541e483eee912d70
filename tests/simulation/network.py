"""Network: carries messages between simulated processes: late, over links that are cut, and over connections that break.

How it works. A message takes a random time, sometimes a long one. Messages of one direction of one stream keep their order, messages of
different streams do not. A cut link keeps its messages until it is mended, as TCP does by sending again; a connection over it breaks when
its side waits too long (`grpc_channel.py`), or when somebody resets it, and then what was under way is lost. A link may be cut in one
direction only. A message is delivered as a callback of the process that receives it, so a frozen process gets it later, and a killed one
never.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.simulation.loop import Process, SimulatedLoop

FAST_S: Final = 0.0003
"""What most messages take at least."""
LATE_S: Final = 0.2
"""What a late message takes at most."""
_STEP_S: Final = 1e-7
"""The least time between two messages of a stream."""


class Direction:
    """One direction of a stream, whose messages keep their order."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s: float = 0.0


class Network:
    """The links between the processes by name. `late` is the share of messages that take long."""

    def __init__(self, loop: SimulatedLoop, *, late: float = 0.02) -> None:
        self.late = late
        self.listeners: dict[str, tuple[Process, Any]] = {}
        """The servers by `host:port`: the process that listens, and what accepts its connections."""
        self.messages: int = 0
        self.bytes: int = 0
        self._loop = loop
        self._random: random.Random = random.Random(loop.random.random())
        self._cut: dict[tuple[str, str], list[tuple[Process, Direction, Callable[..., object], tuple[Any, ...]]]] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._connections: dict[tuple[str, str], dict[Any, None]] = {}

    def send(self, source: str, target: Process, direction: Direction, deliver: Callable[..., object], *args: Any, size: int = 0) -> None:
        """Calls `deliver(*args)` in the process `target` once the message has arrived there."""
        self.messages += 1
        self.bytes += size
        waiting = self._cut.get((source, target.name))
        if waiting is not None:
            waiting.append((target, direction, deliver, args))
            return
        draw = self._random.random
        delay_s = FAST_S * (1 + 3 * draw())
        if self.late and draw() < self.late:
            delay_s += LATE_S * draw() ** 3
        delay_s += self._slow.get((source, target.name), 0.0)
        direction.last_s = at = max(self._loop.time() + delay_s, direction.last_s + _STEP_S)
        self._loop.arrive_at(at, deliver, *args, context=target.main.context)

    # -- faults

    def cut(self, source: str, target: str) -> None:
        """Lets nothing pass from one process to another any more."""
        self._cut.setdefault((source, target), [])

    def mend(self, source: str, target: str) -> None:
        """Lets messages pass again, also the ones sent meanwhile."""
        for process, direction, deliver, args in self._cut.pop((source, target), ()):
            if not process.dead:
                self.send(source, process, direction, deliver, *args)

    def mend_all(self) -> None:
        for source, target in list(self._cut):
            self.mend(source, target)
        self._slow.clear()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def slow_down(self, source: str, target: str, delay_s: float) -> None:
        """Adds so much to the time of each message from one process to another."""
        self._slow[source, target] = delay_s

    def reset(self, one: str, other: str) -> None:
        """Breaks the connections between two processes: what is under way on them is lost."""
        for pair in ((one, other), (other, one)):
            for connection in list(self._connections.get(pair, ())):
                connection.reset()

    def killed(self, name: str) -> None:
        """Breaks the connections of a process that was killed, as its kernel does."""
        for address, (process, _) in list(self.listeners.items()):
            if process.name == name and process.dead:
                del self.listeners[address]
        for (client, server), connections in list(self._connections.items()):
            if name in (client, server):
                for connection in list(connections):
                    connection.killed(name)

    def add(self, client: str, server: str, connection: Any) -> None:
        """Notes a connection, which `reset` and `killed` break."""
        self._connections.setdefault((client, server), {})[connection] = None

    def discard(self, client: str, server: str, connection: Any) -> None:
        """Forgets a connection that has ended."""
        self._connections.get((client, server), {}).pop(connection, None)
