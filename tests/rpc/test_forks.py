"""Subprocesses of a process that uses gRPC: uvloop starts them with a plain fork, in which gRPC's handlers of forks would crash some."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.processes import run_python
from tests.serve.servers import serving

SETTING = "GRPC_ENABLE_FORK_SUPPORT"


@pytest.mark.one_loop
async def test_client_on_uvloop_starts_subprocesses() -> None:
    """None crashes, and gRPC, which would say so, runs no handler. The setting is not left for the children."""
    program = """\
        import asyncio, os, sys

        import uvloop


        async def main() -> None:
            from wal import Message, open_wal

            async def load() -> None:
                while True:
                    await log.raw_append(Message("orders", bytes(100)))

            async with open_wal(sys.argv[1]) as log:
                writers = [asyncio.ensure_future(load()) for _ in range(8)]
                codes = []
                for _ in range(100):
                    child = await asyncio.create_subprocess_exec("/bin/true")
                    codes.append(await child.wait())
                for writer in writers:
                    writer.cancel()
                await asyncio.wait(writers)
            print(sum(code != 0 for code in codes), "crashed;", os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "unset"))


        uvloop.run(main())
    """

    variables = {name: value for name, value in os.environ.items() if name != SETTING}
    async with serving() as served:
        ended = await asyncio.to_thread(run_python, "-c", program, f"wal://{served.address}", environment=variables, fresh=True)
    assert ended == (0, "0 crashed; unset\n", "")


@pytest.mark.parametrize("chosen", ["0", "1"])
def test_program_that_chose_itself_keeps_its_choice(chosen: str) -> None:
    program = f"import wal.rpc, os; print(os.environ[{SETTING!r}])"
    assert run_python("-c", program, environment={**os.environ, SETTING: chosen}, fresh=True).out == f"{chosen}\n"
