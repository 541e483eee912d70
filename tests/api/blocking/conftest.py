"""Fixtures of every test of the bridge: a directory, a watchdog for tests that hang, and a check that nothing stays open."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.fixtures import data, watchdog

__all__ = ["data", "nothing_is_left", "watchdog"]

SETTLE_TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Checks that no thread and no open file of the bridge outlives its test."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    end = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        left = [thread for thread in threading.enumerate() if thread not in threads]
        more = open_files() - files
        if not left and not more:
            return
        gc.collect()  # only now: a file that is held by a cycle is seen above
        assert time.monotonic() < end, f"still open: threads {left}, files {more}"
        time.sleep(0.01)


def open_files() -> set[str]:
    """Returns the regular files that this process has open or mapped, by path."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("/") and not target.startswith("/dev/"):
            found.add(target)
    with open("/proc/self/maps") as maps:
        found |= {line.split(maxsplit=5)[5].strip() for line in maps if "/pchannels/" in line}
    return found
