"""PulsarMetadata: the metadata of a log on Pulsar for a process that reads it: pchannels, control records, vchannels, cursors.

Owns an open KV and the loop in a thread that the KV needs. Its calls block. It writes nothing but cursors.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from wal.backends.pulsar.control import Control, ControlRecord
from wal.channels import OwnerDescription, PChannelMeta, load_pchannels
from wal.cursors import Cursor, CursorsBesideWriter
from wal.engine.metadata import CURSOR_ROOT, PULSAR_ROOT, open_metadata
from wal.errors import CorruptionError
from wal.kv import KVBase
from wal.loop_thread import LoopThread
from wal.secret import Secret

__all__ = ["KnownVChannels", "PulsarMetadata"]

_CHEAP_S: Final = 0.02
_COSTS: Final = 20
"""An answer about the vchannels that took longer than `_CHEAP_S`, because there are tens of thousands, is reused for `_COSTS` times
as long as it took."""
_VCHANNEL: Final = "vchannel"
_RECORDS: Final = "vchannels/"
_NEXT: Final = "vchannel-incarnations"
"""The keys of `wal.channels.directory`. Both begin with `_VCHANNEL`, so that one query reads both at one moment."""


class KnownVChannels(msgspec.Struct, frozen=True):
    """The vchannels at one moment: name → (pchannel, incarnation). Every incarnation below `next_incarnation` is in it or has ended.

    `owners` has the owner of each that is a channel, by name.
    """

    records: Mapping[str, tuple[str, int]]
    next_incarnation: int
    owners: Mapping[str, OwnerDescription] = {}

    def current(self, name: str) -> int | None:
        found = self.records.get(name)
        return None if found is None else found[1]

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        return incarnation < self.next_incarnation and self.records.get(name) != (pchannel, incarnation)

    def names(self) -> Collection[str]:
        return self.records.keys()

    def on(self, pchannel: str) -> dict[str, int]:
        return {name: incarnation for name, (at, incarnation) in self.records.items() if at == pchannel}


class PulsarMetadata:
    """The metadata at `kv`, an `etcd://…` location, open until `close`. Raises UnavailableError when it does not answer.

    `closing` is awaited in the loop before the KV is closed. `pchannels` and `vchannels` are for one thread at a time.
    """

    def __init__(self, kv: Secret, *, closing: Callable[[], Awaitable[None]]) -> None:
        self.thread: LoopThread = LoopThread()
        try:
            self._kv = self.thread.call(open_metadata, kv)
        except BaseException:
            self.thread.stop()
            raise
        self.thread.closing = _Closing(closing, self._kv)
        self._pulsar = self._kv.under(PULSAR_ROOT)
        self.cursors: CursorsBesideWriter = self.thread.call(_cursors, self._kv, self._earliest)
        self._known = KnownVChannels({}, 0)
        self._known_since = float("-inf")
        self._cost_s = 0.0

    def pchannels(self) -> dict[str, PChannelMeta]:
        """Returns the pchannels by name as they are now, in the order of their numbers."""
        return self.thread.call(load_pchannels, self._kv)

    def control(self, pchannel: str) -> Callable[[], tuple[ControlRecord, dict[int, int]]]:
        """Returns a function that loads the control record and the marks of this pchannel; it raises CorruptionError if there is none."""
        control = Control(self._pulsar, pchannel)

        def look() -> tuple[ControlRecord, dict[int, int]]:
            record = self.thread.call(control.look)
            if record is None:
                raise CorruptionError(
                    f"the metadata has no control record of pchannel {pchannel!r}",
                    expected=f"{PULSAR_ROOT}/{pchannel}",
                )
            return record, control.terms

        return look

    def vchannels(self, *, age_s: float = 0.0) -> KnownVChannels:
        """Returns the vchannels as they were at most `age_s` seconds ago; the answer may be older where there are tens of thousands."""
        now = time.monotonic()
        kept_s = max(age_s, _COSTS * self._cost_s) if self._cost_s > _CHEAP_S else age_s
        if now >= self._known_since + kept_s:
            self._known = _known(*self.thread.call(self._kv.load_with_prefix, _VCHANNEL))
            self._known_since = time.monotonic()
            self._cost_s = self._known_since - now
        return self._known

    def close(self) -> None:
        """Closes the KV and ends the thread. Idempotent; also done at the interpreter's exit."""
        self.thread.stop()

    def _earliest(self, pchannel: str) -> tuple[int, int]:
        return self.control(pchannel)()[0].earliest


class _Cursors(CursorsBesideWriter):
    """The cursors of the log. A save asks the metadata for the earliest event, whatever the caller believes it is."""

    def __init__(self, kv: KVBase, earliest: Callable[[str], tuple[int, int]]) -> None:
        super().__init__(kv)
        self._earliest = earliest

    def save(
        self,
        cursor: Cursor,
        *,
        earliest: Callable[[], tuple[int, int]],
        since_s: float | None = None,
        forward_only: bool = False,
    ) -> bool:
        """See `CursorStore.save`."""
        now = partial(self._earliest, cursor.pchannel)
        return super().save(cursor, earliest=now, since_s=since_s, forward_only=forward_only)


async def _cursors(kv: KVBase, earliest: Callable[[str], tuple[int, int]]) -> CursorsBesideWriter:
    return _Cursors(kv.under(CURSOR_ROOT), earliest)


class _Closing:
    """Closes everything, in the loop. It holds no reference to the PulsarMetadata, so that an unclosed one can be garbage-collected."""

    def __init__(self, closing: Callable[[], Awaitable[None]], kv: KVBase) -> None:
        self._closing = closing
        self._kv = kv

    async def __call__(self) -> None:
        try:
            await self._closing()
        finally:
            await self._kv.close()


def _known(keys: list[str], values: list[str]) -> KnownVChannels:
    records: dict[str, tuple[str, int]] = {}
    owners: dict[str, OwnerDescription] = {}
    following = 1
    try:
        for key, value in zip(keys, values, strict=True):
            if key == _NEXT:
                following = int(value)
            elif key.startswith(_RECORDS):
                record: dict[str, Any] = msgspec.json.decode(value)
                name = key.removeprefix(_RECORDS)
                records[name] = (record["pchannel"], record["incarnation"])
                if (owner := record.get("owner")) is not None:
                    owners[name] = msgspec.convert(owner, OwnerDescription)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"the vchannel records in the KV cannot be read: {error}", expected=_RECORDS) from error
    return KnownVChannels(records, following, owners)
