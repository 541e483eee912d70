"""SavedLimit: the one key of the KV that bounds an oracle's ticks.

Owns: the form of the key's value and its writer. It guarantees that the KV holds a limit when `raise_to` returns, and that only the oracle
that last took over the key can raise it. After a lost answer the value is read before the next save, never guessed.

    value on the key:  "<limit in milliseconds, decimal> <owner, 16 hexadecimal digits>"     every start is a new owner
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wal.errors import ChannelFencedError, FormatError, InvalidArgumentError, KeyNotExistError
from wal.timestamp.timestamp import MILLISECONDS_MAX

if TYPE_CHECKING:
    from wal.kv import KVBase

__all__ = ["SavedLimit"]

_STARTS_MAX: Final = 64
"""How many starts may overtake this one before it gives up."""


class SavedLimit:
    """The limit on `key`, in milliseconds, of one owner."""

    def __init__(self, kv: KVBase, key: str) -> None:
        self._kv = kv
        self._key = key
        self._owner = secrets.token_hex(8)
        self._held: str | None = None  # the value that the KV holds, unless a save failed since
        self._unsure = True

    async def take_over(self, choose: Callable[[int], int]) -> int:
        """Makes this the owner: saves `choose(limit saved before, 0 if none)` and returns it."""
        for _ in range(_STARTS_MAX):
            before = await self._load()
            limit_ms = choose(0 if before is None else self._decode(before)[0])
            text = self._encode(limit_ms)
            if await self._kv.compare_and_swap(self._key, before, text):
                self._held, self._unsure = text, False
                return limit_ms
        raise ChannelFencedError(f"{_STARTS_MAX} other oracles took {self._key!r} over at the same time: let one start")

    async def raise_to(self, limit_ms: int) -> None:
        """Saves a limit. Raises ChannelFencedError when another oracle took over, and the KV's error when the limit is not known to be
        saved."""
        text = self._encode(limit_ms)
        while self._unsure or not await self._swap(text):
            # Either another oracle took over, or an answer was lost and the KV holds an earlier save of this one.
            held = await self._load()
            if held is None or self._decode(held)[1] != self._owner:
                raise ChannelFencedError(
                    f"another oracle took {self._key!r} over (it holds {held!r}): no tick is handed out here any more"
                )
            self._held, self._unsure = held, False
            if held == text:
                return

    async def give_back(self, limit_ms: int) -> None:
        """Saves a lower limit, if the value in the KV is certainly this owner's; otherwise does nothing, which is no worse than a crash."""
        if not self._unsure:
            await self._swap(self._encode(limit_ms))

    async def _swap(self, text: str) -> bool:
        self._unsure = True  # until the answer is here, whatever happens meanwhile
        swapped = await self._kv.compare_and_swap(self._key, self._held, text)
        if swapped:
            self._held, self._unsure = text, False
        return swapped

    async def _load(self) -> str | None:
        try:
            return await self._kv.load(self._key)
        except KeyNotExistError:
            return None

    def _encode(self, limit_ms: int) -> str:
        if limit_ms > MILLISECONDS_MAX:
            raise InvalidArgumentError(
                f"a limit of {limit_ms} ms is above {MILLISECONDS_MAX} (the year 4199): set the wall clock"
            )
        return f"{limit_ms} {self._owner}"

    def _decode(self, text: str) -> tuple[int, str]:
        digits, _, owner = text.partition(" ")
        if not (digits.isascii() and digits.isdigit() and owner) or int(digits) > MILLISECONDS_MAX:
            raise FormatError(
                f"{self._key!r} holds {text!r}, which is no limit that an oracle saved: give the oracle a key of its own"
            )
        return int(digits), owner
