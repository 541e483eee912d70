"""ViewedVChannels: the known vchannels of a log, as its reader last saw them. Pure."""

from __future__ import annotations

from collections.abc import Collection

from wal.channels import VChannelView

__all__ = ["ViewedVChannels"]


class ViewedVChannels:
    """The vchannels of a view. See `KnownVChannels`."""

    def __init__(self, view: VChannelView) -> None:
        self._view = view

    def current(self, name: str) -> int | None:
        info = self._view.records.get(name)
        return None if info is None else info.incarnation

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        return self._view.is_over(pchannel, name, incarnation)

    def names(self) -> Collection[str]:
        return self._view.records.keys()

    def on(self, pchannel: str) -> dict[str, int]:
        records = self._view.records
        return {name: info.incarnation for name, info in records.items() if info.pchannel == pchannel}
