"""The check of integers that have a fixed width on the wire."""

from __future__ import annotations

from wal.errors import InvalidArgumentError

__all__ = ["check_integer"]


def check_integer(name: str, value: object, *, bits: int, signed: bool = False) -> None:
    """Returns if the value is an int of this width; raises TypeError or InvalidArgumentError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value!r}")
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name}={value} is out of range: give a number from {low} to {high}")
