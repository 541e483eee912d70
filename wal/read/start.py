"""The start of a read: its first page, its first event, and which events of the first frames belong to the read. Pure.

Pages begin at a frame and reads at an event. The start follows from the deliver policy, from the position that is resumed, or from a
cursor.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, ImmutableTxnMessage, LogPosition, MessageID, Origin
from wal.read.assembly import MessagePage
from wal.read.options import Latest, Reached, ReadOptions, StartAfter, StartFrom
from wal.storage.base import TailView


class ReadStart(msgspec.Struct, frozen=True, gc=False):
    """Where a read begins: its first page at `at`, its first event at the log position `first`.

    If there is an event `after`, the read begins after it. `reached` is the read's progress before it hands anything over.
    """

    at: int
    first: LogPosition
    after: LogPosition | None = None
    reached: Reached = Reached()

    def skip(self, position: int, page: MessagePage) -> list[ImmutableMessage]:
        """Returns the messages of the frame at `position` that belong to the read."""
        messages = page.build()
        if position == self.first[0]:
            first = self.first[1]
            messages = [message for message in messages if message._index >= first]
        if self.after is not None and position == self.after[0]:
            last = self.after[1]
            messages = [message for message in messages if _first_index(message) > last]
        return messages

    def first_index(self, position: int) -> int | None:
        """Returns the index from which the events of the frame at `position` belong to the read.

        Returns None if no index can tell: the read begins after a body or an event of this frame, so `skip` has to check each message.
        """
        if self.after is not None and position == self.after[0]:
            return None
        return self.first[1] if position == self.first[0] else 0

    def is_passed(self, position: int) -> bool:
        """Returns whether all events of the frames after the one at `position` belong to the read."""
        return position >= self.first[0] and (self.after is None or position >= self.after[0])


def read_start(
    options: ReadOptions,
    log: Origin,
    tail: TailView,
    earliest: LogPosition,
    *,
    after: MessageID | None,
    last_truncated: Callable[[], LogPosition | None],
) -> ReadStart | MessageID:
    """Returns where a read with these `options` begins, or the id to begin at if that has been truncated.

    The parameters are those of `Progress.begin`. Raises InvalidArgumentError for an id of another log, or above the durable end.
    """
    policy, tick = options.policy, 0
    if options.resume is not None:
        policy, tick = StartAfter(options.resume.message_id), options.resume.time_tick
    if after is not None and isinstance(policy, StartAfter):
        policy = StartAfter(after)
    if isinstance(policy, StartFrom | StartAfter):
        event = _checked(policy.message_id, options, log, tail)
        inclusive = isinstance(policy, StartFrom)
        # Starting after the last truncated event loses nothing: everything after it still exists.
        if event < earliest and (inclusive or event not in ((earliest[0], earliest[1] - 1), last_truncated())):
            return policy.message_id
        at = max(event[0], earliest[0])
        if inclusive:
            first = max(event, earliest)
            return ReadStart(at, first, reached=Reached(None, tick, first))
        following = max((event[0], event[1] + 1), earliest)
        return ReadStart(at, earliest, event, Reached(event, tick, following))
    if isinstance(policy, Latest):
        end = tail.durable_end
        return ReadStart(end, earliest, reached=Reached(tail.newest, tail.promised_tick, max((end, 0), earliest)))
    return ReadStart(earliest[0], earliest, reached=Reached(None, tick, earliest))


def resumed_start(options: ReadOptions, log: Origin, earliest: LogPosition, at: LogPosition) -> ReadStart | MessageID:
    """Returns the start of a read that a cursor resumes at the log position `at`, or the id there if it has been truncated."""
    if at < earliest:
        return msgspec.structs.replace(log, position=at[0]).message_id(at[1])
    position = options.resume
    if position is None:
        return ReadStart(at[0], at, reached=Reached(None, 0, at))
    # The position may name a body, whose transaction ends at or above `at`: the read begins after it, as StartAfter does.
    event = (position.message_id.position, position.message_id.index)
    return ReadStart(at[0], at, event, Reached(event, position.time_tick, at))


def _checked(message_id: MessageID, options: ReadOptions, log: Origin, tail: TailView) -> LogPosition:
    """Returns the log position of an id, after checking that the id belongs to this log."""
    if not message_id.same_log(log.message_id(0)):
        raise InvalidArgumentError(
            f"message id {message_id} belongs to another pchannel, or to another incarnation of it, than {options.vchannels[0]!r} "
            f"lies on ({log.pchannel}:{log.incarnation:x}): use an id that was read from this vchannel"
        )
    if message_id.position >= tail.durable_end:
        raise InvalidArgumentError(
            f"message id {message_id} is above the durable end {tail.durable_end} of pchannel {log.pchannel}: "
            "use the id of a message that was appended"
        )
    return (message_id.position, message_id.index)


def _first_index(message: ImmutableMessage) -> int:
    return message._first_index if isinstance(message, ImmutableTxnMessage) else message._index
