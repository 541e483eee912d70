"""Plan: the options of a consumer that its table needs, and the outcomes of attempts. Pure.

Owns the number of bodies that are handed out at once, in all and of one lane, and the pause after a failed attempt.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from wal.consumers.delivery import Delivery

PENDING_MAX: Final = 65_536
"""The maximum number of bodies after the position that a consumer remembers."""
PAGE: Final = 2048
"""The number of bodies that are handed out at once, for one handler that takes them one by one."""
PAGE_MAX: Final = 8192
LANES_IN_PAGE: Final = 4
"""A page holds LANES_IN_PAGE lanes per handler, so slow lanes cannot fill it."""
DIED: Final = "the process ended while this message alone was handled, and it has no attempt left"
"""The reason of a dead letter for a message whose last attempt died with its process."""


class ConsumerPlan(msgspec.Struct, frozen=True):
    """The options of a consumer that its table needs; `blocks` is on_failure="block"."""

    concurrency: int = 1
    order: Literal["vchannel", "key", "none"] = "vchannel"
    batch: int = 1
    attempts: int = 5
    backoff_s: tuple[float, float] = (0.1, 30.0)
    blocks: bool = True
    pending_max: int = PENDING_MAX

    @property
    def page(self) -> int:
        """The maximum number of bodies that are handed out at once. After a death its groups can be retried in about a second."""
        return min(PAGE_MAX, max(PAGE, 64 * self.concurrency * self.batch))

    @property
    def lane_quota(self) -> int:
        """The maximum number of bodies of one lane that are handed out at once."""
        if self.order == "vchannel":
            return self.page
        return max(self.batch, self.page // max(16, LANES_IN_PAGE * self.concurrency))

    def pause_s(self, failures: int) -> float:
        """Returns the pause after that many failed attempts: it doubles from the first value of `backoff_s` up to the second."""
        first, longest = self.backoff_s
        return float(min(longest, first * 2.0 ** min(failures - 1, 64)))


class Failed(msgspec.Struct, frozen=True):
    """A failed attempt. It is repeated after `delay_s` (None: the backoff) unless it was the last one, or it `ends` the consumer."""

    reason: str
    delay_s: float | None = None
    ends: bool = False


class Rejected(msgspec.Struct, frozen=True):
    """A rejected message, which becomes a dead letter at once; with `undecodable` its payload was not of the consumer's type."""

    reason: str
    undecodable: bool = False


class Released(msgspec.Struct, frozen=True):
    """An attempt that was abandoned without an outcome: it does not count, and the body is redelivered."""


RELEASED: Final = Released()
Outcome: TypeAlias = Failed | Rejected | Released | None
"""The outcome of an attempt; None: the body is handled."""


class Dead(msgspec.Struct, frozen=True):
    """A delivery without further attempts, after `attempts` of them."""

    delivery: Delivery
    attempts: int
    reason: str
