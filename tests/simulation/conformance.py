"""The suites of every KV and of every log, run over the simulation's etcd and broker: what stands in for a server keeps its contract.

A suite is a class of tests for pytest. Here each of them runs as a simulated process, over an etcd and a broker of its own, on the virtual
clock, once for each of its parameters.
"""

from __future__ import annotations

import gc
import itertools
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.simulation.broker import Broker, SharedLogBackend
from tests.simulation.etcd import ADDRESS, EtcdServer
from tests.simulation.world import World
from tests.storage.conformance import BackendConformance
from tests.storage.kv.conformance import KVConformance
from wal.channels.metadata import open_metadata
from wal.storage.base import LogBackend

SUITES: dict[str, type] = {"etcd": KVConformance, "broker": BackendConformance}


class OnBroker(BackendConformance):
    """The suite of every log, over brokers of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._brokers: dict[Path, Broker] = {}

    def make(self, place: Path) -> LogBackend:
        world = self._world
        return SharedLogBackend(self._brokers.setdefault(place, Broker(world.broker.process, world.network)))


def names(suite: str) -> list[str]:
    """Returns the tests of a suite."""
    return [name for name in dir(SUITES[suite]) if name.startswith("test_")]


def failures(suite: str, broken: bool, some: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Returns, by test, how it failed, once for each of its parameters that failed. This process cannot be used for anything else.

    `broken`: etcd compares nothing, to see that the suite notices. `some` are the tests to run, or all.
    """
    gc.disable()
    if broken:
        etcd: Any = EtcdServer
        etcd._holds = lambda _self, _compare: True
    return {name: [failure for case in _cases(suite, name) if (failure := _run(suite, name, case))] for name in some or names(suite)}


def _cases(suite: str, name: str) -> Iterator[dict[str, Any]]:
    """Yields the parameters of a test, as pytest would."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(getattr(SUITES[suite], name), "pytestmark", ()):
        assert mark.name == "parametrize", f"{name} has the mark {mark.name}, which is not known here"
        of = [each.strip() for each in mark.args[0].split(",")]
        axes.append([dict(zip(of, value if len(of) > 1 else [value], strict=True)) for value in mark.args[1]])
    for chosen in itertools.product(*axes):
        yield {key: value for one in chosen for key, value in one.items()}


def _run(suite: str, name: str, case: dict[str, Any]) -> str:
    """Runs a test; returns how it failed, or an empty text."""
    world = World(1, steps_max=300_000)
    world.network.late = 0.0

    async def test() -> None:
        if suite == "broker":
            with tempfile.TemporaryDirectory() as place:
                await getattr(OnBroker(world), name)(tmp_path=Path(place), **case)
            return
        kv = await open_metadata(f"etcd://{ADDRESS}/root")
        try:
            await getattr(KVConformance(), name)(kv, **case)
        finally:
            await kv.close()

    async def main() -> None:
        world.start_etcd()
        await world.task("tests", test())

    try:
        world.run(main())
    except BaseException as failure:
        return f"{case}: {''.join(traceback.format_exception(failure)[-6:])}"
    return ""
