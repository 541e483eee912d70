"""Retention: drops parts of a log that grows too large or too old, unless they are still needed.

Files:

* policy:  what may be dropped, given extents, bounds, time and pins; whether the wall clock can be trusted. Pure
* keeper:  RetentionKeeper: its turns, and every truncation
* report:  the answer of `log.retention()`"""
