"""SharedCopies: the copies of a broadcast in one frame, and the payload and header that they share. Pure.

Decodes a SHARED run and its COPY runs. A reader builds the message of each vchannel from them, recovery the broadcast's record that it
keeps; both see the same, or raise the same CorruptionError. A reader fetches only the broadcasts that it has a copy of, so only the
readers of a damaged broadcast see the damage.
"""

from __future__ import annotations

import msgspec

from wal.errors import CorruptionError
from wal.frame import DEFAULT_TYPE, ExtTag, FrameView, RunName, RunRow, decode_ext
from wal.message import BroadcastHeader

__all__ = ["SharedCopies", "shared_by", "shared_copies"]


class SharedCopies(msgspec.Struct, frozen=True, gc=False):
    """The fields that the copies of a broadcast in a frame share, and `names`, the (name, incarnation) of each copy.

    The copies have the indices from `index` on. `ordinal` is that of the SHARED run.
    """

    ordinal: int
    header: BroadcastHeader
    payload: bytes
    message_type: int
    properties: bytes
    index: int
    names: tuple[RunName, ...]


def shared_copies(view: FrameView) -> list[SharedCopies]:
    """Returns all copies of broadcasts in a frame. Raises CorruptionError for a damaged SHARED run."""
    return [_decode(view, ordinal, run, names) for ordinal, run, names in view.runs.copies()]


def shared_by(view: FrameView, ordinal: int) -> SharedCopies:
    """Returns the copies of the SHARED run with this ordinal, decoded once for all readers of the view. Damage raises CorruptionError."""
    known = view.memo.get(ordinal)
    if known is None:
        for each, run, names in view.runs.copies():
            view.memo.setdefault(each, (run, names))
        known = view.memo[ordinal]
    if not isinstance(known, SharedCopies):
        known = view.memo[ordinal] = _decode(view, ordinal, *known)
    return known


def _decode(view: FrameView, ordinal: int, run: RunRow, names: list[RunName]) -> SharedCopies:
    columns = view.columns(run)
    fields = decode_ext(columns.exts[0]) if columns.exts else {}
    if ExtTag.BROADCAST not in fields:
        raise CorruptionError(
            f"the copies of a broadcast for {len(names)} vchannels carry no header", expected="a header"
        )
    return SharedCopies(
        ordinal,
        BroadcastHeader.from_bytes(fields[ExtTag.BROADCAST], [name for name, _ in names]),
        columns.payloads[0],
        columns.types[0] if columns.types else DEFAULT_TYPE,
        columns.properties[0] if columns.properties else b"",
        run.index,
        tuple(names),
    )
