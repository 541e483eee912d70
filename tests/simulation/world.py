"""World: a simulated cluster: etcd, a broker, coordinators, nodes and clients, each a process that can be stopped, killed, started again.

Coordinators and nodes run what `wal coordinator` and `wal node` run: `ClusterCoordinator` and `ClusterNode`. A client opens the log with
`open_wal`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final

from tests.simulation.broker import Broker
from tests.simulation.environment import install
from tests.simulation.etcd import ADDRESS, EtcdData, EtcdServer
from tests.simulation.loop import Process, SimulatedLoop, current_process
from tests.simulation.network import Network
from wal import WALAccesser, open_wal
from wal.errors import WALError
from wal.operate.processes.coordinator import ClusterCoordinator
from wal.operate.processes.leading import Leading
from wal.operate.processes.node import ClusterNode
from wal.serve.access import Access
from wal.settings import Settings

ROOT: Final = f"etcd://{ADDRESS}/wal"
LOG: Final = "pulsar://broker:6650/public/wal"
TTL_S: Final = 4.0
"""The lifetime of sessions: shorter than by default, so that a run sees more of them end."""


class World:
    """The cluster of a run. Build it in a process of its own: it replaces what the product imports."""

    def __init__(
        self,
        seed: int,
        *,
        pchannels: int = 4,
        coordinators: int = 2,
        nodes: int = 3,
        late: Collection[str] = (),
        settings: Settings | None = None,
        steps_max: int | None = None,
    ) -> None:
        """`late` are the nodes that `start_all` does not start."""
        self.seed = seed
        self.loop = SimulatedLoop(seed, steps_max=steps_max)
        self.network = Network(self.loop)
        self.processes: dict[str, Process] = {}
        self.data = EtcdData()
        self.broker = Broker(self._process("broker"), self.network)
        self.on_commit: Callable[[int, list[Any]], object] = lambda *_: None
        self.on_restored: Callable[[], object] = lambda: None
        self.lines: list[str] = []
        """The history of the run, for people."""
        self.defects: list[str] = []
        """What the product itself takes for a defect of its own."""
        self.coordinators: tuple[str, ...] = tuple(f"coordinator{number}" for number in range(coordinators))
        self.nodes: tuple[str, ...] = tuple(f"node{number}" for number in range(nodes))
        self.running: dict[str, ClusterNode | ClusterCoordinator] = {}
        self.etcd: EtcdServer
        self._settings = Settings() if settings is None else settings
        self._pchannels = pchannels
        self._late = late
        install(self.loop, self.network, self.broker)
        _show_logs(self)

    def say(self, text: str) -> None:
        """Adds a line to the history."""
        process = current_process()
        self.lines.append(f"{self.loop.time() - 1000:10.4f}  {'' if process is None else process.name:<13} {text}")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs the whole simulation until this coroutine returns."""
        return self.loop.run_until_complete(work)

    # -- processes

    def start_etcd(self) -> None:
        process = self._process("etcd")
        self.etcd = EtcdServer(process, self.data, on_commit=lambda *what: self.on_commit(*what))
        process.start(self.etcd.serve())

    def start_coordinator(self, name: str) -> None:
        async def main() -> None:
            coordinator = ClusterCoordinator(
                ROOT,
                self._settings.replace(pchannels=self._pchannels),
                Access(listen=f"{name}:8800", insecure=True),
                log=LOG,
                expected_nodes=len(self.nodes),
                ttl_s=TTL_S,
            )
            await coordinator.open()
            self.running[name] = coordinator
            failure = await coordinator.failed()
            self.say(f"the coordinator failed: {failure!r}")

        self._start(name, main)

    def start_node(self, name: str) -> None:
        async def main() -> None:
            node = ClusterNode(ROOT, self._settings, Access(listen=f"{name}:8810", insecure=True), ttl_s=TTL_S)
            await node.open()
            self.running[name] = node
            self.say(f"is node {node.server_id:x}")
            failure = await node.failed()
            self.say(f"exits with 3: {failure}")
            await node.close()
            self.kill(name)
            self.loop.call_later(1.0, self.start, name, context=_outside)

        self._start(name, main)

    def start(self, name: str) -> None:
        """Starts a coordinator or a node, unless it runs."""
        process = self.processes.get(name)
        if process is not None and not process.dead:
            return
        if name == "etcd":
            self.start_etcd()
        else:
            (self.start_coordinator if name in self.coordinators else self.start_node)(name)

    def kill(self, name: str) -> None:
        """Ends a process at once."""
        process = self.processes[name]
        if not process.dead:
            self.say(f"{name} is killed")
            process.kill()
            self.network.killed(name)
            self.running.pop(name, None)

    def start_all(self) -> None:
        self.start_etcd()
        for name in (*self.coordinators, *self.nodes):
            if name not in self._late:
                self.start(name)

    def leader(self) -> str:
        """Returns the name of the coordinator that leads, or an empty text."""
        running = self.running.items()
        return next((name for name, one in running if isinstance(one, ClusterCoordinator) and one.leads), "")

    def moves(self) -> int:
        """Returns how many pchannels the leader moves at the moment."""
        leading = self.leading()
        return 0 if leading is None else len(leading._assigner._moves)

    def leading(self) -> Leading | None:
        """Returns the work of the leader, for who looks from outside."""
        coordinator: Any = self.running.get(self.leader())
        return None if coordinator is None else coordinator._leading

    def cut_off(self, name: str, *, except_from: Collection[str] = ()) -> None:
        """Cuts the links of a process from and to all others, except those to some."""
        for other in self.processes:
            if other != name and other not in except_from:
                self.network.cut(name, other)
                self.network.cut(other, name)

    def restore(self, data: EtcdData) -> None:
        """Restarts etcd with an earlier copy of its data."""
        self.say(f"etcd is restored, from revision {self.data.revision} to {data.revision}")
        self.kill("etcd")
        granted = self.data.granted  # no lease has the number of another one
        vars(self.data).update(vars(data))
        self.data.granted = granted
        self.on_restored()
        self.start_etcd()

    def client(self, name: str, work: Callable[[WALAccesser], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Runs a client: a process that opens the log and does this work."""

        async def main() -> Any:
            while True:
                try:
                    log = await open_wal(ROOT)
                    break
                except WALError as error:
                    self.say(f"cannot open the log yet: {error!r}")
                    await asyncio.sleep(0.5)
            try:
                return await work(log)
            finally:
                await log.close()

        return self._process(name).start(main())

    def task(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something as a process of its own."""
        return self._process(name).start(work)

    def _start(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            while True:
                try:
                    await main()
                    return
                except WALError as error:  # the process ends, and its supervisor starts it again
                    self.say(f"cannot start: {error!r}")
                    await asyncio.sleep(1.0)

        self.say(f"{name} starts")
        self._process(name).start(guarded())

    def _process(self, name: str) -> Process:
        process = self.processes[name] = Process(self.loop, name)
        return process


def _show_logs(world: World) -> None:
    """Adds what the product logs to the history."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failure = "" if record.exc_info is None or record.exc_info[1] is None else f" ({record.exc_info[1]!r})"
            if "please report" in record.getMessage():
                world.defects.append(f"{record.getMessage()}{failure}")
            world.say(f"[{record.levelname.lower()}] {record.getMessage()}{failure}")

    for name in ("wal", "actors", "broadcaster", "tests.simulation"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [Lines()]
        logger.propagate = False
        logger.setLevel(logging.INFO)


_outside: Final = contextvars.Context()
"""The context of the simulation itself, in which a supervisor starts processes again."""
