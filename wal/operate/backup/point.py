"""Point: a log at a tick between two backups, or below the first one.

A `RestorePlan` names two backups. `top` has the frames up to the tick. `base`, the newest backup at or below it, has the initial state:
checkpoints, cursors, homes of cursors, broadcasts. Without a base, the state of `top` is used if it is not above the tick. All frames up to
the tick are restored, cut there, and replayed by the opening, as after a crash. So idempotency keys, producers, copies, cursors of
transactions and delayed messages are those of the log at the tick.

* `cut_journal` cuts. An event with a larger tick is left out, also from inside a frame, whose other events are written again in a frame of
  the same term and sequence. A frame that also holds records of the log itself, which belong to all of it, is left out as a whole: then the
  restored tick is smaller, on all pchannels.
* `metadata_at` selects the valid part of the metadata; it is pure, with facts about the log as arguments. An object that ended between the
  two backups counts as it was in `base`: a dropped vchannel exists again, unless it is known to be newer than the tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from broadcaster.message import Content
from broadcaster.records import encode_task, read_records, task_key
from wal.channels.directory import PREFIX as VCHANNELS
from wal.channels.metadata import BROADCAST_ROOT, HOME_ROOT, broadcasts_in
from wal.channels.pchannels import CHECKPOINT_PREFIX, FORMAT_KEY
from wal.errors import InvalidArgumentError, WALError
from wal.frame import BROADCAST, EncodedFrame, RunKind, encode_frame
from wal.message import MessageType
from wal.read.assembly import SharedCopies, shared_copies
from wal.read.cursors.pins import decode_pin
from wal.read.parts import draft_up_to
from wal.runtime.descriptors import open_file
from wal.storage.archive.manifest import Manifest, PChannelCopy, SegmentCopy
from wal.storage.base import StoredFrame
from wal.storage.journal.control import CONTROL_NAME, ControlPage, ControlRecord
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import HEADER_PAGE_BYTES, pack_envelope, segment_name
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog
from wal.storage.journal.segments import Segment, segment_bases
from wal.timestamp.timestamp import compose, parse, to_datetime

_PAGE_BYTES: Final = 16 << 20
_BROADCASTS: Final = f"{BROADCAST_ROOT}/"
_RECENT_MS: Final = 120_000
"""More time than a backup needs from the first reading of the metadata to the second. A broadcast that began between the two may have ended
there, with copies that are not in the backup. It is compared with ticks alone, as these may be any time ahead of the clock.
"""
_ABORT: Final = int(MessageType.ABORT_BROADCAST)


def moment_of(tick: int | None) -> str:
    """Returns a tick as text, with its time in the form of `--to`."""
    return f"{to_datetime(tick).isoformat(timespec='milliseconds')} (tick {tick})" if tick and 0 < tick < 1 << 63 else f"tick {tick}"


class RestorePlan(msgspec.Struct, frozen=True):
    """The content of a restore: `top`, cut at `tick`. If `tick` is None, `top` is restored whole, and `base` is None as well."""

    top: Manifest
    base: Manifest | None = None
    tick: int | None = None

    def pchannels(self) -> dict[str, PChannelCopy]:
        """Returns the pchannels with the files of `base`, and the segments of both. Raises InvalidArgumentError where some are missing."""
        if self.base is None:
            return self.top.pchannels
        merged = {}
        for name, top in self.top.pchannels.items():
            if (base := self.base.pchannels.get(name)) is None:
                merged[name] = top
                continue
            first = top.segments[0].base if top.segments else top.end
            if first > base.end:
                raise InvalidArgumentError(
                    f"no backup has all of pchannel {name} up to {moment_of(self.tick)}, since it was truncated before one was made: "
                    f"restore up to {moment_of(self.base.tick)} or {moment_of(self.top.tick)}"
                )
            segments: tuple[SegmentCopy, ...] = (*(each for each in base.segments if each.base < first), *top.segments)
            merged[name] = PChannelCopy(top.incarnation, top.term, top.end, base.earliest, top.limit, segments, base.files)
        return merged


def plan(backups: list[Manifest], up_to: int | None, place: str) -> RestorePlan:
    """Returns the plan for these backups, which are not empty and ascend by number.

    Raises InvalidArgumentError for a tick below all of them that their first one does not have.
    """
    newest = backups[-1]
    if up_to is None or newest.tick <= up_to:
        return RestorePlan(newest)
    base = next((manifest for manifest in reversed(backups) if manifest.tick <= up_to), None)
    later = backups if base is None else [manifest for manifest in backups if manifest.number > base.number]
    top = next(manifest for manifest in later if manifest.tick > up_to) if base is not None else backups[0]
    if base is None:
        if up_to < 0 or top.tick <= up_to:
            raise InvalidArgumentError(
                f"every backup at {place} is above {moment_of(up_to)}: the oldest is of {moment_of(backups[0].tick)}"
            )
        return RestorePlan(top, None, up_to)
    lives = {name: pchannel.incarnation for name, pchannel in top.pchannels.items()}
    if base.tick == up_to or any(lives.get(name) != pchannel.incarnation for name, pchannel in base.pchannels.items()):
        return RestorePlan(base)  # between the two, the log was restored from an earlier backup, so its history differs
    return RestorePlan(top, base, up_to)


class LogAtTick(msgspec.Struct):
    """A journal that was cut at `tick`: the ends of its pchannels, and the broadcasts with copies in the frames after `base`."""

    tick: int
    ends: dict[str, int] = {}
    broadcasts: dict[int, dict[str, list[SharedCopies]]] = {}
    """The copies of each broadcast, by pchannel: those that are not in `base`, and those of the last minutes."""
    older: set[int] = set()
    """The ids of `broadcasts` that began before `base`, or (without a base) before the tick."""
    above: set[int] = set()
    """The broadcasts with copies in the frames that were cut off: they had not ended at the tick."""


class _Cut(msgspec.Struct):
    """The position at which the frames of a pchannel are cut, the frame to write there, and the copies of broadcasts in it."""

    position: int
    frame: EncodedFrame | None = None
    copies: list[SharedCopies] = []


def cut_journal(directory: Path, disk: Disk, plan: RestorePlan, checkpoints: Mapping[str, int]) -> LogAtTick:
    """Cuts a restored journal of `plan.top`. `checkpoints` are the positions where recoveries begin. Blocks.

    Raises InvalidArgumentError if the log does not reach back to the tick.
    """
    copies = plan.pchannels()
    with closing(ReadOnlyJournal(directory)) as journal:
        logs = {name: journal.open(name) for name in copies}
        try:
            at_tick = LogAtTick(plan.top.tick) if plan.tick is None else _at_tick(logs, plan.tick)
            cuts: dict[str, _Cut] = {}
            is_empty = True
            for name, log in logs.items():
                begin = max(copies[name].earliest[0], checkpoints.get(name, 0))
                cut = cuts[name] = _cut(log, at_tick.tick)
                if cut.position < begin:
                    others = [moment_of(manifest.tick) for manifest in (plan.base, plan.top) if manifest is not None]
                    raise InvalidArgumentError(
                        f"no backup has the state of pchannel {name} at {moment_of(plan.tick)} or below: "
                        f"restore up to {' or '.join(others)}"
                    )
                base = None if plan.base is None else plan.base.pchannels.get(name)
                base_end = cut.position + 1 if base is None else base.end
                since = log.position_after(max(0, at_tick.tick - compose(_RECENT_MS, 0)), log.earliest[0], cut.position)[0]
                if plan.tick is not None:
                    since = min(since, log.earliest[0] if base is None else base.end)
                for position, shared in (*_copies(log, since, cut.position), *((cut.position, each) for each in cut.copies)):
                    number = shared.header.broadcast_id
                    at_tick.broadcasts.setdefault(number, {}).setdefault(name, []).append(shared)
                    if position < base_end:
                        at_tick.older.add(number)
                at_tick.above.update(shared.header.broadcast_id for _, shared in _copies(log, cut.position, log.reach().durable_end))
                first = log.page(log.earliest[0], log.reach().durable_end, None, 1).frames
                is_empty = is_empty and (not first or cut.position <= first[0].position) and cut.frame is None
            if is_empty and plan.tick is not None:
                raise InvalidArgumentError(
                    f"every backup has only what is above {moment_of(plan.tick)}: the oldest is of {moment_of(plan.top.tick)}"
                )
        finally:
            for log in logs.values():
                log.close()
    for name, cut in cuts.items():
        folder, copy = directory / "pchannels" / name, copies[name]
        at_tick.ends[name] = end = _shorten(folder, cut.position, cut.frame)
        (folder / CONTROL_NAME).unlink()
        write_control(disk, folder, copy, end, at_tick.tick)
    return at_tick


def write_control(disk: Disk, folder: Path, copy: PChannelCopy, end: int, tick: int) -> None:
    """Writes the control page of a log that was closed, ends at this position, and has promised this tick."""
    record = ControlRecord(copy.incarnation, copy.term, end, copy.earliest, tick, copy.limit, closed=True)
    ControlPage.create(disk, folder / CONTROL_NAME, record)


def _at_tick(logs: Mapping[str, ReadOnlyJournalLog], tick: int) -> LogAtTick:
    """Returns the largest tick up to this one at which every pchannel can be cut."""
    while True:
        lower = tick
        for log in logs.values():
            _, frame = _edge(log, tick)
            if frame is not None and any(run.kind == RunKind.SYSTEM for run in frame.view.runs):
                lower = min(lower, frame.view.header.first_tick - 1)
        if lower == tick:
            return LogAtTick(tick)
        tick = lower


def _edge(log: ReadOnlyJournalLog, tick: int) -> tuple[int, StoredFrame | None]:
    """Returns the position of the first frame above this tick, and the frame that has events on both sides of it."""
    durable = log.reach().durable_end
    end, before = log.first_above(tick, durable)
    if before is None:
        return end, None
    (frame, *_) = log.page(before, durable, None, 1).frames
    header = frame.view.header
    return end, frame if header.first_tick + header.indices - 1 > tick else None


def _cut(log: ReadOnlyJournalLog, tick: int) -> _Cut:
    end, straddling = _edge(log, tick)
    if straddling is None:
        return _Cut(end)
    before, view = straddling.position, straddling.view
    header = view.header
    if (draft := draft_up_to(view, tick)) is None:
        return _Cut(before)
    count = draft.indices
    frame = encode_frame(draft, incarnation=header.incarnation, term=header.term, sequence=header.sequence, first_tick=header.first_tick)
    copies = shared_copies(view) if view.header.compatible & BROADCAST else ()
    rest = [msgspec.structs.replace(each, names=each.names[: count - each.index]) for each in copies if each.index < count]
    return _Cut(before, frame, rest)


def _copies(log: ReadOnlyJournalLog, start: int, end: int) -> Iterator[tuple[int, SharedCopies]]:
    """Yields the copies of broadcasts in the frames of a range, each with the position of its frame."""
    for frame in log.frames(max(start, log.earliest[0]), end, _PAGE_BYTES):
        if frame.view.header.compatible & BROADCAST:
            yield from ((frame.position, shared) for shared in shared_copies(frame.view))


def _shorten(folder: Path, position: int, frame: EncodedFrame | None) -> int:
    """Removes the log from this position on, and writes the frame there; returns the new end of the log."""
    bases = segment_bases(folder)
    last = max((base for base in bases if base <= position), default=bases[0])
    if frame is None and position <= last + HEADER_PAGE_BYTES and last != bases[0]:
        position = last  # the segment is empty now
        last = max(base for base in bases if base < position)
    for base in bases:
        if base > last:
            (folder / segment_name(base)).unlink()
    path = folder / segment_name(last)
    header = Segment.load(Disk(), path).header
    with open(path, "r+b", opener=open_file) as file:
        file.truncate(max(position - last, HEADER_PAGE_BYTES))
        if frame is not None:
            file.seek(position - last)
            file.write(b"".join((pack_envelope(frame.length, header.generation, position), *frame.buffers)))
            position += -(-file.tell() // 512) * 512 - (position - last)
        file.truncate(header.size)
    return position


# -- metadata and cursors


def metadata_at(plan: RestorePlan, at_tick: LogAtTick, before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Returns the metadata of the log at the tick: `before` are those of `base` (without one, empty), `after` those of `top`."""
    metadata = dict(after)
    if plan.base is not None:
        state = (f"{HOME_ROOT}/", *(CHECKPOINT_PREFIX + name for name in plan.base.pchannels))
        metadata = {key: value for key, value in after.items() if not key.startswith(state)}
        metadata |= {key: value for key, value in before.items() if key.startswith(state) or key == FORMAT_KEY}
    for key in after:
        if key.startswith(VCHANNELS) and plan.tick is not None:
            record: dict[str, Any] = msgspec.json.decode(after[key])
            if (begin := record.get("begin")) is not None and begin[1] > at_tick.ends.get(record["pchannel"], 0):
                del metadata[key]  # it was created after the tick
    metadata |= {key: value for key, value in before.items() if key.startswith(VCHANNELS) and key not in metadata}
    metadata = {key: value for key, value in metadata.items() if not key.startswith(_BROADCASTS)}
    return metadata | _broadcasts_at(plan.top.tick, at_tick, after if plan.tick is None else before, after, metadata)


