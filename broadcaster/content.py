"""Content and CopiesInLog: the data of a broadcast that crosses the seam to the log. Pure."""

from __future__ import annotations

import msgspec

from wal.message import BroadcastHeader

__all__ = ["Content", "CopiesInLog"]


class Content(msgspec.Struct, frozen=True, gc=False):
    """What all copies of a broadcast share; `properties` in their stored form."""

    payload: bytes
    message_type: int
    properties: bytes = b""


class CopiesInLog(msgspec.Struct, frozen=True):
    """What the recovered log of a pchannel holds of a broadcast that it was not told to forget.

    `vchannels` have their copy; `aborted` of them have the message that it was aborted as well.
    """

    pchannel: str
    header: BroadcastHeader
    vchannels: tuple[str, ...]
    aborted: tuple[str, ...] = ()
