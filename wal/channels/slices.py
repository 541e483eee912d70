"""Slices: long work of a request, done in slices, so that other tasks run in between.

A request names up to 65,536 vchannels and has up to 65,536 messages, at 2 to 40 us each. A slice of 256 keeps the loop for at most about
10 ms. A slice must be complete in itself: other calls may change the log between two slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Final, TypeVar

from wal.channels.vchannels import NAMES_MAX, check_vchannel
from wal.errors import InvalidArgumentError

SLICE: Final = 256
"""The most items for which a request keeps the loop."""

_T = TypeVar("_T")


async def sliced(items: Iterable[_T], size: int = SLICE) -> AsyncIterator[_T]:
    """Yields the items; after every `size` of them other tasks get their turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


async def checked_names(names: Collection[str], *, instead: str = "make several requests") -> tuple[str, ...]:
    """Returns the names of vchannels, each once, in their order.

    Raises InvalidArgumentError for more than `NAMES_MAX`, with what to do `instead`, and for a bad name.
    """
    if len(names) > NAMES_MAX:
        raise InvalidArgumentError(f"the request names {len(names)} vchannels, and one request may name {NAMES_MAX}: {instead}")
    return tuple(dict.fromkeys([check_vchannel(name) async for name in sliced(names, 4 * SLICE)]))
