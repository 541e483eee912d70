"""Cursor: the saved position of the readers of some vchannels, under a name.

Owns: the identity of a cursor (its name and the unordered set of its vchannels), and its content. A cursor holds the log position where its
next reader begins, `start`: everything below it was delivered or was not for the reader. Retention keeps everything from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, MessageID
from wal.read.options import ReadPosition

CURSOR_NAME_BYTES_MAX: Final = 255
"""The most UTF-8 bytes of a cursor's name."""


class CursorKey(msgspec.Struct, frozen=True, order=True):
    """The name and the vchannels that identify a cursor; `vchannels` are sorted, each once."""

    name: str
    vchannels: tuple[str, ...]

    @classmethod
    def of(cls, name: str, vchannels: Iterable[str]) -> CursorKey:
        return cls(name, tuple(sorted(set(vchannels))))

    def __str__(self) -> str:
        return f"cursor {self.name!r} of {', '.join(map(repr, self.vchannels))}"


class Cursor(msgspec.Struct, frozen=True):
    """A saved cursor.

    `incarnations`: the incarnation of each of the key's vchannels that was read, None for one that did not exist yet. `pchannel`,
    `incarnation` and `form` identify the log. `event` is the newest event that was passed, (position, index), None before any; `time_tick`
    is the tick up to which everything was delivered. `saved_at` is the wall time of the save, in seconds. `stale` says why the cursor no
    longer holds anything back and cannot be used until it is deleted; it is empty for a live cursor.
    """

    key: CursorKey
    incarnations: tuple[int | None, ...]
    pchannel: str
    incarnation: int
    start: tuple[int, int]
    event: tuple[int, int] | None
    time_tick: int
    saved_at: float
    form: int = FORM_JOURNAL
    stale: str = ""

    @property
    def position(self) -> ReadPosition | None:
        """Returns the position of the cursor's reader, None before any event was passed."""
        if self.event is None:
            return None
        return ReadPosition(MessageID(self.pchannel, self.incarnation, self.event[0], self.event[1], self.form), self.time_tick)


class CursorInfo(msgspec.Struct, frozen=True):
    """A cursor as `log.cursors()` shows it.

    `position` is None when the cursor was saved before any message was delivered. `lag_bytes`: the bytes of the frames that hold its
    vchannels and are still to be read, 0 for a reader that has everything; on Pulsar, which has no index, those of all vchannels.
    `held_bytes`: the size of the log between it and the durable end, which retention keeps for it, and which `cursor_lag_bytes_max`
    bounds. A `stale` cursor holds nothing back, and using it raises TruncatedError until it is deleted.
    """

    name: str
    vchannels: tuple[str, ...]
    position: ReadPosition | None
    lag_bytes: int
    stale: bool
    held_bytes: int = 0


def check_cursor(name: object) -> str:
    """Returns the name if it is valid for a cursor. Raises TypeError unless it is a `str`, and InvalidArgumentError if it is empty, too
    long, begins with `_` or has control characters."""
    if not isinstance(name, str):
        raise TypeError(f"a cursor is named by a str, not {type(name).__name__}")
    if not name:
        raise InvalidArgumentError("cursor is empty: name the cursor")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"cursor {name!r} cannot be encoded as UTF-8: name it without lone surrogates") from error
    if length > CURSOR_NAME_BYTES_MAX:
        raise InvalidArgumentError(f"cursor {name[:40]!r}… is {length} bytes long: at most {CURSOR_NAME_BYTES_MAX}")
    if name.startswith("_"):
        raise InvalidArgumentError(f"cursor {name!r} begins with '_', as only the WAL's own do: name it otherwise")
    if any(character < " " or character == "\x7f" for character in name):
        raise InvalidArgumentError(f"cursor {name!r} holds control characters: name it without them")
    return name
