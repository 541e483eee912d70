"""Reading pages one after the other uses the memory of the page before, instead of fresh memory from the system."""

from __future__ import annotations

import platform
import resource
from pathlib import Path
from typing import Final

import pytest

from tests.processes import run_python

WRITER: Final = """
import asyncio, sys
from wal import Message, open_wal

async def main(path, messages):
    async with open_wal(path) as log:
        for _ in range(messages // 256):
            await asyncio.gather(*[log.append_nowait(Message("v", bytes(1024))) for _ in range(256)])

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc has this limit")
def test_read_faults_in_few_pages(tmp_path: Path) -> None:
    """The reader is a process of its own: a large block that was freed there before would hide what this is about."""
    reader = """
        import asyncio, resource, sys
        from wal import open_wal

        async def read(log):
            async with log.read("v", follow=False) as scanner:
                return sum([len(page) async for page in scanner.batches()])

        async def main(path, messages, passes):
            async with open_wal(path, read_only=True) as log:
                await read(log)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                for _ in range(passes):
                    assert await read(log) == messages
                print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

        asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    """

    passes = 4
    messages = 16_384
    place = str(tmp_path / "log")
    run(WRITER, place, str(messages))
    faults = int(run(reader, place, str(messages), str(passes)))
    assert faults < passes * messages * 1024 // resource.getpagesize() // 4


def test_opening_another_log_clears_no_large_block(tmp_path: Path) -> None:
    opener = """
        import asyncio, resource, sys
        from wal import open_wal

        async def main(path):
            faults = []
            for _ in range(8):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                async with open_wal(path, read_only=True):
                    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            print(max(faults[1:]))

        asyncio.run(main(sys.argv[1]))
    """

    place = str(tmp_path / "log")
    run(WRITER, place, "256")
    assert int(run(opener, place)) < (1 << 20) // resource.getpagesize()


def run(program: str, *arguments: str) -> str:
    """Runs it in a fresh interpreter: in a forked one every page that is written for the first time is a fault."""
    return run_python("-c", program, *arguments, fresh=True).out
