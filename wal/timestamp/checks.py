"""The checks of callers' times and numbers: time ticks, seconds to wait, and numbers in a text."""

from __future__ import annotations

from typing import Final

from wal.errors import InvalidArgumentError, shortened

SECONDS_MAX: Final = 1_000_000_000
"""The longest time of a timer, 31 years: uvloop's timers cannot be infinite."""

TICK_MAX: Final = (1 << 64) - 1


def check_tick(name: str, tick: object) -> int:
    """Returns the tick if it is an int of 64 bits; raises TypeError or InvalidArgumentError otherwise."""
    if not isinstance(tick, int) or isinstance(tick, bool):
        raise TypeError(f"{name} must be a time tick (int), not {tick!r}")
    if not 0 <= tick <= TICK_MAX:
        raise InvalidArgumentError(f"{name}={tick} is out of range: ticks are 0 to 2**64 - 1, from allocate_time_tick()")
    return tick


def check_wait(wait_s: object) -> float:
    """Returns the time limit of an opening in seconds, from 0 to infinity; raises TypeError or InvalidArgumentError for any other value."""
    if not isinstance(wait_s, int | float) or isinstance(wait_s, bool):
        raise TypeError(f"wait_s must be a number of seconds, not {wait_s!r}")
    if not wait_s >= 0:
        raise InvalidArgumentError(f"wait_s={wait_s} is out of range: 0 or more, or float('inf') to wait for ever")
    try:
        return float(wait_s)
    except OverflowError:  # an int above all floats
        return float("inf")


def check_seconds(name: str, value: object) -> float:
    """Returns the seconds of a timer, more than 0 and at most 1e9; raises TypeError or InvalidArgumentError for any other value."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not 0 < value <= SECONDS_MAX:
        raise InvalidArgumentError(f"{name}={number_text(value)} is out of range: it must be more than 0 seconds and at most {SECONDS_MAX}")
    return float(value)


def number_text(value: float) -> str:
    """Returns the number for an error's text. Python refuses to write ints of more than 4,300 digits, so for a large one the text has its
    size.
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"{'' if value > 0 else '-'}2**{value.bit_length() - 1}…"
    return repr(value)


def whole_number(what: str, text: str, least: int, most: int) -> int:
    """Returns the number that a text has as decimal digits. Raises InvalidArgumentError, beginning with `what`, for any other text."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    raise InvalidArgumentError(f"{what} {shortened(text)} is out of range: give a whole number from {least} to {most}".lstrip())