def _broadcasts_at(
    top_tick: int, at_tick: LogAtTick, before: Mapping[str, str], after: Mapping[str, str], metadata: Mapping[str, str]
) -> dict[str, str]:
    """Returns the records of the broadcasts at the tick. A broadcast that ended up to the tick stays ended. A broadcast that began above it
    is removed.

    A broadcast that has ended is finished again if a copy is above the tick, which the frames show: the promised ticks of pchannels may be
    older than its end. The mark of an end has a time of the clock alone, so while ticks are ahead of the clock, acks above the tick may
    count as well.
    """
    own, later = broadcasts_in(before), broadcasts_in(after)
    stored = read_records(later, later.values())
    cut: set[int] = set()
    tick_ms = parse(at_tick.tick)[0]
    # A broadcast with a task and a mark ended between the two readings of the metadata, which is above the tick.
    ended = {number for number, mark in stored.done.items() if mark.at_ms < tick_ms and number not in stored.tasks} - at_tick.above
    recent = compose(max(0, parse(top_tick)[0] - _RECENT_MS), 0)
    for number, logs in at_tick.broadcasts.items():
        copies = {name for each in logs.values() for shared in each if shared.message_type != _ABORT for name, _ in shared.names}
        missing = any(not copies.issuperset(shared.header.vchannels) for each in logs.values() for shared in each)
        may_lack_copies = number in at_tick.above or (number in stored.done and number >= recent) or number not in at_tick.older
        if missing and may_lack_copies:
            cut.add(number)
    ended -= cut
    records = {
        key: value
        for key, value in own.items()
        # The logs list every copy of an unfinished broadcast; the stored note may be of a copy above the tick.
        if not key.startswith("progress/")
        and int(key.split("/")[1], 16) not in (cut - stored.tasks.keys() if key.startswith("done/") else ended)
    }
    records |= {key: value for key, value in later.items() if key.startswith("done/") and int(key.split("/")[1], 16) in ended}
    for number, logs in at_tick.broadcasts.items():
        if number in ended or task_key(number) in records or f"done/{number:016x}" in records:
            continue
        if any(shared.message_type == _ABORT for each in logs.values() for shared in each):
            records |= {key: value for key, value in later.items() if key == f"abort/{number:016x}"}
        shared = next((shared for each in logs.values() for shared in each if shared.message_type != _ABORT), None)
        if shared is None:
            continue
        if task_key(number) in later:
            records[task_key(number)] = later[task_key(number)]
            continue
        if number in at_tick.older and number not in cut and number not in stored.done:
            continue  # its mark was removed before the backup
        places: dict[str, list[str]] = {}
        for vchannel in shared.header.vchannels:
            where = next((name for name, each in logs.items() if any(vchannel == run for one in each for run, _ in one.names)), None)
            if where is None and (text := metadata.get(VCHANNELS + vchannel)) is not None:
                where = msgspec.json.decode(text)["pchannel"]
            places.setdefault(where or next(iter(logs)), []).append(vchannel)
        if len(places) > 1:  # on one pchannel, the frame itself is the intent
            content = Content(shared.payload, shared.message_type, shared.properties)
            records[task_key(number)] = encode_task(shared.header, content, places)
    return {_BROADCASTS + key: value for key, value in records.items()}


def cursor_at(data: bytes, at_tick: LogAtTick) -> bool:
    """Returns whether a pin of `top` is valid at the tick, because it is not above it. The records of cursors are in the frames."""
    try:
        pin = decode_pin(data)
    except WALError:
        return False
    cursor = pin.cursor
    return not pin.copy and cursor.time_tick <= at_tick.tick and cursor.start[0] <= at_tick.ends.get(cursor.pchannel, 0)
