"""A cluster of the test: its coordinators and nodes as processes on loopback, which tests kill, freeze and start again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.operate.cluster.links import Link
from tests.processes import eventually, run_python
from tests.servers.process import PYTHON, ServerProcess, free_ports
from wal import Secret
from wal.errors import WALError
from wal.operate.cli.cluster import _as_json
from wal.requests.cluster import GetClusterStatus
from wal.rpc.connection import Connection

TTL_S: Final = 3.0
"""The lifetime of sessions here: etcd elects no leader in these tests, except where a member is stopped."""
SETTLE_S: Final = 60.0


class Member(ServerProcess):
    """A coordinator or a node. It keeps its port when it is started again."""

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str], *, ttl_s: float = TTL_S, before: str = ""
    ) -> None:
        """`before` is Python code that runs in the process before our own."""
        (self.port,) = free_ports(1)
        program = ["-c", f"{before}\nfrom wal.operate.cli.main import main\nmain()"] if before else ["-m", "wal"]
        # The code in `before` needs an interpreter that has imported nothing yet.
        command = [sys.executable if before else PYTHON, *program, *arguments, "--listen", self.address, "--session-ttl", str(ttl_s)]
        log = folder / f"{name}.log"
        self._begins = 0
        self._starting = threading.Lock()
        super().__init__(name, command, log=log, is_ready=self._listens, environment=environment)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, unless it was started meanwhile: its supervisor may have been first."""
        with self._starting:
            if not self.running:
                self._begins = self.log.stat().st_size if self.log.exists() else 0
                super().start()

    def text(self) -> str:
        """The log since its newest start, without the lines of Pulsar's client."""
        lines = self.log.read_bytes()[self._begins :].decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if "wal.pulsar" not in line)

    def exit_code(self) -> int | None:
        """Returns the exit code once it has ended, else None."""
        assert self._child is not None
        return self._child.poll()

    @property
    def ended_by_itself(self) -> bool:
        """Whether it has lost its lease, or did not reach etcd when it was started again."""
        return self.exit_code() in (1, 3)

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def _listens(self) -> bool:
        return "listening on" in self.text()


