"""Retention: what is dropped of a log that grows too large or too old, and what holds it.

`policy.py` is a pure table: given extents, bounds, time and pins it says what may go. `keeper.py` carries that out, and every other
truncation; `wall_time.py` asks the table in `clock_watch.py` how far the clock can be trusted. `report.py` is the answer of
`log.retention()`.
"""
