"""Expected last events as callers give them (`expected_last`), and what a conflict with one means.

An event is a plain message, a transaction or a copy of a broadcast. The ids of a transaction's bodies name no event: the conflict with
one is explained, since a caller that uses them would never succeed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from wal.engine import NOT_EXPECTED
from wal.errors import ConflictError, InvalidArgumentError, WALError
from wal.message import MessageID

if TYPE_CHECKING:
    from wal.engine import ReadableEngine

__all__ = ["UNCHECKED", "ExpectedLast", "Unchecked", "check_expected_last", "expected_by_name", "explained"]


class Unchecked(enum.Enum):
    """The default of `expected_last`: the append does not depend on what the last event is."""

    UNCHECKED = "not checked"


UNCHECKED: Final = Unchecked.UNCHECKED
ExpectedLast = MessageID | None | Mapping[str, MessageID | None] | Unchecked
"""The last event of the only vchannel of a transaction (None: it never had one), or those of some of its vchannels by name."""


def check_expected_last(expected: object) -> MessageID | None:
    """Returns the event that is expected as the last one. Raises TypeError for anything but a MessageID or None."""
    if expected is None or isinstance(expected, MessageID):
        return expected
    raise TypeError(
        f"expected_last must be a MessageID, or None for a vchannel that never had an event, not {expected!r}"
    )


def expected_by_name(names: tuple[str, ...], expected: ExpectedLast) -> Mapping[str, MessageID | None]:
    """Returns the expected last events of a transaction over these vchannels, by name.

    Raises TypeError for a wrong type; InvalidArgumentError for a name that is not one of them, and for one id if they are several.
    """
    if expected is UNCHECKED:
        return NOT_EXPECTED
    if not isinstance(expected, Mapping):
        last = check_expected_last(expected)
        if len(names) > 1:
            raise InvalidArgumentError(
                f"expected_last={expected} does not say which of the vchannels {', '.join(map(repr, names))} it is about: pass a "
                "mapping from the names to the ids"
            )
        return {names[0]: last}
    for name in expected:
        if name not in names:
            raise InvalidArgumentError(
                f"expected_last names the vchannel {name!r}, which is not in the transaction: it is over {', '.join(map(repr, names))}"
            )
    return {name: check_expected_last(last) for name, last in expected.items()}


async def explained(
    engine: ReadableEngine, conflict: ConflictError, expected: Mapping[str, MessageID | None]
) -> WALError:
    """Returns the error to raise for a conflict: an InvalidArgumentError if the expected id is that of a body of the last transaction."""
    body, last = expected.get(conflict.vchannel), conflict.last
    if body is None or last is None or body.position != last.position or body.index >= last.index:
        return conflict
    try:
        pchannel, _, _ = await engine.attach((conflict.vchannel,))
        event = await pchannel.event_of(body)
    except WALError:
        return conflict  # it is truncated, or cannot be read now
    if event is None or event == body:
        return conflict
    error = InvalidArgumentError(
        f"expected_last={body} is the id of a body of the transaction {event}: pass the id of the transaction, which its message and the "
        "result of its commit have"
    )
    error.__cause__ = conflict
    return error
