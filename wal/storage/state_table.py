"""StateTable: the common part of a pchannel's tables that survive restarts; RecordTable: a table of records in frames. Pure.

A table gets its state from the pieces of a recovery checkpoint (`restore`) and from the frames written after it (`replay`), and writes it
into the pieces of the next checkpoint (`snapshot`). Its writer reports each change that became durable meanwhile. `changes` counts both, so
that a checkpoint is made when it is worth its cost.

A record is the payload of a system record in a frame: MessagePack of an array that begins with a version. A piece of a `RecordTable` has
the form

    [kind, records, floor, …]    at least one such piece if there ever was a record

A floor is a number that later records exceed, even after the records that set it were removed.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final

import msgspec

from wal.errors import FormatError, corruption
from wal.frame import FrameView, RunName
from wal.storage.pieces import PieceKind, encode_header, encode_piece, split_pieces

RECORD_VERSION: Final = 1
PIECE_BYTES: Final = 64 * 1024
"""A piece is cut at this many bytes of records."""
Live = Callable[[RunName], bool]
"""Returns whether a vchannel still exists."""
Decoders = dict[PieceKind, msgspec.msgpack.Decoder[Any]]
encode_record: Final = msgspec.msgpack.Encoder().encode


class StateTable(abc.ABC):
    """A table of one pchannel. `what` names its contents in errors, `decoders` decode its pieces, and `flag` marks its frames."""

    what: ClassVar[str]
    decoders: ClassVar[Decoders]
    flag: ClassVar[int] = 0

    def __init__(self) -> None:
        self.changes: int = 0
        """The number of changes that became durable since the last checkpoint."""

    def changed(self, count: int = 1) -> None:
        """Counts changes that became durable."""
        self.changes += count

    def replay(self, position: int, view: FrameView, *, live: Live | None = None) -> int:
        """Applies one durable frame written after the checkpoint, in order; returns its number of changes.

        Changes of vchannels that are no longer `live` are left out.
        """
        if not view.header.compatible & self.flag:
            return 0
        count = self._replay(position, view, live)
        self.changes += count
        return count

    def restore(self, blob: bytes, *, live: Live | None = None) -> None:
        """Sets an empty table to the state of a snapshot, without vchannels that are no longer `live`.

        Raises CorruptionError for bytes that are not a snapshot, FormatError for a snapshot of a newer version.
        """
        with self.reading(blob) as pieces:
            self._restore(pieces, live)

    @classmethod
    @contextlib.contextmanager
    def reading(cls, blob: bytes) -> Iterator[Iterator[Any]]:
        """Yields the decoded pieces of this table to its block. Raises CorruptionError and FormatError there, as `restore` does."""
        with corruption(f"the {cls.what} of a checkpoint are damaged", expected="pieces of MessagePack"):
            yield (decoder.decode(data) for kind, data in split_pieces(blob) if (decoder := cls.decoders.get(kind)) is not None)

    @abc.abstractmethod
    def snapshot(self) -> Iterator[bytes]:
        """Returns the durable state as of this call, in pieces that are cheap to produce one by one; later changes are not in it."""

    @abc.abstractmethod
    def _restore(self, pieces: Iterable[Any], live: Live | None) -> None: ...

    def _replay(self, position: int, view: FrameView, live: Live | None) -> int:
        raise NotImplementedError


class RecordTable(StateTable):
    """A table whose state is records of frames, and `floors`. `used` is True if there ever was a record."""

    def __init__(self, *, floors: tuple[int, ...]) -> None:
        super().__init__()
        self.used: bool = False
        self.floors: tuple[int, ...] = floors

    def begin_use(self) -> None:
        """Records that there was a record."""
        self.used = True

    def snapshot(self) -> Iterator[bytes]:
        kind = next(iter(self.decoders))
        return _encode(kind, self._durable(), self.floors) if self.used else iter(())

    def raise_floors(self, *floors: int) -> None:
        """Raises each floor that is lower than its new value."""
        self.floors = tuple(map(max, self.floors, floors))

    @abc.abstractmethod
    def _durable(self) -> list[Any]:
        """Returns the durable entries; each has a method `encoded`."""

    @abc.abstractmethod
    def _add(self, payload: bytes, live: Live | None) -> None:
        """Adds a durable record."""

    def _restore(self, pieces: Iterable[Any], live: Live | None) -> None:
        for _, payloads, *floors in pieces:
            self.used = True
            for payload in payloads:
                self._add(payload, live)
            self.raise_floors(*floors)


def check_version(version: int, what: str) -> None:
    """Raises FormatError for a record of a newer version."""
    if version != RECORD_VERSION:
        raise FormatError(f"{what} has version {version} (known: {RECORD_VERSION}): upgrade to read it")


def _encode(kind: PieceKind, records: list[Any], floors: tuple[int, ...]) -> Iterator[bytes]:
    yield encode_header()
    payloads: list[bytes] = []
    size = 0
    for record in records:
        payloads.append(record.encoded())
        size += len(payloads[-1])
        if size >= PIECE_BYTES:
            yield encode_piece(kind, [payloads, *floors])
            payloads, size = [], 0
    yield encode_piece(kind, [payloads, *floors])
