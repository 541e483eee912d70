"""The checks of the names of channels and subscriptions, and of integers that have a fixed width on the wire.

A medium may have limits of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal

from wal.errors import InvalidArgumentError


def check_name(what: str, name: object) -> None:
    """Raises TypeError or InvalidArgumentError if the value is not a valid name."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {name!r}")
    if not name:
        raise InvalidArgumentError(f"{what} is empty: give a name")


def check_channels(channels: Sequence[str]) -> list[str]:
    """Returns the names without duplicates; raises TypeError or InvalidArgumentError unless they are one or more names of channels."""
    if isinstance(channels, str | bytes) or not isinstance(channels, Sequence):
        raise TypeError(f"channels must be a sequence of names, not {channels!r}")
    for channel in channels:
        check_name("the name of a channel", channel)
    if not channels:
        raise InvalidArgumentError("channels is empty: give at least one name")
    return list(dict.fromkeys(channels))


def check_integer(name: str, value: object, *, bits: int, signed: bool = False) -> None:
    """Raises TypeError or InvalidArgumentError unless the value is an int of this width."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value!r}")
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name}={value} is out of range: give a number from {low} to {high}")


def check_integers(name: str, values: object, code: Literal["I", "Q", "q"]) -> None:
    """Raises TypeError or InvalidArgumentError, with the value and its index, unless this is a sequence of ints that fit `array`'s code."""
    if type(values) is not list and (not isinstance(values, Sequence) or isinstance(values, str | bytes)):
        raise TypeError(f"{name} must be a sequence of int, not {values!r}")
    try:
        array(code, values)
    except (TypeError, OverflowError):
        for at, value in enumerate(values):
            check_integer(f"{name}[{at}]", value, bits=32 if code == "I" else 64, signed=code == "q")
