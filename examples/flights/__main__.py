"""`python -m examples.flights`: writes the flights, kills the writer, recovers, reads back and compares; then reads with Spark as well.

    --location DIR   the directory of the log (default .demo, recreated); a directory given here must be empty or absent
    --location standalone   on a server, `wal standalone`, which is killed instead of the writer; the writer continues by itself
    --location pulsar   in a new namespace of a real Pulsar, with its metadata in etcd: `make demo LOCATION=pulsar` starts both
    --location cluster   served by two coordinators and three nodes over both, of which the leader and a node are killed
    --keep           keep the log
    --seed N         the seed of the moment of the kill (default: chosen, and printed)
    --flights N      the first N flights only
    --no-spark       skip the part with Spark

Ends with status 1 when the content of the log differs from the CSV. Where Spark cannot run (no Java) the demo prints that and skips the
part; with CI set that is an error.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from examples.flights import worker
from examples.flights.check import Found, read_back
from examples.flights.cluster import Cluster
from examples.flights.place import ON_CLUSTER, ON_PULSAR, STANDALONE, Place, on_pulsar
from examples.flights.server import Server
from examples.flights.spark_check import Carriers, carriers_in_log, spark_problem, spark_session
from examples.flights.spark_check import show as show_carriers
from examples.flights.table import AIRPORTS, ROWS, Totals, csv_carriers, csv_totals

DEFAULT_LOCATION: Final = ".demo"
KILL_FLIGHTS: Final = (80_000, 260_000)
"""The writer is killed when a number of flights in this range has been reported, …"""
KILL_DELAY_S: Final = 0.03
"""… after a random wait of up to this many seconds, so that the kill hits a transaction, a commit or a sync."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--location", default=DEFAULT_LOCATION)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--flights", type=int, default=None)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    if options.location == ON_PULSAR:
        place = on_pulsar(options.flights)
        print(f"the log is made in {place.location}, its metadata in {place.settings['kv']}")
        return demo(place, seed, with_spark=not options.no_spark)
    if options.location == ON_CLUSTER:
        with Cluster(on_pulsar(options.flights)) as cluster:
            print(f"the log is served at {cluster.location}")
            return demo(Place(cluster.location, rows=options.flights), seed, with_spark=not options.no_spark, server=cluster)
    directory = Path(DEFAULT_LOCATION if options.location == STANDALONE else options.location)
    if options.location in (DEFAULT_LOCATION, STANDALONE):
        shutil.rmtree(directory, ignore_errors=True)
    elif directory.exists() and any(directory.iterdir()):
        parser.error(f"--location {options.location} is not empty: name a new directory")
    try:
        if options.location == STANDALONE:
            with Server(str(directory)) as server:
                print(f"the log is served at {server.location}")
                place = Place(server.location, rows=options.flights)
                return demo(place, seed, with_spark=not options.no_spark, server=server)
        return demo(Place(str(directory), rows=options.flights), seed, with_spark=not options.no_spark)
    finally:
        if options.keep:
            print(f"the log is left in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def demo(place: Place, seed: int, *, with_spark: bool, server: Server | Cluster | None = None) -> int:
    """Runs the five acts. A `server` is killed instead of the writer. Returns the exit status."""
    without_spark = spark_problem() if with_spark else "--no-spark"
    served = "cluster" if isinstance(server, Cluster) else "standalone"
    on = "LOCATION=pulsar " if place.settings else "" if server is None else f"LOCATION={served} "
    print(f"seed {seed} (the same kill again: make demo {on}DEMO_ARGS='--seed {seed}')")
    chance = random.Random(seed)
    first = Writer(place)
    kill_at = chance.randint(*KILL_FLIGHTS) * (place.rows or ROWS) // ROWS
    first.run(kill_at=kill_at, delay_s=chance.uniform(0, KILL_DELAY_S), server=server)
    problems: list[str] = []
    last = first
    if server is None:
        last = Writer(place)
        last.run()
    recovered = last.recovered
    assert recovered is not None
    recovered_count, acked = sum(recovered.committed.values()), first.acked.total()
    if server is None:
        problems += [
            f"{airport}: {first.acked[airport]} flights were acknowledged, {recovered.committed[airport]} recovered"
            for airport in AIRPORTS
            if recovered.committed[airport] < first.acked[airport]
        ]
        print(
            f"recovered {recovered_count:,} flights: all {acked:,} acknowledged ones and {recovered_count - acked:,} not yet acknowledged"
        )

    print("reading everything back, and the CSV on its own")
    started = time.perf_counter()
    content = worker.run(read_back(place, since_tick=recovered.time_tick))
    took = time.perf_counter() - started
    expected = csv_totals(place.rows)
    problems += differences(content, expected)
    flights = sum(totals.flights for totals in content.totals.values())
    if content.since_tick != flights - recovered_count:
        problems.append(f"{content.since_tick} flights since the restart, expected {flights - recovered_count}")
    show(content, expected)
    print(
        f"{flights:,} flights in {content.transactions} transactions read in {took:.1f} s, "
        f"{content.since_tick:,} from the {'only' if server else 'second'} writer"
    )
    if without_spark is None:
        problems += spark_act(place)
    elif with_spark:
        print(f"SKIPPED: nothing is read with Spark, because it cannot run here: {without_spark}", file=sys.stderr)
    for problem in problems:
        print(f"DIFFERS: {problem}", file=sys.stderr)
    print("the log and the CSV differ" if problems else "the log and the CSV agree")
    return 1 if problems else 0


def spark_act(place: Place) -> list[str]:
    """Reads the same log with Spark. Returns a line for each difference from the CSV."""
    print("reading the log with Spark (a session takes some seconds)", flush=True)
    with spark_session() as spark:
        started = time.perf_counter()
        carriers = carriers_in_log(spark, place)
        took = time.perf_counter() - started
    show_carriers(carriers)
    print(f"{sum(totals.flights for totals in carriers.values()):,} flights of {len(carriers)} carriers at an airport in {took:.1f} s")
    return carrier_differences(carriers, csv_carriers(place.rows))


class Writer:
    """A worker process from its parent's view: its recovered flights, and the number of acknowledged appends."""

    def __init__(self, place: Place) -> None:
        self._command = [sys.executable, "-m", "examples.flights", "--worker"]
        self._place = msgspec.json.encode(place).decode()
        self.recovered: worker.Recovered | None = None
        self.acked: Counter[str] = Counter()

    def run(self, *, kill_at: int | None = None, delay_s: float = 0.0, server: Server | Cluster | None = None) -> None:
        """Starts the worker and follows its reports until it ends, or kills it once `kill_at` flights are acknowledged.

        A `server` is killed instead and started again, and the worker continues by itself.
        """
        decode = msgspec.json.Decoder(worker.Report).decode
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._place)  # not on the command line, which all users can read: it can contain a token
        process.stdin.close()
        started = time.perf_counter()
        size = appended = 0
        month = ""
        killed = False
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # the kill cut the line short
            report = decode(line)
            if isinstance(report, worker.Recovered):
                self.recovered = report
                self.acked.update(report.committed)
                continue
            if report.month != month:
                month = report.month
                print(f"  month {month:>2}: {self.acked.total():>7,} flights durable", flush=True)
            self.acked[report.airport] = report.total
            appended += report.bodies
            size += report.size
            if kill_at is not None and not killed and self.acked.total() >= kill_at:
                time.sleep(delay_s)
                killed = True
                if server is None:
                    process.kill()
                    continue
                server.kill()
                what = "the server was" if isinstance(server, Server) else "both were"
                print(f"{what} killed with SIGKILL, {self.acked.total():,} flights acknowledged")
                server.start()
        status = process.wait()
        took = time.perf_counter() - started
        if kill_at is not None and not killed:
            raise SystemExit(f"the writer ended, with status {status}, before anything was killed")
        if killed and server is None:
            if status != -signal.SIGKILL:
                raise SystemExit(f"the writer had ended, with status {status}, before it was killed")
            print(f"killed with SIGKILL after {took:.1f} s, {self.acked.total():,} flights acknowledged")
        elif status != 0:
            raise SystemExit(f"the writer ended with status {status}")
        else:
            print(f"appended {appended:,} flights ({size / 1e6:.0f} MB) in {took:.1f} s, each transaction synced to disk")


