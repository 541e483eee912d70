"""The benchmarks W1 to W12, Spark and the opening of a log, in one run: `python -m benchmarks [w1 … w12 spark opening] [--quick]`.

Prints medians with ratios and the targets, and writes everything to benchmarks/results/, the input of `python -m benchmarks.figures` for
README.md. README.md describes each measurement. The exit status is 1 when a cell failed; a missed target is not a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import plan as plans
from benchmarks.cell import CellError
from benchmarks.run import check_disk, run_opening, run_plan
from benchmarks.table import document, lines, opening_lines, target_lines
from benchmarks.targets import judge

BUSY_LOAD: Final = 0.5
"""A load average above this before the run means that other processes are busy."""
RESULTS: Final = Path(__file__).parent / "results"


def main() -> int:
    options = _options()
    workloads = options.workloads or [*plans.WORKLOADS, plans.OPENING]
    plan = _plan(options).only(workloads)
    place = Path(options.directory).resolve()
    if not options.smallest:
        check_disk(place)
    load = os.getloadavg()[0]
    began = time.monotonic()
    results, errors = run_plan(plan, place)
    opened: dict[str, Any] | None = None
    if plans.OPENING in workloads:
        try:
            opened = run_opening(plan, place)
        except CellError as failure:
            errors.append(str(failure))
    results_document = document(plan.rows, results, judge(results), opened)
    text = [
        *lines(plan.rows, results),
        *(() if opened is None else opening_lines(opened)),
        *target_lines(results_document["targets"], opened),
        "",
        f"{plan.rounds} rounds of {plan.seconds:g} s a cell, {time.monotonic() - began:.0f} s in all",
    ]
    if load > BUSY_LOAD:
        text.append(f"The machine was not idle before the run (load {load:.1f}): run it again when it is.")
    print("\n".join(text))
    for error in errors:
        print(f"\nFAILED: {error}")
    output = Path(options.output) if options.output else RESULTS / f"{_name(options)}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    everything = {"plan": _size(options), **_about(place, load, plan), **results_document, "errors": errors}
    output.write_text(json.dumps(everything, indent=1) + "\n")
    print(f"written to {output}")
    return 1 if errors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="w1 … w12, spark, opening", help="some of them (all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="every workload briefly: three minutes")
    size.add_argument("--smallest", action="store_true", help="every workload for a moment: whether it runs")
    parser.add_argument("--rounds", type=int, help="rounds (5)")
    parser.add_argument("--seconds", type=float, help="measured seconds a cell (0.8)")
    parser.add_argument("--directory", default=".", help="where the files are made and removed; a real disk (.)")
    parser.add_argument("--output", help="the JSON file (in benchmarks/results/)")
    options = parser.parse_args()
    workloads = [*plans.WORKLOADS, plans.OPENING]
    for name in options.workloads:
        if name not in workloads:
            parser.error(f"there is no workload {name!r}: name some of {', '.join(workloads)}")
    return options


def _plan(options: argparse.Namespace) -> plans.Plan:
    plan = plans.quick() if options.quick else plans.smallest() if options.smallest else plans.full()
    return msgspec.structs.replace(plan, rounds=options.rounds or plan.rounds, seconds=options.seconds or plan.seconds)


def _size(options: argparse.Namespace) -> str:
    return "quick" if options.quick else "smallest" if options.smallest else "full"


def _name(options: argparse.Namespace) -> str:
    size = _size(options)
    return "-".join(options.workloads or ["all"]) + ("" if size == "full" else f"-{size}")


def _about(place: Path, load: float, plan: plans.Plan) -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "device": os.stat(place).st_dev,
            "load_before": load,
        },
        "rounds_planned": plan.rounds,
        "seconds": plan.seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
