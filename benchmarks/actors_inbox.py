"""Measures the cost of a message in a group's inbox, from `tell` to the end of `receive`.

Run: python benchmarks/actors_inbox.py [messages]. Prints nanoseconds per message, the best and the median of seven rounds. One round sends
`messages` (default 200,000) in turns of 4,096, as a busy pchannel would, and lets the loop deliver each turn.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from actors import Group, Member

TURN = 4_096
ROUNDS = 7


class Counter(Member):
    """A member that does the least possible work."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def receive(self, batch: list[Any]) -> None:
        self.count += len(batch)


def tell_in_order(group: Group, members: list[Member], count: int) -> None:
    tell, width = group.tell, len(members)
    if width == 1:
        member = members[0]
        for message in range(count):
            tell(member, message)
        return
    for message in range(count):
        tell(members[message % width], message)


async def measure(*, members: int, messages: int) -> list[float]:
    """Returns the nanoseconds per message of each round."""
    turned = asyncio.Event()
    group = Group("benchmark", on_turn_end=turned.set)
    counters: list[Member] = [Counter() for _ in range(members)]
    for index, counter in enumerate(counters):
        group.join(counter, name=str(index))
    costs = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(messages // TURN):
            turned.clear()
            tell_in_order(group, counters, TURN)
            await turned.wait()
        costs.append((time.perf_counter_ns() - began) / (messages // TURN * TURN))
    await group.stop()
    return costs


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        pass
    else:
        loops["uvloop"] = uvloop.new_event_loop
    print(f"{'loop':8} {'what':34} {'best':>8} {'median':>8}   ns per message")
    for loop, factory in loops.items():
        for what, members in (("tell, 1 member", 1), ("tell, 1,024 members round robin", 1_024)):
            with asyncio.Runner(loop_factory=factory) as runner:
                costs = runner.run(measure(members=members, messages=messages))
            print(f"{loop:8} {what:34} {min(costs):8.0f} {statistics.median(costs):8.0f}")


if __name__ == "__main__":
    main()
