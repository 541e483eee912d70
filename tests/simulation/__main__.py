"""`python -m tests.simulation [--seed N] [--runs N] [--seconds N] [--incident NAME] [--defect NAME]`: simulates one seed after the other.

Prints a line for each run. A run that finds something prints what it found, its seed, and the end of its history; the exit code is then 1,
and `--seed N --runs 1` repeats it, callback by callback.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.apart import DEFECTS, INCIDENTS, failure_of, load_scripts, options_of
from tests.simulation.run import RUN_S, run_apart


def main() -> int:
    load_scripts()
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--runs", type=int, default=1 << 62, help="how many seeds; without it, as many as there is time for")
    parser.add_argument("--seconds", type=float, default=None, help="how long to begin new runs, in seconds of this machine")
    parser.add_argument("--run-seconds", type=float, default=RUN_S, help="how long each run makes faults, in its own seconds")
    parser.add_argument("--lines", type=int, default=60, help="how many lines of the history of a failed run are shown; 0 for all")
    parser.add_argument("--history", type=Path, help="a file for the whole history of the last run")
    parser.add_argument("--defect", choices=DEFECTS, help="makes this defect in every run: it should be found")
    parser.add_argument("--incident", choices=INCIDENTS, help="plays this incident instead of random faults")
    parser.add_argument("--scheduled", action="store_true", help="clients also append at later times")
    options = parser.parse_args()
    if options.seconds is None and options.runs == 1 << 62:
        options.runs = 1
    until_s = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    failed, seed = 0, options.seed
    chosen = {"incident": options.incident, "defect": options.defect}
    if options.incident is None:
        chosen["run-seconds"] = f"{options.run_seconds:g}"
    arguments = " ".join(f"--{name} {value}" for name, value in chosen.items() if value is not None) + options.scheduled * " --scheduled"
    while seed < options.seed + options.runs and (time.monotonic() < until_s or seed == options.seed):
        began_s = time.monotonic()
        result = run_apart(seed, **options_of(options.run_seconds, options.incident, options.defect), scheduled=options.scheduled)
        took_s = time.monotonic() - began_s
        counts = ", ".join(f"{count} {what}" for what, count in sorted(result.counts.items()) if what.endswith("done"))
        print(
            f"seed {seed}: trace {result.trace:08x}, {result.virtual_s:.1f} s simulated in {took_s:.1f} s, {result.steps} steps, "
            f"{sum(count for what, count in result.counts.items() if what.startswith('fault'))} faults; {counts}",
            flush=True,
        )
        if options.history is not None:
            options.history.write_text("\n".join([*result.lines, *result.faults, ""]))
        if result.faults:
            failed += 1
            print(failure_of(result, arguments, lines=options.lines), flush=True)
            if options.defect is not None:
                break
        seed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
