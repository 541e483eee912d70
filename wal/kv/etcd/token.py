"""Token: who this client is to an etcd with authentication, as etcd wants to hear it.

Owns: name and password, and the token that etcd gave for them. Promises: one renewal at a time, however many calls were refused. Never
shows the password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Token"]


class Token:
    """`authenticate` gives a new token; None when etcd runs without authentication, and needs none."""

    def __init__(self, authenticate: Callable[[], Awaitable[str | None]]) -> None:
        self._authenticate = authenticate
        self._lock = asyncio.Lock()
        self._known = False
        self.value: str | None = None

    async def get(self) -> str | None:
        """The token for the next call."""
        if not self._known:
            await self._renew(None, first=True)
        return self.value

    async def renew(self, refused: str | None) -> None:
        """Another one than `refused`; nothing is done when somebody renewed it meanwhile."""
        await self._renew(refused, first=False)

    async def _renew(self, refused: str | None, *, first: bool) -> None:
        async with self._lock:
            if (first and self._known) or self.value != refused:
                return
            self.value = await self._authenticate()
            self._known = True
