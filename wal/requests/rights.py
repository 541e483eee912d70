"""Rights: the rights of a call's token, and the caller's rights and client in the context of a served call.

Code that no server has called, such as a log that is used in its own process, has all rights and no client.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final


class Right(enum.Enum):
    """A right of a token. No right includes another."""

    READ = "read"
    """Everything that changes no event: reads, cursors of readers, lists, statistics."""
    WRITE = "write"
    """Appends, transactions, consumers and their cursors, broadcasts and their acks, scheduled messages, and the creation of vchannels."""
    ADMIN = "admin"
    """Calls that take from others: truncate, drop, abort a broadcast, delete cursors, forget producers, drain nodes, pause moves."""
    SERVER = "server"
    """Calls between the servers of a cluster, for the one token that they share."""


ALL_RIGHTS: Final = frozenset(Right)

_demand: ContextVar[Callable[[Right, str], None] | None] = ContextVar("check of the caller's rights", default=None)


_client: ContextVar[str | None] = ContextVar("client of the call", default=None)


@contextlib.contextmanager
def calling_from(client: str) -> Iterator[None]:
    """A block that serves a call of this client: the text that identifies its connection on the server."""
    before = _client.set(client)
    try:
        yield
    finally:
        _client.reset(before)


def calling_client() -> str:
    """Returns the client whose call is being served; empty if the call names none, or comes from this process."""
    return _client.get() or ""


def is_served() -> bool:
    """Returns whether a call over the network is being served, also one that names no client."""
    return _client.get() is not None


@contextlib.contextmanager
def calling_with(demand: Callable[[Right, str], None]) -> Iterator[None]:
    """A block that serves a call. `demand` is called by `check_right`, and raises AuthenticationError for a right that is missing."""
    before = _demand.set(demand)
    try:
        yield
    finally:
        _demand.reset(before)


def check_right(right: Right, what: str) -> None:
    """Raises AuthenticationError unless the token of the call that is being served has this right. `what` is what needs it."""
    if (demand := _demand.get()) is not None:
        demand(right, what)