def differences(found: Found, expected: dict[str, Totals]) -> list[str]:
    """Returns one line for each airport whose totals differ."""
    return [
        f"{airport}: the log has {found.totals[airport]}, the CSV {expected[airport]}"
        for airport in AIRPORTS
        if found.totals[airport] != expected[airport]
    ]


def carrier_differences(found: Carriers, expected: Carriers) -> list[str]:
    """Returns one line for each carrier at an airport whose totals differ."""
    return [
        f"{carrier} at {airport}: Spark found {found.get((airport, carrier))} in the log, the CSV has {expected.get((airport, carrier))}"
        for airport, carrier in sorted({*found, *expected})
        if found.get((airport, carrier)) != expected.get((airport, carrier))
    ]


def show(found: Found, expected: dict[str, Totals]) -> None:
    """Formats the totals of the log, with those of the CSV below."""
    print("              flights  cancelled  departure delay, min  arrival delay, min")
    for airport in AIRPORTS:
        for source, totals in (("log", found.totals[airport]), ("CSV", expected[airport])):
            print(f"  {airport} {source} {totals.flights:>11,} {totals.cancelled:>10,} {totals.dep_delay:>21,} {totals.arr_delay:>19,}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker.run(worker.work(msgspec.json.decode(sys.stdin.buffer.read(), type=Place)))
    else:
        sys.exit(main())
