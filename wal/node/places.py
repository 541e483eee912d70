"""Places: which vchannels a stream that writes one pchannel may name."""

from __future__ import annotations

from wal.engine.local.vchannels import VChannelRoutes
from wal.errors import ChannelNotExistError

__all__ = ["Places"]


class Places:
    """The vchannels of a log, for the streams that write its pchannel `pchannel`."""

    def __init__(self, vchannels: VChannelRoutes, pchannel: str) -> None:
        self._vchannels = vchannels
        self._pchannel = pchannel

    def check(self, vchannel: str) -> None:
        """Raises ChannelNotExistError for a vchannel that is on another pchannel, or would be created there.

        A client that is right may get it: another one drops the vchannel, or creates it elsewhere, while the request is on its way.
        """
        place = self._vchannels.pchannel_of(vchannel)
        if place != self._pchannel:
            raise ChannelNotExistError(
                f"vchannel {vchannel!r} is on pchannel {place}, and this stream writes {self._pchannel}: nothing was written; "
                f"if it was dropped meanwhile, append to it again, otherwise open a stream for {place}"
            )

    def check_existing(self, vchannel: str) -> None:
        """Raises ChannelNotExistError for a vchannel that is on another pchannel; one that was dropped is the concern of the commit."""
        if self._vchannels.incarnation(vchannel) is not None:
            self.check(vchannel)
