"""PulsarMetadata: what the metadata of a log on Pulsar say, for who only reads: pchannels, owners, vchannels.

Owns an open KV and the loop in a thread that it needs; what is called here blocks. It writes nothing. It is for one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from wal.backends.pulsar.control import Control, ControlRecord
from wal.channels import PChannelMeta, load_pchannels
from wal.cursors import CursorsBesideWriter
from wal.engine.metadata import CURSOR_ROOT, PULSAR_ROOT, open_metadata
from wal.errors import CorruptionError
from wal.kv import KVBase
from wal.loop_thread import LoopThread
from wal.secret import Secret

__all__ = ["KnownLives", "PulsarMetadata"]

_LIVES_S: Final = 0.2
"""What is known of vchannels may be as old as this, …"""
_LIVES_COSTS: Final = 20
"""… or as many times what it takes to ask for them: there may be tens of thousands."""
_VCHANNEL: Final = "vchannel"
_RECORDS: Final = "vchannels/"
_NEXT: Final = "vchannel-incarnations"
"""As `wal.channels.directory` has them; both begin with `_VCHANNEL`, so that one look sees both at one moment."""


class KnownLives(msgspec.Struct, frozen=True):
    """The vchannels at one moment: name → (pchannel, incarnation). See `Lives`."""

    records: Mapping[str, tuple[str, int]]
    next_incarnation: int

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
    """The metadata at `kv`, open until `close`. Errors are those of the KV: UnavailableError when it does not answer.

    `closing` is awaited before the KV is closed, in the loop.
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
        self.cursors: CursorsBesideWriter = self.thread.call(_cursors, self._kv)
        self._lives = KnownLives({}, 0)
        self._lives_until = 0.0

    def pchannels(self) -> dict[str, PChannelMeta]:
        """The pchannels by name as they are now, in the order of their numbers."""
        return self.thread.call(load_pchannels, self._kv)

    def control(self, pchannel: str) -> Callable[[], tuple[ControlRecord, dict[int, int]]]:
        """What asks for the control record and the marks of this pchannel; CorruptionError when there is none."""
        control = Control(self._pulsar, pchannel)

        def look() -> tuple[ControlRecord, dict[int, int]]:
            record = self.thread.call(control.look)
            if record is None:
                raise CorruptionError(
                    f"the metadata have no control record of pchannel {pchannel!r}",
                    expected=f"{PULSAR_ROOT}/{pchannel}",
                )
            return record, control.terms

        return look

    def lives(self) -> KnownLives:
        """The vchannels as they were some tenths of a second ago."""
        now = time.monotonic()
        if now >= self._lives_until:
            self._lives = _known(*self.thread.call(self._kv.load_with_prefix, _VCHANNEL))
            done = time.monotonic()
            self._lives_until = done + max(_LIVES_S, _LIVES_COSTS * (done - now))
        return self._lives

    def close(self) -> None:
        """Ends it. Idempotent; it also ends with the interpreter."""
        self.thread.stop()


async def _cursors(kv: KVBase) -> CursorsBesideWriter:
    return CursorsBesideWriter(kv.under(CURSOR_ROOT))


class _Closing:
    """What is closed, in the loop. It knows nothing of who uses it, so that who is forgotten can be let go of."""

    def __init__(self, closing: Callable[[], Awaitable[None]], kv: KVBase) -> None:
        self._closing = closing
        self._kv = kv

    async def __call__(self) -> None:
        try:
            await self._closing()
        finally:
            await self._kv.close()


def _known(keys: list[str], values: list[str]) -> KnownLives:
    records: dict[str, tuple[str, int]] = {}
    following = 1
    try:
        for key, value in zip(keys, values, strict=True):
            if key == _NEXT:
                following = int(value)
            elif key.startswith(_RECORDS):
                record: dict[str, Any] = msgspec.json.decode(value)
                records[key.removeprefix(_RECORDS)] = (record["pchannel"], record["incarnation"])
    except (msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"the vchannel records in the KV cannot be read: {error}", expected=_RECORDS) from error
    return KnownLives(records, following)
