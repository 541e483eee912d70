"""Retention: what of a log is dropped when it grows too large or too old, and who holds it back.

Files:

* Pure: policy, clock_watch; keeper (its turns, every truncation), report
"""

from wal.retention.clock_watch import DRIFT_MAX_S, ClockWatch
from wal.retention.keeper import RetentionKeeper
from wal.retention.policy import Pin, Plan, RetentionBounds, over_bound, pins_of, pins_of_broadcasts, plan
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
