"""A write that fails: every waiting call gets the error, later calls too, and the next opening has whole batches only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python
from wal.errors import StorageError, WALError
from wal.streams.rocksmq import RocksMQ, RocksMQSettings
from wal.streams.rocksmq.keys import TurnWrites
from wal.streams.rocksmq.store import Store

FILE_BYTES_MAX = 200_000


async def write_until_it_fails(directory: Path) -> dict[str, Any]:
    """Writes in a process whose files cannot grow beyond FILE_BYTES_MAX, and returns its report."""
    mq = await RocksMQ.open(directory)
    await mq.create_channel("x")
    await mq.create_channel("y")
    await mq.create_consumer_group("g", "y")
    waiting = asyncio.ensure_future(mq.consume("g", "y", 1, timeout_s=None))
    while not mq.channels()[1].groups[0].waiting:
        await asyncio.sleep(0)
    done: list[int] = []
    sent = 0

    async def produce() -> WALError:
        nonlocal sent
        while True:
            number, sent = sent, sent + 1
            try:
                await mq.produce("x", [b"%06d/%d" % (number, part) + bytes(1000) for part in range(5)])
            except WALError as error:
                return error
            done.append(number)

    errors = await asyncio.wait_for(asyncio.gather(*(produce() for _ in range(4))), 60)
    told: dict[str, Any] = {"done": done, "sent": sent}
    told["errors"] = [[type(error).__name__, getattr(error, "outcome_unknown", None)] for error in errors]
    (waited,) = await asyncio.gather(asyncio.wait_for(waiting, 60), return_exceptions=True)
    told["waiting"] = type(waited).__name__
    later: list[str] = []
    for call in (mq.produce("x", [b""]), mq.create_channel("z"), mq.consume("g", "y", 1), mq.retain()):
        (error,) = await asyncio.gather(call, return_exceptions=True)
        later.append(type(error).__name__)
    told["later"] = later
    await mq.close()
    return told


def child(directory: str) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, most))
    told = asyncio.run(write_until_it_fails(Path(directory)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    told["again"] = asyncio.run(written_again(Path(directory)))
    print(json.dumps(told))


async def written_again(directory: Path) -> int:
    """Writes again in the same process, where there is room again."""
    async with await RocksMQ.open(directory) as mq:
        await mq.create_channel("again")
        return len(await mq.produce("again", [b"1", b"2"]))


async def test_disk_that_takes_no_more(directory: Path) -> None:
    ended = await asyncio.to_thread(run_python, "-c", f"from {__name__} import child; child({str(directory)!r})")
    told = json.loads(ended.out)
    assert told["done"]
    assert {name for name, _ in told["errors"]} == {"StorageError"}
    assert [True for _, unknown in told["errors"] if unknown]
    assert told["waiting"] == "StorageError"
    assert told["later"] == ["StorageError"] * 4
    assert told["again"] == 2
    async with await RocksMQ.open(directory) as mq:
        await mq.create_consumer_group("check", "x")
        found: dict[int, list[int]] = {}
        while messages := await mq.consume("check", "x", 1000):
            for message in messages:
                number, _, part = message.payload.rstrip(b"\0").partition(b"/")
                found.setdefault(int(number), []).append(int(part))
        assert all(parts == [0, 1, 2, 3, 4] for parts in found.values()), "a batch is there in part"
        assert set(told["done"]) <= set(found) <= set(range(told["sent"]))
        await mq.produce("x", [b"it goes on"])


async def test_failed_position_write_fails_waiting_calls(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are being answered then: neither in the inbox nor among the waiting ones."""
    mq = await RocksMQ.open(directory)
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    waiting = [asyncio.ensure_future(mq.consume("g", "x", 1, timeout_s=None)) for _ in range(2)]
    while mq.channels()[0].groups[0].waiting < 2:
        await asyncio.sleep(0)
    write = Store.write

    def failing(self: Store, changes: TurnWrites, *, sync: bool = True) -> None:
        if not sync:
            raise StorageError("no space left")
        write(self, changes, sync=sync)

    monkeypatch.setattr(Store, "write", failing)
    await mq.produce("x", [b"a"])
    told = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
    assert [type(each) for each in told] == [StorageError, StorageError]
    with pytest.raises(StorageError, match="failed before"):
        mq.channels()
    monkeypatch.undo()
    await mq.close()
    async with await RocksMQ.open(directory, settings=RocksMQSettings()) as mq:
        assert [message.payload for message in await mq.consume("g", "x", 9)] == [b"a"]
