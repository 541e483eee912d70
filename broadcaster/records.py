"""Records: the keys and values of a broadcaster in the KV, byte by byte. Pure.

Owns the layout under its root path, in both directions. Values are MessagePack arrays that begin with VERSION, in base64 (a KV holds text).
A newer version is a FormatError, and any other value that cannot be read is a CorruptionError; nothing is skipped.

    task/<id>           the intent of a broadcast that spans pchannels: header, content, places. Saved before its first copy
    progress/<id>       bitmap of the durable copies of such a broadcast; only for people who read the KV: the logs are exact
    acks/<id>/<chunk>   bitmap of the acks of CHUNK_BITS vchannels: an ack rewrites 128 bytes at most, however wide the broadcast
    abort/<id>          the reason. Saved before the first vchannel gets its abort
    done/<id>           how it ended and when. Saved in the operation that removes all other records of the broadcast; it outlives
                        the last checkpoint that lists a copy, and serves as a tombstone after that

<id> is the broadcast's id in 16 hexadecimal digits, so that the keys are ordered as the ids are.

Recovery finds the broadcasts that a crash or a close interrupted, from the records in the KV and the copies in the logs.

They are the broadcasts with a task record or with copies in a log, except those with a done mark. The frame of a broadcast on one pchannel
is its intent: its header names every vchannel. A copy is appended if, and only if, neither a log nor the KV counts it as appended.

A restore of an older copy of the KV may remove the record of a broadcast over several pchannels. Such a broadcast is finished from its
copies: they name all of its vchannels, and have its content. Acks that the KV has lost are waited for again, and the reason of an abort is
lost.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from broadcaster.message import BroadcastState, Content, CopiesInLog
from broadcaster.task import Task, bits
from wal.errors import CorruptionError, FormatError
from wal.message import BroadcastHeader

VERSION: Final = 1
CHUNK_BITS: Final = 1024
LOST_REASON: Final = "the reason of this abort was lost when an older copy of the metadata was restored"
CHUNKS_MAX: Final = 256
"""The copies of a broadcast on one pchannel take one range of ticks, which has 262,144 at most; so it has at most as many vchannels."""


class TaskRecord(msgspec.Struct, frozen=True, array_like=True):
    """The intent of a broadcast over several pchannels. `places` has, for each vchannel of the header, an index into `pchannels`."""

    version: int
    header: BroadcastHeader
    content: tuple[bytes, int, bytes]
    pchannels: tuple[str, ...]
    places: tuple[int, ...]

    def by_pchannel(self) -> dict[str, list[str]]:
        """Returns the vchannels of each pchannel."""
        vchannels: dict[str, list[str]] = {pchannel: [] for pchannel in self.pchannels}
        for vchannel, place in zip(self.header.vchannels, self.places, strict=True):
            vchannels[self.pchannels[place]].append(vchannel)
        return vchannels


class DoneMark(msgspec.Struct, frozen=True, array_like=True):
    """The state in which a broadcast ended, and when, in milliseconds since 1970."""

    version: int
    state: BroadcastState
    at_ms: int


class StoredBroadcasts(msgspec.Struct):
    """The records in the KV by broadcast id; `acks` are whole bitmaps."""

    tasks: dict[int, TaskRecord] = {}
    progress: dict[int, int] = {}
    acks: dict[int, int] = {}
    aborts: dict[int, str] = {}
    done: dict[int, DoneMark] = {}
    keys: dict[int, list[str]] = {}
    """All keys except those of the done marks."""


def read_records(keys: Iterable[str], values: Iterable[str]) -> StoredBroadcasts:
    """Decodes all keys and values under the root path."""
    stored = StoredBroadcasts()
    for key, value in zip(keys, values, strict=True):
        kind, _, rest = key.partition("/")
        number, _, chunk = rest.partition("/")
        try:
            broadcast_id = int(number, 16)
            if not 0 <= broadcast_id < 1 << 64:
                raise ValueError(f"{number} is not an id")
            data = binascii.a2b_base64(value, strict_mode=True)
            _check_version(key, data)
            if kind == "done":
                stored.done[broadcast_id] = _done.decode(data)
                continue
            if kind == "task":
                stored.tasks[broadcast_id] = _checked(_task.decode(data))
            elif kind == "progress":
                stored.progress[broadcast_id] = int.from_bytes(_bitmap.decode(data)[1], "little")
            elif kind == "acks":
                if not 0 <= (at := int(chunk)) < CHUNKS_MAX:
                    raise ValueError(f"chunk {chunk} is not one of {CHUNKS_MAX}")
                mask = int.from_bytes(_bitmap.decode(data)[1], "little") << at * CHUNK_BITS
                stored.acks[broadcast_id] = stored.acks.get(broadcast_id, 0) | mask
            elif kind == "abort":
                stored.aborts[broadcast_id] = _text.decode(data)[1]
            else:
                raise ValueError(f"unknown kind {kind!r}")
            stored.keys.setdefault(broadcast_id, []).append(key)
        except (msgspec.DecodeError, RecursionError, ValueError, IndexError, OverflowError) as error:
            if isinstance(error, FormatError):
                raise
            raise CorruptionError(
                f"the broadcast record {key!r} in the KV cannot be read: {error}", expected=f"a record of version {VERSION}"
            ) from error
    return stored


def task_key(broadcast_id: int) -> str:
    return f"task/{broadcast_id:016x}"


def progress_key(broadcast_id: int) -> str:
    return f"progress/{broadcast_id:016x}"


def abort_key(broadcast_id: int) -> str:
    return f"abort/{broadcast_id:016x}"


def done_key(broadcast_id: int) -> str:
    return f"done/{broadcast_id:016x}"


def ack_chunks(mask: int) -> set[int]:
    """Returns the chunks in which a bitmap has a bit."""
    return {at for at in range(mask.bit_length() // CHUNK_BITS + 1) if mask >> at * CHUNK_BITS & _CHUNK}


def encode_acks(broadcast_id: int, acked: int, chunks: set[int]) -> dict[str, str]:
    """Returns the keys and values of these chunks of the bitmap."""
    return {
        f"acks/{broadcast_id:016x}/{chunk}": _encode([VERSION, _bytes(acked >> chunk * CHUNK_BITS & _CHUNK)]) for chunk in sorted(chunks)
    }


def encode_progress(appended: int) -> str:
    return _encode([VERSION, _bytes(appended)])


def encode_abort(reason: str) -> str:
    return _encode([VERSION, reason])


def encode_done(state: BroadcastState, at_ms: int) -> str:
    return _encode(DoneMark(VERSION, state, at_ms))


def encode_task(header: BroadcastHeader, content: Content, places: Mapping[str, Sequence[str]]) -> str:
    """Encodes the intent; `places` names each vchannel of the header once."""
    at = {vchannel: number for number, vchannels in enumerate(places.values()) for vchannel in vchannels}
    return _encode(
        TaskRecord(
            VERSION,
            header,
            (content.payload, content.message_type, content.properties),
            tuple(places),
            tuple(at[vchannel] for vchannel in header.vchannels),
        )
    )


def finished_keys(broadcast_id: int, *, recorded: bool, acked: int, aborted: bool) -> list[str]:
    """Returns the keys to remove when the broadcast ends; `recorded` broadcasts have an intent."""
    keys = [f"acks/{broadcast_id:016x}/{chunk}" for chunk in sorted(ack_chunks(acked))]
    if recorded:
        keys += [task_key(broadcast_id), progress_key(broadcast_id)]
    if aborted:
        keys.append(abort_key(broadcast_id))
    return keys


def _bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _encode(record: object) -> str:
    return binascii.b2a_base64(_encoder.encode(record), newline=False).decode("ascii")


def _check_version(key: str, data: bytes) -> None:
    fields = _any.decode(data)
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise ValueError("it has no version")
    if fields[0] > VERSION:
        raise FormatError(
            f"the broadcast record {key!r} has version {fields[0]}, and this program reads versions up to {VERSION}: use a newer program"
        )


def _checked(record: TaskRecord) -> TaskRecord:
    if len(record.places) != len(record.header.vchannels) or not all(0 <= place < len(record.pchannels) for place in record.places):
        raise ValueError("its places do not fit its vchannels")
    return record


_CHUNK: Final = (1 << CHUNK_BITS) - 1
_encoder: Final = msgspec.msgpack.Encoder()
_any: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder()
_task: Final = msgspec.msgpack.Decoder(TaskRecord)
_done: Final = msgspec.msgpack.Decoder(DoneMark)
_bitmap: Final = msgspec.msgpack.Decoder(tuple[int, bytes])
_text: Final = msgspec.msgpack.Decoder(tuple[int, str])


class RecoveredTasks(msgspec.Struct):
    """The recovered broadcasts. `tasks` ascend by id; the content is None if only the log has it.

    `done` has the done marks, each with the pchannels whose logs still list its broadcast.
    """

    tasks: list[tuple[Task, Content | None]] = []
    done: dict[int, tuple[DoneMark, tuple[str, ...]]] = {}
    garbage: list[str] = []
    """Keys of broadcasts without any other trace, because they were aborted before any part of them was in a log."""


def rebuild(
    stored: StoredBroadcasts, copies: Sequence[CopiesInLog], *, located: Callable[[Sequence[str]], Mapping[str, str]] = lambda _: {}
) -> RecoveredTasks:
    """Returns the broadcasts to finish, and the finished ones. Raises CorruptionError if KV and logs contradict each other.

    `located` returns the pchannels of the existing vchannels among some.
    """
    recovered = RecoveredTasks()
    listed: dict[int, list[CopiesInLog]] = {}
    for log_copies in copies:
        listed.setdefault(log_copies.header.broadcast_id, []).append(log_copies)
    for broadcast_id, mark in stored.done.items():
        pchannels = tuple(log_copies.pchannel for log_copies in listed.pop(broadcast_id, ()))
        recovered.done[broadcast_id] = (mark, pchannels)
    for broadcast_id in sorted(stored.tasks.keys() | listed.keys()):
        if broadcast_id not in stored.done:
            recovered.tasks.append(_recovered_task(broadcast_id, stored, listed.get(broadcast_id, ()), located))
    task_ids = {task.broadcast_id for task, _ in recovered.tasks}
    recovered.garbage = [key for broadcast_id, keys in stored.keys.items() if broadcast_id not in task_ids for key in keys]
    return recovered


def _recovered_task(
    broadcast_id: int, stored: StoredBroadcasts, listed: Sequence[CopiesInLog], located: Callable[[Sequence[str]], Mapping[str, str]]
) -> tuple[Task, Content | None]:
    record = stored.tasks.get(broadcast_id)
    header = record.header if record is not None else listed[0].header
    if record is not None:
        places = record.by_pchannel()
        content = Content(*record.content)
    else:
        places = {log_copies.pchannel: list(log_copies.vchannels) for log_copies in listed}
        copied = {vchannel for vchannels in places.values() for vchannel in vchannels}
        if rest := [vchannel for vchannel in header.vchannels if vchannel not in copied]:
            where, first = located(rest), listed[0].pchannel
            for vchannel in rest:
                places.setdefault(where.get(vchannel, first), []).append(vchannel)
        content = None
    for log_copies in listed:
        if log_copies.header.vchannels != header.vchannels or not set(log_copies.vchannels) <= set(places.get(log_copies.pchannel, ())):
            raise CorruptionError(
                f"broadcast {broadcast_id} in the log of pchannel {log_copies.pchannel} contradicts its other copies or its record",
                expected=f"copies for {len(header.vchannels)} vchannels, on {', '.join(places)}",
            )
    task = Task(header, places, recovered=True)
    appended = {vchannel for log_copies in listed for vchannel in log_copies.vchannels}
    appended.update(header.vchannels[at] for at in bits(stored.progress.get(broadcast_id, 0)))
    aborted = [vchannel for log_copies in listed for vchannel in log_copies.aborted]
    task.restore(
        appended=appended,
        acked=stored.acks.get(broadcast_id, 0),
        reason=stored.aborts.get(broadcast_id, LOST_REASON if aborted else None),
        aborted=aborted,
    )
    return task, content
