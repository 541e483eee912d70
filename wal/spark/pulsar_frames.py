"""PulsarFrames: a log on Pulsar as a source of frames, read directly from its topics, with its metadata in etcd.

Implements `FrameLogs` with topics, which have no index. Pulsar's ledgers tell how much is between two log positions, so a read without
limits is planned without reading anything. For a row limit, and for the position of a tick, the driver scans frames: those within the
limit, each once; a few in the search for a tick.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from wal.errors import ClosedError, CorruptionError, FormatError, TruncatedError, WALError
from wal.loop_thread import LoopThread
from wal.message import FORM_PULSAR, Origin
from wal.read.cursors.store import CursorStore
from wal.read.pulsar_source import LoadedVChannels, PulsarMetadata
from wal.secret import Secret
from wal.spark.frame_source import LogMoment
from wal.spark.offsets import LogPosition
from wal.spark.options import ChannelChoice
from wal.spark.planning import FrameWeight, ScannedFrames, weight_of
from wal.storage.base import FramePage
from wal.storage.pulsar.address import PulsarAddress, text_of
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.read_only import ReadOnlyTopic

__all__ = ["PulsarFrames", "PulsarSource"]

_PIECES: Final = 64
"""The most weights for a range of the log without a limit."""
_PAGE_BYTES: Final = 1 << 20
_SCANS_MAX: Final = 16
"""The number of (pchannel, choice) pairs whose scanned frames are cached."""
_GONE_S: Final = 0.25
_VCHANNELS_AGE_S: Final = 0.2
"""The maximum age of cached knowledge about vchannels."""


class PulsarSource(msgspec.Struct, frozen=True):
    """The log in this namespace, with its metadata at `kv`, `etcd://…`."""

    address: PulsarAddress
    kv: Secret

    def open(self) -> PulsarFrames:
        """Opens the log. Raises InvalidArgumentError when Pulsar refuses the credentials, FormatError when the metadata has no log."""
        return PulsarFrames(self.address, self.kv)

    def __repr__(self) -> str:
        return f"PulsarSource({self.address!r})"


class PulsarFrames:
    """See `FrameLogs`. A moment costs one request to the broker and one to etcd, a few milliseconds."""

    def __init__(self, address: PulsarAddress, kv: Secret) -> None:
        self._address = address
        self._connection = PulsarConnection(address)
        self._admin = Admin(address)
        self._metadata = PulsarMetadata(kv, closing=self._connection.close)
        # If it is garbage-collected without `close`, the client's threads would leak. When the interpreter exits, the loop stops by itself.
        weakref.finalize(self, _stop_later, self._metadata.thread).atexit = False
        self._topics: dict[str, ReadOnlyTopic] = {}
        self._scans: OrderedDict[tuple[str, ChannelChoice], ScannedFrames] = OrderedDict()
        self._newest: dict[str, tuple[LogPosition, int]] = {}
        self._gone = False
        self._gone_until = 0.0
        try:
            self._connection.start()
            self._admin.check_namespace()
            if not self.pchannels():
                raise FormatError(
                    f"the metadata in the option kv knows of no log at {address.service_url}/{address.path}: give the kv that the log is "
                    "opened with"
                )
        except BaseException:
            self.close()
            raise

    def pchannels(self) -> Sequence[str]:
        metas = self._metadata.pchannels()
        for name, meta in metas.items():
            topic = self._topics.get(name)
            if topic is not None and topic.incarnation == meta.incarnation:
                continue
            if topic is not None:  # another log is there now: a reader that continues sees another origin
                topic.close()
                self._scans.clear()
                self._newest.clear()
            self._topics[name] = ReadOnlyTopic(
                self._connection,
                self._admin,
                self._metadata.control(name),
                pchannel=name,
                incarnation=meta.incarnation,
            )
        return list(metas)

    def moment(self, pchannel: str) -> LogMoment:
        topic = self._topic(pchannel)
        state = topic.reach()
        return LogMoment(
            Origin(pchannel, topic.incarnation, 0, FORM_PULSAR),
            state.earliest,
            state.durable_end,
            state.promised_tick,
            state.closed,
            topic.last_truncated,
        )

    def vchannels(self) -> LoadedVChannels:
        return self._metadata.vchannels(age_s=_VCHANNELS_AGE_S)

    def names(self, pchannel: str, start: int, end: int, choice: ChannelChoice) -> frozenset[str] | None:
        # A read by a pattern takes every frame: Pulsar delivers messages whole anyway.
        return None if choice.names is None else frozenset(choice.names)

    def log_position_after(self, pchannel: str, tick: int, start: int, end: int) -> LogPosition:
        topic = self._topic(pchannel)
        if end >= topic.state.durable_end and tick >= self.newest_tick(pchannel):
            return end, 0
        at = self._last_promised(topic, tick, start, end)
        while at < end:
            page = topic.heads(at, end, _PAGE_BYTES)
            for frame in page.frames:
                header = frame.view.header
                if header.indices and header.first_tick + header.indices - 1 > tick:
                    return frame.position, max(0, tick + 1 - header.first_tick)
            at = page.next_position
        return end, 0

    def newest_tick(self, pchannel: str) -> int:
        topic = self._topic(pchannel)
        newest = topic.state.newest
        if newest is None or newest < topic.state.earliest:
            return 0
        known = self._newest.get(pchannel)
        if known is None or known[0] != newest:
            (frame,) = topic.heads(newest[0], newest[0] + 1, 1).frames
            known = self._newest[pchannel] = newest, frame.view.header.first_tick + newest[1]
        return known[1]

    def weights(
        self,
        pchannel: str,
        start: int,
        end: int,
        choice: ChannelChoice,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> list[FrameWeight]:
        topic = self._topic(pchannel)
        if rows_max is None and bytes_max is None:
            return _by_ledgers(topic, start, end)
        scanned = self._scanned_frames(pchannel, choice, start)
        while scanned.upto < end and not scanned.exceeds(end, rows_max, bytes_max):
            page = topic.heads(scanned.upto, end, _PAGE_BYTES)
            found = (weight_of(frame, None if choice.everything else choice) for frame in page.frames)
            scanned.add([weight for weight in found if weight is not None], page.next_position)
        return scanned.within(end, rows_max, bytes_max)

    def event_below(self, pchannel: str, since: LogPosition, place: LogPosition) -> LogPosition | None:
        if place[1]:
            return place[0], place[1] - 1
        topic = self._topic(pchannel)
        state = topic.reach()
        start, end = max(since[0], state.earliest[0]), min(place[0], state.durable_end)
        upper, back = end, 4  # most messages hold events: the last few suffice
        try:
            while start < upper:
                lower = at = max(start, topic.ledgers.back(end, back) or start)
                found = None
                while at < upper:
                    page = topic.heads(at, upper, _PAGE_BYTES)
                    found = page.last_event or found
                    at = page.next_position
                if found is not None:
                    return found
                upper, back = lower, 4 * back
        except TruncatedError:
            pass
        return None

    def bytes_between(self, pchannel: str, start: int, end: int) -> int:
        return self._topic(pchannel).ledgers.bytes_between(start, end)

    def pages(
        self, pchannel: str, start: int, end: int, names: frozenset[str] | None, bytes_max: int
    ) -> Generator[FramePage, None, None]:
        topic = self._topic(pchannel)
        if topic.state.durable_end < end and (durable := topic.reach().durable_end) < end:
            raise CorruptionError(
                f"{topic.topic} ends at {text_of(durable)}, and the read was planned up to {text_of(end)}: this is an older copy "
                "of the log, or another Pulsar",
                path=topic.topic,
                expected=f"messages up to {text_of(end)}",
            )
        while start < end:
            page = topic.page(start, end, names, bytes_max)
            yield page
            start = page.next_position

    @property
    def cursors(self) -> CursorStore:
        return self._metadata.cursors

    def is_current(self) -> bool:
        return True  # `pchannels` finds a log that was recreated

    def writer_is_gone(self) -> bool:
        now = time.monotonic()
        if now >= self._gone_until:
            try:
                self._gone = not self.has_writer()
            except WALError:
                self._gone = False  # unknown
            self._gone_until = time.monotonic() + _GONE_S
        return self._gone

    def has_writer(self) -> bool:
        """Returns whether, according to the brokers and the metadata, a writer that has not closed the log is connected now."""
        names = self.pchannels()
        return any(not self._topics[name].reach().closed and self._topics[name].has_writer() for name in names)

    def close(self) -> None:
        for topic in self._topics.values():
            topic.close()
        self._metadata.close()

    def _topic(self, pchannel: str) -> ReadOnlyTopic:
        if pchannel not in self._topics:
            self.pchannels()
        topic = self._topics.get(pchannel)
        if topic is None:
            raise ClosedError(
                f"{self._address.service_url}/{self._address.path} holds no log of pchannel {pchannel!r}: another log was created there, "
                "the options name another one"
            )
        if not hasattr(topic, "state"):
            topic.reach()
        return topic

    def _scanned_frames(self, pchannel: str, choice: ChannelChoice, start: int) -> ScannedFrames:
        key = pchannel, choice
        scanned = self._scans.get(key)
        if scanned is None or not scanned.go_on(start):
            scanned = self._scans[key] = ScannedFrames(start)
        self._scans.move_to_end(key)
        if len(self._scans) > _SCANS_MAX:
            self._scans.popitem(last=False)
        return scanned

    def _last_promised(self, topic: ReadOnlyTopic, tick: int, start: int, end: int) -> int:
        """Returns a position in [start, end) with no event above this tick before it, and close to the first such event after it.

        Promised ticks ascend, so this is a binary search; it begins at the end, which most ticks are close to.
        """
        ledgers = topic.ledgers
        count = ledgers.entries_between(start, end)

        def place(back: int) -> int:
            return start if back >= count else (ledgers.back(end, back) or start)

        def is_above(back: int) -> bool:
            frames = topic.heads(place(back), end, 1).frames
            return not frames or frames[0].view.header.promised_tick > tick

        low, high = 0, 1
        while high < count and is_above(high):
            low, high = high, 2 * high
        high = min(high, count)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if is_above(middle) else (low, middle)
        return place(high)


def _by_ledgers(topic: ReadOnlyTopic, start: int, end: int) -> list[FrameWeight]:
    """Returns the weights of pieces of about equal numbers of messages between two positions; rows and ticks are unknown."""
    ledgers = topic.ledgers
    count = ledgers.entries_between(start, end)
    if not count:
        return []
    grain = -(-count // _PIECES)
    first = ledgers.first_at(start)
    places = [start if first is None else first]
    places += [place for left in range(count - grain, 0, -grain) if (place := ledgers.back(end, left)) is not None]
    places.append(end)
    return [
        FrameWeight(at, following, 0, 0, 0, ledgers.bytes_between(at, following)) for at, following in pairwise(places)
    ]


def _stop_later(thread: LoopThread) -> None:
    threading.Thread(target=thread.stop, name="wal-spark-stop", daemon=True).start()
