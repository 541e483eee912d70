"""Tokens that a server takes, each with a name and rights, and the right that each method of the protocol needs.

A token file has a token a line. `NAME RIGHTS TOKEN` is a token with a name, which log lines show, and some of the rights, separated by
commas; any other line is a token with all of them. Empty lines, and those that begin with `# `, are left out.

    # the service that writes
    shop   read,write  4f9d…
    report read        a71c…
    b30e…
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

import msgspec

from wal.errors import AuthenticationError, InvalidArgumentError
from wal.rpc.headers import token_header
from wal.rpc.methods import (
    ABORT_BROADCAST,
    ACK_BROADCAST,
    ALLOCATE_IDS,
    ALLOCATE_TIME_TICKS,
    APPEND_BROADCAST,
    ASSIGN,
    AWAIT_RESOURCE_KEY,
    CREATE_CHANNELS,
    CREATE_VCHANNEL,
    DELETE_CURSORS,
    DESTORY_CHANNELS,
    DROP_VCHANNEL,
    FORGET_PRODUCER,
    PRODUCE,
    REMOVE,
    TRUNCATE,
)
from wal.secret import Secret

__all__ = ["ALL_RIGHTS", "Right", "Token", "calling_with", "check_right", "right_for", "tokens_in"]


class Right(enum.Enum):
    """What a token allows. None of them includes another one."""

    READ = "read"
    """Everything that changes no event: reads, cursors, lists, statistics."""
    WRITE = "write"
    """Appends, transactions, broadcasts and their acks, and the creation of vchannels."""
    ADMIN = "admin"
    """What takes something from others: truncate, drop, abort a broadcast, delete cursors, forget producers."""


ALL_RIGHTS: Final = frozenset(Right)

_WRITES: Final = (
    PRODUCE, APPEND_BROADCAST, ACK_BROADCAST, AWAIT_RESOURCE_KEY, CREATE_VCHANNEL, CREATE_CHANNELS, ALLOCATE_IDS, ALLOCATE_TIME_TICKS,
)  # fmt: skip
_ADMINISTERS: Final = (
    TRUNCATE, DROP_VCHANNEL, DESTORY_CHANNELS, ABORT_BROADCAST, DELETE_CURSORS, FORGET_PRODUCER, ASSIGN, REMOVE,
)  # fmt: skip
_RIGHTS: Final = {method.path: Right.WRITE for method in _WRITES} | {
    method.path: Right.ADMIN for method in _ADMINISTERS
}
_NAMED: Final = re.compile(
    r"(?P<name>\S+)\s+(?P<rights>(?:read|write|admin)(?:,(?:read|write|admin))*)\s+(?P<token>\S+)"
)


class Token(msgspec.Struct, frozen=True):
    """A token that clients may show. `name` is what log lines call it; it is empty for a token that has none."""

    secret: Secret
    name: str = ""
    rights: frozenset[Right] = ALL_RIGHTS

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for a token that no client can send."""
        token_header(self.secret)


def right_for(path: str) -> Right:
    """Returns the right that the method with this path needs. LocateVChannels checks itself if it is to create."""
    return _RIGHTS.get(path, Right.READ)


def tokens_in(text: str) -> list[Token]:
    """Returns the tokens of a token file.

    Raises InvalidArgumentError for one that no client can send, and for a name that is there twice.
    """
    tokens: list[Token] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        found = _NAMED.fullmatch(line.strip())
        if found is None:
            tokens.append(Token(Secret(line)))
            continue
        if any(token.name == found["name"] for token in tokens):
            raise InvalidArgumentError(f"the name {found['name']!r} is there twice: give each token a name of its own")
        rights = frozenset(map(Right, found["rights"].split(",")))
        tokens.append(Token(Secret(found["token"]), found["name"], rights))
    return tokens


_calling: ContextVar[frozenset[Right]] = ContextVar("rights of the caller", default=ALL_RIGHTS)


@contextlib.contextmanager
def calling_with(token: Token) -> Iterator[None]:
    """A block in which `check_right` is about this token."""
    before = _calling.set(token.rights)
    try:
        yield
    finally:
        _calling.reset(before)


def check_right(right: Right, what: str) -> None:
    """Raises AuthenticationError unless the token of the call that is being served has this right. `what` is what needs it."""
    if right not in _calling.get():
        raise lacking(right, what)


def lacking(right: Right, what: str) -> AuthenticationError:
    """Returns the error of a call whose token has not this right."""
    return AuthenticationError(
        f"the token of this call has no right to {what}, which needs {right.value!r}: use a token that has it, or have it added in the "
        "server's token file"
    )
