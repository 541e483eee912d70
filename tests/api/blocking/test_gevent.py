"""Where gevent has patched threading, the log without a loop runs on Python's own event loop: uvloop's would hold the only thread.

The project does not depend on gevent: a module with its name answers as gevent does.
"""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import pytest

from wal.runtime.loop_thread import LoopThread


@pytest.mark.parametrize("patched", [True, False])
def test_loop_under_gevent_is_not_uvloop(monkeypatch: pytest.MonkeyPatch, patched: bool) -> None:
    monkey = ModuleType("gevent.monkey")
    monkey.is_module_patched = lambda name: patched and name == "threading"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)
    thread = LoopThread()
    try:
        assert thread.run(lambda: type(asyncio.get_running_loop()).__module__.startswith("uvloop")) is not patched
    finally:
        thread.stop()
