"""Plain calls from a thread without the log's event loop, from a forked child, and openings without a file descriptor: typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.locations import open_wal
from tests.processes import run_python
from wal import Message, Settings, WALAccesser
from wal.errors import InvalidArgumentError

pytestmark = pytest.mark.one_location("wal.api refuses the call before any log has it")

PLAIN_CALLS: Final[dict[str, Callable[[WALAccesser], Any]]] = {
    "append_nowait": lambda log: log.append_nowait(Message("orders", b"")),
    "statistics": lambda log: log.statistics(),
    "wal_name": lambda log: log.wal_name,
}


@pytest.mark.parametrize("name", PLAIN_CALLS)
async def test_plain_call_from_another_thread_is_refused(name: str, location: str) -> None:
    async with open_wal(location) as log:
        with pytest.raises(InvalidArgumentError, match="this thread runs none"):
            await asyncio.to_thread(PLAIN_CALLS[name], log)
        PLAIN_CALLS[name](log)


def run(code: str, data: Path) -> list[str]:
    return run_python("-W", "ignore", "-c", code, data).out.splitlines()


def test_plain_call_of_a_forked_child_is_refused(data_dir: Path) -> None:
    forked = """
        import asyncio, os, sys
        from tests.api.opening.test_wrong_places import PLAIN_CALLS
        from wal import open_wal
        from wal.errors import InvalidArgumentError

        async def main():
            async with open_wal(sys.argv[1]) as log:
                child = os.fork()
                if not child:
                    for name, call in PLAIN_CALLS.items():
                        try:
                            call(log)
                        except InvalidArgumentError as error:
                            print(name, "before this process was forked" in str(error), flush=True)
                    os._exit(0)
                os.waitpid(child, 0)

        asyncio.run(main())
    """

    assert run(forked, data_dir) == [f"{name} True" for name in PLAIN_CALLS]


async def test_opening_without_a_descriptor_is_a_typed_error(data_dir: Path) -> None:
    no_descriptor = """
        import asyncio, os, resource, sys
        from wal import open_wal
        from wal.errors import WALError

        async def main():
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
            taken = []
            while True:
                try:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            while taken:
                try:
                    async with open_wal(sys.argv[1], read_only=True):
                        break
                except WALError as error:
                    print("descriptor" in str(error) or "open files" in str(error), flush=True)
                os.close(taken.pop())

        asyncio.run(main())
    """

    async with open_wal(data_dir) as log:
        await log.raw_append(Message("orders", b""))
    reports = await asyncio.to_thread(run, no_descriptor, data_dir)
    assert reports != []
    assert set(reports) == {"True"}


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
@pytest.mark.parametrize("as_path", [False, True], ids=["text", "path"])
async def test_path_that_no_file_can_have(text: str, as_path: bool, tmp_path: Path) -> None:
    path = tmp_path / text if as_path else str(tmp_path / text)
    with pytest.raises(InvalidArgumentError):
        open_wal(path)
    with pytest.raises(InvalidArgumentError, match="has a NUL or a lone surrogate"):
        Settings.load(path)
    with pytest.raises(InvalidArgumentError):
        await open_wal(tmp_path / "log", kv=f"sqlite:{path}")
    with pytest.raises(InvalidArgumentError, match="has a NUL or a lone surrogate"):
        await open_wal("pulsar://localhost:1/a/b", pulsar_tls_authority=str(path))


async def test_seconds_past_every_float_are_refused(location: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"retention_s=2\*\*1328… is out of range"):
        Settings(retention_s=10**400)
    async with open_wal(location) as log:
        with pytest.raises(InvalidArgumentError, match=r"keepalive=2\*\*1328… is out of range"):
            log.txn("orders", keepalive=10**400)
