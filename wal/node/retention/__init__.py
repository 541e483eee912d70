"""Retention: drops the beginning of a log that grows too large or too old, as far as its pins allow.

`policy.py` is a pure table: given extents, bounds, time and pins it decides what may be dropped. `keeper.py` executes that, and every other
truncation. `wall_time.py` uses the table in `clock_watch.py` to decide whether the clock can be trusted. `report.py` is the answer of
`log.retention()`.
"""
