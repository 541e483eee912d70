"""Retention: what of a log is dropped when it grows too large or too old, and what holds it back.

Files:

* policy:  what may be dropped, given extents, bounds, time and pins; whether the wall clock can be believed. Pure
* keeper:  RetentionKeeper: its turns, and every truncation
* report:  what `log.retention()` answers"""

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
