"""The benchmark of message streams runs, and each of its readers reads every message. The speed is not checked."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks import message_streams
from benchmarks.message_streams import BATCH, MESSAGE_BYTES, Readers, messages

Prepare = Callable[[Path, AsyncExitStack, int], Awaitable[Readers]]


def test_messages_have_the_size_that_is_claimed() -> None:
    batch = messages(7)
    assert [len(message.marshal()) for message in batch] == [MESSAGE_BYTES] * BATCH
    assert len({message.id for message in batch}) == BATCH


@pytest.mark.parametrize("prepare", [message_streams.rocksmq, message_streams.wal])
async def test_every_reader_reads_everything(prepare: Prepare, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        readers = await prepare(tmp_path, stack, 2 * BATCH)
        for _ in range(2):  # each call reads under a new name
            assert [await reader(2 * BATCH) for reader in readers] == [2 * BATCH] * 3


@pytest.mark.parametrize("system", ["rocksmq", "wal"])
async def test_figures_of_each_reader_are_printed(system: str, capsys: pytest.CaptureFixture[str]) -> None:
    met = await message_streams.measure(system, count=2 * BATCH, rounds=1)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{system}, 2,000 messages:"
    found = {line.split()[0]: float(line.split()[1].removesuffix("/s").replace(",", "")) for line in lines}
    assert list(found) == list(Readers._fields)
    assert min(found.values()) > 0
    assert ("NOT MET" not in lines[1]) == met
    (ratio,) = re.findall(r"the stream is (\S+) of it", lines[1])
    assert float(ratio) == pytest.approx(found["stream"] / found["acknowledging"], abs=0.01)
