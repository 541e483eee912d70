"""The watch by which other tests of Pulsar judge the loop: it records a call that waits, but not a short one."""

from __future__ import annotations

import asyncio
import time
from types import ModuleType

from tests.storage.pulsar.stalls import STALL_S, StallWatch


async def test_call_that_waits_is_noted() -> None:
    def product() -> ModuleType:
        """Returns a made-up module of the product that calls into the client, which waits."""
        client, made = ModuleType("pulsar"), ModuleType("wal.made_up")
        client.__dict__["sleep"] = time.sleep
        exec("def wait(seconds):\n    sleep(seconds)", client.__dict__)
        made.__dict__["client"] = client
        exec("def call(seconds):\n    client.wait(seconds)", made.__dict__)
        return made

    module = product()
    async with StallWatch() as watch:
        for _ in range(10):
            module.call(STALL_S / 10)
            await asyncio.sleep(0.001)
        assert watch.stalls == []
        for _ in range(100):  # on a busy host the watch itself may miss the first ones
            module.call(STALL_S * 3)
            await asyncio.sleep(0.01)  # a stall is counted when it is over
            if watch.stalls:
                break
    assert watch.stalls[:1] == ["<string>:2"]
    assert watch.beats > 0


async def test_wait_outside_the_client_is_not_noted() -> None:
    async with StallWatch() as watch:
        time.sleep(STALL_S * 3)  # noqa: ASYNC251 - that is what is looked for
    assert watch.stalls == []