class Cluster:
    """The processes over one root in etcd and one namespace of Pulsar. `start` them; `close` ends them all."""

    def __init__(
        self, etcd: str, log: str, admin_url: str, token: str, folder: Path, *, name: str, pchannels: int = 4, extra: Sequence[str] = ()
    ) -> None:
        self.root = f"etcd://{etcd}/{name}"
        self.log = log
        self.folder = folder
        self.environment = {"WAL_PULSAR_ADMIN_URL": admin_url} | ({"WAL_PULSAR_TOKEN": token} if token else {})
        self.pchannels = pchannels
        self.coordinators: list[Member] = []
        self.nodes: list[Member] = []
        self.ttl_s = TTL_S
        self.token = ""
        """The token of `wal cluster` for the coordinators."""
        self.stack = contextlib.AsyncExitStack()
        self.etcd: Link | None = None
        """The link of all processes to etcd, after `link`."""
        self.links: list[Link] = []
        """The link to each node, after `link`."""
        self.clients: Callable[[], Sequence[int]] = tuple
        """Other processes that links may cut off."""
        self._extra = extra

    async def link(self) -> None:
        """Routes every connection to etcd and to the nodes through a Link, until `stack` is closed. It comes before `start`."""
        address, _, name = self.root.removeprefix("etcd://").partition("/")
        self.etcd = await self.stack.enter_async_context(Link(int(address.rpartition(":")[2]), self.processes))
        self.root = f"etcd://{self.etcd.address}/{name}"

    def processes(self) -> list[int]:
        """Returns the running processes of the cluster, this one, which has the client, and `clients`."""
        return [os.getpid(), *(member.pid for member in self.members if member.running), *self.clients()]

    def mend(self) -> None:
        """Mends all links."""
        for link in (self.etcd, *self.links):
            if link is not None:
                link.mend()

    async def start(self, *, coordinators: int = 2, nodes: int = 3) -> None:
        for number in range(coordinators):
            self.coordinators.append(self.coordinator(number, nodes))
            await asyncio.to_thread(self.coordinators[-1].start)
        self.nodes = [self.node(number) for number in range(nodes)]
        if self.etcd is not None:
            for node in self.nodes:
                self.links.append(await self.stack.enter_async_context(Link(node.port, self.processes)))
                node.command += ["--advertise", self.links[-1].address]
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in self.nodes))
        await self.settled()

    @contextlib.asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """A block in which members that end by themselves are started again, as a supervisor does in production.

        A lease expires where etcd is absent, or the machine is busy, for longer than its lifetime.
        """
        supervising = asyncio.create_task(self._supervise())
        try:
            yield
        finally:
            supervising.cancel()
            await asyncio.wait([supervising])

    async def _supervise(self) -> None:
        while True:
            for member in self.members:
                if member.ended_by_itself:
                    with contextlib.suppress(RuntimeError):  # etcd is still absent
                        await asyncio.to_thread(member.start)
            await asyncio.sleep(0.1)

    async def start_ended(self) -> None:
        """Starts the members that a test has ended. In `supervised` a member that ends by itself, also at its start, is started again."""
        for member in self.members:
            if not member.running and not member.ended_by_itself:
                with contextlib.suppress(RuntimeError):
                    await asyncio.to_thread(member.start)

    def coordinator(self, number: int, expected: int, *, log: bool = True, before: str = "") -> Member:
        chosen = ("--log", self.log, "--pchannels", str(self.pchannels), *self._extra) if log else ()
        return Member(
            f"coordinator-{number}",
            ("coordinator", self.root, *chosen, "--expected-nodes", str(expected)),
            self.folder,
            self.environment,
            ttl_s=self.ttl_s,
            before=before,
        )

    def node(self, number: int, *, before: str = "") -> Member:
        return Member(f"node-{number}", ("node", self.root), self.folder, self.environment, ttl_s=self.ttl_s, before=before)

    def link_to(self, node: Member) -> Link:
        return self.links[self.nodes.index(node)]

    @property
    def members(self) -> list[Member]:
        return [*self.coordinators, *self.nodes]

    def close(self) -> None:
        for member in self.members:
            member.kill()

    async def order(self, *arguments: str, code: int | None = 0) -> str:
        """Runs `wal cluster …` and returns its output."""
        environment = os.environ | self.environment | ({"WAL_TOKEN": self.token} if self.token else {})
        done = await asyncio.to_thread(run_python, "-m", "wal", "cluster", *arguments, environment=environment, code=code)
        return done.out if done.code == 0 else done.out + done.err

    async def status(self) -> dict[str, Any]:
        """Returns the output of `wal cluster status --json`; AssertionError if no coordinator answers."""
        token = self.token or self.environment.get("WAL_SERVER_TOKEN")
        addresses = [member.address for member in self.coordinators]
        leader = await Connection.open(addresses, token=Secret(token) if token else None)
        try:
            answer = await leader.submit(GetClusterStatus())
        except WALError as error:
            raise AssertionError(str(error)) from error
        finally:
            await leader.close()
        status: dict[str, Any] = json.loads(_as_json(answer))
        return status

    async def settled(self, nodes: int | None = None) -> dict[str, Any]:
        """Waits until every pchannel is ASSIGNED to one of `nodes` live nodes, and returns the status."""

        async def look() -> dict[str, Any] | None:
            with contextlib.suppress(AssertionError):
                status = await self.status()
                placed = {each["address"] for each in status["pchannels"] if each["state"] == "ASSIGNED" and not each["histories"]}
                there = {each["address"] for each in status["nodes"]}
                done = len([each for each in status["pchannels"] if each["state"] == "ASSIGNED"]) == self.pchannels
                if done and placed <= there and (nodes is None or len(there) == nodes):
                    return status
            return None

        try:
            settled: dict[str, Any] = await eventually(look, timeout_s=SETTLE_S)
        except TimeoutError:
            raise AssertionError("\n\n".join(f"{member.name}:\n{member.text()[-3000:]}" for member in self.members)) from None
        return settled

    async def leader(self) -> Member:
        """Returns the coordinator that leads."""

        async def look() -> Member | None:
            with contextlib.suppress(AssertionError):
                address = (await self.status())["leader"]
                return next((member for member in self.coordinators if member.address == address), None)
            return None

        leader: Member = await eventually(look, timeout_s=SETTLE_S)
        return leader

    async def owner(self, pchannel: str) -> Member:
        """Returns the node that has a pchannel."""
        status = await self.settled()
        address = next(each["address"] for each in status["pchannels"] if each["pchannel"] == pchannel)
        shown = [link.address for link in self.links] or [node.address for node in self.nodes]
        return self.nodes[shown.index(address)]
