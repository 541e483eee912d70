"""Importing: the time that a fresh process needs to import the package, compared with its dependencies alone.

    python -m benchmarks.importing              # 15 rounds, some 20 seconds

A case is a separate process that imports and reports the processor time; its own start is not counted. The cases take turns, so that other
load on the machine affects all of them. Bytecode is read from a cache that is filled before the first round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Final

BASE: Final = "the dependencies alone"
CASES: Final = {
    BASE: "import asyncio, anyio, msgspec, google_crc32c",
    "import wal": "import wal",
    "from wal import Message, open_wal": "from wal import Message, open_wal",
    "a log in a directory, ready to open": "import wal.node.local.log",
    "wal.bridge": "import wal.bridge",
}
TARGET: Final = 1.5
"""`import wal`, as a multiple of its dependencies alone."""
_CLOCKED: Final = "import time; began = time.process_time(); {code}; print(time.process_time() - began)"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds (15)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="wal-pyc-") as cache:
        for code in CASES.values():
            _seconds(code, cache)
        rounds_s = [{case: _seconds(code, cache) for case, code in CASES.items()} for _ in range(rounds)]
    base = statistics.median(one[BASE] for one in rounds_s)
    print(f"{'importing':<38} {'median ms':>10} {'least':>7} {'ratio':>6}")
    for case in CASES:
        median = statistics.median(one[case] for one in rounds_s)
        print(f"{case:<38} {median * 1e3:>10.1f} {min(one[case] for one in rounds_s) * 1e3:>7.1f} {median / base:>6.2f}")
    ratio = statistics.median(one["import wal"] / one[BASE] for one in rounds_s)
    print(f"\nimport wal ≤ {TARGET:g} times {BASE}: {ratio:.2f}, {'met' if ratio <= TARGET else 'not met'}")


def _seconds(code: str, cache: str) -> float:
    """Returns the processor time of these imports in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = cache
    command = [sys.executable, "-c", _CLOCKED.format(code=code)]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
