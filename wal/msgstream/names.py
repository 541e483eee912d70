"""The checks of channel and subscription names. A medium may have limits of its own."""

from __future__ import annotations

from collections.abc import Sequence

from wal.errors import InvalidArgumentError

__all__ = ["check_channels", "check_name"]


def check_name(what: str, name: object) -> None:
    """Raises TypeError or InvalidArgumentError if this is not a name."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {name!r}")
    if not name:
        raise InvalidArgumentError(f"{what} is empty: give a name")


def check_channels(channels: Sequence[str]) -> list[str]:
    """Returns the names, each once; raises TypeError or InvalidArgumentError if they are not at least one channel's."""
    if isinstance(channels, str | bytes) or not isinstance(channels, Sequence):
        raise TypeError(f"channels must be a sequence of names, not {channels!r}")
    for channel in channels:
        check_name("the name of a channel", channel)
    if not channels:
        raise InvalidArgumentError("channels is empty: give at least one name")
    return list(dict.fromkeys(channels))
