"""Consumers: handlers that run on the messages of a log, with attempts, order, dead letters and a position that is saved with their output.

`consumer.py` is what callers hold: it starts, ends, and begins again with the cursor when another process had it. `session.py` is one claim
of the cursor: it reads, hands out, and commits what ended; `handlers.py` runs the handlers. `table.py` decides which bodies may run, over
all bodies in order (`sequence.py`, and `stretch.py` while nothing fails) and what is saved of them (`state.py`); these are pure.
`outputs.py` says where an output is appended, and what a dead letter looks like; `delivery.py` is one body as a handler gets it;
`options.py` and `plan.py` are the options.
"""
