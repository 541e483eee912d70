"""A cluster for this demo: two coordinators and three nodes, processes on loopback over a real Pulsar and etcd. A leader and a node die."""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

import msgspec

from examples.flights.place import Place

PCHANNELS: Final = 6
_TTL: Final = ("--session-ttl", "3")


class PChannel(msgspec.Struct):
    """A pchannel in the output of `wal cluster status --json`."""

    pchannel: str
    term: int
    address: str


class Status(msgspec.Struct):
    """The part of `wal cluster status --json` that the demo needs."""

    leader: str
    pchannels: list[PChannel]


class Process:
    """A coordinator or a node, from its start until it is ended or killed."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "wal", *arguments, *_TTL, "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("listening on "):
            if not line:
                raise SystemExit(f"`wal {' '.join(arguments)}` ended with status {self._process.wait()} before it listened")
        self.address = line.split()[-1]

    def end(self, *, kill: bool = False) -> None:
        self._process.kill() if kill else self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Cluster:
    """Serves the log at `place` inside a `with` block; clients connect to `location`."""

    def __init__(self, place: Place) -> None:
        self._root = place.settings["kv"]
        self._log = place.location
        self._environment = {"WAL_PULSAR_ADMIN_URL": place.settings["pulsar_admin_url"]}
        if token := place.settings.get("pulsar_token"):
            self._environment["WAL_PULSAR_TOKEN"] = token
        self._coordinators: list[Process] = []
        self._nodes: list[Process] = []

    @property
    def location(self) -> str:
        return "wal://" + ",".join(process.address for process in self._coordinators)

    def kill(self) -> None:
        """Kills the leading coordinator and a node that has pchannels, with SIGKILL and at once."""
        status = self._status()
        leader = next(process for process in self._coordinators if process.address == status.leader)
        node = next(process for process in self._nodes if process.address == status.pchannels[0].address)
        print(f"the leader {leader.address} and the node {node.address} die; " + _places(status))
        leader.end(kill=True)
        node.end(kill=True)
        self._nodes.remove(node)
        self._coordinators.remove(leader)

    def start(self) -> None:
        """Starts nothing: the others take over. Waits until every pchannel is on a node again, and prints the nodes."""
        print("without them, " + _places(self._status("--wait")))

    def __enter__(self) -> Self:
        settings = ["--log", self._log, "--pchannels", str(PCHANNELS), "--expected-nodes", "3"]
        for _ in range(2):
            self._coordinators.append(Process(["coordinator", self._root, *settings], self._environment))
        for _ in range(3):
            self._nodes.append(Process(["node", self._root], self._environment))
        print("two coordinators and three nodes: " + _places(self._status("--wait")))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for process in (*self._nodes, *self._coordinators):
            process.end()

    def _status(self, *flags: str) -> Status:
        command = [sys.executable, "-m", "wal", "cluster", "status", self._root, "--json", *flags]
        said = subprocess.run(command, env=os.environ | self._environment, capture_output=True, text=True, check=False)
        if said.returncode:
            raise SystemExit(f"the state of the cluster cannot be had: {said.stderr or said.stdout}")
        return msgspec.json.decode(said.stdout, type=Status)


def _places(status: Status) -> str:
    places = ", ".join(f"{each.pchannel} at {each.address} (term {each.term})" for each in status.pchannels)
    return f"led by {status.leader}: {places}"
