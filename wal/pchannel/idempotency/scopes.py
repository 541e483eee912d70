"""Scopes of idempotency keys, and claims: the keys that are pending. Pure.

The scope of a key is its vchannel, or the sorted set of vchannels of a wide transaction, each in its incarnation. A scope lasts while
something is known in it, or until one of its vchannels is dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wal.frame import RunName
from wal.pchannel.idempotency.keys import Key

__all__ = ["Claim", "Scope", "Scopes"]


class Scope(msgspec.Struct, eq=False, gc=False):
    """The sorted vchannels that a key belongs to. `uses` counts what is known in it; it is `live` until one of them is dropped."""

    names: tuple[RunName, ...]
    uses: int = 0
    live: bool = True


class Claim(msgspec.Struct, eq=False, gc=False):
    """A key whose operation was taken and is not settled yet. `sharers` is for the holder of the claim to use.

    `barrier` is the tick that the operation has to wait for, so that it does not overtake an earlier one of its producer. A `doomed`
    claim must fail, since an earlier sequence of its producer failed.
    """

    scope: Scope
    key: Key
    barrier: int
    sharers: list[Any] | None = None
    doomed: bool = False


class Scopes:
    """The scopes in which something is known, by their vchannels and by each of these."""

    def __init__(self) -> None:
        self.by_names: dict[tuple[RunName, ...], Scope] = {}
        self.by_vchannel: dict[RunName, set[Scope]] = {}

    def get(self, names: tuple[RunName, ...]) -> Scope | None:
        """Returns the scope of these vchannels, None when nothing is known in it."""
        return self.by_names.get(names)

    def use(self, names: tuple[RunName, ...]) -> Scope:
        """Returns the scope of these vchannels, and adds a use."""
        scope = self.by_names.get(names)
        if scope is None:
            scope = self.by_names[names] = Scope(names)
            for name in names:
                self.by_vchannel.setdefault(name, set()).add(scope)
        scope.uses += 1
        return scope

    def release(self, scope: Scope) -> None:
        """Ends one use; a scope without uses is forgotten."""
        scope.uses -= 1
        if not scope.uses and scope.live:
            self._unlink(scope)

    def drop(self, name: RunName) -> None:
        """Ends every scope with this vchannel."""
        for scope in self.by_vchannel.pop(name, set()):
            scope.live = False
            self._unlink(scope)

    def _unlink(self, scope: Scope) -> None:
        del self.by_names[scope.names]
        for name in scope.names:
            scopes = self.by_vchannel.get(name)
            if scopes is not None:
                scopes.discard(scope)
                if not scopes:
                    del self.by_vchannel[name]
