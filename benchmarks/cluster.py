"""A cluster beside one process on the same Pulsar: `python -m benchmarks.cluster [--quick]`.

256 writers each await the append of one 1 KB message after the other, to twelve vchannels on six pchannels: through the log in one process,
through `wal standalone`, through a cluster of one node and one of three, and through Pulsar's own asyncio API with its defaults. They take
turns, the order reversed every round, each in processes of its own and a namespace of its own, on one broker and one etcd: the servers in
WAL_TEST_PULSAR, WAL_TEST_PULSAR_ADMIN and WAL_TEST_ETCD, or new ones. Targets, in the same round: three nodes at least 0.5 of one process,
and one node at least 0.9 of `wal standalone`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.pulsar import CLIENTS, PAYLOAD_BYTES, drive, theirs
from benchmarks.serving import child
from examples.flights.place import make_namespace
from wal import Message, open_wal

WRITERS: Final = 256
PCHANNELS: Final = 6
VCHANNELS: Final = 12
ALONE, STANDALONE, ONE, THREE, CLIENT = "one process", "wal standalone", "cluster of 1", "cluster of 3", "client as it comes"
ENGINES: Final = (ALONE, STANDALONE, ONE, THREE, CLIENT)
TARGETS: Final = {(THREE, ALONE): 0.5, (ONE, STANDALONE): 0.9}


@contextlib.contextmanager
def served(engine: str, log: str, root: str, admin: str, folder: Path) -> Iterator[str]:
    """Runs the servers of an engine; yields the location of its log."""
    os.environ["WAL_PULSAR_ADMIN_URL"] = admin
    with contextlib.ExitStack() as stack:
        if engine == ALONE:
            yield log
        elif engine == STANDALONE:
            command = ("wal", "standalone", log, "--kv", root, "--pchannels", str(PCHANNELS), "--listen", "127.0.0.1:0")
            yield f"wal://{stack.enter_context(child(*command))}"
        else:
            nodes = 1 if engine == ONE else 3
            settings = ("--log", log, "--pchannels", str(PCHANNELS), "--expected-nodes", str(nodes), "--listen", "127.0.0.1:0")
            stack.enter_context(child("wal", "coordinator", root, *settings))
            for _ in range(nodes):
                stack.enter_context(child("wal", "node", root, "--listen", "127.0.0.1:0"))
            subprocess.run([sys.executable, "-m", "wal", "cluster", "status", root, "--wait"], stdout=subprocess.DEVNULL, check=True)
            yield root


async def append(location: str, root: str, admin: str, seconds: float) -> dict[str, float]:
    """Measures a log."""
    messages = [Message(f"orders-{number}", bytes(PAYLOAD_BYTES)) for number in range(VCHANNELS)]
    settings = {} if location.startswith(("wal://", "etcd://")) else {"kv": root, "pchannels": PCHANNELS, "pulsar_admin_url": admin}
    async with open_wal(location, **settings) as log:  # type: ignore[arg-type]
        numbers = itertools.count()
        return await drive(lambda: log.raw_append(messages[next(numbers) % VCHANNELS]), WRITERS, seconds)


def cell(engine: str, seconds: float, pulsar: str, admin: str, etcd: str) -> dict[str, float]:
    """Measures one engine; its client is this process."""
    name = f"bench-{secrets.token_hex(6)}"
    make_namespace(admin, f"public/{name}", None)
    if engine == CLIENT:
        return uvloop.run(theirs(pulsar, f"public/{name}", CLIENTS[CLIENT], WRITERS, seconds))
    root = f"etcd://{etcd}/{name}"
    with tempfile.TemporaryDirectory() as folder, served(engine, f"{pulsar}/public/{name}", root, admin, Path(folder)) as location:
        return uvloop.run(append(location, root, admin, seconds))


def apart(engine: str, seconds: float, servers: tuple[str, str, str]) -> dict[str, float]:
    """Measures one engine in its own process."""
    command = [sys.executable, "-m", "benchmarks.cluster", "--cell", json.dumps([engine, seconds, *servers])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120 + seconds, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s instead of 5 of 5 s")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(*json.loads(options.cell))))
        return
    from tests.servers import etcd, pulsar

    print(f"load before the run: {os.getloadavg()[0]:.1f}")
    rounds, seconds = (2, 2.0) if options.quick else (5, 5.0)
    results: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    with pulsar.started() as broker, etcd.started() as metadata:
        (address,) = metadata.values()
        servers = broker[pulsar.ADDRESS_VARIABLE], broker[pulsar.ADMIN_VARIABLE], address
        for number in range(rounds):
            for engine in ENGINES if number % 2 == 0 else reversed(ENGINES):
                results[engine].append(apart(engine, seconds, servers))
    print(f"\n{WRITERS} writers, {PAYLOAD_BYTES} B         msg/s    p50 ms    p99 ms")
    for engine in ENGINES:
        medians = [statistics.median(one[name] for one in results[engine]) for name in ("rate", "p50_ms", "p99_ms")]
        print(f"  {engine:<24}{medians[0]:>10,.0f}{medians[1]:>10.2f}{medians[2]:>10.2f}")
    for (engine, against), target in TARGETS.items():
        ratios = [mine["rate"] / other["rate"] for mine, other in zip(results[engine], results[against], strict=True)]
        met = "" if statistics.median(ratios) >= target else "  NOT MET"
        print(f"  {engine} to {against}: {statistics.median(ratios):.2f} (wanted {target:g}){met}  {[round(one, 2) for one in ratios]}")


if __name__ == "__main__":
    main()
