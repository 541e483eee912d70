"""Thousands of scanners that catch up at once, each on its own vchannel: frames are decoded for all of them, not for each."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import SOAK
from tests.processes import run_python


def test_peak_is_that_of_a_few_pages(data_dir: Path) -> None:
    CHILD = """
        import asyncio, json, sys
        from wal import Message, open_wal

        def memory(name):
            with open("/proc/self/status") as status:
                (line,) = [line for line in status if line.startswith(name)]
            return int(line.split()[1]) * 1024

        async def main(data, count):
            names = [f"vchannel-{number}" for number in range(count)]
            async with open_wal(data) as log:
                await log.append_bulk([Message(name, name.encode() + bytes(100)) for name in names])
            async with open_wal(data) as log:
                scanners = [log.read(name) for name in names]
                for scanner in scanners:
                    await scanner.__aenter__()
                async def first(scanner):
                    async for message in scanner:
                        return message.payload.rstrip(b"\\0").decode()
                before = memory("VmRSS")
                found = await asyncio.gather(*map(first, scanners))
                assert found == names
                del found
                print(json.dumps(memory("VmHWM") - before))
                for scanner in scanners:
                    await scanner.close()

        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    """

    scanners = 10_000 if SOAK else 2_000
    # Above the scanners' own state; each with a page of its own they would take 600 MiB, and 10,000 of them 5.7 GiB.
    peak_bytes_max = 64 << 20
    ended = run_python("-c", CHILD, data_dir, scanners, timeout_s=240, fresh=True)
    assert json.loads(ended.out) < peak_bytes_max
