"""Recovery: finds the broadcasts that a crash or a close interrupted, from what the KV and the logs hold. Pure.

They are the broadcasts with a task record and those whose copies a log lists, except those with a done mark. The frame of a broadcast
on one pchannel is its intent: its header names every vchannel. A copy is appended if, and only if, neither a log nor the KV counts it as
appended.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from broadcaster.message import Content, CopiesInLog
from broadcaster.records import DoneMark, Stored
from broadcaster.task import Task, bits
from wal.errors import CorruptionError

__all__ = ["Recovered", "rebuild"]


class Recovered(msgspec.Struct):
    """The broadcasts that were found. `tasks` ascend by id; the content is None if only the log has it.

    `done` has the done marks, each with the pchannels whose logs still list its broadcast.
    """

    tasks: list[tuple[Task, Content | None]] = []
    done: dict[int, tuple[DoneMark, tuple[str, ...]]] = {}
    garbage: list[str] = []
    """Keys of broadcasts that have nothing else left, because they were aborted before any part of them was in a log."""


def rebuild(stored: Stored, copies: Sequence[CopiesInLog]) -> Recovered:
    """Returns the broadcasts to finish, and those that have finished. Raises CorruptionError if KV and logs contradict each other."""
    recovered = Recovered()
    listed: dict[int, list[CopiesInLog]] = {}
    for found in copies:
        listed.setdefault(found.header.broadcast_id, []).append(found)
    for broadcast_id, mark in stored.done.items():
        pchannels = tuple(found.pchannel for found in listed.pop(broadcast_id, ()))
        recovered.done[broadcast_id] = (mark, pchannels)
    for broadcast_id in sorted(stored.tasks.keys() | listed.keys()):
        if broadcast_id not in stored.done:
            recovered.tasks.append(_recovered_task(broadcast_id, stored, listed.get(broadcast_id, ())))
    known = {task.broadcast_id for task, _ in recovered.tasks}
    recovered.garbage = [key for broadcast_id, keys in stored.keys.items() if broadcast_id not in known for key in keys]
    return recovered


def _recovered_task(broadcast_id: int, stored: Stored, listed: Sequence[CopiesInLog]) -> tuple[Task, Content | None]:
    record = stored.tasks.get(broadcast_id)
    header = record.header if record is not None else listed[0].header
    if record is not None:
        places = record.by_pchannel()
        content = Content(*record.content)
    elif len(listed) == 1:
        places = {listed[0].pchannel: list(header.vchannels)}
        content = None
    else:
        raise CorruptionError(
            f"broadcast {broadcast_id} has copies on pchannels {', '.join(found.pchannel for found in listed)}, but no record "
            "in the KV",
            expected="its task record, or its done mark",
        )
    for found in listed:
        if found.header.vchannels != header.vchannels or not set(found.vchannels) <= set(
            places.get(found.pchannel, ())
        ):
            raise CorruptionError(
                f"broadcast {broadcast_id} in the log of pchannel {found.pchannel} is not the one that its other copies or its record say",
                expected=f"copies for {len(header.vchannels)} vchannels, on {', '.join(places)}",
            )
    task = Task(header, places, recovered=True)
    appended = {vchannel for found in listed for vchannel in found.vchannels}
    appended.update(header.vchannels[at] for at in bits(stored.progress.get(broadcast_id, 0)))
    task.restore(
        appended=appended,
        acked=stored.acks.get(broadcast_id, 0),
        reason=stored.aborts.get(broadcast_id),
        aborted=[vchannel for found in listed for vchannel in found.aborted],
    )
    return task, content
