"""A log that archives itself is killed at each step of a move of its local start: what was acknowledged is read once, everywhere.

The order of the steps: objects and the manifest are stored, the file `archived` gets the start, the control page publishes it, the control
page gets the local start, and segments below it are freed; the oldest manifests are removed. A kill comes before or after one step.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.locations import SOAK
from tests.processes import WAIT_TIMEOUT_S, Child, eventually
from wal import All, DeliverPolicy, Message, MessageID, StartAfter, WALAccesser, open_wal
from wal.node.archiving import archiver
from wal.operate.backup import verify

MIB = 1 << 20
STEPS = (
    ("wal.storage.archive.store", "DirectoryStore.create", "objects/"),
    ("wal.storage.archive.store", "DirectoryStore.create", "manifests/"),
    ("wal.storage.archive.store", "DirectoryStore.replace", "newest"),
    ("wal.storage.archive.store", "DirectoryStore.delete", "manifests/"),
    ("wal.storage.archive.store", "DirectoryStore.delete", "objects/"),
    ("wal.storage.archive.archived_journal", "save_start", ""),
    ("wal.storage.journal.control", "ControlPage.publish_archived", ""),
    ("wal.storage.journal.control", "ControlPage.store", ""),
    ("wal.storage.journal.log", "JournalTruncation._drop", ""),
    ("wal.storage.journal.log", "JournalTruncation._release", ""),
)
Rows = list[tuple[MessageID, int]]


async def rows(log: WALAccesser, policy: DeliverPolicy) -> Rows:
    async with log.read("orders", deliver_policy=policy, follow=False) as scanner:
        return [(message.message_id, int(body.payload[:8])) async for message in scanner for body in message.bodies()]


async def check_reader(log: WALAccesser) -> Rows:
    """Returns what the reader gets, which is the same when it resumes."""
    whole = await rows(log, All())
    for at in (0, len(whole) // 2, len(whole) - 1):
        assert await rows(log, StartAfter(whole[at][0])) == whole[at + 1 :]
    return whole


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("module", "name", "prefix"), STEPS, ids=[f"{name.strip('_')} {prefix}".strip() for _, name, prefix in STEPS])
async def test_kill_at_a_step_loses_nothing(
    tmp_path: Path, module: str, name: str, prefix: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target = tmp_path / "data", tmp_path / "target"

    async def write_until_killed(data: str, target: str, first: int, step: tuple[str, str, str, str], calls: int) -> None:
        """Appends numbers and prints them, until the process kills itself at this call of a step."""
        import importlib
        import itertools
        import os
        import signal
        from typing import Any

        from wal import Message, open_wal
        from wal.node.archiving import archiver

        module, name, prefix, when = step
        owner: Any = importlib.import_module(module)
        *path, name = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        call, numbers, number = getattr(owner, name), itertools.count(1), first

        def killing(*arguments: Any, **options: Any) -> Any:
            is_step = number >= first + 25 and (not prefix or arguments[1].startswith(prefix))
            is_last = is_step and next(numbers) == calls  # several threads store objects
            if is_last and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **options)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, killing)
        archiver.ROUND_S, archiver._REST, archiver.MANIFESTS_MAX = 0.005, 0.0, 2  # type: ignore[misc]
        async with open_wal(data, archive=target, segment_bytes=1 << 20, retention_bytes=1 << 20) as log:
            while number < first + 2_000:
                await log.raw_append(Message("orders", b"%08d" % number + os.urandom(100_000)))
                os.write(1, b"%d\n" % number)
                number += 1
        raise AssertionError("the step did not come")

    acked: list[int] = []
    for calls in range(1, 5) if SOAK else (2,):
        with Child(write_until_killed, str(data), str(target), 1_000_000 * calls, (module, name, prefix, when), calls) as child:
            acked += [int(line) async for line in child.lines(timeout_s=WAIT_TIMEOUT_S)]
            await child.end(-signal.SIGKILL)
        async with open_wal(data, read_only=True) as beside:
            alone = await check_reader(beside)
            assert {number for _, number in alone} >= set(acked)
        monkeypatch.setattr(archiver, "ROUND_S", 0.005)
        async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=MIB) as log:
            whole = await check_reader(log)
            assert whole[: len(alone)] == alone
            assert len(whole) <= len(alone) + 1, "an append without an answer"
            async with open_wal(data, read_only=True) as beside:
                assert await check_reader(beside) == whole
            await log.raw_append(Message("orders", b"%08d" % (1_000_000 * calls + 999_999)))
            acked.append(1_000_000 * calls + 999_999)
            await eventually(lambda: log.statistics().archive.lag_bytes == 0)  # type: ignore[union-attr]
            whole = await check_reader(log)
        async with open_wal(f"archive:{target}", read_only=True) as archive:
            assert await check_reader(archive) == whole
    numbers = [number for _, number in whole]
    assert numbers == sorted(set(numbers))
    assert set(numbers) >= set(acked)
    assert len(numbers) <= len(acked) + (4 if SOAK else 1), "at most one append of each process had no answer"
    assert not await verify(str(target))
