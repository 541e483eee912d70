"""Token: identifies this client to an etcd with authentication.

It owns the token that etcd issued for a name and a password. It runs one renewal at a time, however many calls were refused, and never
shows the password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Token"]


class Token:
    """`authenticate` returns a new token; None if etcd runs without authentication."""

    def __init__(self, authenticate: Callable[[], Awaitable[str | None]]) -> None:
        self._authenticate = authenticate
        self._lock = asyncio.Lock()
        self._known = False
        self.value: str | None = None

    async def get(self) -> str | None:
        """Returns the token for the next call."""
        if not self._known:
            await self._renew(None, first=True)
        return self.value

    async def renew(self, refused: str | None) -> None:
        """Gets another token than `refused`, unless another caller renewed it meanwhile."""
        await self._renew(refused, first=False)

    async def _renew(self, refused: str | None, *, first: bool) -> None:
        async with self._lock:
            if (first and self._known) or self.value != refused:
                return
            self.value = await self._authenticate()
            self._known = True
