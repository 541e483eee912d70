"""Retention: drops parts of a log that grows too large or too old, unless they are still needed.

Files:

* policy:  what may be dropped, given extents, bounds, time and pins; whether the wall clock can be trusted. Pure
* keeper:  RetentionKeeper: its turns, and every truncation
* report:  the answer of `log.retention()`"""

from wal.retention.keeper import RetentionKeeper
from wal.retention.policy import (
    DRIFT_MAX_S,
    ClockWatch,
    Pin,
    Plan,
    RetentionBounds,
    over_bound,
    pins_of,
    pins_of_broadcasts,
    plan,
)
from wal.retention.report import PChannelRetention, RetentionHolder, report_of

__all__ = [
    "DRIFT_MAX_S",
    "ClockWatch",
    "PChannelRetention",
    "Pin",
    "Plan",
    "RetentionBounds",
    "RetentionHolder",
    "RetentionKeeper",
    "over_bound",
    "pins_of",
    "pins_of_broadcasts",
    "plan",
    "report_of",
]
