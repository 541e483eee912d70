"""The course of a copy: it begins or resumes, passes over the frames until all are copied, and turns the target into a log.

With a writer, a pass ends at a tick that all pchannels of the source have promised, and that covers the durable log at its beginning. So
the target is the source as of one tick. With `follow`, passes repeat until the writer has closed the log (or is dead) and everything is
copied: stopping the writer is the cut-over, and the service opens the finished target next. Cursors are mapped last.

An interruption at any moment leaves the source unchanged and the target's location without a log; the same call resumes the copy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from wal.channels.pchannels import COMPRESSION_KEY
from wal.errors import FormatError, InvalidArgumentError
from wal.frame import EncodedFrame
from wal.location import Location, parse_location
from wal.operate.copying.cutting import cut, groups_of
from wal.operate.copying.source import CopySource, Ends, check_same_log, cluster_over, log_of_cluster
from wal.operate.copying.target import CopyMark, CopyTarget, check_homes, new_mark
from wal.operate.inspect.rows import Row
from wal.runtime.async_only import import_late
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.base import StoredFrame
from wal.storage.journal.salvage import LostPart
from wal.timestamp import to_datetime

PAUSE_S: Final = 0.2
"""The pause between two passes that follow a writer."""
PROMISE_BYTES: Final = 256 << 20
"""The approximate number of bytes that an interrupted copy reads again, at most."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_FRAMES: Final = 1024
_PROGRESS_S: Final = 1.0


class CopyProgress(Row, frozen=True, kw_only=True, tag="copy_progress"):
    """The progress since this call began, up to `tick` (its `time` in UTC), and the approximate number of remaining bytes of the source."""

    frames: int
    events: int
    bytes: int
    tick: int
    time: datetime
    left_bytes: int


class CopyResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished copy: the amounts that this call copied, the tick up to which it is complete, its pchannels and its cursors.

    With `resumed` an earlier call had begun it. `lost` are the parts that were left out because they are damaged in the source.
    """

    frames: int
    events: int
    bytes: int
    tick: int
    pchannels: int
    cursors: int
    resumed: bool
    lost: tuple[LostPart, ...] = ()


async def copy(
    source: str,
    target: str,
    *,
    settings: Settings | None = None,
    source_settings: Settings | None = None,
    pchannels: int | None = None,
    follow: bool = False,
    skip_damaged: bool = False,
    stop: asyncio.Event | None = None,
    progress: Callable[[CopyProgress], None] | None = None,
) -> CopyResult | None:
    """Copies the log at `source` into an empty location, `target`: journals and logs on Pulsar, in any combination, or that of a cluster.

    From a log on the network (`wal://…`) it copies what a client can read, without `follow`; see `wal.operate.copying.served`.

    Order, ticks, transactions, idempotency keys, producers, broadcasts and cursors are those of the source; ids are new ones. `settings`
    are those of the target, `source_settings` (None: the same) those of the source. The target gets `pchannels` pchannels, None: the same
    number as the source.

    With `skip_damaged` it copies the readable part of a damaged journal that no process writes, and returns the parts that it left out
    (`CopyResult.lost`); otherwise damage ends the copy (CorruptionError). With `follow` it copies until the writer closes the source.
    `progress` is called about once a second. Once `stop` is set the copy ends unfinished, and None is returned.

    Raises FormatError if the target is not empty or the source is not a log, InvalidArgumentError for a location that cannot be copied,
    TruncatedError if the source drops frames that are not copied yet, and the errors of both logs. After any error, another call with the
    same arguments resumes the copy, and the target is not a log before it is whole.
    """
    settings = settings or Settings.load()
    read_from, to = parse_location(source), parse_location(target)
    of, own = read_from, source_settings or settings
    if read_from.servers is not None and read_from.servers.root is not None:
        of, own = await log_of_cluster(source, own)
    else:
        read_from = await cluster_over(of, own) or of
    if of == to:
        raise InvalidArgumentError(f"{of} cannot be copied into itself: name another place")
    if pchannels is not None and (isinstance(pchannels, bool) or not isinstance(pchannels, int) or not 1 <= pchannels <= 1000):
        raise InvalidArgumentError(f"pchannels={pchannels!r} is not a number of pchannels: give 1 to 1000")
    if skip_damaged and (follow or of.path is None):
        raise InvalidArgumentError(f"skip_damaged copies a journal that no process writes, not {'a log to follow' if follow else of}")
    reader = await _source(read_from, of, own, follow=follow, skip_damaged=skip_damaged)
    writer = CopyTarget(to, settings)
    run = _RunningCopy(reader, writer, stop or asyncio.Event(), progress)
    try:
        await in_thread(reader.open)
        try:
            return await run.run(pchannels, follow=follow)
        finally:
            await writer.close()
    finally:
        await in_thread(reader.close)


async def _source(read_from: Location, location: Location, settings: Settings, *, follow: bool, skip_damaged: bool) -> CopySource:
    """Returns the source for the log at this location, which is stored at `location`."""
    if read_from.servers is None:
        return CopySource(location, settings, skip_damaged=skip_damaged)
    await import_late("wal.operate.copying.served")
    from wal.operate.copying.served import ClusterSource, ServedSource

    if read_from != location:
        return ClusterSource(read_from, location, settings)
    if follow:
        raise InvalidArgumentError(
            f"{location} is a log on the network, whose clients do not see that its writers have ended: stop them, and copy it without "
            "follow; or copy the log where its server has it"
        )
    return ServedSource(location, settings)


class _RunningCopy:
    def __init__(
        self, source: CopySource, target: CopyTarget, stop: asyncio.Event, progress: Callable[[CopyProgress], None] | None
    ) -> None:
        self._source = source
        self._target = target
        self._stop = stop
        self._progress = progress
        self._frames = self._events = self._bytes = 0
        self._tick = 0
        self._at: dict[str, int] = {}
        self._noted_s = 0.0

    async def run(self, pchannels: int | None, *, follow: bool) -> CopyResult | None:
        source, target = self._source, self._target
        before = await in_thread(source.stored)
        await in_thread(source.pins)  # a damaged one ends a copy before it begins
        mark = await target.look()
        resumed = mark is not None
        if mark is not None:
            check_same_log(source.location, target.building, mark.source, await in_thread(source.incarnations))
            if pchannels not in (None, len(mark.incarnations)):
                raise FormatError(
                    f"{target.building} holds a part of a copy with {len(mark.incarnations)} pchannels: continue with as many, or remove it"
                )
            if mark.whole:
                cursors = len(await in_thread(source.cursors))
                await target.close()
                await target.complete()
                return self._result(mark, cursors, resumed=True)
        keys = None
        if mark is None:
            mark = await in_thread(self._plan, pchannels)
            if len(mark.incarnations) > len(mark.source):
                check_homes(record for _, record in (await in_thread(source.cursors)).values())
        if not mark.created:
            first_ticks = await in_thread(source.first_ticks)
            keys = await in_thread(source.truncated_keys, before, first_ticks)
        await target.open(mark, keys=keys, compressed=before.metadata.get(COMPRESSION_KEY) == "zstd")
        self._tick = target.last_tick
        while True:
            ends = await in_thread(partial(source.ends, follow=follow))
            if not await self._pass(ends):
                return None
            self._note(ends)
            if not follow or ends.tick is None:
                break
            if await self._stopped_within(PAUSE_S):
                return None
        check_same_log(source.location, target.building, mark.source, await in_thread(source.incarnations))
        after = await in_thread(source.stored)
        if ends.tick is None:  # without a writer nothing has changed since the ends
            before = after
        cursors = await target.finish(source, before, after.metadata, ends)
        await target.close()
        await target.complete()
        return self._result(mark, cursors, resumed=resumed)

    def _plan(self, pchannels: int | None) -> CopyMark:
        """Returns the mark of a copy that begins now. Blocks."""
        source = self._source
        incarnations = source.incarnations()
        count = pchannels or len(incarnations)
        groups: list[list[str]] = []
        if count > len(incarnations):
            groups = groups_of(source.heads(source.ends(follow=True)), [key.vchannels for key in source.cursors() if key.vchannels])
        return new_mark(incarnations, count, groups, min(source.first_ticks().values()) - 1)

    async def _pass(self, ends: Ends) -> bool:
        """Copies the source up to these ends; returns False if it was stopped before."""
        events, promised_at = self._events, self._bytes
        stream = self._source.frames(self._target.last_tick, ends)
        while (batch := await in_thread(self._batch, stream)) is not None:
            await self._target.write(batch)
            if self._bytes - promised_at >= PROMISE_BYTES:
                await self._target.promise(self._tick)
                promised_at = self._bytes
            self._note(ends)
            if self._stop.is_set():
                return False
        self._tick = max(self._tick, ends.promised)
        if self._events > events:
            await self._target.promise(self._tick)
        return not self._stop.is_set()

    def _batch(self, stream: Iterator[tuple[str, StoredFrame, int]]) -> list[tuple[str, EncodedFrame]] | None:
        """Returns the next frames in the target's encoding; None at the end. Blocks."""
        frames: list[tuple[str, EncodedFrame]] = []
        size = count = 0
        for pchannel, frame, least in stream:
            header = frame.view.header
            own = self._target.encode(cut(frame.view, self._target.routes, pchannel, least=least))
            frames += own
            self._at[pchannel] = frame.next_position
            self._tick = max(self._tick, header.first_tick - 1)  # every later frame begins at this one's first tick or above
            self._frames += len(own)
            self._events += sum(each.header.indices for _, each in own)
            self._bytes += sum(each.length for _, each in own)
            size, count = size + header.frame_bytes, count + 1
            if size >= _BATCH_BYTES or count >= _BATCH_FRAMES:
                return frames
        return frames if count else None

    def _note(self, ends: Ends) -> None:
        """Reports the progress, about once a second."""
        now = time.monotonic()
        if self._progress is None or now - self._noted_s < _PROGRESS_S:
            return
        self._noted_s = now
        remaining = 0
        for name, snapshot in ends.snapshots.items():
            remaining += self._source.log(name).bytes_between(self._at.get(name, snapshot.earliest[0]), snapshot.durable_end)
        self._progress(
            CopyProgress(
                frames=self._frames,
                events=self._events,
                bytes=self._bytes,
                tick=self._tick,
                time=to_datetime(self._tick),
                left_bytes=remaining,
            )
        )

    async def _stopped_within(self, pause_s: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), pause_s)
        except TimeoutError:
            return False
        return True

    def _result(self, mark: CopyMark, cursors: int, *, resumed: bool) -> CopyResult:
        return CopyResult(
            frames=self._frames,
            events=self._events,
            bytes=self._bytes,
            tick=self._tick,
            pchannels=len(mark.incarnations),
            cursors=cursors,
            resumed=resumed,
            lost=tuple(self._source.lost()),
        )
