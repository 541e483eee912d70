"""RocksMQSubscription: a consumer group of one channel, as the streams of this process share it. Pure.

RocksMQ keeps one position for a group, and streams acknowledge in any order. So the subscription knows all messages that were delivered to
any of its consumers, and moves the position to below the first one that is not handled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, MutableMapping, Sequence
from weakref import WeakKeyDictionary

from wal.errors import LockedError
from wal.rocksmq import RocksMQ

__all__ = ["RocksMQSubscription", "join"]


class RocksMQSubscription:
    """Who consumes the group, and which of its messages are delivered and not handled."""

    def __init__(self) -> None:
        self.consumers: int = 0
        self.exclusive: bool = False
        self._delivered: deque[int] = deque()  # ascending, from the first message on that is not handled
        self._handled: set[int] = set()

    def delivered(self, message_ids: Iterable[int]) -> None:
        """Notes that these messages were handed to a consumer; those that were given back by an earlier one are known."""
        delivered = self._delivered
        for message_id in message_ids:
            if not delivered or message_id > delivered[-1]:
                delivered.append(message_id)
            elif delivered[at := bisect_left(delivered, message_id)] != message_id:
                delivered.insert(at, message_id)

    def handled(self, message_ids: Sequence[int]) -> int | None:
        """Notes that these messages are handled, and returns the id that the group has now consumed everything up to; None if it did not
        move."""
        delivered, handled = self._delivered, self._handled
        last = None
        for message_id in message_ids:
            if delivered and delivered[0] == message_id:  # the usual case: in order
                last = delivered.popleft()
            else:
                handled.add(message_id)
        while handled and delivered and delivered[0] in handled:
            last = delivered.popleft()
            handled.discard(last)
        return last

    def moved(self) -> None:
        """Forgets what was delivered, because the group was moved by a seek."""
        self._delivered.clear()
        self._handled.clear()


def join(mq: RocksMQ, channel: str, group: str, *, exclusive: bool) -> RocksMQSubscription:
    """Returns the subscription with one more consumer.

    Raises LockedError if this one, or one that is there, excludes others.
    """
    of_mq = _subscriptions.setdefault(mq, {})
    found = of_mq.get((channel, group))
    if found is None or not found.consumers:
        found = of_mq[channel, group] = RocksMQSubscription()
    elif exclusive or found.exclusive:
        raise LockedError(
            f"subscription {group!r} of channel {channel!r} is open in {found.consumers} streams of this process, and a time-ticked stream "
            "reads alone: close the other streams, or subscribe under another name"
        )
    found.consumers += 1
    found.exclusive = exclusive
    return found


_subscriptions: MutableMapping[RocksMQ, dict[tuple[str, str], RocksMQSubscription]] = WeakKeyDictionary()
